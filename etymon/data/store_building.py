"""Encoding a corpus in bounded memory: everything is first staged on disk in order, then split in two."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from etymon.data.sentences import sentence_starts
from etymon.data.text import Document
from etymon.data.tokenizer import Tokenizer
from etymon.errors import EtymonError

PIECE = 1 << 14  # characters that are encoded at once; long documents are cut at good places
BATCH = 1 << 20  # characters of documents that are kept in memory together
FEWEST_DOCUMENTS = 20  # below this a share of the documents says little

# Cut before the last white space in front of a word: no pre-tokenizer of ours joins anything across it.
LINE_CUT = re.compile(r"\n(?=\S)")
SPACE_CUT = re.compile(r"\s(?=\S)")
SENTENCE_CUT = re.compile(r"(?<=[。！？｡؟۔।॥።។။])(?=\w)")

SPACES = np.array([chr(code).isspace() for code in range(0x3001)] + [False])


def pieces(text: str, limit: int = PIECE) -> Iterator[tuple[int, int]]:
    """Spans of at most `limit` characters that cover the text and are encoded like the whole."""
    start = 0
    while len(text) - start > limit:
        stop = start + limit
        for pattern in (LINE_CUT, SPACE_CUT, SENTENCE_CUT):
            cuts = [match.start() for match in pattern.finditer(text, start + limit // 2, stop)]
            if cuts:
                stop = cuts[-1]
                break
        yield start, stop
        start = stop
    yield start, len(text)


class Staging:
    """All documents in order: tokens and sentences in files, documents in memory."""

    def __init__(self, folder: Path, tokenizer: Tokenizer, dtype: np.dtype) -> None:
        self.folder, self.tokenizer, self.dtype = folder, tokenizer, dtype
        self.total = 0
        self.ends: list[int] = []  # token offset behind every document
        self.text_digests: list[bytes] = []
        self._digest = hashlib.sha256()

    def __enter__(self) -> Staging:
        self.folder.mkdir()
        return self

    def __exit__(self, *_: object) -> None:
        self.__dict__.pop("tokens", None)  # Windows removes no file that is still mapped
        shutil.rmtree(self.folder)

    @property
    def digest(self) -> str:
        """A digest of all texts in order, as `text.documents_fingerprint` makes it."""
        return self._digest.hexdigest()

    def add(self, documents: Iterable[Document], progress: Callable[[int], None] | None) -> None:
        """Encode the documents and map the result; `offsets` and the sentence columns are then ready."""
        done = 0
        with (
            open(self.folder / "tokens", "wb") as tokens,
            open(self.folder / "sentences", "wb") as sentences,
        ):
            for batch in _batches(documents):
                rows, size = self._encode(batch, tokens)
                sentences.write(rows.tobytes())
                done += size
                if progress is not None:
                    progress(done)
        if not self.total:
            raise EtymonError("there is no text to store: no document holds a single token")
        self.tokens = np.memmap(self.folder / "tokens", self.dtype, "r")
        # One row a sentence: first token, UTF-8 bytes, words.
        self.sentences = np.fromfile(self.folder / "sentences", np.int64).reshape(-1, 3)
        self.offsets = np.array([0, *self.ends], np.int64)

    def _encode(self, batch: list[Document], tokens: BinaryIO) -> tuple[np.ndarray, int]:
        texts: list[str] = []
        places: list[np.ndarray] = []  # 0 and every sentence start, by piece
        real: list[np.ndarray] = []  # whether each place begins a sentence, or merely a piece
        joined: list[bool] = []  # whether a piece goes on in the middle of a word
        owner: list[int] = []
        for number, document in enumerate(batch):
            text = document.text
            starts = sentence_starts(text)
            for start, stop in pieces(text):
                inside = starts[np.searchsorted(starts, start) : np.searchsorted(starts, stop)] - start
                begins = start == 0 or bool(len(inside) and inside[0] == 0)
                inside = inside[inside > 0]
                texts.append(text[start:stop])
                places.append(np.concatenate(([0], inside)))
                real.append(np.arange(len(inside) + 1) > (-1 if begins else 0))
                joined.append(start > 0 and not (text[start].isspace() or text[start - 1].isspace()))
                owner.append(number)
        first = self.total
        located: list[np.ndarray] = []
        lengths = np.zeros(len(batch), np.int64)
        for group in _groups([len(text) for text in texts]):
            for (ids, indices), number in zip(
                self.tokenizer.encode_located(texts[group], places[group]), owner[group], strict=True
            ):
                tokens.write(ids.astype(self.dtype).tobytes())
                located.append(indices + self.total)
                lengths[number] += len(ids)
                self.total += len(ids)
        measures = np.concatenate([_measure(*item) for item in zip(texts, places, joined, strict=True)])
        size = int(measures[:, 0].sum())

        ends = first + np.cumsum(lengths)
        for document, length, end in zip(batch, lengths.tolist(), ends.tolist(), strict=True):
            digest = hashlib.sha256(document.text.encode()).digest()
            self._digest.update(digest)
            if length:
                self.ends.append(end)
                self.text_digests.append(digest)
        # Keep one row for every token that begins a sentence; what has no token of its own (white space,
        # characters that the tokenizer drops) is counted with the sentence before it.
        counts = [len(place) for place in places]
        row_owner = np.repeat(owner, counts)
        begins_at = np.concatenate(located)
        alive = lengths[row_owner] > 0
        row_owner, begins_at, measures = row_owner[alive], begins_at[alive], measures[alive]
        sentence = np.flatnonzero(np.concatenate(real)[alive] & (begins_at < ends[row_owner]))
        if not len(sentence):
            return np.zeros((0, 3), np.int64), size
        unique, where = np.unique(begins_at[sentence], return_index=True)
        return np.column_stack((unique, np.add.reduceat(measures, sentence[where]))), size

    def divide(self, document: int, cut: int) -> None:
        """Make two documents of one, at the token `cut`."""
        self.offsets = np.insert(self.offsets, document + 1, cut)
        rows = self.sentences
        place = int(np.searchsorted(rows[:, 0], cut))
        if place == len(rows) or rows[place, 0] != cut:
            # The cut is inside a sentence: share its bytes and words out by tokens.
            before, after = int(rows[place - 1, 0]), int(self.offsets[document + 2])
            head = (rows[place - 1, 1:] * (cut - before)) // (after - before)
            rows = np.insert(rows, place, [cut, *(rows[place - 1, 1:] - head)], axis=0)
            rows[place - 1, 1:] = head
            self.sentences = rows

    def write_split(self, folder: Path, chosen: np.ndarray) -> dict[str, int]:
        """Write the chosen documents as a split folder; returns its counts."""
        folder.mkdir()
        lengths = np.diff(self.offsets)
        documents = np.concatenate(([0], np.cumsum(lengths[chosen])))
        # Whole runs of neighbouring documents are copied at once.
        edges = np.flatnonzero(np.diff(chosen.astype(np.int8), prepend=0, append=0)).reshape(-1, 2)
        with open(folder / "tokens.bin", "wb") as file:
            for first, last in edges:
                for start in range(self.offsets[first], self.offsets[last], 1 << 24):
                    file.write(self.tokens[start : min(start + (1 << 24), self.offsets[last])].tobytes())
        owner = np.searchsorted(self.offsets, self.sentences[:, 0], side="right") - 1
        kept = chosen[owner]
        shift = np.zeros(len(chosen), np.int64)
        shift[chosen] = documents[:-1] - self.offsets[:-1][chosen]
        sentences = self.sentences[kept, 0] + shift[owner[kept]]
        sizes = np.zeros((len(chosen), 2), np.int64)
        np.add.at(sizes, owner[kept], self.sentences[kept, 1:])
        sizes = sizes[chosen]
        np.save(folder / "documents.npy", documents)
        np.save(folder / "sentences.npy", sentences)
        np.save(folder / "bytes.npy", sizes[:, 0])
        np.save(folder / "words.npy", sizes[:, 1])
        return {
            "documents": len(sizes),
            "sentences": len(sentences),
            "tokens": int(documents[-1]),
            "bytes": int(sizes[:, 0].sum()),
            "words": int(sizes[:, 1].sum()),
        }


@dataclass(frozen=True)
class HeldOut:
    """Which documents are held out (mask 1), and by which rule."""

    mask: np.ndarray
    rule: str


def split_documents(staging: Staging, share: float, seed: int) -> HeldOut:
    """Hold out documents by hash, or cut off the tail of the text (which may divide a document)."""
    count = len(staging.ends)
    if share == 0:
        return HeldOut(np.zeros(count, np.int8), "documents")
    if count >= FEWEST_DOCUMENTS:
        # A hash of the text itself: the choice survives other documents coming and going, and two copies
        # of a text never land on both sides.
        key = seed.to_bytes(8, "little", signed=True)
        hashes = [hashlib.blake2b(digest, key=key, digest_size=8).digest() for digest in staging.text_digests]
        mask = np.frombuffer(b"".join(hashes), "<u8") < int(share * 2**64)
        if 0 < mask.sum() < count:
            return HeldOut(mask.astype(np.int8), "documents")
    if staging.total < 2:
        raise EtymonError("the text is a single token: there is nothing to hold out for validation; add text")
    wanted = min(max(round(staging.total * (1 - share)), 1), staging.total - 1)
    starts = staging.sentences[1:, 0]
    cut = int(starts[np.abs(starts - wanted).argmin()]) if len(starts) else wanted
    place = int(np.searchsorted(staging.offsets, cut))
    if staging.offsets[place] != cut:
        staging.divide(place - 1, cut)
    return HeldOut((np.arange(len(staging.offsets) - 1) >= place).astype(np.int8), "tail")


def _batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    batch: list[Document] = []
    size = 0
    for document in documents:
        if not document.text:
            continue
        batch.append(document)
        size += len(document.text)
        if size >= BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


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
