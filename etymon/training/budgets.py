"""How long to train: a budget in one notation, the steps that it is worth, and their revision as a run goes.

A time budget becomes steps by measuring them before the first one, but the machine may be busier then, or
later. So the run looks at the clock ten times and, towards its end, more often, and changes the number of
steps that are left. The schedule goes on from where it is and reaches its end with the last step. A revision
is recorded before it is followed, so that a resumed run repeats it.
"""

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

Settings = TypeVar("Settings")
Unit = Literal["seconds", "steps", "tokens", "epochs", "words", "flops"]

# Operations are counted in several slices, since their rows may be of any length.
FLOPS_SLICES = 4
# Shares of the budget after which the clock is looked at, at the latest and at the earliest.
EVERY, NEAR_END = 0.1, 0.02
# A revision changes at least this share of the steps: smaller ones are noise of the clock.
SMALLEST = 0.01
# However late a run is, this share of the steps taken is left for the schedule to reach its end:
# stopping before the learning rate has fallen would waste the run.
DECAY = 0.02


@dataclass(frozen=True)
class Budget:
    amount: float
    unit: Unit


@dataclass(frozen=True)
class Milestone:
    """Something to do when a run has used up an amount (of anything but time) for the first time."""

    amount: Budget
    act: Callable[[], None]


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
        """The same before rounding."""
        return budget.amount / float({"steps": 1.0, **vars(self)}[budget.unit])


def parse_budget(text: str) -> Budget:
    """`90s`, `10m`, `2h`; `5000steps`, `20Mtokens`, `3epochs`, `100Mwords`, `20Tflops`."""
    # Ten minutes or ten million of something: either guess could waste a day.
    if number := re.fullmatch(r"\s*(\d[\d.]*)\s*M\s*", str(text)):
        raise EtymonError(
            f"the budget {text!r} may be minutes or millions: write {number[1]}m for minutes, or "
            f"{number[1]}Mwords, {number[1]}Mtokens or {number[1]}Msteps",
            code="budget",
        )
    match = re.fullmatch(r"\s*(\S+?)\s*(steps?|tokens?|epochs?|words?|flops?)\s*", str(text))
    if match is None:
        try:
            return Budget(parse_duration(text), "seconds")
        except EtymonError as error:
            raise EtymonError(
                f"cannot read the budget {text!r}: write a time (90s, 10m, 2h) or an amount "
                "(5000steps, 20Mtokens, 3epochs, 100Mwords, 20Tflops)",
                code="budget",
            ) from error
    unit: Unit = match[2].rstrip("s") + "s"  # type: ignore[assignment]
    # Half an epoch is a budget; half a step is not.
    if unit == "epochs" and re.fullmatch(r"\d+\.\d+", match[1]):
        amount = float(match[1])
    else:
        amount = float(parse_count(match[1]))
    if amount <= 0:
        raise EtymonError(f"a budget of {text} leaves nothing to train: give more", code="budget")
    return Budget(amount, unit)


BABYLM = [*range(1, 10), *range(10, 100, 10), *range(100, 1001, 100)]
"""Millions of words after which models of the BabyLM challenge are kept."""


def parse_milestones(amounts: Sequence[str]) -> dict[str, Budget]:
    """When a model is kept, by the names of the folders: `babylm`, words (`1M 2M 500k`, which become
    `chck_1M`), or amounts with a unit (`500steps`)."""
    milestones: dict[str, Budget] = {}
    for amount in amounts:
        text = amount.strip()
        if text.lower() == "babylm":
            milestones |= {f"chck_{count}M": Budget(count * 1e6, "words") for count in BABYLM}
            continue
        # Words, without a unit: what is read by then is what data-limited training compares. A small m is a
        # minute everywhere else, so it is none here.
        if re.fullmatch(r"[\d.,_]+([eE]\d+)?\s*[kKMBGT]?", text):
            words = parse_count(text)
            if not words:
                raise EtymonError(f"save-at {text} is before the first word: give more")
            milestones[f"chck_{_short_count(words)}"] = Budget(float(words), "words")
            continue
        budget = parse_budget(text)
        if budget.unit in ("seconds", "flops"):
            raise EtymonError(
                f"save-at takes babylm, words (1M 2M) or amounts such as 500steps and 20Mtokens, not {text!r}"
            )
        milestones[text] = budget
    return milestones


def _short_count(count: int) -> str:
    """1000000 as 1M, 2500 as 2500."""
    for size, letter in ((10**6, "M"), (10**3, "k")):
        if count % size == 0:
            return f"{count // size}{letter}"
    return str(count)


