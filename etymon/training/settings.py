"""How a run trains, in figures: what its run file keeps under `training`."""

from __future__ import annotations

from typing import Literal

from etymon.nn.precision import Precision
from etymon.settings import option, settings
from etymon.settings.training import LoopSettings
from etymon.training.budgets import Revision, TimeBudget
from etymon.training.optimisers import OptimiserChoice
from etymon.training.schedules import ScheduleChoice


@settings
class TrainingSettings(LoopSettings):
    """How a run trains: what was asked for, and what the rest came to with the family's recipe."""

    steps: int = option(..., "that the run takes", ge=1)
    optimiser: OptimiserChoice = option(OptimiserChoice(), "which, and how it treats which parameters")
    schedule: ScheduleChoice = option(ScheduleChoice(), "of the learning rate")
    # The next three again: here is what they came to, which a resumed run follows (None: no limit).
    clip: float | None = option(1.0, "the largest norm of the gradient", ge=0)
    validate_every: int = option(100, "steps between validations", ge=1)
    save_every: int = option(1000, "steps between checkpoints", ge=1)
    log_layers_every: int = option(50, "steps between records of the gradient's norm by layer", ge=1)
    precision: Precision = option("float32", "of matrix products and activations")
    # Samples where the batch grows, so that warm-up is counted in text.
    paced: Literal["steps", "samples"] = option("steps", "what the schedule goes by")
    time: TimeBudget | None = option(None, "what the steps were measured for: they are revised on the way")
    revisions: tuple[Revision, ...] = option(
        (), "those that were made; the last says how many steps there are"
    )
