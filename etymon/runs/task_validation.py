"""Validation of a task: its loss, and scores of what the model really answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from etymon.families.model import Model
from etymon.generation.settings import DecodingSettings
from etymon.runs.task_report import Judged
from etymon.runs.validation import PhasePlan
from etymon.sampling.examples import Examples
from etymon.tables.table import Table
from etymon.tasks.task import Task
from etymon.training.distributed import World
from etymon.training.feeding import validation_slices
from etymon.training.progress import Progress
from etymon.training.unit import TrainingUnit, averages, evaluate

FEW, MANY, FEW_TOKENS = 200, 1000, 32_768
"""Rows of the validations on the way: a few, or, where a head answers, up to many with not too many tokens. When the run is over,
all are answered."""
RESAMPLES = 1000
SHOWN = 3


@dataclass
class TaskData:
    """The rows that are trained on, as tokens, and those that are judged by."""

    train: Examples
    validation: Examples | None
    table: Table | None
    """The validation rows themselves."""

    def on_the_way(self, task: Task) -> int:
        """How many of them validations before the last answer."""
        if self.table is None or self.validation is None:
            return 0
        wanted = FEW
        if not task.writes_text:
            cheap = FEW_TOKENS * len(self.table) // max(int(self.validation.sizes.sum()), 1)
            wanted = max(FEW, min(MANY, cheap))
        return min(wanted, len(self.table))


@dataclass
class TaskPlan(PhasePlan):
    """A run's only phase."""

    beams: int = 1

    def rest_of_validation(self, seed: int) -> float:
        rows = 0 if self.store.table is None else len(self.store.table)
        return self.beams * rows / max(self.store.on_the_way(self.objective), 1)


@dataclass
class TaskJudge:
    """Every validation on the way is of the same rows, so that the best can be told."""

    unit: TrainingUnit
    task: Task
    data: TaskData
    metrics: Sequence[str]
    seed: int
    progress: Progress
    world: World
    on_sample: Callable[[int, str], None]
    _told: int | None = None

    def __post_init__(self) -> None:
        self.scored = [name for name in self.metrics if name != "loss"]
        table = self.data.table
        if table is not None:
            few = np.linspace(0, len(table) - 1, self.data.on_the_way(self.task))
            self.few = table.at(few.astype(int).tolist())
            self._examples = self.task.encode(self.few)

    def validate(self, step: int, number: int, *, last: bool) -> dict[str, Any]:
        if self.data.table is None:
            if step == 0:
                self.progress.note(
                    "no rows are held out: only the training loss will tell how good the model is"
                )
            return {}
        found = dict.fromkeys(self.scored, 0.0)
        figures, answers = self._asked(self._examples, self.few, self.world)
        if self.scored and self.world.first:
            scores = self.task.score(answers, self.few, self.scored)
            found = {name: score.value for name, score in scores.items()}
            for place in range(min(SHOWN, len(self.few))):
                self.on_sample(step, self.task.format_row(self.few, place, answers[place]))
        found = self.world.add(found)  # only the first process has answered
        if self.scored and step != self._told:  # measuring asks once more
            self._told = step
            told = ", ".join(f"{name} {value:.2f}" for name, value in found.items())
            unit = "byte" if "bits_per_byte" in figures else "target"
            self.progress.note(
                f"step {step:,}: {told}, a loss of {figures[f'bits_per_{unit}']:.3f} bits per {unit}"
            )
        return figures | found

    def whole(self, beams: int) -> tuple[dict[str, float], Judged]:
        """Loss and scores over all validation rows."""
        table = self.data.table
        if table is None or self.data.validation is None:
            return {}, Judged()
        figures, answers = self._asked(self.data.validation, table, World(), DecodingSettings(beams=beams))
        if not self.scored:
            return figures, Judged()
        scores = self.task.score(answers, table, self.scored, RESAMPLES)
        return figures | {name: score.value for name, score in scores.items()}, Judged(answers, scores)

    def _asked(
        self, examples: Any, table: Table, world: World, decoding: DecodingSettings | None = None
    ) -> tuple[dict[str, float], list[Any]]:
        """The loss of rows, and, where they are to be scored, the answers to them: the first process's."""
        model: Model = self.unit.model  # type: ignore[assignment]
        self.unit.objective = self.task
        if (
            self.scored
            and world.size == 1
            and (both := self.task.evaluate(model, examples, table)) is not None
        ):
            answers, loss = both
            return averages({"loss": loss}, {"loss": 1.0}, None), answers
        slices = list(validation_slices(self.task, examples, self.seed, rows=1))
        figures = evaluate(self.unit, slices, world)
        return figures, self.task.predict(model, table, decoding) if self.scored and world.first else []