def mean_pace(shares: list[tuple[float, Feed]], unit: TrainingUnit | None = None) -> Pace:
    """The pace of a run whose phases take the given shares of its steps. An epoch is one pass over the plan.

    With a `unit`, floating-point operations are counted in steps of it.
    """
    tokens = epochs = words = flops = 0.0
    for share, feed in shares:
        # Rows are ragged: the mean of a sample of them stands for all.
        phase_tokens = share * feed.slices * feed.rows * feed.mean_tokens
        tokens += phase_tokens
        flops += 0.0 if unit is None else phase_tokens * flops_per_token(unit, feed, FLOPS_SLICES)
        epochs += share * feed.epochs_per_step
        words += share * feed.words_per_step
    return Pace(tokens, epochs, words, None if unit is None else flops)


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
        stream: StepStream,
        steps: int,
        paced: Literal["steps", "samples"] = "steps",
        time: TimeBudget | None = None,
        revisions: Sequence[Revision] = (),
        record: Callable[[Sequence[Revision]], None] = lambda revisions: None,
    ) -> None:
        """`revisions` were made when the run's steps were taken before; `record` gets all of them with
        every new one."""
        self.stream, self.steps, self.paced, self.time = stream, steps, paced, time
        self.first_steps = steps
        """As planned before the first step: what positions in the schedule are counted in."""
        self.revisions = list(revisions)
        self._record, self._followed = record, 0
        self._last_look = (0, 0.0)
        """Steps and seconds when the clock was looked at last."""
        before = 0
        for revision in self.revisions:
            if not before <= revision.step < min(steps, revision.steps) or not 0 <= revision.done <= 1:
                raise EtymonError(
                    f"training.revisions of run.yaml say {revision.steps:,} steps after step "
                    f"{revision.step:,}, which cannot be: bring the file back as the run wrote it"
                )
            before, steps = revision.step + 1, revision.steps

    def final_settings(self, settings: Settings) -> Settings:
        """The settings of a run as it turned out: the number of steps that it has now, without the way
        there."""
        return replace(settings, steps=self.steps, time=None, revisions=())  # type: ignore[type-var]

    def position(self, step: int) -> float:
        """How far along the schedule `step` is, from 0 to `first_steps`."""
        amount = self.stream.samples if self.paced == "samples" else int
        if not self._followed:
            return step if amount is int else self.first_steps * amount(step) / amount(self.steps)
        last = self.revisions[self._followed - 1]
        begin, here, end = amount(last.step), amount(step), amount(self.steps)
        return self.first_steps * (last.done + (1 - last.done) * (here - begin) / (end - begin))

    def start(self, step: int, seconds: float) -> None:
        """The run begins, or goes on after `step` steps and so many seconds."""
        self._follow(step)
        self._last_look = (step, seconds)

    def revise(self, step: int, seconds: float, world: World) -> bool:
        """After `step` steps and so many seconds: whether the run has another number of steps from now on.

        What was decided here before is decided again; else the first process's clock decides.
        """
        if self._follow(step):
            return True
        repeats = self._followed < len(self.revisions)
        if self.time is None or repeats or not world.any(world.first and self._is_due(step, seconds)):
            return False
        # A sum of one number and zeros: all processes get what the first one's clock says.
        steps = int(world.add({"steps": self._fitting_steps(step, seconds) if world.first else 0})["steps"])
        if steps == self.steps:
            return False
        self.revisions.append(Revision(step, self.position(step) / self.first_steps, steps))
        with world.first_alone() as mine:
            if mine:
                self._record(self.revisions)
        return self._follow(step)

    def _follow(self, step: int) -> bool:
        """Applies the revisions up to this step, stretching the phases still to come; whether there was
        one."""
        before = self._followed
        for revision in self.revisions[before:]:
            if revision.step <= step:
                left = self.steps - revision.step
                self.stream.stretch(revision.step, (revision.steps - revision.step) / left)
                self.steps, self._followed = revision.steps, self._followed + 1
        return self._followed > before

    def _is_due(self, step: int, seconds: float) -> bool:
        """Whether to look at the clock: since the last look a tenth of the budget is over, or half of what
        was left of it or of the steps."""
        assert self.time is not None
        budget, (before, then) = self.time.seconds, self._last_look
        if seconds - then < NEAR_END * budget:
            return False
        return seconds - then >= min(EVERY * budget, (budget - then) / 2) or 2 * step >= self.steps + before

    def _fitting_steps(self, step: int, seconds: float) -> int:
        """The number of steps that fits into the budget if the rest goes as fast as since the last look."""
        assert self.time is not None
        before, then = self._last_look
        self._last_look = (step, seconds)
        # One factor for all phases: a busy machine slows them all down, and of later ones nothing is known.
        slowdown = (seconds - then) / self._measured_seconds(before, step)
        budget = self.time.seconds
        # Half of the budget at least is for training, even if a validation would take all of it.
        remaining = max(budget - slowdown * self.time.last_validation, budget / 2) - seconds
        left = self.steps - step
        fitting = round(left * remaining / (slowdown * self._measured_seconds(step, self.steps)))
        steps = step + max(fitting, min(left, math.ceil(DECAY * step)), 1)
        return steps if abs(steps - self.steps) >= max(1.0, SMALLEST * self.steps) else self.steps

    def _measured_seconds(self, first: int, last: int) -> float:
        """Seconds of these steps, had they taken as long as when they were measured."""
        assert self.time is not None
        counts = self.stream.steps_by_phase(first, last)
        return sum(
            count * seconds for (_, count), seconds in zip(counts, self.time.step_seconds, strict=True)
        )
