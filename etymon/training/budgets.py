"""How long to train: time, steps, tokens, epochs, words or operations, in one notation."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from etymon.config import parse_count, parse_duration
from etymon.errors import EtymonError
from etymon.training.feeding import Feed
from etymon.training.speed import operations_a_token
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


def pace_of(shares: list[tuple[float, Feed]], unit: TrainingUnit | None = None) -> Pace:
    """The pace of a run whose phases take the given shares of its steps. An epoch is one pass over the plan.

    Floating-point operations are counted, in a step of the `unit`, if it is given.
    """
    tokens = epochs = words = flops = 0.0
    for share, feed in shares:
        read = share * feed.slices * feed.rows * feed.mean_tokens
        tokens += read
        flops += 0.0 if unit is None else read * operations_a_token(unit, feed, COUNTED)
        epochs += share * feed.epochs_a_step
        words += share * feed.words_a_step
    return Pace(tokens, epochs, words, None if unit is None else flops)
