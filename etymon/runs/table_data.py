"""The data of `etymon finetune`: the tables of one task."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import torch

from etymon.errors import EtymonError
from etymon.families.family import Family, Recipe
from etymon.families.loading import load
from etymon.families.model import Model
from etymon.nn.footprint import Footprint
from etymon.nn.lora import adapt, merge
from etymon.report.page import Section
from etymon.runs.folder import Job, build_once, check_job
from etymon.runs.memory import require_states, require_task_training, task_footprint, with_vocabulary
from etymon.runs.model import ModelPlan, StartModel, plan_model
from etymon.runs.report import Records, ReportParts
from etymon.runs.task_file import MemberFile, TaskFile
from etymon.runs.task_report import describe_rows, error_sections, score_figures, validation_curve
from etymon.runs.text_phases import count_sentinels
from etymon.runs.tokenizer import build_tokenizer
from etymon.runs.training_settings import training_settings
from etymon.runs.validation import Evaluation, Log, PhasePlan, TaskRows, TaskValidator, error_name
from etymon.tables.table import Table, read_table
from etymon.tasks import get_task, task_class, task_for
from etymon.tasks.metrics import check_metrics
from etymon.tasks.task import Task, default_batch_tokens, value_to_minimise
from etymon.text.sources import Texts, TextSource
from etymon.text.tokenizer import Tokenizer
from etymon.training.distributed import World
from etymon.training.feeding import Feed
from etymon.training.loop import Criterion
from etymon.training.optimisers import OptimiserChoice
from etymon.training.progress import format_count
from etymon.training.unit import TrainingUnit

USUAL_SHARE, LARGEST_SHARE = 0.05, 0.2
"""Of the rows that are held out; the larger one of small tables."""
FEW_HELD_OUT, MOST_HELD_OUT = 50, 1000
COLUMN_OPTIONS = ("text", "second", "label", "tokens", "tags", "entities")
"""Options of tasks with a teacher that name columns."""
LORA_RECIPE = Recipe(learning_rate=5e-4, weight_decay=0.01, warmup=0.06)
"""Of adapters, whatever they are on (Hu et al. 2021, table 9)."""
FEATURE_RECIPE = Recipe(learning_rate=1e-3, weight_decay=0.0, clip=5.0)
"""Of a BiLSTM over a frozen body (Peters et al. 2018, appendix)."""


class SupervisedData:
    """What one task and a mixture share: memory, tokenizers, and that the best model is kept."""

    file: TaskFile
    model_plan: ModelPlan
    criterion: Criterion | None
    metrics: Sequence[str]
    keeps_best = True

    def keeps_last(self, figures: Mapping[str, Any], best: float | None) -> bool:
        """Whether the model of the last step is to be kept although an earlier one had the `best` value of
        the criterion: its own is worse by no more than the standard error of the score.

        The best of ten validations is the luckiest of ten: judged by other rows it was no better than the
        last, whose rate had fallen to the end (docs/lab-notes.md). What overfits loses by more than that.
        """
        if self.criterion is None or best is None or (last := self.criterion(figures)) is None:
            return False
        return last - best <= figures.get(error_name(self.metrics[0]), 0.0)

    @property
    def optimiser(self) -> OptimiserChoice:
        return training_settings(self.model_plan.recipe, self.file, steps=1, validations=1).optimiser

    def require_memory(self, world: World, recompute: bool = False) -> None:
        """Refuses a model that does not fit into memory with its optimiser, before any work.

        What samples take is only known when the table is encoded, which decides how long they are.
        """
        plan = self.model_plan
        if self.file.lora is not None or plan.family.features is not None:
            return  # weights are checked as they are opened, and little else trains
        shape = with_vocabulary(plan.shape, plan.vocabulary)
        require_states(plan.family, shape, plan.heads, self.optimiser, f"to train {plan.title}", world)

    def build_phase(self, job: Job, unit: TrainingUnit, feed: Feed, length: int) -> list[PhasePlan]:
        """Returns the only phase; refuses samples that do not fit into memory."""
        title = f"to train {self.model_plan.title} on these rows"
        require_task_training(unit, feed, self.optimiser, title, job.world.device)
        return [PhasePlan(1.0, length, feed)]

    def build_tokenizer(
        self,
        job: Job,
        folder: Path,
        file: TaskFile,
        text: TextSource,
        vocabulary: int,
        given: Tokenizer | None,
        members: Iterable[MemberFile] = (),
    ) -> Tokenizer:
        """Returns the tokenizer that `folder` keeps, built by the first process."""

        def build(is_first: bool) -> Tokenizer:
            is_kept = not is_first or (job.resuming and (folder / "tokenizer").is_dir())
            family = self.model_plan.family
            return build_tokenizer(
                folder,
                file,
                family,
                text,
                vocabulary,
                given,
                sentinels=count_sentinels(file, family, members),
                is_kept=is_kept,
                note=job.note,
            )

        return build_once(job.world, build)


class TableData(SupervisedData):
    """The tables of one task; `train` and `validation` are rows that the calling program gave, if any."""

    def __init__(self, job: Job, train: Any = None, validation: Any = None) -> None:
        file: TaskFile = job.file
        self.model_plan = plan = plan_model(file, job.resuming)
        if file.features is None and file.tune_body and plan.family.features is None:
            raise EtymonError("only a body that gives features may be left as it is: leave --tune-body out")
        self.is_frozen = plan.family.features is not None and file.start is not None and not file.tune_body
        """Whether the body only gives features and does not learn."""
        self.file = replace(file, size=plan.size)
        if self.is_frozen:
            plan.recipe = FEATURE_RECIPE
            if not job.resuming:
                self.file = replace(self.file, frozen=tuple(dict.fromkeys([*file.frozen, "body.*"])))
        if file.lora is not None:
            plan.recipe = LORA_RECIPE
        if plan.family.features is not None and "way" in option_names(file.task):
            # The options that the family was published with are for heads of its own.
            self.task = get_task(file.task, {"way": "head"} | file.options, plan.family)
        else:
            self.task = family_task(file.task, file.options, plan.family)
        plan.heads = self.task.fit(plan.family).heads
        if file.separate and not hasattr(plan.shape, "source_vocabulary"):
            raise EtymonError(f"{plan.family.title} has one vocabulary: leave those of the source out")
        check_job(job, plan.recipe)  # before the table is read, which may take its time
        check_metrics(self.task, file.metrics)
        if train is None and not file.train:
            raise EtymonError(
                "there are no rows to train on: give --train with a table or two parallel files",
                code="no-data",
            )
        table = read_table(file.train if train is None else train, file.columns, file)
        plan.labels = self.task.labels(table)  # of all rows: a rare label may well be held out
        held_out = None
        if validation is not None or file.validation:
            held_out = read_table(file.validation if validation is None else validation, file.columns, file)
        tables = [table] if held_out is None else [table, held_out]
        self.fingerprint = "".join(each.fingerprint(self.task.columns) for each in tables)
        require_same_rows(job, self.fingerprint)
        self.train, self.held_out = hold_out_rows(self.task, table, held_out, file.hold_out)
        self.metrics = file.metrics or self.task.default_metrics  # which may depend on the labels
        check_metrics(self.task, self.metrics)
        self.criterion = value_to_minimise(self.metrics[0])

    # --- tokenizer, then task and examples

    def prepare(self, job: Job, given: Tokenizer | None) -> Tokenizer:
        """Returns the tokenizer of the target; the source has its own where its words are kept apart."""
        file, plan, sides = self.file, self.model_plan, self.task.texts(self.train)
        place = self.train.description
        self.source_tokenizer: Tokenizer | None = None
        if not file.separate:
            texts = Texts([text for side in sides.values() for text in side], place)
            return self.build_tokenizer(job, job.folder, file, texts, plan.vocabulary, given)
        if "source" not in sides:
            raise EtymonError(
                "only text2text has a source with words of its own: leave --source-tokenizer and "
                "--source-vocabulary out"
            )
        size = file.source_vocabulary
        source_file = replace(file, tokenizer=file.source_tokenizer or file.tokenizer, vocabulary=size)
        source, target = Texts(sides["source"], place), Texts(sides["target"], place)
        self.source_tokenizer = self.build_tokenizer(
            job, job.folder / "source", source_file, source, size or plan.vocabulary, given
        )
        # Only now is it known how many words the source has.
        plan.fields = {"source_vocabulary": self.source_tokenizer.size}
        return self.build_tokenizer(job, job.folder, file, target, plan.vocabulary, given)

    def build_unit(
        self, job: Job, model: Model, start: StartModel, checkpoint: Path | None
    ) -> tuple[TrainingUnit, list[PhasePlan]]:
        """Returns model and task as what is trained, and its only phase, after the tables were encoded."""
        file, task = self.file, self.task
        if start.is_new:
            model.source_tokenizer = self.source_tokenizer
        if checkpoint is None and model.lora is not None:
            merge(model)  # what was learnt before is a part of the base from now on
        if file.lora is not None and model.lora is None:
            if start.grown:
                raise EtymonError(
                    f"{file.start} needs more words than it has, and adapters a base that has them: "
                    "fine-tune it without --lora first"
                )
            # After the heads were made, which are trained whole beside the adapters.
            adapt(model, file.lora, file.seed, base=str(file.start))
        task.bind_for_training(model, file.length, frozen=self.is_frozen)
        if file.teacher is not None:
            self._follow_teacher(file.teacher)
        self.rows = TaskRows.encode(task, self.train, self.held_out, job.note)
        train, validation = self.rows.train, self.rows.validation
        # A batch is so many rows, or so many tokens; a slice its share of them.
        rows = file.batch or (None if file.batch_tokens else task.default_rows)
        task.batch_rows = None if rows is None else max(1, rows // file.slices)
        task.batch_tokens = max(1, (file.batch_tokens or default_batch_tokens(train)) // file.slices)
        job.note(
            f"{len(train):,} rows of {format_count(train.sizes.sum())} tokens to train on, "
            f"{0 if validation is None else len(validation):,} to validate on"
        )
        examples: Any = train
        # rows=1: a sample of the feed is a whole slice of rows of similar length, which the task bundles.
        feed = Feed(task, examples, file.seed, slices=file.slices, rows=1)
        unit = TrainingUnit(model, task)
        return unit, self.build_phase(job, unit, feed, task.limits["length"])

    def _follow_teacher(self, name: str) -> None:
        """Lets another model, which was fine-tuned for the same task, answer the training rows."""
        if not hasattr(self.task, "follow_teacher"):
            raise EtymonError(f"the task {self.task.name!r} cannot follow a teacher: leave {name} out")
        teacher, options = load(name), asdict(self.task.options)
        # The columns of this table, not of the teacher's.
        columns = {name: options[name] for name in COLUMN_OPTIONS if name in options}
        self.task.follow_teacher(teacher, task_for(teacher, self.task.name, columns), name)

    def build_validator(
        self, job: Job, unit: TrainingUnit, phases: list[PhasePlan], log: Log
    ) -> TaskValidator:
        """Returns the validator that is called every `validate_every` steps."""
        baseline_rows = self.train if self.file.baselines else None
        return TaskValidator(job, unit, self.task, self.rows, self.metrics, log, baseline_rows)

    # --- a dry run

    def share_read(self) -> float:
        return 1.0  # tables are read whole, in dry runs too

    def describe(self, phases: list[PhasePlan]) -> dict[str, str]:
        """Returns lines of a dry run's plan, by name."""
        rows = describe_rows(self.task.name, self.train, self.held_out)
        return {"task": f"{rows} ({', '.join(self.metrics)})"}

    def footprint(self, unit: TrainingUnit, phases: list[PhasePlan], device: torch.device) -> Footprint:
        """Returns the memory that the run takes."""
        return task_footprint(unit, phases[0].feed, self.optimiser, device)

    # --- what is written of the run

    def resolved_file(self, budget: str, phases: list[PhasePlan]) -> TaskFile:
        """Returns the run file with everything that was left open filled in."""
        file, task = self.file, self.task
        return replace(
            file,
            length=file.length or phases[0].length,
            batch=None if task.batch_rows is None else task.batch_rows * file.slices,
            batch_tokens=None if task.batch_rows else task.batch_tokens * file.slices,
            budget=budget,
            metrics=tuple(self.metrics),
            options=asdict(task.options),
            text=self.train.description,
            rows=self.fingerprint,
        )

    def history_entry(self) -> dict[str, Any]:
        """Returns what the model's history says of task and table."""
        objective = getattr(self.task, "objective", self.task)
        return {"objective": objective.name, "task": self.task.describe(), "data": self.train.description}

    def report_parts(
        self, job: Job, model: Model, evaluation: Evaluation | None, records: Records
    ) -> ReportParts:
        """Returns what the report adds to that of every run: scores, their curves, and the worst errors."""
        evaluation = evaluation or Evaluation()
        sections: list[Section] = []
        for name in self.metrics:
            if name != "loss":
                sections += validation_curve(records, name, name, f"Validation {name}")
        if self.held_out is not None:
            sections += error_sections(
                self.task, evaluation.answers, evaluation.scores, evaluation.beside, self.held_out
            )
        return ReportParts(
            figures=score_figures(evaluation.scores, evaluation.metrics),
            sections=sections,
            samples_title="What it answers, as it learns",
            command=self._command_to_try(job.folder, model),
            subtitle=describe_rows(self.task.name, self.train, self.held_out),
        )

    def _command_to_try(self, folder: Path, model: Model) -> str:
        if self.task.name == "language-model" and model.encoder_decoder:
            return f"etymon evaluate {folder} --data FILE"
        if len(self.task.input_columns) > 1:
            return f"etymon predict {folder} --data FILE"
        verb = "translate" if self.task.name == "text2text" else "predict"
        line = str(self.train.rows[0][self.task.input_columns[0]]).strip().splitlines()[0][:80]
        line = line.replace('"', "'")
        return f'etymon {verb} {folder} "{line}"'


