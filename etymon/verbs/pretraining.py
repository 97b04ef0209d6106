"""The stages behind `etymon pretrain`: text, tokenizer, store, model, training, report."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from etymon.config import parse_duration, strict
from etymon.data.sources import TextFiles, TextSource
from etymon.data.store import TokenStore, ensure_store
from etymon.data.tokenizer import Tokenizer
from etymon.data.tokenizer_training import train_tokenizer
from etymon.errors import EtymonError
from etymon.families import get_family
from etymon.families.family import Family
from etymon.families.loading import build, load, save
from etymon.families.model import Model
from etymon.files import atomic_write
from etymon.objectives import get_objective
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


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class RunFile:
    """What was asked for. `training` is what it came to, fixed before the first step so that a resumed run is exact."""

    family: str
    size: str = "pocket"
    data: tuple[str, ...] = ()
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
        for name in ("steps", "batch", "slices", "length", "validate_every", "save_every"):
            value = getattr(file, name)
            if value is not None and value < 1:
                raise EtymonError(f"{name} must be at least 1, not {value}")
        if file.budget is not None and parse_duration(file.budget) <= 0:
            raise EtymonError(f"a budget of {file.budget} leaves no time to train: give some, such as 10m")
        if file.batch is not None and file.batch % file.slices:
            raise EtymonError(f"a batch of {file.batch} samples cannot be cut into {file.slices} equal slices")
        return file


class Pretraining:
    """One run, stage by stage."""

    def __init__(
        self,
        folder: Path,
        file: RunFile,
        source: TextSource,
        progress: Kind = "auto",
        checkpoint: Path | None = None,
    ) -> None:
        self.folder, self.file, self.source, self.checkpoint = folder, file, source, checkpoint
        self.family: Family = get_family(file.family)
        if file.size not in self.family.sizes:
            build(self.family, file.size)  # refuses, with the sizes there are
        if checkpoint is None and (folder / "run.yaml").exists():
            raise EtymonError(f"{folder} holds a run already: go on with --resume, or give another --out")
        self.progress: Progress = make_progress(progress)
        self.samples: list[tuple[int, str]] = []

    @staticmethod
    def resumed(folder: Path, family: str, progress: Kind, source: TextSource | None = None) -> Pretraining:
        if not (folder / "run.yaml").is_file():
            raise EtymonError(f"there is no run in {folder} to resume: it has no run.yaml")
        fields = yaml.safe_load((folder / "run.yaml").read_text(encoding="utf-8"))
        file = strict(RunFile, fields, str(folder / "run.yaml"))
        if get_family(file.family) is not get_family(family):
            raise EtymonError(f"the run in {folder} trains {file.family}, not {family}")
        checkpoint = Run(folder).latest()
        if checkpoint is None:
            raise EtymonError(f"the run in {folder} has no whole checkpoint yet: remove it and start anew")
        if source is None:
            if not file.data:
                raise EtymonError(f"the run in {folder} was given its text by a program: give it again as `data`")
            source = TextFiles(file.data, file.documents, file.column)
        return Pretraining(folder, file, source, progress, checkpoint)

    def go(self) -> Pretrained:
        started = time.perf_counter()
        tokenizer = self._tokenizer()
        objective, length = self._objective(tokenizer)
        store = self._store(tokenizer)
        model, state, optimiser_state = self._model(tokenizer, objective)
        unit = TrainingUnit(model, objective)
        run = Run(self.folder)
        rows = self._rows(length)
        feed = Feed(objective, store.train, self.file.seed, slices=self.file.slices, rows=rows)
        slices = validation_slices(objective, store.validation, self.file.seed, rows=rows, most=VALIDATION_SAMPLES)

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
                save_model=lambda folder: save(model, folder, history=self._history(objective, settings, {})),
                progress=self.progress, state=state, optimiser_state=optimiser_state,
            )  # fmt: skip

        settings = self.file.training or self._settings(trainer, rows, feed)
        run.folder.mkdir(parents=True, exist_ok=True)
        if self.checkpoint is None:
            self._write(settings)
        else:
            run.forget_after(state.step)
            self.samples = [(r["step"], r["sample"]) for r in run.metrics() if "sample" in r]
        title = f"{self.family.title} {self.file.size}, {model.parameter_count():,} parameters"
        result = trainer(settings).train(title)
        model.eval()
        save(model, self.folder / "model", history=self._history(objective, settings, result.metrics))
        report = write_run_report(
            self.folder / "report.html", model, store, run, self.samples, time.perf_counter() - started
        )
        return Pretrained(
            self.folder, self.folder / "model", report, model, result.metrics, result.state.step, result.stopped,
            f"etymon pretrain {self.family.name} --out {self.folder} --resume", self.samples,
        )  # fmt: skip

    # --- the stages

    def _tokenizer(self) -> Tokenizer:
        own = self.folder / "tokenizer"
        if self.file.tokenizer is not None or (own / "tokenizer.json").is_file():
            tokenizer = Tokenizer.load(self.file.tokenizer or own)
        else:
            choice = self.family.tokenizer
            size = self.file.vocabulary or int(build_shape(self.family, self.file.size).vocabulary)
            self.progress.note(f"training a tokenizer of {size:,} tokens on the text")
            tokenizer = train_tokenizer(
                choice.kind,
                (document.text for document in self.source.documents()),
                size,
                lowercase=choice.lowercase,
                strip_accents=choice.strip_accents,
                specials=choice.specials,
                sentinels=choice.sentinels,
                framing=self.family.framing,
            )
            tokenizer.save(own)
        tokenizer.framing = self.family.framing
        return tokenizer

    def _objective(self, tokenizer: Tokenizer) -> tuple[Objective, int]:
        shape = build_shape(self.family, self.file.size)
        positions = getattr(shape, "positions", None)
        length = self.file.length or min(positions or 256, 256)
        if positions is not None and length > positions:
            raise EtymonError(
                f"samples of {length} tokens do not fit {self.family.title} {self.file.size}, "
                f"which has {positions} positions"
            )
        objective = get_objective(self.file.objective or self.family.objective, tokenizer, length)
        check_fit(objective, self.family)
        return objective, length

    def _store(self, tokenizer: Tokenizer) -> TokenStore:
        summary = ensure_store(
            self.source.documents(),
            self.source.fingerprint(),
            tokenizer,
            self.folder / "store",
            validation=self.file.validation,
            seed=self.file.seed,
        )
        self.progress.note(
            f"{summary.train.tokens:,} tokens to train on, {summary.validation.tokens:,} to judge by"
        )
        return TokenStore.open(self.folder / "store", tokenizer)

    def _model(self, tokenizer: Tokenizer, objective: Objective) -> tuple[Model, TrainingState, Any]:
        if self.checkpoint is not None:
            model = load(self.checkpoint / "model")
            state, optimiser_state = read_state(self.checkpoint)
            return model, state, optimiser_state
        model = build(
            self.family, self.file.size, heads=objective.heads, seed=self.file.seed, vocabulary=tokenizer.size
        )
        model.tokenizer = tokenizer
        return model, TrainingState(), None

    def _rows(self, length: int) -> int:
        """Samples a slice."""
        batch = self.file.batch
        if batch is None:
            batch = max(1, TOKENS_A_STEP // length)
            batch = max(self.file.slices, batch - batch % self.file.slices)
        return batch // self.file.slices

    def _settings(
        self, trainer: Callable[[TrainingSettings], Trainer], rows: int, feed: Feed
    ) -> TrainingSettings:
        """The family's recipe for as many steps as were asked for, or as fit into the budget by measurement."""
        recipe, file = self.family.recipe_for(self.file.size), self.file
        steps = file.steps
        if steps is None:
            assert file.budget is not None
            self.progress.note("measuring how long a step takes")
            probe = trainer(TrainingSettings(steps=1, rows=rows, slices=file.slices, seed=file.seed))
            each = probe.seconds_per_step()
            begin = time.perf_counter()
            probe.validate(0)
            validation = time.perf_counter() - begin
            self.samples.clear()
            steps = max(1, int((parse_duration(file.budget) - 11 * validation) / each))
            self.progress.note(f"{each * 1000:.0f} ms a step: {steps:,} steps fit into {file.budget}")
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
            validate_every=file.validate_every or max(1, -(-steps // 10)),
            save_every=file.save_every or max(1, -(-steps // 4)),
        )

    def _write(self, settings: TrainingSettings) -> None:
        resolved = asdict(replace(self.file, training=settings))
        with atomic_write(self.folder / "run.yaml") as file:
            yaml.safe_dump(_plain(resolved), file, sort_keys=False)

    def _history(
        self, objective: Objective, settings: TrainingSettings, metrics: dict[str, float]
    ) -> list[dict[str, Any]]:
        return [
            {
                "objective": objective.name,
                "data": self.source.description,
                "training": _plain(asdict(settings)),
                "metrics": metrics,
            }
        ]


def build_shape(family: Family, size: str) -> Any:
    return family.shape(**family.sizes[size])


def _plain(value: Any) -> Any:
    """Tuples as lists, so that YAML and JSON read back what was written."""
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return value
