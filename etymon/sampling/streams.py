"""Streams: a text cut into a few long runs that are read side by side, segment after segment (Transformer-XL,
section 3.2).

What a model remembers belongs to a stream, so streams outlive steps. A plan is time-major: of S streams, row
t * S + s is segment t of stream s.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Literal

import numpy as np

from etymon.errors import EtymonError
from etymon.sampling.plans import key
from etymon.text.store import Split

Reset = Literal["epoch", "document", "never"]
START, STOP, STREAM, FRESH, ORDER = range(5)
"""The columns of a plan: [start, stop) of the virtual stream of `read`, and how its documents are ordered
there."""
SEPARATOR = -1
"""What `SentenceSplit` puts between sentences where a document is read; the reader replaces it."""


def stream_segments(
    split: Split,
    length: int,
    seed: int,
    epoch: int,
    streams: int,
    *,
    reset: Reset = "epoch",
    shuffle: bool = True,
) -> np.ndarray:
    """Segments of `length` + 1 tokens, each overlapping the next of its stream by one: inputs are all but
    the last token, targets all but the first.

    To train (`shuffle`), documents come in the epoch's order, and every stream gets equally many segments;
    what is left over, less than one segment a stream, lies at other ends in every epoch. To validate, the
    text is in order and every token a target exactly once; then the last streams may have one segment less.

    A row is `fresh` if its stream forgets before it: at the beginning of an `epoch` or also of a `document`,
    whose last segment is then short, or `never`.
    """
    if length < 2 or streams < 1:
        raise EtymonError(f"streams need segments of at least 2 tokens, and {streams} x {length} cannot be")
    rng = key(seed, "streams", epoch)
    # The order of documents is a number that goes into every row: `read` needs nothing but the row.
    order = int(rng.integers(2**62)) if shuffle else -1
    if reset == "document":
        sizes = np.diff(split.documents)[_document_order(split, order)] + 1  # with the separator at the end
        counts = -(-sizes // length)
        number = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        ends = np.repeat(np.cumsum(sizes), counts)
        starts = ends - np.repeat(sizes, counts) - 1 + number * length
        stops, begins = np.minimum(starts + length + 1, ends), number == 0
        if shuffle:
            first = int(rng.integers(len(starts) % streams + 1))
            even = slice(first, first + len(starts) // streams * streams)
            starts, stops, begins = starts[even], stops[even], begins[even]
    else:
        starts = np.arange(-1, split.stream_length - 1, length, dtype=np.int64)
        if shuffle:  # all of them are of full length
            starts = starts[: split.stream_length // (length * streams) * streams]
            starts = starts + int(rng.integers(split.stream_length - length * len(starts), endpoint=True))
        stops, begins = np.minimum(starts + length + 1, split.stream_length), np.zeros(len(starts), bool)
    # Streams are neighbouring runs of segments; the first `longer` ones have one segment more.
    shortest, longer = divmod(len(starts), streams)
    lengths = shortest + (np.arange(streams) < longer)
    stream = np.repeat(np.arange(streams), lengths)
    time = np.arange(len(starts)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    fresh = (begins | (time == 0)) & (reset != "never")
    table = np.column_stack((starts, stops, stream, fresh, np.full(len(starts), order)))
    return table[np.lexsort((stream, time))]  # by time, and at one time by stream


def read(split: Split, row: np.ndarray, separator: int) -> np.ndarray:
    """The tokens of a plan's row: of the documents in the row's order, each followed by a separator (one is
    also before the first)."""
    start, stop, order = int(row[START]), int(row[STOP]), int(row[ORDER])
    if order < 0:
        return split.stream(start, stop, separator)
    documents, ends = _document_order(split, order), _document_ends(split, order)
    parts = [np.full(1 if start < 0 else 0, separator, np.int64)]
    start = max(start, 0)
    number = int(np.searchsorted(ends, start, side="right"))
    while start < stop:
        document = split.document(documents[number])
        begin, end = ends[number] - len(document) - 1, ends[number]
        parts.append(document[start - begin : stop - begin].astype(np.int64))
        if stop >= end:
            parts.append(np.array([separator]))
        start, number = int(end), number + 1
    return np.concatenate(parts)


# Every row of an epoch asks for the same order: it is drawn once, for training and validation of up to two
# texts.
@lru_cache(maxsize=4)
def _document_order(split: Split, order: int) -> np.ndarray:
    """The documents in the order of that number; -1 is that of the text."""
    return np.arange(len(split)) if order < 0 else key(order, "documents").permutation(len(split))


@lru_cache(maxsize=4)
def _document_ends(split: Split, order: int) -> np.ndarray:
    """Where documents, each with its separator, end in that order."""
    return np.cumsum(np.diff(split.documents)[_document_order(split, order)] + 1)


class SentenceSplit(Split):
    """A split with a separator between the sentences of its documents, too (ELMo's training text)."""

    def __init__(self, split: Split) -> None:
        inner = np.setdiff1d(split.sentences, split.documents)
        documents = np.asarray(split.documents) + np.searchsorted(inner, split.documents)
        super().__init__(split.tokens, documents, split.sentences, split.bytes, split.words)
        # The same tokens with every sentence a document: their stream has the separators that are wanted
        # here.
        starts = np.sort(np.concatenate((inner, split.documents[:-1])))
        self._by_sentence = Split(split.tokens, np.append(starts, len(split.tokens)), split.sentences)

    def document(self, index: int) -> Any:
        """Something to take slices of: a document may be a whole library, and a segment of it is short."""
        return _Document(self, int(self.documents[index]) + index, int(self.documents[index + 1]) + index)

    @property
    def stream_length(self) -> int:
        return self._by_sentence.stream_length

    def stream(self, start: int, stop: int, separator: int) -> np.ndarray:
        return self._by_sentence.stream(start, stop, separator)


class _Document:
    """The positions [start, stop) of a document in the stream of a `SentenceSplit`, read when sliced."""

    def __init__(self, split: SentenceSplit, start: int, stop: int) -> None:
        self._split, self._start, self._stop = split, start, stop

    def __len__(self) -> int:
        return self._stop - self._start

    def __getitem__(self, part: slice) -> np.ndarray:
        start, stop, _ = part.indices(len(self))
        return self._split.stream(self._start + start, self._start + max(start, stop), SEPARATOR)


@lru_cache(maxsize=4)
def split_by_sentence(split: Split) -> SentenceSplit:
    """The split with separators between sentences, made once."""
    return SentenceSplit(split)