def family_task(name: str, options: dict[str, Any], family: Family) -> Task:
    """Returns a task with the options that the family was published with, as far as others are not given."""
    return get_task(name, family.task_options(name, option_names(name)) | options, family)


def option_names(task: str) -> set[str]:
    return {option.name for option in fields(task_class(task).Options)}


def require_same_rows(job: Job, fingerprint: str) -> None:
    """Refuses to resume a run with other rows than it began with."""
    if job.resuming and job.file.rows not in (None, fingerprint):
        raise EtymonError(
            f"the rows to train on or to validate on are not those that the run in {job.folder} began with: "
            "bring them back, or give another --out for a new run",
            code="run-changed",
        )


def hold_out_rows(
    task: Task, table: Table, held_out: Table | None, share: float | None
) -> tuple[Table, Table | None]:
    """Returns the rows to train on and those for validation: the given ones, or a share of the others.

    The share is the same whatever the seed, so that runs can be compared. Rows that the task cannot use are
    refused.
    """
    for each in (table, held_out):
        if each is not None:
            task.texts(each)
    if share is None:
        # Scores of a handful of rows say little: small tables give a larger share.
        share = max(USUAL_SHARE, min(LARGEST_SHARE, FEW_HELD_OUT / len(table)))
    if held_out is not None or not share:
        return table, held_out
    return table.hold_out(task.columns[0], share, MOST_HELD_OUT)
