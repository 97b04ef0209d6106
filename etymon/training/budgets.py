"""How long to train: time, steps, tokens, epochs, words or operations, in one notation."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass as strict_dataclass

from etymon.config import parse_count, parse_duration
from etymon.errors import EtymonError
from etymon.training.distributed import World
from etymon.training.feeding import Feed, StepStream
from etymon.training.speed import flops_per_token
from etymon.training.unit import TrainingUnit

Unit = Literal["seconds", "steps", "tokens", "epochs", "words", "flops"]

COUNTED = 4
"""Slices in which operations are counted, since their rows may be of any length."""


@dataclass(frozen=True)
class Budget:
    amount: float
    unit: Unit


@dataclass(frozen=True)
class Pace:
    """What one step of a run uses up, on average over its phases."""

    tokens: float
    epochs: float
    words: float
    flops: float | None = None

    def steps(self, budget: Budget) -> int:
        """The number of steps that use up the budget (not for seconds, which have to be measured)."""
        return max(1, round(self.exact_steps(budget)))

    def exact_steps(self, budget: Budget) -> float:
        each = {"steps": 1.0, **vars(self)}[budget.unit]
        return budget.amount / float(each)


def parse_budget(text: str) -> Budget:
    """`90s`, `10m`, `2h`; `5000steps`, `20Mtokens`, `3epochs`, `100Mwords`, `20Tflops`."""
    if number := re.fullmatch(r"\s*(\d[\d.]*)\s*M\s*", str(text)):
        raise EtymonError(
            f"the budget {text!r} may be minutes or millions: write {number[1]}m for minutes, or {number[1]}Mwords, "
            f"{number[1]}Mtokens or {number[1]}Msteps"
        )
    match = re.fullmatch(r"\s*(\S+?)\s*(steps?|tokens?|epochs?|words?|flops?)\s*", str(text))
    if match is None:
        try:
            return Budget(parse_duration(text), "seconds")
        except EtymonError as error:
            raise EtymonError(
                f"cannot read the budget {text!r}: write a time (90s, 10m, 2h) or an amount "
                "(5000steps, 20Mtokens, 3epochs, 100Mwords, 20Tflops)"
            ) from error
    unit: Unit = match[2].rstrip("s") + "s"  # type: ignore[assignment]
    if unit == "epochs" and re.fullmatch(r"\d+\.\d+", match[1]):
        amount = float(match[1])
    else:
        amount = float(parse_count(match[1]))
    if amount <= 0:
        raise EtymonError(f"a budget of {text} leaves nothing to train: give more")
    return Budget(amount, unit)


def mean_pace(shares: list[tuple[float, Feed]], unit: TrainingUnit | None = None) -> Pace:
    """The pace of a run whose phases take the given shares of its steps. An epoch is one pass over the plan.

    Floating-point operations are counted, in a step of the `unit`, if it is given.
    """
    tokens = epochs = words = flops = 0.0
    for share, feed in shares:
        read = share * feed.slices * feed.rows * feed.mean_tokens
        tokens += read
        flops += 0.0 if unit is None else read * flops_per_token(unit, feed, COUNTED)
        epochs += share * feed.epochs_per_step
        words += share * feed.words_per_step
    return Pace(tokens, epochs, words, None if unit is None else flops)


Settings = TypeVar("Settings")

EVERY, NEAR_END = 0.1, 0.02
"""Shares of the budget after which the clock is looked at, at the latest and at the earliest."""
SMALLEST = 0.01
"""Share of the steps by which a revision changes them at least."""
DECAY = 0.02
"""Share of the steps taken that are left at least for the schedule to reach its end, however late it is."""


@strict_dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class TimeBudget:
    """Seconds for everything from the first validation to the last, and what was measured before."""

    seconds: float
    step_seconds: tuple[float, ...]
    """Of a step of each phase."""
    last_validation: float
    """Seconds of the last validation, which reads all of the held-out text."""


@strict_dataclass(frozen=True, config=ConfigDict(extra="forbid"))
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
        course: StepStream,
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
