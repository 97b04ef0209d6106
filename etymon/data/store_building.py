"""Storing a corpus in bounded memory: everything is first staged on disk in order, then split in two."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from etymon.data.columns import ArrayFile, Column
from etymon.data.document import Document
from etymon.data.encoding import Encoded, Part, batches
from etymon.data.tokenizer import Tokenizer
from etymon.data.workers import encoded_batches
from etymon.errors import EtymonError

FEWEST_DOCUMENTS = 20  # below this a share of the documents says little
DOCUMENTS = 1 << 16  # documents that are split at once
TOKENS = 1 << 22  # tokens that are copied at once


class Staging:
    """All documents in order, as columns on the disk: tokens, documents, sentences."""

    def __init__(self, folder: Path, tokenizer: Tokenizer, dtype: np.dtype, seed: int) -> None:
        self.folder, self.tokenizer, self.dtype = folder, tokenizer, dtype
        self._key = seed.to_bytes(8, "little", signed=True)
        self._digest = hashlib.sha256()
        self._open: _OpenDocument | None = None
        self._last: np.ndarray | None = None  # the last sentence, which may go on in the next batch

    def __enter__(self) -> Staging:
        self.folder.mkdir()
        self.tokens = self._column("tokens", self.dtype)
        # By document: the token behind it, UTF-8 bytes, words, and a hash of its text.
        self.ends, self.bytes, self.words, self.hashes = (
            self._column(name, kind)
            for name, kind in (("ends", "i8"), ("bytes", "i8"), ("words", "i8"), ("hashes", "u8"))
        )
        # By sentence: its first token, bytes and words.
        self.starts, self.sentence_bytes, self.sentence_words = (
            self._column(name, "i8") for name in ("starts", "sentence_bytes", "sentence_words")
        )
        return self

    def _column(self, name: str, kind: Any) -> Column:
        return Column(self.folder / name, np.dtype(kind))

    @property
    def columns(self) -> list[Column]:
        return [column for column in vars(self).values() if isinstance(column, Column)]

    def __exit__(self, *_: object) -> None:
        for column in self.columns:
            column.close()
        shutil.rmtree(self.folder)

    @property
    def digest(self) -> str:
        """A digest of all texts in order, as `text.documents_fingerprint` makes it."""
        return self._digest.hexdigest()

    @property
    def total(self) -> int:
        """Tokens so far."""
        return len(self.tokens)

    def add(
        self,
        documents: Iterable[Document],
        progress: Callable[[int], None] | None,
        workers: int | None = None,
    ) -> None:
        """Encode the documents; the columns are then ready to be read. `progress` gets the bytes so far."""
        done = 0
        for batch, encoded in encoded_batches(batches(documents), self.tokenizer, self.dtype, workers):
            self._add_sentences(encoded)
            self._add_documents(batch, encoded)
            self.tokens.append(encoded.tokens)
            done += int(encoded.sizes[:, 0].sum())
            if progress is not None:
                progress(done)
        if self._last is not None:
            self._write_sentences(self._last[None])
        for column in self.columns:
            column.flush()
        if not self.total:
            raise EtymonError("there is no text to store: no document holds a single token")

    def _add_sentences(self, encoded: Encoded) -> None:
        rows = encoded.sentences + np.array([self.total, 0, 0])
        if self._last is not None:
            self._last[1:] += encoded.head
            rows = np.concatenate((self._last[None], rows))
        if len(rows):
            self._write_sentences(rows[:-1])
            self._last = rows[-1].copy()

    def _write_sentences(self, rows: np.ndarray) -> None:
        for column, values in zip(
            (self.starts, self.sentence_bytes, self.sentence_words), rows.T, strict=True
        ):
            column.append(values)

    def _add_documents(self, batch: list[Part], encoded: Encoded) -> None:
        rows: list[tuple[int, int, int]] = []
        hashes: list[bytes] = []
        end = self.total
        sizes, lengths = encoded.sizes.tolist(), encoded.lengths.tolist()
        for part, length, (size, words), digest in zip(batch, lengths, sizes, encoded.digests, strict=True):
            end += length
            if part.more or self._open is not None:
                document = self._open = self._open or _OpenDocument()
                document.add(part.text, length, size, words)
                if part.more:
                    continue
                length, size, words, digest = document.result()
                self._open = None
            self._digest.update(digest)
            if length:
                rows.append((end, size, words))
                # A hash of the text itself: the choice survives other documents coming and going, and two
                # copies of a text never land on both sides.
                hashes.append(hashlib.blake2b(digest, key=self._key, digest_size=8).digest())
        table = np.array(rows, np.int64).reshape(-1, 3)
        for column, values in zip((self.ends, self.bytes, self.words), table.T, strict=True):
            column.append(values)
        self.hashes.append(np.frombuffer(b"".join(hashes), "<u8"))

    def divide(self, document: int, cut: int) -> None:
        """Make two documents of one, at the token `cut`."""
        start = int(self.ends.read(document - 1, document)[0]) if document else 0
        end = int(self.ends.read(document, document + 1)[0])
        place = self.starts.find(cut)
        if place == len(self.starts) or self.starts.read(place, place + 1)[0] != cut:
            # The cut is inside a sentence: share its bytes and words out by tokens.
            before = int(self.starts.read(place - 1, place)[0])
            after = int(self.starts.read(place, place + 1)[0]) if place < len(self.starts) else end
            after = min(after, end)
            self.starts.replace(place, 0, [cut])
            for column in (self.sentence_bytes, self.sentence_words):
                whole = int(column.read(place - 1, place)[0])
                head = whole * (cut - before) // (after - before)
                column.replace(place - 1, 1, [head, whole - head])
        first = self.starts.find(start)
        for column, sentences in ((self.bytes, self.sentence_bytes), (self.words, self.sentence_words)):
            head = sentences.sum(first, place)
            whole = int(column.read(document, document + 1)[0])
            column.replace(document, 1, [head, whole - head])
        self.ends.replace(document, 0, [cut])

    def blocks(self) -> Iterator[tuple[int, np.ndarray]]:
        """The first of some neighbouring documents, and their token offsets with the end."""
        last = 0
        for first in range(0, len(self.ends), DOCUMENTS):
            offsets = np.concatenate(([last], self.ends.read(first, first + DOCUMENTS)))
            last = int(offsets[-1])
            start = 0
            while start < len(offsets) - 1:
                stop = int(np.searchsorted(offsets, offsets[start] + TOKENS, side="right")) - 1
                stop = max(stop, start + 1)
                yield first + start, offsets[start : stop + 1]
                start = stop

    def write_splits(self, folders: list[Path], side: np.ndarray) -> list[dict[str, int]]:
        """Write every document into the folder of its side; returns the counts of each."""
        with ExitStack() as stack:
            writers = [stack.enter_context(_SplitWriter(folder, self.dtype)) for folder in folders]
            for first, offsets in self.blocks():
                last = first + len(offsets) - 1
                sizes = np.column_stack((self.bytes.read(first, last), self.words.read(first, last)))
                chosen = [side[first:last] == number for number in range(len(writers))]
                for writer, mine in zip(writers, chosen, strict=True):
                    writer.documents_follow(offsets, sizes, mine)
                for low in range(
                    int(offsets[0]), int(offsets[-1]), TOKENS
                ):  # more than once for a long document
                    high = min(low + TOKENS, int(offsets[-1]))
                    tokens = self.tokens.read(low, high)
                    starts = self.starts.read(self.starts.find(low), self.starts.find(high))
                    for writer, mine in zip(writers, chosen, strict=True):
                        writer.take(tokens, starts, low, offsets, mine)
        return [writer.counts for writer in writers]


class _OpenDocument:
    """What is known of a document whose end has not been seen."""

    def __init__(self) -> None:
        self.digest, self.length, self.size, self.words = hashlib.sha256(), 0, 0, 0

    def add(self, text: str, length: int, size: int, words: int) -> None:
        self.digest.update(text.encode())
        self.length, self.size, self.words = self.length + length, self.size + size, self.words + words

    def result(self) -> tuple[int, int, int, bytes]:
        return self.length, self.size, self.words, self.digest.digest()


class _SplitWriter:
    """One split's files, written from front to back."""

    def __init__(self, folder: Path, dtype: np.dtype) -> None:
        folder.mkdir()
        self._stack = ExitStack()
        self._tokens = self._stack.enter_context((folder / "tokens.bin").open("wb"))
        self._documents, self._sentences, self._bytes, self._words = (
            self._stack.enter_context(ArrayFile(folder / f"{name}.npy", np.int64))
            for name in ("documents", "sentences", "bytes", "words")
        )
        self._documents.append(np.zeros(1, np.int64))
        self._end = 0
        self._shifts = np.zeros(0, np.int64)
        self.counts = dict.fromkeys(("documents", "sentences", "tokens", "bytes", "words"), 0)

    def __enter__(self) -> _SplitWriter:
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def documents_follow(self, offsets: np.ndarray, sizes: np.ndarray, mine: np.ndarray) -> None:
        """The next documents: `take` brings their tokens."""
        ends = self._end + np.cumsum(np.diff(offsets) * mine)
        self._shifts = ends - offsets[1:]  # by document, right for mine
        self._end = int(ends[-1])
        self._documents.append(ends[mine])
        self._bytes.append(sizes[mine, 0])
        self._words.append(sizes[mine, 1])
        for name, count in (
            ("documents", mine.sum()),
            ("bytes", sizes[mine, 0].sum()),
            ("words", sizes[mine, 1].sum()),
        ):
            self.counts[name] += int(count)

    def take(
        self, tokens: np.ndarray, starts: np.ndarray, low: int, offsets: np.ndarray, mine: np.ndarray
    ) -> None:
        """Those of the tokens from `low` on, and of the sentences that start there, that are of my documents."""
        kept = tokens[np.repeat(mine, np.diff(np.clip(offsets, low, low + len(tokens))))]
        self._tokens.write(kept.tobytes())
        owner = np.searchsorted(offsets, starts, side="right") - 1
        begins = (starts + self._shifts[owner])[mine[owner]]
        self._sentences.append(begins)
        self.counts["tokens"] += len(kept)
        self.counts["sentences"] += len(begins)


