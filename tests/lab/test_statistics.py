"""The statistics of a comparison keep their promises: by simulated tournaments, and against SciPy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from etymon.lab.statistics import (
    ItemScores,
    PowerLaw,
    budget_to_tell_apart,
    compare_arms,
    difference,
    holm,
    improvement,
    interquartile_mean,
    mean_interval,
    noise_floor,
    resample_items,
    t_quantile,
    t_tails,
)

SIMULATIONS = 1000
SEEDS, ITEMS = 3, 60


def tournament(
    means: list[float], rng: np.random.Generator, seed_noise: float = 0.02, item_noise: float = 0.1
) -> dict[str, ItemScores]:
    """Scores of arms with known means: seeds that differ, items that are hard for all or for one arm, and the
    rest."""
    shared = rng.normal(0, 0.5, ITEMS)
    weights = rng.integers(500, 2000, ITEMS).astype(float)
    arms = {}
    for number, mean in enumerate(means):
        of_arm = rng.normal(0, item_noise, ITEMS)
        of_seeds = rng.normal(0, seed_noise, (SEEDS, 1))
        rest = rng.normal(0, 0.05, (SEEDS, ITEMS))
        arms[f"arm {number}"] = ItemScores(mean + shared + of_arm + of_seeds + rest, weights)
    return arms


@pytest.mark.parametrize(("seed_noise", "item_noise"), [(0.05, 0.02), (0.005, 0.2), (0.02, 0.1)])
def test_intervals_hold_the_true_difference_as_often_as_promised(
    seed_noise: float, item_noise: float
) -> None:
    rng = np.random.default_rng(1)
    counts = resample_items(ITEMS, 300)
    covered = [
        each.low <= 0.1 <= each.high
        for each in (
            difference(tournament([1.1, 1.0], rng, seed_noise, item_noise), "arm 0", "arm 1", counts)
            for _ in range(SIMULATIONS)
        )
    ]
    # 95%, of 1,000 simulations with a deviation of 0.7%; a little more is no broken promise.
    assert 0.93 <= np.mean(covered) <= 0.985


def test_equal_arms_have_a_winner_in_one_tournament_of_twenty_at_most() -> None:
    rng = np.random.default_rng(2)
    verdicts = [
        compare_arms(tournament([1.0] * 4, rng), falls=True, resamples=200) for _ in range(SIMULATIONS)
    ]
    some_difference = [any(each.adjusted_p < 0.05 for each in verdict.differences) for verdict in verdicts]
    assert np.mean(some_difference) <= 0.05 + 0.02
    assert np.mean([verdict.winner is not None for verdict in verdicts]) <= 0.05


def test_a_clear_winner_is_named_and_never_a_wrong_one() -> None:
    rng = np.random.default_rng(3)
    verdicts = [
        compare_arms(tournament([0.7, 1.0, 1.05], rng), falls=True, resamples=200) for _ in range(SIMULATIONS)
    ]
    winners = [verdict.winner for verdict in verdicts]
    assert np.mean([winner == "arm 0" for winner in winners]) > 0.9  # fifteen deviations of a seed apart
    assert sum(winner not in (None, "arm 0") for winner in winners) == 0
    # A small lead is rarely enough, and the wrong arm wins less often than one time in forty.
    close = [
        compare_arms(tournament([0.99, 1.0], rng), falls=True, resamples=200).winner
        for _ in range(SIMULATIONS)
    ]
    assert np.mean([winner is None for winner in close]) > 0.8
    assert np.mean([winner == "arm 1" for winner in close]) <= 0.025 + 0.01


def test_repeats_of_one_arm_differ_by_more_than_the_noise_floor_one_time_in_twenty() -> None:
    rng = np.random.default_rng(4)
    above = []
    for _ in range(SIMULATIONS):
        repeats = rng.normal(1.0, 0.1, (2, 4))
        above.append(abs(repeats[0].mean() - repeats[1].mean()) > noise_floor(list(repeats)))
    assert 0.03 <= np.mean(above) <= 0.07
    assert noise_floor([np.array([1.0])]) == float("inf")


@pytest.mark.parametrize("degrees", [1, 2, 2.7, 4, 30, 1000, 1e9])
def test_students_distribution_is_scipys(degrees: float) -> None:
    for probability in (0.6, 0.9, 0.975, 0.995):
        assert t_quantile(probability, degrees) == pytest.approx(stats.t.ppf(probability, degrees), rel=2e-3)
    for value in (0.0, 0.5, -2.0, 4.3):
        assert t_tails(value, degrees) == pytest.approx(2 * stats.t.sf(abs(value), degrees), abs=1e-5)


def test_differences_of_runs_without_items_are_welchs_t_test() -> None:
    one, other = np.array([[1.0], [1.2], [1.1]]), np.array([[1.3], [1.6], [1.5]])
    arms = {"a": ItemScores.of(one.tolist()), "b": ItemScores.of(other.tolist())}
    found = difference(arms, "a", "b", resample_items(1))
    expected = stats.ttest_ind(one[:, 0], other[:, 0], equal_var=False)
    interval = expected.confidence_interval()
    assert found.p == pytest.approx(expected.pvalue, abs=1e-4)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), rel=1e-3)
    assert found.improvement == 0.0 and improvement(arms["b"], arms["a"]) == 1.0


def test_one_run_proves_nothing_and_equal_runs_do_not_differ() -> None:
    single = {name: ItemScores.of([[value] * 9]) for name, value in (("a", 1.0), ("b", 2.0))}
    assert compare_arms(single, falls=True).winner is None
    same = {name: ItemScores.of([[1.0, 0.0]] * 3) for name in "ab"}
    (found,) = compare_arms(same, falls=False).differences
    assert found.value == 0 and found.p == 1 and found.improvement == 0.5
    assert compare_arms({"a": same["a"]}, falls=False).winner is None  # of nobody else
    # One figure a run that no seed changes: 48% and 52% may be two labels that are always answered.
    constant = {name: ItemScores.of([[value]] * 3) for name, value in (("a", 48.0), ("b", 52.0))}
    assert compare_arms(constant, falls=False).winner is None
    with pytest.raises(ValueError, match="row of items"):
        ItemScores.of([])


def test_holm_and_the_interquartile_mean() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([]) == []
    values = np.random.default_rng(5).normal(size=(3, 7))
    assert interquartile_mean(values) == pytest.approx(stats.trim_mean(values, 0.25, axis=None))


def test_a_score_has_an_interval_of_its_own() -> None:
    rng, covered = np.random.default_rng(6), 0
    counts = resample_items(ITEMS, 200)
    for _ in range(300):
        items = rng.normal(0, 0.2, ITEMS)
        scores = ItemScores(1 + items + rng.normal(0, 0.05, (SEEDS, 1)), np.ones(ITEMS))
        low, high = mean_interval(scores, counts)
        covered += low <= 1 <= high
    assert 0.91 <= covered / 300 <= 0.99


def test_scaling_laws_are_found_again_and_say_when_a_difference_would_show() -> None:
    law = PowerLaw.fit([(budget, 3 * budget**-0.2) for budget in (1.0, 2.0, 4.0)])
    assert law is not None and (law.scale, law.slope) == pytest.approx((3, 0.2))
    steeper = PowerLaw(3.0, 0.3)
    needed = budget_to_tell_apart(law, steeper, 0.3, budget=1.0)
    assert needed is not None and abs(law.at(needed) - steeper.at(needed)) == pytest.approx(0.3, rel=0.05)
    assert budget_to_tell_apart(law, law, 0.1, 1.0) is None
    assert PowerLaw.fit([(1.0, 2.0), (1.0, 2.1)]) is None
