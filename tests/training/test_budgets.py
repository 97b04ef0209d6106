"""Budgets: one notation for time, steps, tokens, epochs and words, and what they come to."""

from __future__ import annotations

from pathlib import Path

import pytest

from etymon.errors import EtymonError
from etymon.training.budgets import Budget, Pace, mean_pace, parse_budget
from etymon.training.feeding import Feed, Phase, Position, StepStream
from tests import tiny


@pytest.mark.parametrize(
    "text, expected",
    [
        ("90s", Budget(90, "seconds")),
        ("10m", Budget(600, "seconds")),
        ("1h30m", Budget(5400, "seconds")),
        ("2h", Budget(7200, "seconds")),
        ("5000steps", Budget(5000, "steps")),
        ("1step", Budget(1, "steps")),
        (" 12 steps ", Budget(12, "steps")),
        ("20Mtokens", Budget(20e6, "tokens")),
        ("1.5k tokens", Budget(1500, "tokens")),
        ("1e6tokens", Budget(1e6, "tokens")),
        ("3epochs", Budget(3, "epochs")),
        ("1epoch", Budget(1, "epochs")),
        ("0.25epochs", Budget(0.25, "epochs")),
        ("100Mwords", Budget(100e6, "words")),
        ("1word", Budget(1, "words")),
    ],
)
def test_every_unit(text: str, expected: Budget) -> None:
    assert parse_budget(text) == expected


@pytest.mark.parametrize(
    "text", ["", "10", "m", "ten minutes", "5 parsecs", "steps", "-3steps", "1.5steps", "0s", "0tokens", "0.0epochs",
             "1Mwrods", "nanwords", "infepochs", "3epochs!"],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(EtymonError) as error:
        parse_budget(text)
    assert "\n" not in str(error.value) and len(str(error.value)) < 160


@pytest.mark.parametrize("text", ["10M", "1.5M", " 10 M "])
def test_minutes_and_millions_are_not_guessed_but_named(text: str) -> None:
    number = text.strip(" M")
    with pytest.raises(EtymonError) as error:
        parse_budget(text)
    for spelling in (f"{number}m", f"{number}Mwords", f"{number}Mtokens"):
        assert spelling in str(error.value)
        assert number != "10" or parse_budget(spelling)
    assert "\n" not in str(error.value)


def test_steps_that_use_up_a_budget() -> None:
    pace = Pace(tokens=100.0, epochs=0.01, words=80.0)
    expected = {"7steps": 7, "1000tokens": 10, "1049tokens": 10, "1051tokens": 11, "2epochs": 200, "0.5epochs": 50,
                "800words": 10, "1words": 1}  # fmt: skip
    assert {text: pace.steps(parse_budget(text)) for text in expected} == expected


@pytest.mark.parametrize("family, name", tiny.CASES)
def test_the_pace_is_what_training_uses_up(family: str, name: str, tmp_path: Path) -> None:
    split = tiny.store(family, tmp_path).train
    short, long = (
        Feed(tiny.objective(family, name, length), split, 0, slices=2, rows=rows)
        for length, rows in ((16, 3), (32, 4))
    )
    alone = mean_pace([(1.0, long)])
    steps = alone.steps(parse_budget("1epoch"))
    taken = list(StepStream([Phase(0, long)]).steps(0, Position(), steps))
    assert abs(steps - len(long.plan(0)) / 8) <= 0.5
    tokens = sum(part.tokens for step in taken for part in step.slices.values())
    assert tokens == pytest.approx(steps * alone.tokens, rel=0.05)
    assert steps * alone.words == pytest.approx(float(split.words.sum()), rel=1 / steps)
    both = mean_pace([(0.75, short), (0.25, long)])
    parts = [mean_pace([(1.0, short)]), alone]
    for unit in ("tokens", "epochs", "words"):
        expected = 0.75 * getattr(parts[0], unit) + 0.25 * getattr(parts[1], unit)
        assert getattr(both, unit) == pytest.approx(expected)
