"""The number of steps of a run with a time budget, which is revised as it goes.

Steps are measured before the first one, but the machine may be busier then, or later. So the run looks at the clock ten times
and, towards its end, more often, and changes the number of steps that are left. The schedule goes on from where it is and reaches
its end with the last step. A revision is recorded before it is followed, so that a resumed run repeats it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal, TypeVar

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from etymon.errors import EtymonError
from etymon.training.distributed import World
from etymon.training.feeding import Course

Settings = TypeVar("Settings")

EVERY, NEAR_END = 0.1, 0.02
"""Shares of the budget after which the clock is looked at, at the latest and at the earliest."""
SMALLEST = 0.01
"""Share of the steps by which a revision changes them at least."""
DECAY = 0.02
"""Share of the steps taken that are left at least for the schedule to reach its end, however late it is."""


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class TimeBudget:
    """Seconds for everything from the first validation to the last, and what was measured before."""

    seconds: float
    step_seconds: tuple[float, ...]
    """Of a step of each phase."""
    last_validation: float
    """Seconds of the last validation, which reads all of the held-out text."""


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Revision:
    """Another number of steps for the whole run."""

    step: int
    """Steps that were done when it was made."""
    done: float
    """How far the schedule was, from 0 to 1."""
    steps: int


class StepPlan:
    """How many steps a run takes, and how far along its schedule each one is."""

    def __init__(
        self,
        course: Course,
        steps: int,
        paced: Literal["steps", "samples"] = "steps",
        time: TimeBudget | None = None,
        revisions: Sequence[Revision] = (),
        record: Callable[[Sequence[Revision]], None] = lambda revisions: None,
    ) -> None:
        """`revisions` were made when the run's steps were taken before; `record` gets all of them with every new one."""
        self.course, self.steps, self.paced, self.time = course, steps, paced, time
        self.first_steps = steps
        """As planned before the first step: what positions in the schedule are counted in."""
        self.revisions = list(revisions)
        self._check_revisions()
        self._record, self._followed = record, 0
        self._looked = (0, 0.0)
        """Steps and seconds when the clock was looked at last."""

    def _check_revisions(self) -> None:
        """Refuses revisions that no run has made: somebody has edited them."""
        before, steps = 0, self.first_steps
        for revision in self.revisions:
            if not before <= revision.step < min(steps, revision.steps) or not 0 <= revision.done <= 1:
                raise EtymonError(
                    f"training.revisions of run.yaml say {revision.steps:,} steps after step {revision.step:,}, which cannot "
                    "be: bring the file back as the run wrote it"
                )
            before, steps = revision.step + 1, revision.steps

    def settled(self, settings: Settings) -> Settings:
        """The settings of the run as they came to be: with the number of steps that it has now, and without the way there."""
        return replace(settings, steps=self.steps, time=None, revisions=())  # type: ignore[type-var]

    def position(self, step: int) -> float:
        """How far along the schedule `step` is, from 0 to `first_steps`."""
        if not self._followed:
            return (
                step
                if self.paced == "steps"
                else self.first_steps * self._amount(step) / self._amount(self.steps)
            )
        last = self.revisions[self._followed - 1]
        begin, here, end = (self._amount(count) for count in (last.step, step, self.steps))
        return self.first_steps * (last.done + (1 - last.done) * (here - begin) / (end - begin))

    def start(self, step: int, seconds: float) -> None:
        """The run begins, or goes on after `step` steps and so many seconds."""
        self._follow(step)
        self._looked = (step, seconds)

    def revise(self, step: int, seconds: float, world: World) -> bool:
        """After `step` steps and so many seconds: whether the run has another number of steps from now on.

        What was decided here before is decided again; else the first process's clock decides.
        """
        if self._follow(step):
            return True
        again = self.time is None or self._followed < len(self.revisions)
        if again or not world.any(world.first and self._due(step, seconds)):
            return False
        steps = int(world.add({"steps": self._fitting(step, seconds) if world.first else 0})["steps"])
        if steps == self.steps:
            return False
        self.revisions.append(Revision(step, self.position(step) / self.first_steps, steps))
        with world.first_alone() as mine:
            if mine:
                self._record(self.revisions)
        return self._follow(step)

    def _follow(self, step: int) -> bool:
        """Takes over the revisions up to this step, stretching the phases that are still to come; whether there was one."""
        before = self._followed
        for revision in self.revisions[before:]:
            if revision.step <= step:
                left = self.steps - revision.step
                self.course.stretch(revision.step, (revision.steps - revision.step) / left)
                self.steps, self._followed = revision.steps, self._followed + 1
        return self._followed > before

    def _due(self, step: int, seconds: float) -> bool:
        """Whether it is time to look at the clock: a tenth of the budget is over since, or half of what was left of it or of
        the steps."""
        assert self.time is not None
        budget, (before, then) = self.time.seconds, self._looked
        if seconds - then < NEAR_END * budget:
            return False
        return seconds - then >= min(EVERY * budget, (budget - then) / 2) or 2 * step >= self.steps + before

    def _fitting(self, step: int, seconds: float) -> int:
        """The number of steps that fits into the budget if the rest goes as fast as since the last look."""
        assert self.time is not None
        before, then = self._looked
        self._looked = (step, seconds)
        slower = (seconds - then) / self._measured(before, step)
        budget = self.time.seconds
        remaining = max(budget - slower * self.time.last_validation, budget / 2) - seconds
        left = self.steps - step
        fitting = round(left * remaining / (slower * self._measured(step, self.steps)))
        steps = step + max(fitting, min(left, math.ceil(DECAY * step)), 1)
        return steps if abs(steps - self.steps) >= max(1.0, SMALLEST * self.steps) else self.steps

    def _amount(self, steps: int) -> int:
        return steps if self.paced == "steps" else self.course.samples(steps)

    def _measured(self, first: int, last: int) -> float:
        """Seconds of these steps, had they taken as long as when they were measured."""
        assert self.time is not None
        ends = [*(phase.first for phase in self.course.phases[1:]), self.steps]
        return sum(
            max(0, min(end, last) - max(phase.first, first)) * seconds
            for phase, end, seconds in zip(self.course.phases, ends, self.time.step_seconds, strict=True)
        )
