"""The stages behind `etymon pretrain`: text, tokenizer, store, model, training, report."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from etymon.checkpoints.documents import read_json, write_json
from etymon.checkpoints.folder import ensure_replaceable
from etymon.config import load_yaml, parse_duration, strict
from etymon.data.sources import TextSource
from etymon.data.store import TokenStore, ensure_store
from etymon.data.tokenizer import Tokenizer
from etymon.data.tokenizer_training import train_tokenizer
from etymon.errors import EtymonError
from etymon.families import get_family
from etymon.families.family import Family
from etymon.families.loading import build, load, save, shape_of
from etymon.families.model import Model
from etymon.files import atomic_write
from etymon.objectives import get_objective, objective_class
from etymon.objectives.objective import Objective, check_fit
from etymon.training.feeding import Feed, validation_slices
from etymon.training.loop import Trainer, TrainingSettings, evaluate
from etymon.training.progress import Kind, Progress
from etymon.training.progress import progress as make_progress
from etymon.training.runs import Run, TrainingState, read_state
from etymon.training.unit import TrainingUnit
from etymon.verbs.pretrain import Pretrained
from etymon.verbs.run_report import sample_text, write_run_report

TOKENS_A_STEP = 4096
VALIDATION_SAMPLES = 512
VALIDATIONS = 10
OWN = {"checkpoints", "metrics.jsonl", "model", "report.html", "run.yaml", "store", "tokenizer"}
"""What a run's folder holds."""


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class RunFile:
    """What was asked for. `training` is what it came to, fixed before the first step so that a resumed run is exact."""

    family: str
    size: str = "pocket"
    data: tuple[str, ...] = ()
    text: str | None = None
    """What the text is, in words."""
    documents: Literal["file", "blank", "line"] = "file"
    column: str = "text"
    validation: float = 0.05
    objective: str | None = None
    length: int | None = None
    batch: int | None = None
    slices: int = 1
    learning_rate: float | None = None
    tokenizer: str | None = None
    vocabulary: int | None = None
    budget: str | None = None
    steps: int | None = None
    validate_every: int | None = None
    save_every: int | None = None
    seed: int = 0
    training: TrainingSettings | None = None

    @staticmethod
    def checked(given: dict[str, Any]) -> RunFile:
        file = strict(RunFile, given, "the run's settings")
        for name in ("steps", "batch", "slices", "length", "vocabulary", "validate_every", "save_every"):
            value = getattr(file, name)
            if value is not None and value < 1:
                raise EtymonError(f"{name} must be at least 1, not {value}")
        if file.learning_rate is not None and not file.learning_rate > 0:
            raise EtymonError(f"the learning rate must be above 0, not {file.learning_rate:g}")
        if not 0 <= file.validation < 1:
            raise EtymonError(
                f"validation is a share of the text, from 0 to below 1, not {file.validation:g}"
            )
        if not -(2**63) <= file.seed < 2**63:
            raise EtymonError(f"the seed must fit into 64 bits, and {file.seed} does not")
        if file.steps is not None and file.budget is not None:
            raise EtymonError("give steps or a budget, not both")
        if file.budget is not None:
            parse_duration(file.budget)
        if file.batch is not None and file.batch % file.slices:
            raise EtymonError(
                f"a batch of {file.batch} samples cannot be cut into {file.slices} equal slices"
            )
        if file.tokenizer is not None and file.vocabulary is not None:
            raise EtymonError("give a tokenizer or the size of a vocabulary to train, not both")
        return file


