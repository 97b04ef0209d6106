"""The data of `etymon finetune --mixture`: texts with objectives and tables with tasks, in one run."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from etymon.errors import EtymonError
from etymon.families.model import Model
from etymon.objectives import get_objective, objective_class, read_options
from etymon.objectives.mixture import MixedSplit, RateMixture, mixing_rates
from etymon.objectives.objective import Objective, check_fit
from etymon.runs.folder import Job, build_once, check_job
from etymon.runs.model import StartModel, plan_model
from etymon.runs.report import Records, ReportParts
from etymon.runs.table_data import (
    USUAL_SHARE,
    SupervisedData,
    family_task,
    hold_out_rows,
    require_same_rows,
)
from etymon.runs.task_file import MemberFile, TaskFile
from etymon.runs.task_report import describe_rows, score_figures, validation_curve
from etymon.runs.text_stores import verify_stores
from etymon.runs.validation import Evaluation, Log, MixtureValidator, PhasePlan, TaskRows, TaskValidator
from etymon.settings.reading import TextSettings
from etymon.tables.table import Table, read_table
from etymon.tasks.language_model import family_options
from etymon.tasks.metrics import check_metrics
from etymon.tasks.task import MOST_TOKENS, Task, value_to_minimise
from etymon.text.reading import Document
from etymon.text.sources import PreparedText, Texts, TextSource, text_source
from etymon.text.store import TokenStore
from etymon.text.store_building import ensure_store
from etymon.text.tokenizer import Tokenizer
from etymon.training.feeding import Feed
from etymon.training.unit import TrainingUnit

USUAL_LENGTH = 128


@dataclass
class JoinedText:
    """Several texts as one, to train a tokenizer on."""

    sources: Sequence[TextSource]

    @property
    def description(self) -> str:
        return "; ".join(source.description for source in self.sources)

    def documents(self) -> Iterable[Document]:
        return chain.from_iterable(source.documents() for source in self.sources)

    def fingerprint(self) -> str:
        return hashlib.sha256("".join(source.fingerprint() for source in self.sources).encode()).hexdigest()


@dataclass
class MixturePart:
    """A part of the mixture: a task with its tables, or an objective with its text."""

    file: MemberFile
    source: TextSource
    """Its text, or the texts of its training rows."""
    task: Task | None = None
    train: Table | None = None
    held_out: Table | None = None
    labels: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ("loss",)
    objective: Objective | None = None
    """The task, or the objective once there is a tokenizer."""
    data: Any = None
    """`TaskRows` or a `TokenStore`, once there is a tokenizer: `train` and `validation`."""


class MixtureData(SupervisedData):
    """The parts of a mixture."""

    def __init__(self, job: Job) -> None:
        file: TaskFile = job.file
        assert file.mixture is not None
        self.mixture = file.mixture
        self.model_plan = plan = plan_model(file, job.resuming)
        self.file = replace(file, size=plan.size)
        if file.separate:
            raise EtymonError("a mixture has one tokenizer: leave that of the source out")
        for name in ("lora", "features", "teacher", "batch"):
            if getattr(file, name) is not None:
                raise EtymonError(
                    f"a mixture trains all of a model, in steps of so many tokens: leave {name} out"
                )
        if file.options or file.columns:
            names = ", ".join([*file.options, *(["columns"] if file.columns else [])])
            raise EtymonError(f"the members of a mixture have options of their own: say {names} there")
        self.parts = {each.name: self._part(each) for each in self.mixture.active_members}
        plan.labels = self._share_labels()
        for metric in file.metrics:
            name = metric.rpartition("/")[0]
            if metric != "loss" and (name not in self.parts or self.parts[name].task is None):
                raise EtymonError(
                    f"a mixture's metrics are loss, or those of a task such as NAME/bleu, not {metric!r}"
                )
        # Of tables only: texts are in the run's own stores when it is resumed.
        digests = (
            part.train.fingerprint(part.task.columns)
            for part in self.parts.values()
            if part.train is not None and part.task is not None
        )
        self.fingerprint = hashlib.sha256("".join(digests).encode()).hexdigest()
        require_same_rows(job, self.fingerprint)
        self.metrics = file.metrics or ("loss",)
        self.criterion = value_to_minimise(self.metrics[0])
        check_job(job, plan.recipe)

    def _part(self, file: MemberFile) -> MixturePart:
        """Reads the tables of a task, or finds the text of an objective."""
        plan = self.model_plan
        if file.objective is not None:
            objective = objective_class(file.objective)
            check_fit(objective, plan.family)
            read_options(file.objective, file.options)
            # A stream needs every step, and the others need models that the tasks beside them do not train.
            if objective.streaming or objective.needs_teacher or objective.companions:
                raise EtymonError(
                    f"the objective {objective.name!r} cannot be a part of a mixture: "
                    "give it a run of its own"
                )
            plan.heads |= objective.heads
            text = text_source(file.data, TextSettings(documents=file.documents, **self.file.reader_options))
            if isinstance(text, PreparedText):
                raise EtymonError(
                    f"the member {file.name!r} of a mixture is text, not a prepared store: name the files"
                )
            return MixturePart(file, text)
        assert file.task is not None
        prefix = f"{file.name}/"
        metrics = tuple(name.removeprefix(prefix) for name in self.file.metrics if name.startswith(prefix))
        task = family_task(file.task, file.options, plan.family)
        plan.heads |= task.fit(plan.family).heads
        check_metrics(task, metrics)
        held_out = read_table(file.validation, file.columns, self.file) if file.validation else None
        table = read_table(file.data, file.columns, self.file)
        labels = task.labels(table)  # of all rows: a rare label may well be held out
        train, held_out = hold_out_rows(task, table, held_out, self.file.hold_out)
        texts = [text for side in task.texts(train).values() for text in side]
        source = Texts(texts, train.description)
        return MixturePart(file, source, task, train, held_out, labels, metrics or ("loss",), task)

    # --- tokenizer, then objectives and their data

    def prepare(self, job: Job, given: Tokenizer | None) -> Tokenizer:
        """Returns the tokenizer, `given` or trained on the texts of all parts."""
        # One vocabulary for all parts, which share the word vectors.
        text = JoinedText([part.source for part in self.parts.values()])
        vocabulary, members = self.model_plan.vocabulary, [part.file for part in self.parts.values()]
        return self.build_tokenizer(job, job.folder, self.file, text, vocabulary, given, members)

    def build_unit(
        self, job: Job, model: Model, start: StartModel, checkpoint: Path | None
    ) -> tuple[TrainingUnit, list[PhasePlan]]:
        """Returns model and mixture as what is trained, and its only phase, after all data were encoded."""
        file, lengths, sizes = self.file, {}, {}
        for name, part in self.parts.items():
            length = part.file.length or file.length
            if part.task is not None:
                assert part.train is not None
                part.task.bind(model, length)
                part.data = TaskRows.encode(part.task, part.train, part.held_out, job.note)
                lengths[name], sizes[name] = part.task.limits["length"], len(part.data.train)
            else:
                length = length or USUAL_LENGTH
                lengths[name] = min(length, model.positions or length)
                sizes[name] = self._encode_text(job, model, part, lengths[name])
        rates = mixing_rates(sizes, self.mixture.rates, self.mixture.limit, self.mixture.temperature)
        listed = ", ".join(f"{name} {rates[name]:.1%} ({size:,})" for name, size in sizes.items())
        job.note(f"shares of the examples, and how many there are: {listed}")
        # Parts have rows of very different lengths: by tokens, not rows, their steps cost the same.
        batch = file.batch_tokens or MOST_TOKENS
        # The members' examples are mixed by rate; each step is of one member (T5, section 3.5.2).
        objectives: dict[str, Any] = {name: part.objective for name, part in self.parts.items()}
        text_lengths = {name: lengths[name] for name, part in self.parts.items() if part.task is None}
        mixture = RateMixture(
            objectives, text_lengths, rates, batch_tokens=max(1, batch // file.slices), slices=file.slices
        )
        split: Any = MixedSplit({name: part.data.train for name, part in self.parts.items()})
        feed = Feed(mixture, split, file.seed, slices=file.slices, rows=1)
        unit = TrainingUnit(model, mixture)
        return unit, self.build_phase(job, unit, feed, max(lengths.values()))

    def _encode_text(self, job: Job, model: Model, part: MixturePart, length: int) -> int:
        """Encodes the text of a part for its objective; returns the number of its samples."""
        file, folder = self.file, job.folder / f"store-{part.file.name}"
        tokenizer: Any = model.tokenizer
        kind = objective_class(str(part.file.objective))
        options = family_options(self.model_plan.family, kind) | part.file.options
        part.objective = get_objective(kind.name, tokenizer, length, **options)

        def build(is_first: bool) -> TokenStore:
            if is_first and not job.resuming:
                share = USUAL_SHARE if file.hold_out is None else file.hold_out
                ensure_store(part.source, tokenizer, folder, validation=share, seed=file.seed)
            return TokenStore.open(folder, tokenizer)

        part.data = build_once(job.world, build)
        if job.resuming:
            verify_stores([part.data], job.folder, job.world)
        size = len(part.objective.plan(part.data.train, file.seed, 0))
        if not size:
            raise EtymonError(f"the text of {part.file.name!r} is too short for a single sample: give more")
        return size

    def _share_labels(self) -> tuple[str, ...]:
        """Returns the labels of all tasks in a row: each task has outputs of its own in a shared head."""
        labelled = {name: part for name, part in self.parts.items() if part.labels}
        # A single set of labels keeps its names, as in a run of that task alone.
        if len(labelled) == 1:
            return next(part.labels for part in labelled.values())
        labels: list[str] = []
        for name, part in labelled.items():
            task: Any = part.task
            task.outputs, task.label_names = (len(labels), len(labels) + len(part.labels)), part.labels
            # Two tasks may call different things by the same label.
            labels += [f"{name}/{label}" for label in part.labels]
        return tuple(labels)

    def build_validator(
        self, job: Job, unit: TrainingUnit, phases: list[PhasePlan], log: Log
    ) -> MixtureValidator:
        """Returns the validator that is called every `validate_every` steps."""
        tasks = {
            name: TaskValidator(job, unit, part.task, part.data, part.metrics, log)
            for name, part in self.parts.items()
            if part.task is not None
        }
        texts: dict[str, Any] = {
            name: (part.objective, part.data.validation)
            for name, part in self.parts.items()
            if part.task is None
        }
        return MixtureValidator(job, unit, tasks, texts, list(self.parts))

    # --- what is written of the run

    def resolved_file(self, budget: str, phases: list[PhasePlan]) -> TaskFile:
        """Returns the run file with everything that was left open filled in."""
        batch = self.file.batch_tokens or MOST_TOKENS
        return replace(
            self.file, budget=budget, batch_tokens=batch, text=self._description(), rows=self.fingerprint
        )

    def _description(self) -> str:
        return "; ".join(part.source.description for part in self.parts.values())

    def history_entry(self) -> dict[str, Any]:
        """Returns what the model's history says of the parts."""
        tasks = {name: part.task.describe() for name, part in self.parts.items() if part.task is not None}
        objective = f"{self.mixture.setting} mixture of {', '.join(self.parts)}"
        return {"objective": objective, "tasks": tasks, "data": self._description()}

    def report_parts(
        self, job: Job, model: Model, evaluation: Evaluation | None, records: Records
    ) -> ReportParts:
        """Returns what the report adds to that of every run: scores, and the loss of each part."""
        evaluation = evaluation or Evaluation()
        described = []
        for name, part in self.parts.items():
            assert part.objective is not None
            kind = part.objective.name
            rows = f"{kind} on {part.source.description}"
            if part.train is not None:
                rows = describe_rows(kind, part.train, part.held_out)
            described.append(f"{name}: {rows}")
        curves = (validation_curve(records, f"{name}/bits", "bits per target", name) for name in self.parts)
        return ReportParts(
            figures=score_figures(evaluation.scores, evaluation.metrics),
            sections=list(chain.from_iterable(curves)),
            samples_title="What it answers, as it learns",
            subtitle="; ".join(described),
        )
