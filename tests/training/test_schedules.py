"""Schedules as functions of the step: corners, continuity, and the published formulas."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from etymon.config import strict
from etymon.errors import EtymonError
from etymon.training.schedules import SCHEDULES, ScheduleChoice

RISING = [name for name in SCHEDULES if name != "inverse-square-root"]


def rate(name: str, step: float, steps: int, warmup: int, **options: float) -> float:
    return ScheduleChoice(name, warmup, **options).share(step, steps)


@pytest.mark.parametrize("name", RISING)
def test_warm_up_rises_to_the_peak(name: str) -> None:
    rising = [rate(name, step, 100, 10) for step in range(10)]
    assert rising == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert rate(name, 9, 100, 10) == 1.0
    assert rate(name, 10, 100, 10) == pytest.approx(math.sqrt(10 / 11) if name == "noam" else 1.0)


@pytest.mark.parametrize("name", SCHEDULES)
def test_without_warm_up_the_first_step_is_at_the_peak(name: str) -> None:
    assert rate(name, 0, 10, 0) == 1.0
    assert 0 < rate(name, 0, 1, 0) <= 1 and 0 < rate(name, 0, 1, 1) <= 1


@pytest.mark.parametrize("warmup", [0, 1, 100, 400])
@pytest.mark.parametrize("name", SCHEDULES)
def test_shares_are_bounded_and_without_jumps(name: str, warmup: int) -> None:
    # 1 - sqrt falls steeply at first; the inverse square root of a short warm-up does, too.
    steepest = {"wsd-sqrt": 0.09, "noam": 0.3, "inverse-square-root": 0.3}.get(name, 0.011)
    shares = [rate(name, step, 1000, warmup, final=0.1, decay_share=0.2) for step in range(1200)]
    assert all(0 < share <= 1 for share in shares)
    assert max(shares[max(0, warmup - 1)], shares[warmup]) == 1.0
    assert all(b >= a for a, b in pairwise(shares[:warmup]))
    after = shares[max(0, warmup - 1) :]
    assert all(a >= b for a, b in pairwise(after)), "after the warm-up it never rises again"
    assert max(abs(a - b) for a, b in pairwise(shares)) < steepest


def test_schedules_fall_to_the_final_rate() -> None:
    assert rate("linear", 55, 100, 10) == pytest.approx(0.5)
    assert rate("cosine", 55, 100, 10) == pytest.approx(0.5)
    assert rate("cosine", 40, 100, 10) == pytest.approx(0.5 * (1 + math.cos(math.pi / 3)))
    assert rate("constant", 99, 100, 10, final=0.1) == 1.0
    for name in ("linear", "cosine", "wsd", "wsd-sqrt"):
        assert rate(name, 100, 100, 10, final=0.1) == pytest.approx(0.1)
        assert rate(name, 5000, 100, 10, final=0.1) == pytest.approx(0.1)
        assert rate(name, 99, 100, 10, final=0.1) > 0.1, "the last step still moves the weights"


def test_stable_until_the_last_share() -> None:
    assert [rate("wsd", step, 100, 10, decay_share=0.2) for step in (10, 50, 80)] == [1.0] * 3
    assert rate("wsd", 90, 100, 10, decay_share=0.2) == pytest.approx(0.5)
    assert rate("wsd-sqrt", 85, 100, 10, decay_share=0.2) == pytest.approx(0.5)
    assert rate("wsd-sqrt", 85, 100, 10, final=0.2, decay_share=0.2) == pytest.approx(0.6)
    # A run can be made longer without taking a step again: until the decay begins, nothing depends on its length.
    assert all(rate("wsd", step, 100, 10) == rate("wsd", step, 1000, 10) for step in range(90))
    # A decay that would begin within the warm-up begins after it; without one it stays.
    assert rate("wsd", 55, 100, 10, decay_share=1.0) == rate("linear", 55, 100, 10)
    assert rate("wsd", 99, 100, 10, decay_share=0.0) == 1.0


def test_inverse_square_root_is_t5_s() -> None:
    for step in (0, 1, 500, 9_999, 10_000, 123_456, 999_999):
        published = 1 / math.sqrt(max(step + 1, 10_000))
        assert 0.01 * rate("inverse-square-root", step, 1000, 10_000) == pytest.approx(published, rel=1e-12)
    assert rate("inverse-square-root", 999_999, 1000, 10_000, final=0.25) == 0.25


@pytest.mark.parametrize("dim, warmup", [(512, 4000), (1024, 16_000)])
def test_noam_is_the_same_with_its_own_scale(dim: int, warmup: int) -> None:
    peak = (dim * warmup) ** -0.5
    for t in (1, 2, 1000, warmup - 1, warmup, warmup + 1, 10 * warmup):
        published = dim**-0.5 * min(t**-0.5, t * warmup**-1.5)
        assert peak * rate("noam", t - 1, 100, warmup) == pytest.approx(published, rel=1e-12)
        if t >= warmup:
            assert rate("noam", t - 1, 100, warmup) == rate("inverse-square-root", t - 1, 100, warmup)


def test_a_choice_is_checked() -> None:
    choice = ScheduleChoice("wsd", warmup=5, final=0.1, decay_share=0.5)
    assert [choice.share(step, 20) for step in (0, 10, 15)] == pytest.approx([0.2, 1.0, 0.55])
    for wrong in (
        {"name": "cosin"},
        {"warmup": -1},
        {"final": 1.5},
        {"decay_share": -0.1},
    ):
        with pytest.raises(EtymonError):
            strict(ScheduleChoice, wrong, "run.yaml")
    with pytest.raises(EtymonError, match="did you mean 'cosine'"):
        ScheduleChoice("cosin")
    with pytest.raises(EtymonError, match="unknown key 'warm_up'"):
        strict(ScheduleChoice, {"warm_up": 3}, "run.yaml")


@pytest.mark.parametrize("name", ["linear", "cosine"])
def test_a_decay_may_end_early(name: str) -> None:
    shares = [rate(name, step, 300, 10, final=0.1, end=260 / 300) for step in range(300)]
    assert shares[:260] == pytest.approx([rate(name, step, 260, 10, final=0.1) for step in range(260)])
    assert shares[260:] == pytest.approx([0.1] * 40)
