"""Packing against its definition, on made-up lengths of sentences and documents."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from etymon.errors import EtymonError
from etymon.sampling import plans
from etymon.text.framing import CLASS_FIRST
from etymon.text.store import Split

SEPARATOR = 999_999
texts = st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=8), min_size=1, max_size=8)


def split_of(documents: list[list[int]]) -> Split:
    """A split of documents with sentences of these lengths; every token is its own place."""
    sentences = np.cumsum([0, *(length for document in documents for length in document)])
    firsts = np.cumsum([0, *map(len, documents)])[:-1]
    return Split.of(range(sentences[-1]), sentences[firsts], sentences[:-1])


def many(seed: int, documents: int = 400, longest: int = 25) -> Split:
    draw = np.random.default_rng(seed)
    return split_of([draw.integers(1, longest, draw.integers(1, 30)).tolist() for _ in range(documents)])


def owner(split: Split, position: np.ndarray) -> np.ndarray:
    return np.searchsorted(split.documents, position, side="right") - 1


@given(texts, st.integers(1, 60), st.booleans(), st.integers(0, 3))
def test_every_token_is_in_one_sample(
    documents: list[list[int]], room: int, across: bool, epoch: int
) -> None:
    split = split_of(documents)
    samples = [
        split.stream(start, stop, SEPARATOR)
        for start, stop in plans.whole_sentences(split, room, 0, epoch, across=across)
    ]
    assert sorted(token for sample in samples for token in sample if token != SEPARATOR) == list(
        range(len(split.tokens))
    )
    sentences = {int(start) for start in split.sentences}
    for sample in samples:
        assert 1 <= len(sample) <= room
        assert SEPARATOR not in (sample[0], sample[-1])
        tokens = sample[sample != SEPARATOR]
        assert (np.diff(tokens) == 1).all(), "one text, in its order"
        borders = np.flatnonzero(np.diff(owner(split, tokens)))
        assert len(borders) == (sample == SEPARATOR).sum(), "one separator between two documents"
        assert across or not len(borders)
        # Samples begin where sentences do, unless the sentence would not fit into any.
        first = int(tokens[0])
        if first not in sentences:
            begin = max(start for start in sentences if start < first)
            end = min(start for start in [*sentences, len(split.tokens)] if start > first)
            assert end - begin > room and (first - begin) % room == 0


@given(texts, st.integers(1, 60), st.booleans())
def test_samples_are_full(documents: list[list[int]], room: int, across: bool) -> None:
    split = split_of(documents)
    table = plans.whole_sentences(split, room, 0, 0, across=across, shuffle=False)
    bounds = [*split.sentences.tolist(), len(split.tokens)]
    for (start, stop), (following, _) in pairwise(table.tolist()):
        token = split.stream(following, following + 1, SEPARATOR)[0]
        here = int(owner(split, token))
        end = min(bound for bound in bounds if bound > token) + here  # of the next sentence, in the stream
        if end - following > room:
            end = following + room  # it is cut
        new = here != owner(split, split.stream(stop - 1, stop, SEPARATOR)[0])
        assert end - start > room or (new and not across), "the next sentence would have fitted"


def test_order_alone_changes_from_epoch_to_epoch() -> None:
    split = many(1)
    one, again, other = (plans.whole_sentences(split, 50, 7, epoch) for epoch in (1, 1, 2))
    assert np.array_equal(one, again) and not np.array_equal(one, other)
    assert np.array_equal(one[one[:, 0].argsort()], other[other[:, 0].argsort()])
    with pytest.raises(EtymonError, match="no room for text"):
        plans.whole_sentences(split, 0, 0, 0)


def test_segments_come_from_one_document_and_fit() -> None:
    split, length = many(2), 64
    a_start, a_stop, b_start, b_stop = plans.segments(split, length, CLASS_FIRST, 0, 0).T
    assert (a_stop > a_start).all() and (b_stop >= b_start).all()
    two = b_stop > b_start
    assert (a_stop - a_start <= length - 2).all()
    assert ((a_stop - a_start) + (b_stop - b_start) <= length - 3)[two].all()
    assert np.array_equal(owner(split, a_start), owner(split, np.maximum(a_stop, b_stop) - 1))
    assert (b_start >= a_stop)[two].all(), "the second text follows the first"
    assert ((b_start == a_stop) | (a_stop - a_start == length - 2))[two].all()
    assert np.isin(a_start, split.sentences).all() and np.isin(b_start[two], split.sentences).all()


def test_segments_begin_where_the_last_sample_was_full(monkeypatch: pytest.MonkeyPatch) -> None:
    split, length = many(3), 64
    monkeypatch.setattr(plans, "ELECTRA_SHORT", 0.0)
    table = plans.segments(split, length, CLASS_FIRST, 0, 0, shuffle=False)
    bounds = np.append(split.sentences, len(split.tokens))
    assert table[0, 0] == 0
    for (start, *_), (following, *_) in pairwise(table.tolist()):
        inside = bounds[(bounds > start) & (bounds < following)]
        assert not len(inside) or inside[-1] - start < length, "gathered no longer than needed"
        same = owner(split, start) == owner(split, following)
        assert following - start >= length or not same, "gathered until the length is reached"


def test_shares_of_single_and_short_segments() -> None:
    long = split_of([[5] * 4000])  # where no document's end makes a sample short or single
    table = np.concatenate([plans.segments(long, 64, CLASS_FIRST, 0, epoch) for epoch in range(12)])
    lengths = table[:, 3] - table[:, 0]
    assert len(table) > 3000
    assert (table[:, 3] == table[:, 2]).mean() == pytest.approx(0.1, abs=0.02)
    # Targets of 5 to 64; those above 60 gather as many sentences of 5 tokens as the full length does.
    assert (lengths < 60).mean() == pytest.approx(0.05 * 56 / 60, abs=0.012)
    full = table[(lengths >= 60) & (table[:, 3] > table[:, 2])]
    # The middle of 61 tokens is after 30: six sentences are not below it, so five, and with equal chance a sixth.
    assert set(full[:, 1] - full[:, 0]) == {25, 30}
    assert (full[:, 1] - full[:, 0] == 30).mean() == pytest.approx(0.5, abs=0.035)


def test_segments_depend_on_seed_and_epoch_alone() -> None:
    split = many(4)
    one, again, other = (
        plans.segments(split, 40, CLASS_FIRST, 7, epoch, shuffle=False) for epoch in (1, 1, 2)
    )
    assert np.array_equal(one, again) and not np.array_equal(one, other)
    with pytest.raises(EtymonError, match="a length of at least 5"):
        plans.segments(split, 4, CLASS_FIRST, 0, 0)


def test_no_text_no_samples() -> None:
    empty = Split.of([], [], [])
    assert plans.whole_sentences(empty, 8, 0, 0).shape == (0, 2)
    assert plans.segments(empty, 8, CLASS_FIRST, 0, 0).shape == (0, 4)
