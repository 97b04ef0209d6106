"""What all fine-tuning runs have in common, of one task or of a mixture: where they begin, and how they are judged and kept."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from etymon.checkpoints.settings import pass_over
from etymon.errors import EtymonError
from etymon.families.loading import read_shape, shape_of
from etymon.families.model import Model
from etymon.families.saving import save
from etymon.nn.lora import merge
from etymon.report.page import Curve, Section
from etymon.runs.memory import require_states, require_task_training, with_vocabulary
from etymon.runs.report import write_run_report
from etymon.runs.result import Finetuned
from etymon.runs.running import Trained, TrainingRun
from etymon.runs.task_file import TaskFile
from etymon.runs.task_report import Judged
from etymon.runs.training_settings import training_settings
from etymon.tables.table import Table
from etymon.tasks.scores import MetricScore
from etymon.tasks.task import Task
from etymon.training.distributed import World
from etymon.training.feeding import Feed
from etymon.training.optimisers import OptimiserChoice
from etymon.training.state import VALIDATION_PREFIX
from etymon.training.unit import TrainingUnit

USUAL_SHARE, LARGEST_SHARE = 0.05, 0.2
"""Of the rows that are held out; the larger one of small tables."""
FEW_HELD_OUT, MOST_HELD_OUT = 50, 1000
Records = Sequence[Mapping[str, Any]]


class TaskRun(TrainingRun[Finetuned]):
    """A run whose best model is put back at the end and really answers."""

    verb = "finetune"
    files = TaskFile
    file: TaskFile
    heads: frozenset[str]
    vocabulary: int
    shape: Any
    """Of the model, but for its vocabulary."""
    judged: Judged
    bits: dict[str, float]
    """The loss of the model that is kept."""

    def start_shape(self) -> Any:
        """The shape that was asked for, or that of the model to go on from, whose size then chooses the recipe."""
        shape: Any = shape_of(self.family, self.file.size, **self.file.shape)
        if self.file.start is not None:
            if not self.resuming:
                with pass_over(self.file.ignore_config_key):
                    shape = read_shape(self.file.start)[1]
                self.file = replace(self.file, size=self.like(shape)[0])
            self.recipe = self.family.tuning_for(self.file.size)
        self.shape = shape
        return shape

    def require_rows(self, fingerprint: str) -> None:
        """Refuses to go on with other rows than the run began with."""
        if self.resuming and self.file.rows not in (None, fingerprint):
            raise EtymonError(
                f"the rows to train on or to judge by are not those that the run in {self.folder} began with: bring them "
                "back, or give another --out for a new run"
            )

    def judged_apart(self, task: Task, table: Table, held: Table | None) -> tuple[Table, Table | None]:
        """Rows to train on and to judge by: those that were given for it, or a share of the others, the same whatever the
        seed, so that runs can be compared. All can be used."""
        for each in (table, held):
            if each is not None:
                task.texts(each)
        share = self.file.hold_out
        if share is None:
            share = max(USUAL_SHARE, min(LARGEST_SHARE, FEW_HELD_OUT / len(table)))
        return (
            table.hold_out(task.columns[0], share, MOST_HELD_OUT) if held is None and share else (table, held)
        )

    def require_memory(self, device: torch.device) -> None:
        """What samples take is asked as soon as the table is encoded, which decides how long they are."""
        if self.resuming or self.file.lora is not None or self.family.features is not None:
            return  # weights are asked for as they are opened, and little else trains
        shape = with_vocabulary(self.shape, self.vocabulary)
        require_states(self.family, shape, self.heads, self.choice, f"to train {self.title}", device)

    def require_slices(self, unit: TrainingUnit, feed: Feed, device: torch.device) -> None:
        """Refuses samples that do not fit into memory, before the first step."""
        require_task_training(unit, feed, self.choice, f"to train {self.title} on these rows", device)

    @property
    def choice(self) -> OptimiserChoice:
        return training_settings(self.recipe, self.file, steps=1, validations=1).optimiser

    # --- what a kind of run has to say

    @abstractmethod
    def learnt(self) -> str:
        """Task, tables and numbers of rows, in a line."""

    @abstractmethod
    def sections(self, records: Records) -> list[Section]:
        """What the report says beside the training curve."""

    def compare(self, model: Model) -> None:
        """Adds to what was judged the scores that stand beside it."""

    def to_try(self, model: Model) -> str | None:
        """The command that the report ends with."""
        return None

    # --- the stages

    def settle(self, trained: Trained, world: World) -> dict[str, float]:
        """The best model is put back; unless the run was stopped, the first process alone asks it once more."""
        self.judged, self.bits = Judged(), {}
        self.put_back_best(trained)
        if trained.result.stopped:
            return trained.result.metrics
        with world.first_alone() as mine:
            if not mine:
                return {}
            alone = World(device=world.device)
            judge: Any = self.judge(trained.unit, trained.phases, alone, lambda step, text: None)
            metrics, self.judged = judge.whole(self.file.beams)
            self.bits = {name: value for name, value in metrics.items() if name.startswith("bits_per_")}
            self.compare(trained.model)
            return metrics

    def keep(self, trained: Trained, world: World) -> None:
        with world.first_alone() as mine:
            if mine:
                save(merge(trained.model) if self.file.merge else trained.model, self.folder / self.member)
                figures = {f"validation {name}": told(score) for name, score in self.judged.scores.items()}
                figures |= {
                    f"validation {name.replace('_', ' ')}": f"{bits:.3f}" for name, bits in self.bits.items()
                }
                write_run_report(
                    trained.report, trained.model, None, trained.run, self.samples, figures=figures,
                    more=self.sections(trained.run.metrics()), command=self.to_try(trained.model),
                    subtitle=self.learnt(), shown="What it answers, as it learns",
                )  # fmt: skip

    def outcome(self, trained: Trained, **common: Any) -> Finetuned:
        best = trained.result.state.best_step
        return Finetuned(**common, best_step=best, scores=self.judged.scores, beside=self.judged.beside)


def judged_curve(records: Records, name: str, y_label: str, title: str) -> list[Section]:
    """A figure by step, if it was judged at all."""
    points = [
        (one["step"], one[VALIDATION_PREFIX + name]) for one in records if VALIDATION_PREFIX + name in one
    ]
    return [Curve({"validation": points}, y_label=y_label, title=title)] if points else []


def rows_of(name: str, train: Table, held: Table | None) -> str:
    """What is learnt from how many rows, for people."""
    count, there = (0, train.description) if held is None else (len(held), held.description)
    judged = "" if there == train.description else f" of {there}"
    return f"{name} on {train.description}: {len(train):,} rows to train on, {count:,}{judged} to judge by"


def told(score: MetricScore) -> str:
    """A score with its interval, for people."""
    interval = "" if score.low is None else f" ({score.low:.2f} to {score.high:.2f})"
    return f"{score.value:.2f}{interval}"
