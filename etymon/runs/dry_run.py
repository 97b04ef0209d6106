"""`etymon pretrain --dry-run`: everything is tried once, on the beginning of the text, and nothing is left behind."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from etymon.families.model import Model
from etymon.runs.data import RunText
from etymon.runs.members import save_members
from etymon.runs.pretraining import USUAL_BUDGET, Pretraining
from etymon.runs.running import TrainingRun
from etymon.runs.training_settings import VALIDATIONS, training_settings
from etymon.runs.validation import PhasePlan
from etymon.text.reading import Document
from etymon.text.sources import PreparedText, TextFiles, TextSource, text_source
from etymon.text.store import TokenStore
from etymon.text.tokenizer import Tokenizer
from etymon.training.budgets import Pace, mean_pace, parse_budget
from etymon.training.distributed import World
from etymon.training.feeding import Phase, Position, StepStream, validation_slices
from etymon.training.loop import Trainer
from etymon.training.progress import format_bytes, format_count, format_seconds, make_progress
from etymon.training.speed import memory_in_use
from etymon.training.state import RunFolder
from etymon.training.unit import TrainingUnit, evaluate

WHOLE, MOST = 16 << 20, 2 << 20
"""Bytes of files up to which all of a text is read, so that its tokens are those of the run; of larger ones, bytes of text that
are looked at."""


@dataclass
class Beginning:
    """A text, or the first documents of one in large files."""

    source: TextSource
    read: int = 0
    whole: bool = False
    used: tuple[int, int] = (0, 0)
    """Bytes of the files when all text in them had been given, and bytes of that text: files are read in blocks, ahead of it."""

    @property
    def description(self) -> str:
        return self.source.description

    def fingerprint(self) -> str:
        return "the beginning of a text"  # the real one would read all of it

    def documents(self) -> Iterator[Document]:
        self.read, self.whole, self.used, block = 0, False, (0, 0), 0
        large = isinstance(self.source, TextFiles) and (self.source.size() or 0) > WHOLE
        for document in self.source.documents():
            if (here := getattr(self.source, "bytes_read", 0)) != block:
                self.used, block = (block, self.read), here
            self.read += len(document.text.encode())
            last = large and self.read >= MOST
            yield replace(document, more=document.more and not last)
            if last:
                return
        self.whole = True

    def share(self) -> float:
        """How much of the text was read, as far as that can be told."""
        if self.whole or not isinstance(self.source, TextFiles) or not (size := self.source.size()):
            return 1.0
        packed, text = self.used if self.used[1] else (self.source.bytes_read, max(self.read, 1))
        return min(1.0, self.read / text * packed / size)


class RehearsedText(RunText):
    """The beginning of a run's text; a store that is there already is used as it is."""

    beginning: Beginning | None = None

    @property
    def _text(self) -> TextSource:
        assert self.source is not None
        self.beginning = self.beginning or Beginning(self.source)
        return self.beginning

    def phase_store(self, number: int, paths: tuple[str, ...], tokenizer: Tokenizer) -> TokenStore:
        source = text_source(paths, self.file.documents, self.file.column, self.file.errors)
        text = source if isinstance(source, PreparedText) else Beginning(source)
        return self._prepared(self.folder / f"store-{number}", text, tokenizer)

    def _prepared(self, folder: Path, text: TextSource, tokenizer: Tokenizer) -> TokenStore:
        if isinstance(self.source, PreparedText) and text is self.beginning:
            store = TokenStore.open(self.source.folder, tokenizer)
            store.verify()  # as the run will
            return store
        return super()._prepared(folder, text, tokenizer)


def rehearse(run: Pretraining, world: World) -> tuple[Model, dict[str, str]]:
    """The model, and what the run would do: after a step of every phase, a validation and a saved model."""
    target, run.folder = run.folder, Path()
    run.progress = make_progress("silent")
    with TemporaryDirectory(prefix="etymon-") as place:
        run.folder = Path(place)
        unit, phases = run.prepare(world, None, RehearsedText)
        model: Model = unit.model  # type: ignore[assignment]
        assert isinstance(run.text, RehearsedText)
        share = run.text.beginning.share() if run.text.beginning is not None else 1.0
        asked, steps, pace, each = tried(run, unit, phases, world, share)
        resident = memory_in_use(world.device)
        few = phases[-1].rows
        slices = validation_slices(
            phases[-1].objective, phases[-1].store.validation, run.file.seed, rows=few, most=few
        )
        if slices:
            evaluate(unit, slices)
        save_members(unit, run.member, Path(place), history=[])
        run.course(phases, steps, world)  # refuses phases that would get no step
    settings = training_settings(run.recipe, run.file, steps=steps, validations=VALIDATIONS)
    summary = phases[0].store.summary
    about = "about " if share < 1 else ""
    train, held = summary.train.tokens, summary.validation.tokens
    counts = f"{train:,} tokens to train on, {held:,} to judge by"
    if share < 1:  # of the beginning, too little may be held out to tell
        tokens = (train + held) / share
        held = round(run.file.validation * tokens)
        counts = f"{format_count(tokens - held)} tokens to train on, {format_count(held)} to judge by"
    timed = parse_budget(asked).unit == "seconds"
    optimiser, schedule = settings.optimiser, settings.schedule
    lines = {
        "model": f"{run.title}, {model.parameter_count():,} parameters",
        "text": f"{run.text.description}: {about}{counts}",
    }
    for number, phase in enumerate(phases, 1):
        name = "samples" if len(phases) == 1 else f"phase {number}"
        part = "" if len(phases) == 1 else f"{phase.share:.0%} of the steps, "
        lines[name] = (
            f"{part}{phase.objective.name}, {phase.rows * run.file.slices} a step of up to {phase.length} tokens"
        )
    return model, {
        **lines,
        "steps": f"{'about ' if timed else about}{steps:,} ({asked}), "
        f"about {format_count(steps * pace.tokens)} tokens",
        "learning rate": f"{optimiser.learning_rate:g} at its peak, {schedule.name}, "
        f"{schedule.warmup:,} steps of warm-up, {optimiser.name}",
        "memory": f"{run.memory_plan(model.shape).footprint(world.device)}; {format_bytes(resident)} after a step",
        "time": f"about {format_seconds(steps * each)}, {each * 1000:.0f} ms a step",
        "folder": str(target),
    }


def tried(
    run: TrainingRun[Any], unit: TrainingUnit, phases: list[PhasePlan], world: World, share: float = 1.0
) -> tuple[str, int, Pace, float]:
    """The budget, how many steps it is enough for, and what a step uses up, seconds at last; `share` of the text was read."""
    asked = run.file.budget or USUAL_BUDGET
    budget = parse_budget(asked)
    counted = unit if budget.unit == "flops" else None
    pace = mean_pace([(phase.share, phase.feed) for phase in phases], counted)
    pace = replace(pace, epochs=pace.epochs * share)
    settings = training_settings(run.recipe, run.file, steps=1, validations=VALIDATIONS)
    each = 0.0
    for phase in phases:
        course = StepStream([Phase(0, phase.feed)])
        trainer = Trainer(
            unit, course, settings, RunFolder(run.folder), progress=run.progress, world=world,
            validate=lambda step: {}, save_members=lambda folder: None,
        )  # fmt: skip
        for step in course.steps(0, Position(), 2):  # the second one counts: the first warms up
            begin = time.perf_counter()
            trainer.train_step(step, learning_rate=0.0)
            seconds = time.perf_counter() - begin
        each += phase.share * seconds
    steps = max(1, int(budget.amount / each)) if budget.unit == "seconds" else pace.steps(budget)
    return asked, steps, pace, each
