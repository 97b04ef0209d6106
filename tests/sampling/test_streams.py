"""Streams of a text: contiguous, time-major, every token once where it is judged, and a function of the seed and epoch."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etymon.errors import EtymonError
from etymon.sampling.streams import FRESH, START, STOP, STREAM, read, stream_segments
from etymon.text.store import Split

SEPARATOR = 999


def split(*sizes: int) -> Split:
    """Documents of those sizes, whose tokens are all different."""
    starts = np.cumsum([0, *sizes])[:-1]
    return Split.of(np.arange(sum(sizes)).tolist(), starts.tolist(), starts.tolist())


def streams_of(text: Split, table: np.ndarray, count: int) -> list[np.ndarray]:
    """The targets of every stream, end to end; checks that its segments join."""
    found = []
    for stream in range(count):
        rows = table[table[:, STREAM] == stream]
        parts = [read(text, row, SEPARATOR) for row in rows]
        for before, after in pairwise(parts):
            assert before[-1] == after[0]
        found.append(np.concatenate([np.zeros(0, int), *(part[1:] for part in parts)]))
    return found


DOCUMENTS = st.lists(st.integers(1, 40), min_size=1, max_size=8)
RESETS = st.sampled_from(["epoch", "document", "never"])


@settings(max_examples=60, deadline=None)
@given(sizes=DOCUMENTS, length=st.integers(2, 9), count=st.integers(1, 5), reset=RESETS)
def test_in_order_every_token_is_a_target_once(sizes: list[int], length: int, count: int, reset: Any) -> None:
    text = split(*sizes)
    table = stream_segments(text, length, 0, 0, count, reset=reset, shuffle=False)
    targets = np.concatenate(streams_of(text, table, count))
    assert targets.tolist() == text.stream(0, text.stream_length, SEPARATOR).tolist()
    # Time-major: the stream of row t * S + s is s; only the last ones may have one segment less.
    assert (table[:, STREAM] == np.arange(len(table)) % count).all()


@settings(max_examples=60, deadline=None)
@given(
    sizes=DOCUMENTS, length=st.integers(2, 9), count=st.integers(1, 5), reset=RESETS, epoch=st.integers(0, 3)
)
def test_in_training_streams_are_equal_and_whole(
    sizes: list[int], length: int, count: int, reset: Any, epoch: int
) -> None:
    text = split(*sizes)
    table = stream_segments(text, length, 1, epoch, count, reset=reset)
    assert len(table) % count == 0 and (table[:, STREAM] == np.arange(len(table)) % count).all()
    targets = np.concatenate(streams_of(text, table, count))
    real = targets[targets != SEPARATOR]
    assert len(set(real.tolist())) == len(real)  # nothing twice
    if reset != "document":
        assert (table[:, STOP] - table[:, START] == length + 1).all()
        assert text.stream_length - len(targets) < count * length
    # Inside a document the order of the text is kept.
    joined = np.flatnonzero((targets[:-1] != SEPARATOR) & (targets[1:] != SEPARATOR))
    ends = np.cumsum([len(part) for part in streams_of(text, table, count)])
    joined = joined[~np.isin(joined + 1, ends)]
    assert (targets[joined + 1] == targets[joined] + 1).all()


def test_epochs_differ_and_can_be_made_again() -> None:
    text = split(*[7] * 12)
    one, two = (stream_segments(text, 5, 3, epoch, 2) for epoch in (0, 1))
    assert (one == stream_segments(text, 5, 3, 0, 2)).all()
    first, second = (np.concatenate(streams_of(text, table, 2)) for table in (one, two))
    assert first.tolist() != second.tolist()


def test_when_streams_forget() -> None:
    text = split(7, 3, 12)
    by = {
        reset: stream_segments(text, 4, 0, 0, 2, reset=reset, shuffle=False)[:, FRESH].tolist()
        for reset in ("epoch", "document", "never")
    }
    assert by["epoch"] == [
        1,
        1,
        0,
        0,
        0,
        0,
        0,
    ]  # 25 targets in segments of 4: four of one stream, three of the other
    assert by["never"] == [0] * 7
    # Documents of 8, 4 and 13 targets are 2 + 1 + 4 segments: one stream has four of them, the other three.
    assert by["document"] == [1, 1, 0, 0, 1, 0, 1]
    table = stream_segments(text, 4, 0, 0, 2, reset="document", shuffle=False)
    sizes = (table[:, STOP] - table[:, START] - 1)[table[:, STREAM] == 0]
    assert sizes.tolist() == [4, 4, 4, 4] and (table[:, STOP] - table[:, START]).min() == 2


def test_what_is_left_over_moves() -> None:
    text = split(101)
    firsts = {int(stream_segments(text, 10, 0, epoch, 3)[0, START]) for epoch in range(30)}
    assert min(firsts) == -1 and len(firsts) > 5 and max(firsts) <= 101 - 90


def test_impossible_streams_are_refused() -> None:
    with pytest.raises(EtymonError, match="segments of at least 2 tokens"):
        stream_segments(split(9), 1, 0, 0, 2)
    assert len(stream_segments(split(9), 4, 0, 0, 5)) == 0
