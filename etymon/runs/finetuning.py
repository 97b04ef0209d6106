"""The stages behind `etymon finetune`: table, tokenizers, model, training, scores, report."""

from __future__ import annotations

from dataclasses import asdict, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from etymon.errors import EtymonError
from etymon.families.family import Recipe
from etymon.families.loading import load
from etymon.families.model import Model
from etymon.families.saving import save
from etymon.nn.lora import adapt, merge
from etymon.report.page import Section
from etymon.runs.data import RunTokenizer
from etymon.runs.dry_run import tried
from etymon.runs.folder import made_once
from etymon.runs.memory import task_footprint
from etymon.runs.result import Finetuned
from etymon.runs.running import USUAL_BUDGET, OnSample
from etymon.runs.task_file import TaskFile
from etymon.runs.task_report import compare, error_sections
from etymon.runs.task_running import Records, TaskRun, judged_curve, rows_of
from etymon.runs.task_validation import RESAMPLES, TaskData, TaskJudge, TaskPlan
from etymon.runs.training_settings import VALIDATIONS, training_settings
from etymon.runs.validation import PhasePlan
from etymon.sampling.examples import Examples
from etymon.tables.table import Table, read_table
from etymon.tasks import get_task, task_class, task_for
from etymon.tasks.task import default_batch_tokens, value_to_minimise
from etymon.text.sources import Texts
from etymon.text.tokenizer import Tokenizer
from etymon.training.distributed import World
from etymon.training.feeding import Feed
from etymon.training.loop import TrainingSettings
from etymon.training.progress import ProgressKind, format_count
from etymon.training.unit import TrainingUnit

COLUMNS = ("text", "second", "label", "tokens", "tags", "entities")
"""Options of tasks with a teacher that name columns."""
LORA_RECIPE = Recipe(learning_rate=5e-4, weight_decay=0.01, warmup=0.06)
"""Of adapters, whatever they are on (Hu et al. 2021, table 9)."""
FEATURE_RECIPE = Recipe(learning_rate=1e-3, weight_decay=0.0, clip=5.0)
"""Of a BiLSTM over a body that does not learn (Peters et al. 2018, appendix)."""