class Pretraining:
    """One run, stage by stage. A resumed one needs nothing but its folder, which keeps tokenizer and text."""

    def __init__(
        self,
        folder: Path,
        file: RunFile,
        source: TextSource | None,
        progress: Kind = "auto",
        resuming: bool = False,
    ) -> None:
        self.folder, self.file, self.source, self.resuming = folder, file, source, resuming
        self.family: Family = get_family(file.family)
        shape = shape_of(self.family, file.size)
        self.vocabulary = file.vocabulary or int(shape.vocabulary)
        self.positions: int | None = getattr(shape, "positions", None)
        self.length = file.length or min(self.positions or 256, 256)
        if self.positions is not None and self.length > self.positions:
            raise EtymonError(
                f"samples of {self.length} tokens do not fit {self.family.title} {file.size}, "
                f"which has {self.positions} positions"
            )
        self.objective_name = file.objective or self.family.objective
        check_fit(objective_class(self.objective_name), self.family)
        if not resuming:
            require_free(folder)
        ensure_replaceable(folder / "model")
        self.checkpoint = Run(folder).latest() if resuming else None
        self.progress: Progress = make_progress(progress)
        self.samples: list[tuple[int, str]] = []

    @staticmethod
    def resumed(folder: Path, asked: RunFile, source: TextSource | None, progress: Kind) -> Pretraining:
        """The run in a folder; `asked` may say again what it began with, but nothing else."""
        if not (folder / "run.yaml").is_file():
            raise EtymonError(f"there is no run in {folder} to resume: it has no run.yaml")
        file = load_yaml(folder / "run.yaml", RunFile)
        if get_family(file.family) is not get_family(asked.family):
            raise EtymonError(f"the run in {folder} trains {file.family}, not {asked.family}")
        usual = RunFile(family=file.family)
        for name in (field.name for field in fields(RunFile) if field.name != "family"):
            now, then = getattr(asked, name), getattr(file, name)
            if now not in (getattr(usual, name), then):
                raise EtymonError(
                    f"the run in {folder} began with {name} {_shown(then)}, not {_shown(now)}: it goes on as it "
                    "began; leave that out, or give another --out for a new run"
                )
        run = Pretraining(folder, file, source, progress, resuming=True)
        if run.checkpoint is None:
            run.progress.note("there is no whole checkpoint yet: starting from step 0")
        return run

    def go(self) -> Pretrained:
        tokenizer = self._tokenizer()
        objective = get_objective(self.objective_name, tokenizer, self.length)
        store = self._store(tokenizer)
        model, state, optimiser_state = self._model(tokenizer, objective)
        unit = TrainingUnit(model, objective)
        run = Run(self.folder)
        rows = self._rows()
        feed = Feed(objective, store.train, self.file.seed, slices=self.file.slices, rows=rows)
        slices = validation_slices(
            objective, store.validation, self.file.seed, rows=rows, most=VALIDATION_SAMPLES
        )
        if not slices:
            self.progress.note("no text is held out: only the training loss will tell how good the model is")

        def validate(step: int) -> dict[str, Any]:
            if not slices:
                return {}
            figures = evaluate(unit, slices)
            if text := sample_text(model, self.file.seed):
                self.samples.append((step, text))
                run.log({"step": step, "sample": text})
            return figures

        def trainer(settings: TrainingSettings) -> Trainer:
            return Trainer(
                unit, feed, settings, run,
                validate=validate,
                save_model=lambda folder: save(model, folder, history=self._history(settings, {})),
                progress=self.progress, state=state, optimiser_state=optimiser_state,
            )  # fmt: skip

        settings = self.file.training or self._settings(trainer, rows)
        # Measuring and an earlier attempt leave nothing behind, and a resumed run repeats what came after.
        run.forget_after(state.step if self.checkpoint is not None else -1)
        self.samples = [(record["step"], record["sample"]) for record in run.metrics() if "sample" in record]
        if not self.resuming:
            self._write(settings)
        title = f"{self.family.title} {self.file.size}, {model.parameter_count():,} parameters"
        result = trainer(settings).train(title)
        model.eval()
        model.history = self._history(settings, result.metrics)
        save(model, self.folder / "model")
        report = write_run_report(
            self.folder / "report.html", model, store, run, self.samples, yardstick=not result.stopped
        )
        return Pretrained(
            self.folder, self.folder / "model", report, model, result.metrics, result.state.step, result.stopped,
            f"etymon pretrain {self.family.name} --out {shlex.quote(str(self.folder))} --resume", self.samples,
        )  # fmt: skip

    # --- the stages

    @property
    def _text(self) -> TextSource:
        assert self.source is not None, "only a resumed run does without its text"
        return self.source

    @cached_property
    def _fingerprint(self) -> str:
        return self._text.fingerprint()

    def _tokenizer(self) -> Tokenizer:
        own = self.folder / "tokenizer"
        if self.resuming:
            tokenizer = Tokenizer.load(own)
        elif self.file.tokenizer is not None:
            tokenizer = Tokenizer.load(self.file.tokenizer)
        else:
            tokenizer = self._trained_tokenizer(own)
        tokenizer.framing = self.family.framing
        if self.file.tokenizer is not None and not self.resuming:
            (own / "origin.json").unlink(missing_ok=True)
            tokenizer.save(own)  # the run keeps its own: the given one may be gone when it goes on
        return tokenizer

    def _trained_tokenizer(self, own: Path) -> Tokenizer:
        """The tokenizer that this text gives; one that an earlier attempt left is used if it came about alike."""
        choice, size = self.family.tokenizer, self.vocabulary
        origin = {"text": self._fingerprint, "size": size, **_plain(asdict(choice))}
        if (own / "origin.json").is_file() and read_json(own / "origin.json") == origin:
            return Tokenizer.load(own)
        self.progress.note(f"training a tokenizer of {size:,} tokens on the text")
        tokenizer = train_tokenizer(
            choice.kind,
            (document.text for document in self._text.documents()),
            size,
            lowercase=choice.lowercase,
            strip_accents=choice.strip_accents,
            specials=choice.specials,
            sentinels=choice.sentinels,
            framing=self.family.framing,
        )
        (own / "origin.json").unlink(missing_ok=True)
        tokenizer.save(own)
        write_json(own / "origin.json", origin)
        return tokenizer

    def _store(self, tokenizer: Tokenizer) -> TokenStore:
        folder = self.folder / "store"
        if self.resuming:
            store = TokenStore.open(folder, tokenizer)
            if self.source is not None and self._fingerprint != store.description["source"]:
                raise EtymonError(
                    f"the text is not the one that the run in {folder.parent} began with: leave it out"
                )
            return store
        summary = ensure_store(
            self._text.documents(),
            self._fingerprint,
            tokenizer,
            folder,
            validation=self.file.validation,
            seed=self.file.seed,
        )
        self.progress.note(
            f"{summary.train.tokens:,} tokens to train on, {summary.validation.tokens:,} to judge by"
        )
        return TokenStore.open(folder, tokenizer)

    def _model(self, tokenizer: Tokenizer, objective: Objective) -> tuple[Model, TrainingState, Any]:
        if self.checkpoint is not None:
            model = load(self.checkpoint / "model")
            state, optimiser_state = read_state(self.checkpoint)
            return model, state, optimiser_state
        model = build(
            self.family,
            self.file.size,
            heads=objective.heads,
            seed=self.file.seed,
            shape={"vocabulary": tokenizer.size},
        )
        model.tokenizer = tokenizer
        return model, TrainingState(), None

    def _rows(self) -> int:
        """Samples a slice."""
        if self.file.training is not None:
            return self.file.training.rows
        batch = self.file.batch
        if batch is None:
            batch = max(1, TOKENS_A_STEP // self.length)
            batch = max(self.file.slices, batch - batch % self.file.slices)
        return batch // self.file.slices

    def _settings(self, trainer: Callable[[TrainingSettings], Trainer], rows: int) -> TrainingSettings:
        """The family's recipe for as many steps as were asked for, or as fit into the budget by measurement."""
        recipe, file = self.family.recipe_for(self.file.size), self.file
        steps, validations = file.steps, VALIDATIONS
        if steps is None:
            assert file.budget is not None
            self.progress.note("measuring how long a step takes")
            budget = parse_duration(file.budget)
            probe = trainer(TrainingSettings(steps=1, rows=rows, slices=file.slices, seed=file.seed))
            each = probe.seconds_per_step(min(4.0, budget / 10))
            begin = time.perf_counter()
            probe.validate(0)
            validation = time.perf_counter() - begin
            steps, validations = steps_within(budget, each, validation, file.validate_every)
            self.progress.note(f"{each * 1000:.0f} ms a step, so {file.budget} is enough for {steps:,}")
        return TrainingSettings(
            steps=steps,
            rows=rows,
            slices=file.slices,
            learning_rate=file.learning_rate or recipe.learning_rate,
            betas=recipe.betas,
            epsilon=recipe.epsilon,
            weight_decay=recipe.weight_decay,
            undecayed=tuple(recipe.undecayed),
            clip=recipe.clip,
            schedule=recipe.schedule,
            warmup=max(1, round(recipe.warmup * steps)),
            final=recipe.final,
            seed=file.seed,
            validate_every=file.validate_every or max(1, -(-steps // validations)),
            save_every=file.save_every or max(1, -(-steps // 4)),
        )

    def _write(self, settings: TrainingSettings) -> None:
        resolved = replace(
            self.file,
            training=settings,
            length=self.length,
            objective=self.objective_name,
            text=self._text.description,
        )
        with atomic_write(self.folder / "run.yaml") as file:
            yaml.safe_dump(_plain(asdict(resolved)), file, sort_keys=False, allow_unicode=True)

    def _history(self, settings: TrainingSettings, metrics: dict[str, float]) -> list[dict[str, Any]]:
        return [
            {
                "objective": self.objective_name,
                "data": self.file.text if self.resuming else self._text.description,
                "training": _plain(asdict(settings)),
                "metrics": metrics,
            }
        ]


def require_free(folder: Path) -> None:
    """Refuses a folder with a run, and one with anything that a run did not write: it would be in the way or be lost."""
    if (folder / "run.yaml").exists():
        raise EtymonError(f"{folder} holds a run already: go on with --resume, or give another --out")
    place = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not place.is_dir():
        raise EtymonError(f"{place} is a file, and the run needs a folder there: give another --out")
    if not os.access(place, os.W_OK):
        raise EtymonError(f"cannot write to {place}: give another --out")
    if place != folder:
        return
    foreign = {path.name for path in folder.iterdir() if not path.name.startswith(".")} - OWN
    if (folder / "store").exists() and not (folder / "store" / "store.json").is_file():
        foreign.add("store")
    if foreign:
        raise EtymonError(
            f"{folder} holds something else ({', '.join(sorted(foreign)[:5])}): give another --out"
        )


def steps_within(budget: float, step: float, validation: float, every: int | None) -> tuple[int, int]:
    """How many steps fit into a budget of seconds, and how many validations beside the one before the first step.

    Validating takes a tenth of the time at most, but for the two at the ends, or as often as was asked for.
    """
    if every is not None:
        steps = max(1, int((budget - 2 * validation) / (step + validation / every)))
        return steps, -(-steps // every)
    validations = VALIDATIONS if validation <= 0 else max(1, min(VALIDATIONS, int(budget / 10 / validation)))
    return max(1, int((budget - (validations + 1) * validation) / step)), validations


def _shown(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _plain(value: Any) -> Any:
    """Tuples as lists, so that YAML and JSON read back what was written."""
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return value
