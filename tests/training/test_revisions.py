"""Revised numbers of steps that a run cannot have made are refused; what it came to is what its history says."""

from __future__ import annotations

from typing import Any

import pytest

from etymon.errors import EtymonError
from etymon.training.budgets import Revision, StepPlan, TimeBudget
from etymon.training.settings import TrainingSettings

COURSE: Any = None


@pytest.mark.parametrize(
    "revisions",
    [
        [Revision(1, 0.5, 1), Revision(1, 0.5, 9)],
        [Revision(12, 0.5, 20)],
        [Revision(2, 1.5, 20)],
        [Revision(4, 0.2, 12), Revision(3, 0.3, 14)],
    ],
)
def test_revisions_that_cannot_be_are_refused(revisions: list[Revision]) -> None:
    with pytest.raises(EtymonError, match=r"training\.revisions"):
        StepPlan(COURSE, 10, revisions=revisions)


def test_a_history_tells_the_steps_that_the_run_came_to() -> None:
    time = TimeBudget(30.0, (0.5,), 1.0)
    plan = StepPlan(COURSE, 10, time=time, revisions=[Revision(4, 0.4, 12)])
    plan.steps = 12
    settled = plan.final_settings(TrainingSettings(steps=10, time=time, revisions=(Revision(4, 0.4, 12),)))
    assert (settled.steps, settled.time, settled.revisions) == (12, None, ())
