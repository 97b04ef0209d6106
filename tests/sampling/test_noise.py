from __future__ import annotations

from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from etymon.errors import EtymonError
from etymon.sampling import noise
from tests import reconstruct

SENTINELS = list(range(999, 899, -1))
seeds = st.integers(0, 2**32)
masks = st.lists(st.booleans(), min_size=1, max_size=80).map(lambda bits: np.array(bits, bool))


def generator(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def spans(mask: np.ndarray) -> int:
    return int(mask[0]) + sum(later and not earlier for earlier, later in pairwise(mask.tolist()))


def test_t5_arithmetic() -> None:
    assert noise.noise_counts(568, 0.15, 3.0) == (85, 28)
    assert noise.span_lengths(568) == (512, 114)
    assert noise.raw_length_for(512) == (568, 114)
    with pytest.raises(EtymonError, match="too short"):
        noise.raw_length_for(2)
    for length in (3, 10, 128, 200):
        raw, target = noise.raw_length_for(length)
        assert noise.span_lengths(raw)[0] <= length < noise.span_lengths(raw + 1)[0]
        assert noise.span_lengths(raw)[1] == target


@given(st.integers(2, 600), st.floats(0.01, 0.99), st.floats(1, 20), seeds)
def test_random_spans_have_exact_counts(length: int, density: float, mean: float, seed: int) -> None:
    mask = noise.random_spans_mask(length, density, mean, generator(seed))
    expected, count = noise.noise_counts(length, density, mean)
    assert (len(mask), mask.sum(), spans(mask)) == (length, expected, count)
    assert not mask[0] and mask[-1]


def test_rolled_spans_are_the_same_ones_turned() -> None:
    masks = [noise.random_spans_mask(9, 0.2, 2.0, generator(seed), roll=True) for seed in range(300)]
    assert all(mask.sum() == 2 for mask in masks)
    assert {int(np.flatnonzero(mask & ~np.roll(mask, 1))[0]) for mask in masks} == set(range(9)), (
        "from anywhere"
    )


def test_random_spans_are_uniform_compositions() -> None:
    # 5 tokens, 2 noise in 1 span... 6 tokens, 3 noise in 2 spans: 2 x 2 masks, equally likely.
    rng = generator(0)
    seen: dict[str, int] = {}
    for _ in range(4000):
        mask = "".join("01"[bit] for bit in noise.random_spans_mask(6, 0.5, 1.5, rng).astype(int))
        seen[mask] = seen.get(mask, 0) + 1
    assert set(seen) == {"010011", "011001", "001011", "001101"}
    assert all(abs(count - 1000) < 120 for count in seen.values())


@given(masks, seeds)
def test_sentinels_can_be_undone(mask: np.ndarray, seed: int) -> None:
    ids = generator(seed).integers(0, 800, len(mask)).astype(np.int32)
    shown = noise.replace_spans_with_sentinels(ids, mask, SENTINELS)
    target = noise.span_target_with_sentinels(ids, mask, SENTINELS)
    assert shown.dtype == target.dtype == ids.dtype
    assert len(shown) == (~mask).sum() + spans(mask)
    assert len(target) == mask.sum() + spans(mask)
    assert np.array_equal(reconstruct.from_spans(shown, target, SENTINELS), ids)


def test_the_paper_example() -> None:
    ids = np.arange(10)
    mask = np.isin(ids, [2, 3, 7])
    assert noise.replace_spans_with_sentinels(ids, mask, SENTINELS).tolist() == [
        0,
        1,
        999,
        4,
        5,
        6,
        998,
        8,
        9,
    ]
    assert noise.span_target_with_sentinels(ids, mask, SENTINELS).tolist() == [999, 2, 3, 998, 7]
    with pytest.raises(EtymonError, match="needs 2 sentinels, the tokenizer has 1"):
        noise.replace_spans_with_sentinels(ids, mask, SENTINELS[:1])


@given(masks, seeds)
def test_masking_and_dropping_can_be_undone(mask: np.ndarray, seed: int) -> None:
    rng = generator(seed)
    ids = rng.integers(0, 800, len(mask))
    places, asked = np.flatnonzero(mask), ids[mask]
    shown = noise.mask_eighty_ten_ten(ids, places, 103, (0, 800), rng)
    assert np.array_equal(shown[~mask], ids[~mask])
    assert np.array_equal(reconstruct.from_at(shown, places, asked), ids)
    assert np.array_equal(reconstruct.from_dropped(ids[~mask], asked, mask), ids)


def test_eighty_ten_ten() -> None:
    ids = np.full(50_000, 7)
    shown = noise.mask_eighty_ten_ten(ids, np.arange(50_000), 103, (1000, 2000), generator(1))
    assert abs((shown == 103).mean() - 0.8) < 0.01
    assert abs((shown == 7).mean() - 0.1) < 0.01
    replaced = shown[shown >= 1000]
    assert abs(len(replaced) / 50_000 - 0.1) < 0.01 and replaced.max() < 2000 and len(set(replaced)) > 900


@given(masks, st.integers(0, 90), seeds)
def test_count_mask_is_exact(candidates: np.ndarray, count: int, seed: int) -> None:
    mask = noise.count_mask(candidates, count, generator(seed))
    assert mask.sum() == min(count, candidates.sum())
    assert not (mask & ~candidates).any()


def test_counts() -> None:
    assert [noise.masked_count(length) for length in (1, 10, 128, 512)] == [1, 2, 19, 77]


def test_a_place_that_comes_twice_is_masked_if_either_draw_says_so() -> None:
    ids = np.full(20_000, 7)
    shown = noise.mask_eighty_ten_ten(
        ids, np.repeat(np.arange(20_000), 2), 103, (1000, 2000), generator(1), (0.85, 0.15)
    )
    assert set(shown) == {7, 103}, "no share is left for random tokens"
    assert abs((shown == 7).mean() - 0.15**2) < 0.005


def test_chance_rounding_keeps_the_mean() -> None:
    rng = generator(0)
    counts = [noise.chance_count(10, 0.15, rng) for _ in range(4000)]
    assert set(counts) == {1, 2} and abs(np.mean(counts) - 1.5) < 0.03
    assert {noise.chance_count(20, 0.15, rng) for _ in range(50)} == {3}


@given(masks, masks, st.integers(0, 60), st.integers(1, 3), seeds)
def test_whole_words_stay_whole(
    starts: np.ndarray, candidates: np.ndarray, budget: int, longest: int, seed: int
) -> None:
    length = min(len(starts), len(candidates))
    starts, candidates = starts[:length], candidates[:length]
    mask = noise.words_mask(starts, candidates, budget, generator(seed), longest)
    assert mask.sum() <= budget and not (mask & ~candidates).any()
    assert mask.any() == bool(budget and candidates.any())
    inside = candidates[1:] & candidates[:-1] & ~starts[1:]  # same word as the position before
    words = np.split(np.arange(length), 1 + np.flatnonzero(~inside))
    if any(candidates[word[0]] and len(word) <= budget for word in words):
        assert (mask[1:] == mask[:-1])[inside].all()
    else:  # no word fits
        assert mask.sum() == min(budget, candidates.sum())


@pytest.mark.parametrize("longest", [1, 3])
def test_words_fill_the_budget_when_words_are_single(longest: int) -> None:
    ones = np.ones(30, bool)
    for seed in range(50):
        # Longer n-grams give way to shorter ones, so that single words always fit.
        assert noise.words_mask(ones, ones, 7, generator(seed), longest).sum() == 7


def test_words_are_equally_likely() -> None:
    starts = np.array([1, 1, 0, 0, 1, 0, 1, 1], bool)  # words of 1, 3, 2, 1 and 1 positions
    seen, rng = np.zeros(8), generator(0)
    for _ in range(3000):
        seen += noise.words_mask(starts, np.ones(8, bool), 3, rng)
    # In random order, a word is hidden if it still fits when its turn comes.
    expected = brute_force([1, 3, 2, 1, 1], 3)
    assert np.abs(seen[[0, 1, 4, 6, 7]] / 3000 - expected).max() < 0.035
    assert (seen[1] == seen[2:4]).all() and seen[4] == seen[5]


def brute_force(sizes: list[int], budget: int) -> np.ndarray:
    """How likely every word is taken, over all orders."""
    taken, orders = np.zeros(len(sizes)), list(permutations(range(len(sizes))))
    for order in orders:
        left = budget
        for word in order:
            if sizes[word] <= left:
                taken[word] += 1
                left -= sizes[word]
    return taken / len(orders)


def runs(mask: np.ndarray) -> list[int]:
    """The lengths of the runs of noise."""
    edges = np.flatnonzero(np.diff(mask, prepend=False, append=False))
    return (edges[1::2] - edges[::2]).tolist()


def test_n_grams_have_lengths_in_proportion_to_one_over_n() -> None:
    lengths = []
    ones = np.ones(4000, bool)
    for seed in range(60):  # so few of so many that they hardly ever meet; the last one may be cut short
        lengths += runs(noise.words_mask(ones, ones, 48, generator(seed), 3))
    shares = np.bincount(lengths, minlength=7) / len(lengths)
    assert len(lengths) > 1500
    assert np.abs(shares[1:4] - np.array([6, 3, 2]) / 11).max() < 0.035 and shares[4:].sum() < 0.04


def test_n_grams_end_with_the_text() -> None:
    # Of two words, from the first one on it is 1 or 2 with odds of 2 to 1, from the second one on 1. Only if the second
    # one comes first and the first one wants both, which overlap, is it left out: half of a third of the time.
    text, rng = np.arange(40) >= 38, generator(0)
    masks = [noise.words_mask(np.ones(40, bool), text, 3, rng, 3) for _ in range(3000)]
    assert all(mask[39] for mask in masks)
    assert abs(np.mean([mask[38] for mask in masks]) - 5 / 6) < 0.03


@pytest.mark.parametrize("count", [1, 2])
def test_weighted_draws_without_replacement(count: int) -> None:
    weights = np.array([0.0, 1.0, 2.0, 4.0, 0.0, 8.0])
    rng = generator(0)
    seen = sum(noise.weighted_mask(weights, count, rng).astype(int) for _ in range(6000))
    chances = weights / weights.sum()
    if count == 2:  # drawn first, or second after any other
        after = [
            sum(chances[i] * w / (15 - weights[i]) for i in range(6) if i != j) for j, w in enumerate(weights)
        ]
        chances = chances + np.array(after)
    assert np.abs(np.asarray(seen) / 6000 - chances).max() < 0.025
    assert noise.weighted_mask(weights, 10, generator(0)).tolist() == (weights > 0).tolist()


def test_places_drawn_with_replacement() -> None:
    candidates, rng = np.arange(20) % 2 == 1, generator(0)
    drawn = [noise.repeated_places(candidates, 4, rng) for _ in range(3000)]
    assert all(len(places) == 4 and (np.diff(places) >= 0).all() for places in drawn)
    shares = np.bincount(np.concatenate(drawn), minlength=20) / 12_000
    assert not shares[~candidates].any() and np.abs(shares[candidates] - 0.1).max() < 0.015
    different = np.mean([len(set(places.tolist())) == 4 for places in drawn])
    assert abs(different - 0.9 * 0.8 * 0.7) < 0.035
    assert len(noise.repeated_places(np.zeros(5, bool), 3, generator(0))) == 0


def test_a_length_of_noise_alone_is_refused() -> None:
    with pytest.raises(EtymonError, match="give a density below 1"):
        noise.raw_length_for(20, density=1.0)
