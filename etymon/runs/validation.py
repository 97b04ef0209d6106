"""Validation during a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from etymon.objectives.objective import MicroBatch, Objective
from etymon.runs.report import sample_text
from etymon.training.distributed import World
from etymon.training.feeding import Feed, validation_slices
from etymon.training.progress import Progress
from etymon.training.unit import TrainingUnit, evaluate

VALIDATION_SAMPLES = 512
"""Of the validations on the way; the last one reads everything."""


@dataclass
class PhasePlan:
    """A phase as it will run."""

    share: float
    length: int
    rows: int
    objective: Objective
    store: Any
    """A `TokenStore`, or what else has `train` and `validation`."""
    feed: Feed

    def rest_of_validation(self, seed: int) -> float:
        """What the last validation reads beyond one on the way, in multiples of that."""
        samples = len(self.objective.plan(self.store.validation, seed, 0, shuffle=False))
        return max(0.0, samples / VALIDATION_SAMPLES - 1)


@dataclass
class Judge:
    """Validation: a sample of the held-out text on the way, all of it at the end, and what the model writes."""

    unit: TrainingUnit
    phases: Sequence[PhasePlan]
    seed: int
    progress: Progress
    world: World
    on_sample: Callable[[int, str], None]
    _slices: dict[int, Sequence[MicroBatch]] = field(default_factory=dict)
    _first: tuple[int, dict[str, Any]] | None = None
    """The phase and the figures before the first step, which are asked for when a budget is measured and once more."""

    def validate(self, step: int, number: int, *, last: bool) -> dict[str, Any]:
        """The figures after `step` steps, by the objective and the text of phase `number`."""
        phase = self.phases[number]
        slices = self._read(phase, None) if last else self._slices.get(number)
        if slices is None:
            slices = self._read(phase, VALIDATION_SAMPLES)
            self._slices = {number: slices}  # those of an earlier phase will not be asked for again
        if not slices:
            if step == 0:
                self.progress.note(
                    "no text is held out: only the training loss will tell how good the model is"
                )
            return {}
        self.unit.objective = phase.objective
        known = self._first if step == 0 and not last else None
        figures = dict(known[1]) if known and known[0] == number else evaluate(self.unit, slices, self.world)
        if step == 0 and not last:
            self._first = number, dict(figures)
        model: Any = self.unit.model
        if self.world.first and (text := sample_text(model, self.seed)):
            self.on_sample(step, text)
        return figures

    def _read(self, phase: PhasePlan, most: int | None) -> Sequence[MicroBatch]:
        held = phase.store.validation
        return validation_slices(
            phase.objective, held, self.seed, rows=phase.rows, slices=phase.feed.slices, most=most
        )
