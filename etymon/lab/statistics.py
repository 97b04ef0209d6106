"""How sure a comparison is: differences between arms over seeds and items, with intervals that keep their
promise for as few as three seeds.

Legend: S seeds of an arm, M items (passages, rows or pairs), B resamples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

RESAMPLES = 2000
CONFIDENCE = 0.95
MOST_DEGREES = 1e5
"""Degrees of freedom from which on Student's distribution is the normal one."""
FURTHEST = 1000.0
"""Times the budget beyond which a fit over a few rungs predicts nothing."""


@dataclass(frozen=True)
class ItemScores:
    """What the runs of an arm scored: `values_SM[s, m]` by seed and item. The score of a run is the mean over
    its items, each counting `weights_M[m]` (bytes of a passage; 1 a row)."""

    values_SM: np.ndarray
    weights_M: np.ndarray

    @staticmethod
    def of(values: Sequence[Sequence[float]], weights: Sequence[float] | None = None) -> ItemScores:
        """Scores by seed, then by item; equal weights unless given."""
        values_SM = np.asarray(values, float)
        if values_SM.ndim != 2 or not values_SM.size:
            raise ValueError(f"scores are a row of items for every seed, not {values_SM.shape}")
        return ItemScores(values_SM, np.ones(values_SM.shape[1]) if weights is None else np.asarray(weights))

    @property
    def by_seed(self) -> np.ndarray:
        """The score of every run."""
        return self.values_SM @ (self.weights_M / self.weights_M.sum())

    @property
    def mean(self) -> float:
        return float(self.by_seed.mean())


@dataclass(frozen=True)
class Difference:
    """How far the score of arm `first` is above that of `second`."""

    first: str
    second: str
    value: float
    low: float
    high: float
    """The ends of its 95% interval."""
    p: float
    """How often a difference of this size would be seen between equal arms; two-sided."""
    adjusted_p: float
    """The same, corrected for the number of differences that are looked at (Holm 1979)."""
    improvement: float
    """The probability that a new run of `first` scores above a new run of `second`, from the runs at hand."""


@dataclass(frozen=True)
class Verdict:
    """The decision of a comparison. Without a `winner`, `leader` has the best mean and may owe it to luck."""

    leader: str
    winner: str | None
    differences: list[Difference]
    noise_floor: float
    """Differences below it are lost in the noise of the seeds."""


def compare_arms(
    arms: Mapping[str, ItemScores], *, falls: bool, resamples: int = RESAMPLES, seed: int = 0
) -> Verdict:
    """Compares all arms by pairs. The winner is the arm that is better than each of the others at 5% error
    over all of these comparisons together; often there is none. `falls`: smaller scores are better."""
    # The same resamples for all pairs: their differences then add up.
    counts_BM = resample_items(len(next(iter(arms.values())).weights_M), resamples, seed)
    differences = [difference(arms, first, second, counts_BM) for first, second in combinations(arms, 2)]
    adjusted = holm([each.p for each in differences])
    differences = [replace(each, adjusted_p=p) for each, p in zip(differences, adjusted, strict=True)]
    leader = (min if falls else max)(arms, key=lambda name: arms[name].mean)
    of_leader = [each for each in differences if leader in (each.first, each.second)]
    is_sure = bool(of_leader) and all(each.adjusted_p < 1 - CONFIDENCE for each in of_leader)
    floor = noise_floor([each.by_seed for each in arms.values()])
    return Verdict(leader, leader if is_sure else None, differences, floor)


def difference(arms: Mapping[str, ItemScores], first: str, second: str, counts_BM: np.ndarray) -> Difference:
    """The difference of two arms' scores.

    Runs of an arm differ by their seeds, and another test text would have other items. Both count: items are
    resampled in pairs, the same for both arms. Resampling three seeds would give intervals that hold 81% of
    the time instead of 95%: the variance of so few is estimated without bias, and Student's distribution with
    Satterthwaite's degrees of freedom takes the place of the normal one.
    """
    higher, lower = arms[first], arms[second]
    value = higher.mean - lower.mean
    # Variances with their degrees of freedom: of the seeds of each arm, then of the items.
    parts = []
    for scores in (higher, lower):
        runs = len(scores.by_seed)
        parts += [(scores.by_seed.var(ddof=1) / runs, runs - 1)] if runs > 1 else []
    gaps_M, items = higher.values_SM.mean(0) - lower.values_SM.mean(0), len(higher.weights_M)
    if items > 1:
        weights_BM = counts_BM * higher.weights_M
        resampled_B = weights_BM @ gaps_M / weights_BM.sum(1)
        # A sample of M items varies less around itself than around the truth, by (M - 1) / M.
        parts.append((resampled_B.var() * items / (items - 1), items - 1))
    variance = sum(part for part, _ in parts)
    if min(len(higher.by_seed), len(lower.by_seed)) < 2:
        return Difference(first, second, value, -np.inf, np.inf, 1.0, 1.0, improvement(higher, lower))
    # One figure a run, the same in all runs of both: nothing tells how far it may be off.
    if not variance and items < 2 and value:
        return Difference(first, second, value, -np.inf, np.inf, 1.0, 1.0, improvement(higher, lower))
    if not variance:  # equal in every run, or different in every run and item by the same amount
        p = float(value == 0)
        return Difference(first, second, value, value, value, p, p, improvement(higher, lower))
    # Satterthwaite 1946: as many as a single variance would have that is as uncertain as this sum.
    degrees = variance**2 / sum(part**2 / freedom for part, freedom in parts)
    error = variance**0.5
    reach = t_quantile(0.5 + CONFIDENCE / 2, degrees) * error
    p = t_tails(value / error, degrees)
    return Difference(first, second, value, value - reach, value + reach, p, p, improvement(higher, lower))