class Finetuning(TaskRun):
    """One run, stage by stage. `train` and `validation` are tables of the program's own, where there are such."""

    def __init__(
        self,
        folder: Path,
        file: TaskFile,
        train: Any = None,
        validation: Any = None,
        progress: ProgressKind = "auto",
        **options: Any,
    ) -> None:
        super().__init__(folder, file, progress, **options)
        if file.features is not None:
            self.family = self.family.with_features(file.features)
        elif file.tune_body and self.family.features is None:
            raise EtymonError("only a body that gives features may be left as it is: leave --tune-body out")
        self.frozen = self.family.features is not None and file.start is not None and not file.tune_body
        """Whether the body only gives features and does not learn."""
        if self.frozen and not self.resuming:
            self.file = replace(file, frozen=tuple(dict.fromkeys([*file.frozen, "body.*"])))
        shape = self.start_shape()
        if self.frozen:
            self.recipe = FEATURE_RECIPE
        if file.lora is not None:
            self.recipe = LORA_RECIPE
        known = _known(file.task)
        usual = self.family.task_options(file.task, known)
        if self.family.features is not None and "way" in known:
            usual = {"way": "head"}  # what was published is for heads of the family's own
        self.task = get_task(file.task, usual | file.options, self.family)
        self.fit = self.task.fit(self.family)
        self.heads = self.fit.heads
        self.vocabulary = file.vocabulary or int(shape.vocabulary)
        if file.separate and not hasattr(shape, "source_vocabulary"):
            raise EtymonError(f"{self.family.title} has one vocabulary: leave those of the source out")
        self.check()
        self.task.check_metrics(file.metrics)
        self.train, self.held_out = self._tables(train, validation)
        self.metrics = file.metrics or self.task.default_metrics  # which may depend on the labels
        self.task.check_metrics(self.metrics)
        self.criterion = value_to_minimise(self.metrics[0])

    def _tables(self, train: Any, validation: Any) -> tuple[Table, Table | None]:
        """The rows to train on and those to judge by; rows that cannot be used are refused."""
        if train is None and not self.file.train:
            raise EtymonError(
                "there are no rows to train on: give --train with a table or two parallel files"
            )
        table = read_table(self.file.train if train is None else train, self.file.columns)
        # Of all rows: a rare label may well be among those that are held out.
        self.labels = self.task.labels(table)
        held = None
        if validation is not None or self.file.validation:
            held = read_table(self.file.validation if validation is None else validation, self.file.columns)
        tables = [table] if held is None else [table, held]
        self.fingerprint = "".join(each.fingerprint(self.task.columns) for each in tables)
        self.require_rows(self.fingerprint)
        return self.judged_apart(self.task, table, held)

    # --- the stages

    def prepare(self, world: World, checkpoint: Path | None) -> tuple[TrainingUnit, list[PhasePlan]]:
        model, given = self.opened(checkpoint, self.fit.heads, self.labels)
        tokenizer, source = made_once(world, lambda: self._tokenizers(given))
        begins, own = model is None, {} if source is None else {"source_vocabulary": source.size}
        model = self.completed(model, tokenizer, self.fit.heads, self.labels, **own)
        if begins:
            model.source_tokenizer = source
        if checkpoint is None and model.lora is not None:
            merge(model)  # what was learnt before is a part of the base from now on
        if self.file.lora is not None and model.lora is None:
            if self.grown:
                raise EtymonError(
                    f"{self.file.start} needs more words than it has, and adapters a base that has them: fine-tune it without --lora first"
                )
            adapt(model, self.file.lora, self.file.seed, base=str(self.file.start))
        self.task.bind_for_training(model, self.file.length, frozen=self.frozen)
        self._learn_from_teacher()
        train = self.task.encode(self.train, self.progress.note, learn=True)
        self._cut(train)
        validation = None if self.held_out is None else self.task.encode(self.held_out)
        data: Any = TaskData(train, validation, self.held_out)
        self.progress.note(
            f"{len(train):,} rows of {format_count(train.sizes.sum())} tokens to train on, "
            f"{0 if validation is None else len(validation):,} to judge by"
        )
        feed = Feed(self.task, data.train, self.file.seed, slices=self.file.slices, rows=1)
        unit = TrainingUnit(model, self.task).to(world.device)
        self.require_slices(unit, feed, world.device)
        length = self.task.limits["length"]
        return unit, [TaskPlan(1.0, length, 1, self.task, data, feed, beams=self.file.beams)]

    def _learn_from_teacher(self) -> None:
        """Lets another model, which was fine-tuned for the same task, answer the training rows."""
        if self.file.teacher is None:
            return
        if not hasattr(self.task, "follow_teacher"):
            raise EtymonError(
                f"the task {self.task.name!r} cannot follow a teacher: leave {self.file.teacher} out"
            )
        teacher, own = load(self.file.teacher), asdict(self.task.options)
        columns = {name: own[name] for name in COLUMNS if name in own}  # of this table, not of the teacher's
        self.task.follow_teacher(teacher, task_for(teacher, self.task.name, columns), self.file.teacher)

    def _cut(self, train: Examples) -> None:
        """How much of the table is a slice of a step: rows, or tokens."""
        file, task = self.file, self.task
        rows = file.batch or (None if file.batch_tokens else task.default_rows)
        task.batch_rows = None if rows is None else max(1, rows // file.slices)
        task.batch_tokens = max(1, (file.batch_tokens or default_batch_tokens(train)) // file.slices)

    def _tokenizers(self, given: Tokenizer | None) -> tuple[Tokenizer, Tokenizer | None]:
        """The target's, which is the only one unless the source has words of its own."""
        sides = self.task.texts(self.train)

        def made(folder: Path, file: TaskFile, texts: list[str], vocabulary: int) -> Tokenizer:
            text = Texts(texts, self.train.description)
            return RunTokenizer(
                folder, file, self.family, text, self.progress, vocabulary=vocabulary,
                resuming=self.resuming and (folder / "tokenizer").is_dir(),
            ).tokenizer(given)  # fmt: skip

        if not self.file.separate:
            return made(
                self.folder, self.file, [text for side in sides.values() for text in side], self.vocabulary
            ), None
        if "source" not in sides:
            raise EtymonError(
                "only text2text has a source with words of its own: leave --source-tokenizer and --source-vocabulary out"
            )
        words = self.file.source_vocabulary
        own = replace(
            self.file, tokenizer=self.file.source_tokenizer or self.file.tokenizer, vocabulary=words
        )
        source = made(self.folder / "source", own, sides["source"], words or self.vocabulary)
        return made(self.folder, self.file, sides["target"], self.vocabulary), source

    def judge(
        self, unit: TrainingUnit, phases: list[PhasePlan], world: World, on_sample: OnSample
    ) -> TaskJudge:
        data: Any = phases[0].store
        return TaskJudge(unit, self.task, data, self.metrics, self.file.seed, self.progress, world, on_sample)

    def compare(self, model: Model) -> None:
        if self.file.baselines and self.judged.scores and self.held_out is not None:
            compare(
                self.task, model, self.judged, self.train, self.held_out, list(self.judged.scores), RESAMPLES,
                self.file.beams, self.progress.note,
            )  # fmt: skip

    def learnt(self) -> str:
        return rows_of(self.task.name, self.train, self.held_out)

    def sections(self, records: Records) -> list[Section]:
        found: list[Section] = []
        for name in self.metrics:
            if name != "loss":
                found += judged_curve(records, name, name, f"Validation {name}")
        return found + (
            [] if self.held_out is None else error_sections(self.task, self.judged, self.held_out)
        )

    def to_try(self, model: Model) -> str:
        if self.task.name == "language-model" and model.encoder_decoder:
            return f"etymon evaluate {self.folder} --data FILE"
        if len(self.task.input_columns) > 1:
            return f"etymon predict {self.folder} --data FILE"
        verb = "translate" if self.task.name == "text2text" else "predict"
        return f'etymon {verb} {self.folder} "{_first_line(self.train, self.task.input_columns[0])}"'

    def resolved(self, settings: TrainingSettings, phases: list[PhasePlan]) -> TaskFile:
        return replace(
            self.file,
            training=settings,
            length=self.file.length or phases[0].length,
            batch=None if self.task.batch_rows is None else self.task.batch_rows * self.file.slices,
            batch_tokens=None if self.task.batch_rows else self.task.batch_tokens * self.file.slices,
            budget=self.file.budget or USUAL_BUDGET,
            metrics=tuple(self.metrics),
            options=asdict(self.task.options),
            text=self.train.description,
            rows=self.fingerprint,
        )

    def about(self) -> dict[str, Any]:
        objective = getattr(self.task, "objective", self.task)
        return {"objective": objective.name, "task": self.task.describe(), "data": self.train.description}

    # --- a dry run

    def rehearse(self) -> Finetuned:
        """Tries everything once and writes nothing."""
        target = self.folder
        with self.joined() as world, TemporaryDirectory(prefix="etymon-") as place:
            self.folder = Path(place)
            unit, phases = self.prepare(World(device=world.device), None)
            model: Model = unit.model  # type: ignore[assignment]
            needed = task_footprint(unit, phases[0].feed, self.choice, world.device)
            asked, steps, pace, each = tried(self, unit, phases, World(device=world.device))
            few = self.train.at(range(min(2, len(self.train))))
            if scored := [name for name in self.metrics if name != "loss"]:
                self.task.score(self.task.predict(model, few), few, scored)
            save(model, self.folder / self.member)
            self.folder = target
        settings = training_settings(self.recipe, self.file, steps=steps, validations=VALIDATIONS)
        optimiser = settings.optimiser
        plan = {
            "model": f"{self.title}, {model.parameter_count():,} parameters",
            "task": f"{self.learnt()} ({', '.join(self.metrics)})",
            "steps": f"about {steps:,} ({asked}) of about {format_count(pace.tokens)} tokens, {each * 1000:.0f} ms each",
            "learning rate": f"{optimiser.learning_rate:g} at its peak, {settings.schedule.name}, {optimiser.name}",
            "memory": str(needed),
            "folder": str(target),
        }
        return Finetuned(
            target, target / self.member, None, model, {}, 0, False, plan=plan, quiet=not world.first
        )


def _known(task: str) -> set[str]:
    return {part.name for part in fields(task_class(task).Options)}


def _first_line(table: Table, column: str) -> str:
    return str(table.rows[0][column]).strip().splitlines()[0][:80].replace('"', "'")
