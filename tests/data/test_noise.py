from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from etymon.data import noise
from etymon.errors import EtymonError

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
    assert np.array_equal(noise.reconstruct_spans(shown, target, SENTINELS), ids)


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
    shown = noise.mask_eighty_ten_ten(ids, mask, 103, (0, 800), rng)
    places, asked = noise.at(ids, mask)
    assert np.array_equal(shown[~mask], ids[~mask])
    assert np.array_equal(noise.reconstruct_at(shown, places, asked), ids)
    assert np.array_equal(noise.reconstruct_dropped(noise.drop(ids, mask), asked, mask), ids)


def test_eighty_ten_ten() -> None:
    ids = np.full(50_000, 7)
    shown = noise.mask_eighty_ten_ten(ids, np.ones(50_000, bool), 103, (1000, 2000), generator(1))
    assert abs((shown == 103).mean() - 0.8) < 0.01
    assert abs((shown == 7).mean() - 0.1) < 0.01
    replaced = shown[shown >= 1000]
    assert abs(len(replaced) / 50_000 - 0.1) < 0.01 and replaced.max() < 2000 and len(set(replaced)) > 900


@given(masks, st.integers(0, 90), seeds)
def test_count_mask_is_exact(candidates: np.ndarray, count: int, seed: int) -> None:
    mask = noise.count_mask(candidates, count, generator(seed))
    assert mask.sum() == min(count, candidates.sum())
    assert not (mask & ~candidates).any()


def test_counts_and_densities() -> None:
    assert [noise.masked_count(length) for length in (1, 10, 128, 512)] == [1, 2, 19, 77]
    assert noise.masked_count(512, maximum=20) == 20
    assert abs(noise.independent_mask(100_000, 0.15, generator(0)).mean() - 0.15) < 0.005


@given(masks, masks, st.integers(0, 60), seeds)
def test_whole_words_stay_whole(starts: np.ndarray, candidates: np.ndarray, budget: int, seed: int) -> None:
    length = min(len(starts), len(candidates))
    starts, candidates = starts[:length], candidates[:length]
    mask = noise.whole_word_mask(starts, candidates, budget, generator(seed))
    assert mask.sum() <= budget and not (mask & ~candidates).any()
    inside = candidates[1:] & candidates[:-1] & ~starts[1:]  # same word as the position before
    assert (mask[1:] == mask[:-1])[inside].all()


def test_whole_words_fill_the_budget_when_words_are_single() -> None:
    ones = np.ones(30, bool)
    assert noise.whole_word_mask(ones, ones, 7, generator(0)).sum() == 7