@dataclass(frozen=True)
class HeldOut:
    """Which documents are held out (1), and by which rule."""

    side: np.ndarray
    rule: str


def split_documents(staging: Staging, share: float) -> HeldOut:
    """Hold out documents by hash, or cut off the tail of the text (which may divide a document)."""
    count = len(staging.ends)
    if share == 0:
        return HeldOut(np.zeros(count, np.int8), "documents")
    if count >= FEWEST_DOCUMENTS:
        bound = int(share * 2**64)
        side = np.concatenate(
            [
                (staging.hashes.read(first, first + DOCUMENTS) < bound).astype(np.int8)
                for first in range(0, count, DOCUMENTS)
            ]
        )
        if 0 < side.sum() < count:
            return HeldOut(side, "documents")
    if staging.total < 2:
        raise EtymonError("the text is a single token: there is nothing to hold out for validation; add text")
    wanted = min(max(round(staging.total * (1 - share)), 1), staging.total - 1)
    place = max(staging.starts.find(wanted) - 1, 1)
    near = staging.starts.read(place, place + 2)  # the sentences that start around there, but not the first
    cut = int(near[np.abs(near - wanted).argmin()]) if len(near) else wanted
    document = staging.ends.find(cut)
    if staging.ends.read(document, document + 1)[0] != cut:
        staging.divide(document, cut)
    return HeldOut((np.arange(len(staging.ends)) > document).astype(np.int8), "tail")