def resample_items(items: int, resamples: int = RESAMPLES, seed: int = 0) -> np.ndarray:
    """How often each of M items is drawn in each of B resamples, `counts_BM`."""
    return np.random.default_rng(seed).multinomial(items, np.full(items, 1 / items), size=resamples)


def improvement(scores: ItemScores, others: ItemScores) -> float:
    """The share of pairs of runs in which that of `scores` is above that of `others`; ties count half
    (Agarwal et al. 2021)."""
    gaps = scores.by_seed[:, None] - others.by_seed[None, :]
    return float(((gaps > 0) + 0.5 * (gaps == 0)).mean())


def interquartile_mean(values: Sequence[float] | np.ndarray) -> float:
    """The mean of the middle half of the values: neither a lucky nor a failed run decides (Agarwal et al.
    2021)."""
    ordered = np.sort(np.asarray(values, float).ravel())
    cut = len(ordered) // 4
    return float(ordered[cut : len(ordered) - cut].mean())


def mean_interval(scores: ItemScores, counts_BM: np.ndarray) -> tuple[float, float]:
    """The ends of the 95% interval of an arm's score, over seeds and items as in `difference`."""
    # An arm that always scores zero has no noise of its own.
    nothing = ItemScores(np.zeros((2, scores.values_SM.shape[1])), scores.weights_M)
    alone = difference({"arm": scores, "zero": nothing}, "arm", "zero", counts_BM)
    return alone.low, alone.high


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values corrected so that one or more false findings among all of them have a chance of 5% (Holm
    1979)."""
    # The smallest is held to the strictest limit; none may be smaller than the one before it.
    order = np.argsort(p_values)
    adjusted, largest = np.zeros(len(p_values)), 0.0
    for place, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - place) * p_values[index]))
        adjusted[index] = largest
    return [float(p) for p in adjusted]


def noise_floor(scores_by_arm: Sequence[np.ndarray]) -> float:
    """The smallest difference of two means that repeats of one arm could not have made by themselves.

    From the deviation of repeats around their own arm's mean, of all arms together. Infinite without repeats.
    """
    repeated = [scores for scores in scores_by_arm if len(scores) > 1]
    freedom = sum(len(scores) - 1 for scores in repeated)
    if not freedom:
        return float("inf")
    # Pooled: three repeats of one arm alone would tell little about their own spread.
    variance = sum(float(((scores - scores.mean()) ** 2).sum()) for scores in repeated) / freedom
    runs = min(len(scores) for scores in repeated)
    return t_quantile(0.5 + CONFIDENCE / 2, freedom) * (2 * variance / runs) ** 0.5


# --- Student's distribution


def t_quantile(probability: float, degrees: float) -> float:
    """The value that Student's t stays below with this probability."""
    angles, cumulative = _t_distribution(degrees)
    return float(min(degrees, MOST_DEGREES) ** 0.5 * np.tan(np.interp(probability, cumulative, angles)))


def t_tails(value: float, degrees: float) -> float:
    """The probability that Student's t is further from zero than `value`."""
    angles, cumulative = _t_distribution(degrees)
    angle = np.arctan(-abs(value) / min(degrees, MOST_DEGREES) ** 0.5)
    return float(2 * np.interp(angle, angles, cumulative))


def _t_distribution(degrees: float) -> tuple[np.ndarray, np.ndarray]:
    """Angles, and the probability that t is below `sqrt(degrees) * tan(angle)`: of an angle, the density is
    cos(angle) ** (degrees - 1), which is smooth and bounded."""
    degrees = min(degrees, MOST_DEGREES)
    # Many degrees: all of it is near zero.
    widest = min(np.pi / 2, 40 / degrees**0.5)
    angles = np.linspace(-widest, widest, 8001)
    # The cosine of a right angle is rounded to just below zero.
    density = np.maximum(np.cos(angles), 0) ** (degrees - 1)
    cumulative = np.concatenate(([0.0], np.cumsum((density[1:] + density[:-1]) / 2)))
    return angles, cumulative / cumulative[-1]


# --- what more budget would bring


@dataclass(frozen=True)
class PowerLaw:
    """`scale * budget ** -slope`: how an error falls with the budget, as far as a few rungs tell."""

    scale: float
    slope: float

    @staticmethod
    def fit(points: Sequence[tuple[float, float]]) -> PowerLaw | None:
        """The law through (budget, error), least squares in logarithms; None of fewer than two budgets."""
        usable = [(x, y) for x, y in points if x > 0 and y > 0]
        if len({x for x, _ in usable}) < 2:
            return None
        x, y = np.log(np.array(usable, float)).T
        slope = float(((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum())
        return PowerLaw(float(np.exp(y.mean() - slope * x.mean())), -slope)

    def at(self, budget: float) -> float:
        return self.scale * float(budget**-self.slope)


def budget_to_tell_apart(
    law: PowerLaw, rival: PowerLaw, needed: float, budget: float, furthest: float = FURTHEST
) -> float | None:
    """The budget at which two laws are `needed` apart, if that is within `furthest` times the `budget`.

    The noise is taken to stay as large as it is. None: the laws do not come so far apart.
    """
    # A grid, since two laws may cross: the first budget is wanted, not any.
    for budget_tried in budget * np.geomspace(1, furthest, 400):
        if abs(law.at(budget_tried) - rival.at(budget_tried)) > needed:
            return float(budget_tried)
    return None
