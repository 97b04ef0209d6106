"""Storing a corpus in bounded memory: everything is first staged on disk in order, then split in two.

A place in the corpus is what is before it: tokens, UTF-8 bytes and white-space words.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.lib import format as npy

from etymon.errors import EtymonError
from etymon.text.encoding import Part, batches
from etymon.text.reading import Document
from etymon.text.tokenizer import Tokenizer
from etymon.text.workers import encoded_batches

FEWEST_DOCUMENTS = 20  # below this a share of the documents says little
SENTENCE = 64  # tokens: as far as that, the text held out may begin somewhere else for a sentence's sake
DOCUMENTS = 1 << 16  # documents that are split at once
TOKENS = 1 << 22  # tokens that are copied at once


class Rows:
    """A file of rows of numbers that grows, and is read back a slice at a time.

    Reads go through the file, not a mapping: mapped pages count as memory.
    """

    def __init__(self, path: Path, dtype: np.dtype | str = "i8", width: int = 1) -> None:
        self.path, self.dtype, self.width, self.length = path, np.dtype(dtype), width, 0
        path.touch()

    def __len__(self) -> int:
        return self.length

    def append(self, rows: np.ndarray) -> None:
        with self.path.open("ab") as file:
            file.write(np.ascontiguousarray(rows, self.dtype).tobytes())
        self.length += len(rows)

    def read(self, start: int, stop: int) -> np.ndarray:
        count, offset = max(0, min(stop, self.length) - start), start * self.width
        found = np.fromfile(self.path, self.dtype, count * self.width, offset=offset * self.dtype.itemsize)
        return found if self.width == 1 else found.reshape(-1, self.width)

    def find(self, value: int) -> int:
        """The first row that does not begin with less than `value`, of rows in order; touches a few pages only."""
        if not self.length:
            return 0
        mapped = np.memmap(self.path, self.dtype, "r", shape=(self.length, self.width))
        return int(np.searchsorted(mapped[:, 0], value))

    def as_npy(self) -> None:
        """Make a .npy file of it."""
        header = {"descr": self.dtype.str, "fortran_order": False, "shape": (self.length,)}
        with self.path.open("rb") as rows, self.path.with_suffix(".npy").open("wb") as file:
            npy.write_array_header_1_0(file, header)
            shutil.copyfileobj(rows, file, 1 << 20)
        self.path.unlink()


class Staging:
    """All documents in order, in a folder of its own. About `share` of them are to be held out."""

    def __init__(self, folder: Path, tokenizer: Tokenizer, dtype: np.dtype, share: float, seed: int) -> None:
        self.tokenizer, self.dtype, self.share = tokenizer, dtype, share
        self._bound, self._key = int(share * 2**64), seed.to_bytes(8, "little", signed=True)
        self._text = hashlib.sha256()
        self.tokens = Rows(folder / "tokens", dtype)
        # By document the place behind it, and whether it is held out.
        self.ends = Rows(folder / "ends", width=4)
        self.sentences = Rows(folder / "sentences", width=3)  # the places where they begin
        self.end = np.zeros(3, np.int64)  # the place behind everything
        self.held_out = self._last = 0

    def add(
        self, documents: Iterable[Document], progress: Callable[[int], None] | None, workers: int | None
    ) -> None:
        """Encode the documents. `progress` gets the bytes so far."""
        for batch, encoded in encoded_batches(batches(documents), self.tokenizer, self.dtype, workers):
            self.tokens.append(encoded.tokens)
            self.sentences.append(encoded.sentences + self.end)
            self.ends.append(self._documents(batch, encoded.ends + self.end))
            self.end += encoded.ends[-1]
            if progress is not None:
                progress(int(self.end[1]))
        if not len(self.tokens):
            raise EtymonError("there is no text to store: no document holds a single token")

    def _documents(self, batch: list[Part], ends: np.ndarray) -> np.ndarray:
        """A row for every document that ends here and has tokens."""
        chosen, sides = [], []
        for number, (part, end) in enumerate(zip(batch, ends[:, 0].tolist(), strict=True)):
            self._text.update(part.text.encode())
            if part.more:
                continue
            digest, self._text = self._text.digest(), hashlib.sha256()
            if end > self._last:
                # By a hash of the text itself: the choice survives other documents coming and going, and two
                # copies of a text never land on both sides.
                drawn = hashlib.blake2b(digest, key=self._key, digest_size=8).digest()
                chosen.append(number)
                sides.append(int.from_bytes(drawn, "little") < self._bound)
                self._last = end
        self.held_out += sum(sides)
        return np.column_stack((ends[chosen], np.array(sides, np.int64)))

    def cut(self) -> np.ndarray | None:
        """The place from which on everything is held out, where documents cannot be; it may divide one."""
        enough = len(self.ends) >= FEWEST_DOCUMENTS and 0 < self.held_out < len(self.ends)
        if enough or self.share == 0:
            return None
        total = len(self.tokens)
        if total < 2:
            raise EtymonError(
                "the text is a single token: there is nothing to hold out for validation; add text"
            )
        wanted = min(max(round(total * (1 - self.share)), 1), total - 1)
        near = self.sentences.find(wanted) - 1
        before, after = np.concatenate((self.sentences.read(near, near + 2), self.end[None]))[:2]
        places = [place for place in (before, after) if 0 < place[0] < total]
        nearest = min(places, key=lambda place: abs(int(place[0]) - wanted), default=before)
        if nearest[0] and abs(nearest[0] - wanted) <= max(self.share * total / 2, min(SENTENCE, total / 4)):
            return nearest
        # Hardly anything would be left to train on, or to judge by: this sentence is divided, but no character.
        while wanted - 1 > before[0] and self.tokenizer.goes_on(int(self.tokens.read(wanted, wanted + 1)[0])):
            wanted -= 1
        share = (wanted - before[0]) / (after[0] - before[0])  # bytes and words are shared out by tokens
        return np.append(wanted, before[1:] + (share * (after - before)[1:]).astype(np.int64))

    def _blocks(self, cut: np.ndarray | None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Neighbouring documents: the places around them, one more than documents, and which are held out."""
        last = np.zeros((1, 3), np.int64)
        for first in range(0, len(self.ends), DOCUMENTS):
            rows = self.ends.read(first, first + DOCUMENTS)
            places, side = np.concatenate((last, rows[:, :3])), rows[:, 3]
            if cut is not None:
                place = int(np.searchsorted(places[:, 0], cut[0]))
                if 0 < place < len(places) and places[place, 0] != cut[0]:
                    places = np.insert(places, place, cut, axis=0)
                side = places[1:, 0] > cut[0]
            yield places, side == 1
            last = places[-1:]

    def write_split(self, folder: Path, held_out: bool, cut: np.ndarray | None) -> dict[str, int]:
        """The documents that are, or are not, held out; returns how much that is."""
        folder.mkdir()
        tokens = Rows(folder / "tokens.bin", self.dtype)
        arrays = [Rows(folder / name) for name in ("documents", "sentences", "bytes", "words")]
        documents, sentences, bytes_, words = arrays
        documents.append(np.zeros(1))
        totals = np.zeros(3, np.int64)
        for places, side in self._blocks(cut):
            mine, offsets, sizes = side == held_out, places[:, 0], np.diff(places, axis=0)
            ends = totals[0] + np.cumsum(sizes[:, 0] * mine)
            documents.append(ends[mine])
            bytes_.append(sizes[mine, 1])
            words.append(sizes[mine, 2])
            totals += sizes[mine].sum(axis=0)
            for low in range(int(offsets[0]), int(offsets[-1]), TOKENS):
                high = min(low + TOKENS, int(offsets[-1]))
                tokens.append(self.tokens.read(low, high)[np.repeat(mine, np.diff(offsets.clip(low, high)))])
                starts = self.sentences.read(self.sentences.find(low), self.sentences.find(high))[:, 0]
                # A document always begins with a sentence; one that was divided now does so twice.
                starts = np.union1d(starts, offsets[(low <= offsets) & (offsets < high)])
                owner = np.searchsorted(offsets, starts, side="right") - 1
                sentences.append((starts + (ends - offsets[1:])[owner])[mine[owner]])
        for array in arrays:
            array.as_npy()
        counts = (len(documents) - 1, len(sentences), *totals.tolist())
        return dict(zip(("documents", "sentences", "tokens", "bytes", "words"), counts, strict=True))
