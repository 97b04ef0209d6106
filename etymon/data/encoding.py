"""Text to tokens with sentences and sizes, a batch at a time: pure work, which any process may do."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from etymon.data.cutting import pieces
from etymon.data.document import Document
from etymon.data.sentences import is_wrapped, sentence_starts
from etymon.data.tokenizer import Tokenizer

BATCH = 1 << 20  # characters that are encoded together
CONTEXT = 512  # characters before a part that tell whether a sentence begins with it

SPACES = np.array([chr(code).isspace() for code in range(0x3001)] + [False])


class Part(NamedTuple):
    """A document, or a part of one: `before` is the end of the part before it, `wrapped` the document's nature."""

    text: str
    before: str
    wrapped: bool | None
    more: bool


@dataclass(frozen=True)
class Encoded:
    """A batch of parts, counted from its own first token."""

    tokens: np.ndarray
    lengths: np.ndarray
    """Tokens by part."""
    sizes: np.ndarray
    """UTF-8 bytes and white-space words by part."""
    sentences: np.ndarray
    """First token, bytes and words of every sentence that begins in the batch."""
    head: np.ndarray
    """Bytes and words before the first of them: they belong to the batch before."""
    digests: list[bytes]
    """SHA-256 of every part's text."""


def batches(documents: Iterable[Document]) -> Iterator[list[Part]]:
    """Parts of documents, about BATCH characters together. The cut depends on the text alone."""
    batch: list[Part] = []
    size = 0
    before, wrapped, begun = "", None, False
    for document in documents:
        if document.text or begun:
            if document.more and not begun:
                wrapped = is_wrapped(document.text)
            batch.append(Part(document.text, before, wrapped, document.more))
            size += len(document.text)
            begun = document.more
            before = (before + document.text)[-CONTEXT:] if begun else ""
            wrapped = wrapped if begun else None
        if size >= BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


class Encoder:
    """Encodes batches with one tokenizer, into ids of one type."""

    def __init__(self, tokenizer: Tokenizer, dtype: np.dtype) -> None:
        self.tokenizer, self.dtype = tokenizer, dtype

    def __call__(self, batch: list[Part]) -> Encoded:
        texts: list[str] = []
        places: list[np.ndarray] = []  # 0 and every sentence start, by piece
        real: list[np.ndarray] = []  # whether each place begins a sentence, or merely a piece
        joined: list[bool] = []  # whether a piece goes on in the middle of a word
        owner: list[int] = []
        for number, (text, before, wrapped, _) in enumerate(batch):
            starts = sentence_starts(before + text, wrapped) - len(before)
            starts = starts[np.searchsorted(starts, 0) :]
            for start, stop in pieces(text):
                inside = starts[np.searchsorted(starts, start) : np.searchsorted(starts, stop)] - start
                first = start == 0 and not before
                begins = first or bool(len(inside) and inside[0] == 0)
                inside = inside[inside > 0]
                previous = text[start - 1 : start] or before[-1:]
                texts.append(text[start:stop])
                places.append(np.concatenate(([0], inside)))
                real.append(np.arange(len(inside) + 1) > (-1 if begins else 0))
                joined.append(not first and not (text[start : start + 1].isspace() or previous.isspace()))
                owner.append(number)
        lengths = np.zeros(len(batch), np.int64)
        tokens: list[np.ndarray] = []
        located: list[np.ndarray] = []
        total = 0
        for group in _groups([len(text) for text in texts]):
            for (ids, indices), number in zip(
                self.tokenizer.encode_located(texts[group], places[group]), owner[group], strict=True
            ):
                tokens.append(ids.astype(self.dtype))
                located.append(indices + total)
                lengths[number] += len(ids)
                total += len(ids)
        measures = np.concatenate([_measure(*item) for item in zip(texts, places, joined, strict=True)])
        row_owner = np.repeat(owner, [len(place) for place in places])
        sizes = np.zeros((len(batch), 2), np.int64)
        np.add.at(sizes, row_owner, measures)
        sentences, head = _sentences(
            np.concatenate(located), measures, np.concatenate(real), lengths, row_owner
        )
        digests = [hashlib.sha256(part.text.encode()).digest() for part in batch]
        return Encoded(np.concatenate(tokens), lengths, sizes, sentences, head, digests)


def _sentences(
    begins_at: np.ndarray, measures: np.ndarray, real: np.ndarray, lengths: np.ndarray, owner: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """One row for every token that begins a sentence; what has no token of its own (white space, characters
    that the tokenizer drops) is counted with the sentence before it."""
    alive = lengths[owner] > 0
    owner, begins_at, measures, real = owner[alive], begins_at[alive], measures[alive], real[alive]
    sentence = np.flatnonzero(real & (begins_at < np.cumsum(lengths)[owner]))
    if not len(sentence):
        return np.zeros((0, 3), np.int64), measures.sum(axis=0)
    unique, where = np.unique(begins_at[sentence], return_index=True)
    rows = np.column_stack((unique, np.add.reduceat(measures, sentence[where])))
    return rows, measures[: sentence[where[0]]].sum(axis=0)


def _groups(sizes: list[int]) -> Iterator[slice]:
    """Neighbouring pieces that are encoded in one call, about BATCH characters together."""
    start = total = 0
    for stop, size in enumerate(sizes, start=1):
        total += size
        if total >= BATCH or stop == len(sizes):
            yield slice(start, stop)
            start, total = stop, 0


def _measure(text: str, places: np.ndarray, joined: bool) -> np.ndarray:
    """UTF-8 bytes and white-space words from each place to the next; `joined`: the first word is not new."""
    if not text:
        return np.zeros((len(places), 2), np.int64)
    if text.isascii():
        space = SPACES[np.frombuffer(text.encode(), np.uint8)]
        sizes = np.diff(places, append=len(text))
    else:
        codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
        space = SPACES[np.minimum(codes, len(SPACES) - 1)]
        wide = [np.add.reduceat(codes > bound, places, dtype=np.int64) for bound in (0x7F, 0x7FF, 0xFFFF)]
        sizes = np.diff(places, append=len(text)) + sum(wide)
    begins = ~space
    begins[1:] &= space[:-1]
    begins[0] &= not joined
    return np.column_stack((sizes, np.add.reduceat(begins, places, dtype=np.int64)))
