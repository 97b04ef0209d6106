"""The noises of encoder-decoders: what they were published to do, and that nothing of a text is lost."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from etymon.sampling import noise
from etymon.sampling.corruption import NOISES, Amounts, Text
from tests import reconstruct

MASK, SENTINELS = 500, list(range(999, 899, -1))
seeds = st.integers(0, 2**32)


def amounts(name: str, **changes: float) -> Amounts:
    given = {"density": NOISES[name].density, "mean_span": 3.0, **changes}
    return Amounts(**given, roll=False, mask=MASK, sentinels=SENTINELS, vocabulary=400)  # type: ignore[arg-type]


@st.composite
def texts(draw: st.DrawFn) -> Text:
    words = np.array(draw(st.lists(st.booleans(), min_size=2, max_size=60)), bool)
    sentences = np.flatnonzero(words & (np.arange(len(words)) % 5 == 0))
    return Text(np.arange(len(words)) + 1, words, sentences)  # every token is another one


def prose(words: int, pieces: int = 1, sentence: int = 10) -> Text:
    """So many words of so many tokens each."""
    starts = np.arange(words * pieces) % pieces == 0
    return Text(np.arange(words * pieces) + 1000, starts, np.arange(0, words * pieces, sentence * pieces))


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("name", NOISES)
@given(texts(), seeds)
def test_input_and_target_hold_the_text(name: str, text: Text, seed: int) -> None:
    corruption = NOISES[name]
    shown, target = corruption.corrupt(text, amounts(name), generator(seed))
    assert len(shown) <= len(text.ids)
    if corruption.target == "text":
        assert target.tolist() == text.ids.tolist()
    elif corruption.target == "sentinels":
        assert reconstruct.from_spans(shown, target, SENTINELS).tolist() == text.ids.tolist()
    else:  # what is shown and what is asked for are the text, each in its order
        assert sorted([*shown, *target]) == text.ids.tolist()
        assert (np.diff(shown) > 0).all() and (np.diff(target) > 0).all()
    left = [number for number in shown.tolist() if number != MASK and number not in SENTINELS]
    if name != "bert":  # whose random tokens may be any
        assert set(left) <= set(text.ids.tolist()) and len(set(left)) == len(left)


@given(texts(), seeds)
def test_infilling_takes_whole_words(text: Text, seed: int) -> None:
    spans = noise.infill_spans(text.word_starts, 0.3, 3.0, generator(seed))
    starts = text.word_starts if text.word_starts.any() else ~text.word_starts  # then every token is one
    inside = np.append(starts, True)  # behind the end a word may begin, too
    assert inside[spans.starts].all() and inside[spans.stops].all()
    assert (spans.starts < spans.stops).all() and (spans.starts[1:] >= spans.stops[:-1]).all()
    hidden = starts[spans.mask(len(text.ids))].sum()
    assert 0 < hidden <= math.ceil(0.3 * starts.sum())


@pytest.mark.parametrize("pieces", [1, 3])
def test_infilling_has_bart_s_statistics(pieces: int) -> None:
    """Few spans in a long text, which so hardly ever meet: lengths are a Poisson variable of 3, drawn until the budget is used."""
    words, rng, empty = 4000, generator(), 0
    sizes: list[int] = []
    totals = []
    for _ in range(150):
        spans = noise.infill_spans(prose(words, pieces).word_starts, 0.015, 3.0, rng)
        sizes += ((spans.stops - spans.starts) // pieces).tolist()
        totals.append((spans.stops - spans.starts).sum() / pieces)
        empty += spans.empty
    assert max(totals) == 60 and np.mean(totals) > 59.2, "the budget, but for an overlap now and then"
    shares = np.bincount(sizes, minlength=12)[:12] / (len(sizes) + empty)
    shares[0] = empty / (len(sizes) + empty)
    expected = np.array([math.exp(-3) * 3**size / math.factorial(size) for size in range(12)])
    # The last one of 60 words is cut, and now and then two are one.
    assert np.abs(shares - expected).max() < 0.025


def test_infilling_uses_thirty_percent() -> None:
    rng = generator()
    text = prose(200)
    shares, masks = [], []
    for _ in range(300):
        shown, _ = NOISES["infilling"].corrupt(text, amounts("infilling"), rng)
        shares.append(1 - (shown != MASK).sum() / 200)
        masks.append((shown == MASK).sum())
        assert len(shown) <= 200
    # 60 words of 200 in about 20 spans; where they overlap, fewer.
    assert 0.24 < np.mean(shares) < 0.3 and max(shares) <= 0.3 + 1e-9
    assert 14 < np.mean(masks) < 21


def test_empty_spans_are_masks_between_words() -> None:
    own, seen = amounts("infilling", mean_span=0.5), []
    for seed in range(300):
        shown, _ = NOISES["infilling"].corrupt(prose(40, 2), own, generator(seed))
        spans = noise.infill_spans(prose(40, 2).word_starts, 0.3, 0.5, generator(seed))
        assert (shown == MASK).sum() == len(spans.starts) + spans.empty
        seen.append(spans.empty)
    # exp(-0.5) of the draws are 0: more than are not, and so they are cut to what was taken out.
    assert np.mean(seen) > 8


def test_insertions_lie_anywhere() -> None:
    rng, seen = generator(), np.zeros(5)
    for _ in range(4000):
        shown = noise.insert_anywhere(np.arange(4), 9, 1, rng)
        assert [number for number in shown.tolist() if number != 9] == [0, 1, 2, 3]
        seen[shown.tolist().index(9)] += 1
    assert np.abs(seen / 4000 - 0.2).max() < 0.03


def test_sentences_are_permuted_whole_and_evenly() -> None:
    rng, text, seen = generator(), prose(3, sentence=1), {}
    for _ in range(3000):
        shown, _ = NOISES["sentences"].corrupt(text, amounts("sentences"), rng)
        seen[tuple(shown - 1000)] = seen.get(tuple(shown - 1000), 0) + 1
    assert len(seen) == 6 and all(abs(count - 500) < 90 for count in seen.values())
    order = noise.sentence_order(np.array([3, 7]), 9, generator(1))
    assert sorted(order.tolist()) == list(range(9))
    for part in ([0, 1, 2], [3, 4, 5, 6], [7, 8]):  # what stands before the first sentence is one as well
        place = order.tolist().index(part[0])
        assert order[place : place + len(part)].tolist() == part


def test_bart_s_noise_is_both() -> None:
    text = prose(60, 2, sentence=6)
    shown, target = NOISES["bart"].corrupt(text, amounts("bart"), generator(3))
    kept = [number for number in shown.tolist() if number != MASK]
    assert (shown == MASK).any() and kept != sorted(kept) and target.tolist() == text.ids.tolist()


def test_rotation_begins_anywhere() -> None:
    first = [
        NOISES["rotation"].corrupt(prose(5), amounts("rotation"), generator(seed))[0] for seed in range(300)
    ]
    assert {int(shown[0]) for shown in first} == set(range(1000, 1005))
    assert all((np.diff(shown) % 5 == 1).all() for shown in first)


@pytest.mark.parametrize("name", ["masking", "mass", "deletion", "dropped", "iid-spans", "bert"])
def test_single_tokens_are_independent(name: str) -> None:
    text, own = prose(500), amounts(name)
    rng, counts = generator(), []
    for _ in range(60):
        shown, target = NOISES[name].corrupt(text, own, rng)
        if name in ("masking", "mass"):
            counts.append((shown == MASK).mean())
            assert np.array_equal(shown[shown != MASK], text.ids[shown != MASK])
        elif name == "bert":
            counts.append((shown != text.ids).mean())
            assert abs((shown == MASK).sum() / (shown != text.ids).sum() - 0.9) < 0.15
        else:
            sentinels = np.isin(target, SENTINELS).sum()
            counts.append((len(target) - sentinels) / 500 if name != "deletion" else 1 - len(shown) / 500)
    assert abs(np.mean(counts) - 0.15) < 0.008 and 0.01 < np.std(counts) < 0.025, "binomial"


def test_prefixes_end_anywhere() -> None:
    lengths = [
        len(NOISES["prefix"].corrupt(prose(6), amounts("prefix"), generator(seed))[0]) for seed in range(1000)
    ]
    assert set(lengths) == {1, 2, 3, 4, 5} and np.bincount(lengths)[1:].min() > 150


def test_deshuffling_shows_all_tokens() -> None:
    shown, target = NOISES["deshuffling"].corrupt(prose(30), amounts("deshuffling"), generator())
    assert sorted(shown) == target.tolist() and shown.tolist() != target.tolist()


def test_ul2_draws_its_seven_denoisers_equally_often() -> None:
    """By how much is cut, and in how many spans: of 128 tokens each denoiser has counts of its own."""
    text, ul2 = prose(128), NOISES["ul2"]
    expected = {noise.noise_counts(128, density, span) for density, span in ul2.members}  # type: ignore[attr-defined]
    assert len(expected) == 7
    seen: dict[tuple[int, int], int] = {}
    for seed in range(1400):
        shown, target = ul2.corrupt(text, amounts("ul2"), generator(seed))
        spans = int(np.isin(target, SENTINELS).sum())
        kind = (len(target) - spans, spans)
        seen[kind] = seen.get(kind, 0) + 1
        if kind == (32, 1):  # a quarter as one span: the end of the text
            assert shown.tolist() == [*text.ids[:96].tolist(), SENTINELS[0]]
            assert target.tolist() == [SENTINELS[0], *text.ids[96:].tolist()]
    assert set(seen) == expected and all(140 < count < 260 for count in seen.values())
