"""The stages behind `etymon finetune --mixture`: text-only objectives and supervised tasks in one run."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from etymon.errors import EtymonError
from etymon.objectives import check_options, get_objective, objective_class
from etymon.objectives.mixture import MixedSplit, RateMixture, mixing_rates
from etymon.objectives.objective import Objective, check_fit
from etymon.report.page import Section
from etymon.runs.data import RunTokenizer, verify_stores
from etymon.runs.folder import made_once
from etymon.runs.running import USUAL_BUDGET, OnSample
from etymon.runs.task_file import MemberFile, TaskFile
from etymon.runs.task_report import Judged
from etymon.runs.task_running import USUAL_SHARE, Records, TaskRun, judged_curve, rows_of
from etymon.runs.task_validation import TaskData, TaskJudge, TaskPlan
from etymon.runs.validation import PhasePlan
from etymon.tables.table import Table, read_table
from etymon.tasks import get_task, task_class
from etymon.tasks.language_model import family_options
from etymon.tasks.task import MOST_TOKENS, Task, value_to_minimise
from etymon.text.reading import Document
from etymon.text.sources import PreparedText, Texts, TextSource, text_source
from etymon.text.store import TokenStore
from etymon.text.store_building import ensure_store
from etymon.training.distributed import World
from etymon.training.feeding import Feed, validation_slices
from etymon.training.loop import TrainingSettings
from etymon.training.progress import ProgressKind
from etymon.training.unit import TrainingUnit, evaluate

USUAL_LENGTH = 128
JUDGED_SAMPLES = 128


@dataclass
class Joined:
    """Several texts as one, to learn a tokenizer from."""

    sources: Sequence[TextSource]

    @property
    def description(self) -> str:
        return "; ".join(source.description for source in self.sources)

    def documents(self) -> Iterable[Document]:
        return chain.from_iterable(source.documents() for source in self.sources)

    def fingerprint(self) -> str:
        return hashlib.sha256("".join(source.fingerprint() for source in self.sources).encode()).hexdigest()


@dataclass
class Member:
    """A part of the mixture, with its data."""

    file: MemberFile
    objective: Objective | None = None
    task: Task | None = None
    text: TextSource | None = None
    train: Table | None = None
    held_out: Table | None = None
    labels: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ("loss",)
    data: Any = None
    """What has `train` and `validation`, once there is a tokenizer."""

    @property
    def source(self) -> TextSource:
        if self.text is not None:
            return self.text
        assert self.task is not None and self.train is not None
        return Texts(
            [text for side in self.task.texts(self.train).values() for text in side], self.train.description
        )

    @property
    def part(self) -> Objective:
        part = self.task or self.objective
        assert part is not None
        return part


class Mixing(TaskRun):
    """One run of a mixture."""

    def __init__(self, folder: Path, file: TaskFile, progress: ProgressKind = "auto", **options: Any) -> None:
        super().__init__(folder, file, progress, **options)
        assert file.mixture is not None
        self.mixture = file.mixture
        shape = self.start_shape()
        self.vocabulary = file.vocabulary or int(shape.vocabulary)
        if file.separate:
            raise EtymonError("a mixture has one tokenizer: leave that of the source out")
        for name in ("lora", "features", "teacher", "batch"):
            if getattr(file, name) is not None:
                raise EtymonError(
                    f"a mixture trains all of a model, in steps of so many tokens: leave {name} out"
                )
        if file.options or file.columns:
            what = ", ".join([*file.options, *(["columns"] if file.columns else [])])
            raise EtymonError(f"the members of a mixture have options of their own: say {what} there")
        self.heads: frozenset[str] = frozenset()
        self.members = {each.name: self._member(each) for each in self.mixture.chosen}
        for metric in file.metrics:
            name = metric.rpartition("/")[0]
            if metric != "loss" and (name not in self.members or self.members[name].task is None):
                raise EtymonError(
                    f"a mixture's metrics are loss, or those of a task such as NAME/bleu, not {metric!r}"
                )
        digests = [member.train.fingerprint(member.task.columns) for member in self.members.values()
                   if member.train is not None and member.task is not None]  # fmt: skip
        self.rows = hashlib.sha256("".join(digests).encode()).hexdigest()
        self.require_rows(self.rows)
        self.criterion = value_to_minimise((file.metrics or ("loss",))[0])
        self.check()

    def _member(self, file: MemberFile) -> Member:
        own = tuple(
            metric.rpartition("/")[2] for metric in self.file.metrics if metric.startswith(f"{file.name}/")
        )
        if file.objective is not None:
            kind = objective_class(file.objective)
            check_fit(kind, self.family)
            check_options(file.objective, file.options)
            if kind.streaming or kind.needs_teacher or kind.companions:
                raise EtymonError(
                    f"the objective {kind.name!r} cannot be a part of a mixture: give it a run of its own"
                )
            self.heads |= kind.heads
            text = text_source(file.data, file.documents)
            if isinstance(text, PreparedText):
                raise EtymonError(
                    f"the member {file.name!r} of a mixture is text, not a prepared store: name the files"
                )
            return Member(file, text=text)
        assert file.task is not None
        known = {part.name for part in fields(task_class(file.task).Options)}
        task = get_task(file.task, self.family.task_options(file.task, known) | file.options, self.family)
        self.heads |= task.fit(self.family).heads
        task.check_metrics(own)
        held = read_table(file.validation, file.columns) if file.validation else None
        table = read_table(file.data, file.columns)
        labels = task.labels(table)  # of all rows: a rare label may well be held out
        train, held = self.judged_apart(task, table, held)
        return Member(file, None, task, None, train, held, labels, own or ("loss",))

    # --- the stages

    def prepare(self, world: World, checkpoint: Path | None) -> tuple[TrainingUnit, list[PhasePlan]]:
        labels = self._share_labels()
        model, given = self.opened(checkpoint, self.heads, labels)
        text = Joined([member.source for member in self.members.values()])
        maker = RunTokenizer(
            self.folder, self.file, self.family, text, self.progress, vocabulary=self.vocabulary, resuming=self.resuming
        )  # fmt: skip
        tokenizer = made_once(world, lambda: maker.tokenizer(given))
        model = self.completed(model, tokenizer, self.heads, labels)
        lengths, sizes = {}, {}
        for name, member in self.members.items():
            length = member.file.length or self.file.length
            if member.task is not None:
                assert member.train is not None
                member.task.bind(model, length)
                train = member.task.encode(member.train, self.progress.note, learn=True)
                validation = None if member.held_out is None else member.task.encode(member.held_out)
                member.data = TaskData(train, validation, member.held_out)
                lengths[name], sizes[name] = member.task.limits["length"], len(train)
            else:
                length = length or USUAL_LENGTH
                lengths[name] = min(length, model.positions or length)
                kind = objective_class(str(member.file.objective))
                options = family_options(self.family, kind) | member.file.options
                member.objective = get_objective(kind.name, tokenizer, lengths[name], **options)
                member.data = made_once(world, partial(self._store, member, tokenizer))
                if self.resuming:
                    verify_stores([member.data], self.folder, world)
                sizes[name] = len(member.objective.plan(member.data.train, self.file.seed, 0))
                if not sizes[name]:
                    raise EtymonError(f"the text of {name!r} is too short for a single sample: give more")
        rates = mixing_rates(sizes, self.mixture.rates, self.mixture.limit, self.mixture.temperature)
        told = ", ".join(f"{name} {rates[name]:.1%} ({size:,})" for name, size in sizes.items())
        self.progress.note(f"shares of the examples, and how many there are: {told}")
        batch = self.file.batch_tokens or MOST_TOKENS
        text_lengths = {name: lengths[name] for name, member in self.members.items() if member.task is None}
        objective = RateMixture(
            {name: member.part for name, member in self.members.items()}, text_lengths, rates,
            batch_tokens=max(1, batch // self.file.slices), slices=self.file.slices,
        )  # fmt: skip
        split: Any = MixedSplit({name: member.data.train for name, member in self.members.items()})
        feed = Feed(objective, split, self.file.seed, slices=self.file.slices, rows=1)
        unit = TrainingUnit(model, objective).to(world.device)
        self.require_slices(unit, feed, world.device)
        return unit, [TaskPlan(1.0, max(lengths.values()), 1, objective, TaskData(split, None, None), feed)]

    def _share_labels(self) -> tuple[str, ...]:
        """The labels of all tasks, one after the other: every task has outputs of its own in the heads that they share."""
        labelled = {name: member for name, member in self.members.items() if member.labels}
        if len(labelled) == 1:
            return next(member.labels for member in labelled.values())
        found: list[str] = []
        for name, member in labelled.items():
            task: Any = member.task
            task.outputs, task.label_names = (len(found), len(found) + len(member.labels)), member.labels
            found += [f"{name}/{label}" for label in member.labels]
        return tuple(found)

    def _store(self, member: Member, tokenizer: Any) -> TokenStore:
        folder = self.folder / f"store-{member.file.name}"
        assert member.text is not None
        if not self.resuming:
            share = USUAL_SHARE if self.file.hold_out is None else self.file.hold_out
            ensure_store(member.text, tokenizer, folder, validation=share, seed=self.file.seed)
        return TokenStore.open(folder, tokenizer)

    def judge(
        self, unit: TrainingUnit, phases: list[PhasePlan], world: World, on_sample: OnSample
    ) -> MixtureJudge:
        return MixtureJudge(self, unit, world, on_sample)

    def learnt(self) -> str:
        return "; ".join(
            f"{name}: {member.part.name} on {member.source.description}"
            if member.train is None
            else f"{name}: {rows_of(member.part.name, member.train, member.held_out)}"
            for name, member in self.members.items()
        )

    def sections(self, records: Records) -> list[Section]:
        curves = (judged_curve(records, f"{name}/bits", "bits per target", name) for name in self.members)
        return list(chain.from_iterable(curves))

    def resolved(self, settings: TrainingSettings, phases: list[PhasePlan]) -> TaskFile:
        text = "; ".join(member.source.description for member in self.members.values())
        budget, batch = self.file.budget or USUAL_BUDGET, self.file.batch_tokens or MOST_TOKENS
        return replace(
            self.file, training=settings, budget=budget, batch_tokens=batch, text=text, rows=self.rows
        )

    def about(self) -> dict[str, Any]:
        tasks = {
            name: member.task.describe() for name, member in self.members.items() if member.task is not None
        }
        return {
            "objective": f"{self.mixture.setting} mixture of {', '.join(self.members)}",
            "tasks": tasks,
            "data": "; ".join(member.source.description for member in self.members.values()),
        }


@dataclass
class MixtureJudge:
    """Every member by its own held-out data; `bits_per_target` is the mean over them."""

    run: Mixing
    unit: TrainingUnit
    world: World
    on_sample: OnSample

    def __post_init__(self) -> None:
        self.judges: dict[str, TaskJudge] = {}
        self.slices: dict[str, Any] = {}
        file = self.run.file
        for name, member in self.run.members.items():
            if member.task is not None:
                self.judges[name] = TaskJudge(
                    self.unit, member.task, member.data, member.metrics, file.seed, self.run.progress, self.world,
                    self.on_sample,
                )  # fmt: skip
            else:
                self.slices[name] = validation_slices(
                    member.part, member.data.validation, file.seed, rows=8, most=JUDGED_SAMPLES
                )

    def validate(self, step: int, number: int, *, last: bool) -> dict[str, Any]:
        return self._joined(lambda name: self.judges[name].validate(step, number, last=last))

    def whole(self, beams: int) -> tuple[dict[str, float], Judged]:
        """Figures with all held-out rows answered, and the scores of the tasks."""
        every = Judged()

        def answered(name: str) -> dict[str, Any]:
            figures, judged = self.judges[name].whole(beams)
            every.scores.update({f"{name}/{metric}": score for metric, score in judged.scores.items()})
            return figures

        return self._joined(answered), every

    def _joined(self, ask: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
        figures: dict[str, Any] = {}
        for name, member in self.run.members.items():
            if name in self.judges:
                found = ask(name)
            else:
                self.unit.objective = member.part
                found = evaluate(self.unit, self.slices[name], self.world) if self.slices[name] else {}
            bits = found.pop("bits_per_target", found.get("bits_per_byte"))
            figures |= {f"{name}/{key}": value for key, value in found.items()}
            if bits is not None:
                figures[f"{name}/bits"] = bits
        every = [value for key, value in figures.items() if key.endswith("/bits")]
        return figures | ({"bits_per_target": sum(every) / len(every)} if every else {})
