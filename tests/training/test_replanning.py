"""The number of steps of a time budget, in thought: no model, and a clock that steps push on."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from etymon.training.budgets import Revision, StepPlan, TimeBudget
from etymon.training.distributed import World
from etymon.training.feeding import Phase, StepStream

BUDGET, STEPS = 600.0, 2000


def stream(*firsts: int, rows: tuple[int, ...] = ()) -> StepStream:
    made = object.__new__(StepStream)  # its phases are all that is asked for, and they have no samples
    sizes = rows or (1,) * len(firsts)
    made.phases = [Phase(first, SimpleNamespace(batch_size=size)) for first, size in zip(firsts, sizes)]  # type: ignore[arg-type]
    return made


def spend(plan: StepPlan, loads: Any) -> tuple[float, list[float]]:
    """Seconds until the plan's last step, and the positions of its steps; `loads` are those of every tenth of the budget."""
    seconds, step, positions = 0.0, 0, []
    while step < plan.steps:
        number = plan.stream.phases.index(plan.stream.phase(step))
        positions.append(plan.position(step))
        seconds += TIME.step_seconds[number] * loads[min(int(10 * seconds / BUDGET), len(loads) - 1)]
        step += 1
        if step < plan.steps:
            plan.revise(step, seconds, World())
    return seconds, positions


TIME = TimeBudget(BUDGET, (0.2, 0.7), 0.0)


@pytest.mark.parametrize("paced", ["steps", "samples"])
@pytest.mark.parametrize("seed", range(20))
def test_any_load_ends_within_a_tenth_of_the_budget(seed: int, paced: Any) -> None:
    loads = np.random.default_rng(seed).uniform(0.5, 3.0, 10)
    plan = StepPlan(stream(0, round(0.8 * STEPS), rows=(1, 4)), STEPS, paced, TIME)
    seconds, positions = spend(plan, loads)
    assert seconds == pytest.approx(BUDGET, rel=0.1)
    assert all(after > before for before, after in pairwise(positions))
    last = positions[-1] - positions[-2]
    assert positions[-1] == pytest.approx(STEPS - last, rel=1e-6), "the schedule ends with the last step"
    share = plan.stream.phases[1].first / plan.steps
    assert 0.6 < share < 0.9, "a later phase gets about its share"


def test_revisions_are_recorded_before_they_are_followed_and_repeated() -> None:
    recorded: list[list[Revision]] = []
    first = StepPlan(stream(0, 1600), STEPS, "steps", TIME, (), lambda made: recorded.append(list(made)))
    spend(first, [2.0, 2.0, 1.0, 3.0, 1.0])
    assert recorded and recorded[-1] == first.revisions
    again = StepPlan(stream(0, 1600), STEPS, "steps", TIME, recorded[-1])
    _, positions = spend(
        again, [1.0] * 10
    )  # a faster machine, which repeats and only then decides for itself
    assert again.revisions[: len(first.revisions)] == first.revisions
    second = first.revisions[1].step
    assert (
        positions[:second]
        == spend(StepPlan(stream(0, 1600), STEPS, "steps", None, first.revisions), [9.0])[1][:second]
    )


def test_a_run_without_a_time_budget_is_never_revised() -> None:
    plan = StepPlan(stream(0), STEPS)
    assert not any(plan.revise(step, 1e9, World()) for step in range(1, STEPS))
    assert [plan.position(step) for step in (0, 7, STEPS)] == [0, 7, STEPS]


def test_a_standstill_leaves_room_for_the_rate_to_fall() -> None:
    plan = StepPlan(stream(0), STEPS, "steps", TimeBudget(BUDGET, (0.3,), 0.0))
    assert plan.revise(1000, 10 * BUDGET, World())
    assert plan.steps == 1020
