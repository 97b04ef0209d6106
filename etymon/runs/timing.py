"""A time budget as steps: how long a step and a validation take here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from etymon.runs.training_settings import steps_within, training_settings
from etymon.runs.validation import PhasePlan
from etymon.training.budgets import TimeBudget
from etymon.training.distributed import World
from etymon.training.feeding import Phase, StepStream
from etymon.training.loop import Trainer, TrainingSettings

if TYPE_CHECKING:
    from etymon.runs.running import TrainingRun


def measure(
    run: TrainingRun[Any],
    make_trainer: Callable[[TrainingSettings, StepStream], Trainer],
    budget: float,
    phases: Sequence[PhasePlan],
    world: World,
) -> tuple[TimeBudget, int, int]:
    """What is left of a budget of seconds after measuring, and the numbers of steps and validations that fit into it."""
    file, clock = run.file, run.clock
    probing = training_settings(run.recipe, file, steps=2**20, validations=1)
    begin, patience = clock(), min(4.0, budget / 10) / len(phases)
    step_seconds = []
    for phase in phases:
        course = StepStream([Phase(0, phase.feed)], rank=world.rank, ranks=world.size, workers=run.workers)
        trainer = make_trainer(probing, course)
        step_seconds.append(trainer.seconds_per_step(patience))
    before = clock()
    trainer.validate(0)
    validation = clock() - before
    # The last validation reads all of the held-out text, which may be much.
    spare = validation * phases[-1].rest_of_validation(file.seed)
    left = max(budget - (clock() - begin), budget / 2)
    mean = sum(phase.share * seconds for phase, seconds in zip(phases, step_seconds))
    steps, validations = steps_within(max(left - spare, budget / 2), mean, validation, file.validate_every)
    # Of several processes each one has measured: all take the mean.
    means = world.add({"left": left, "spare": spare + validation, "steps": steps, "validations": validations})
    mean_of = {name: value / world.size for name, value in means.items()}
    time = TimeBudget(mean_of["left"], tuple(step_seconds), mean_of["spare"])
    run.progress.note(f"{mean * 1000:.0f} ms a step, so {round(mean_of['steps']):,} fit into the budget")
    return time, round(mean_of["steps"]), round(mean_of["validations"])
