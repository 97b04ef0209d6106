"""Text to learn a tokenizer from: a bounded amount, spread evenly over all there is, kept on the disk."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import IO

from etymon.data.cutting import pieces
from etymon.data.document import Document

LEARNT = 200_000_000  # bytes are enough to learn from
BLOCK = 1 << 12  # characters that are taken or left together
HELD_OUT = 20  # of so many blocks one is not learnt from, but judged by
JUDGED = 4_000_000  # bytes are enough to judge by


class Sample:
    """`learning()` and `held_out()` give texts, as often as they are asked for. Use it in a `with`."""

    def __init__(self, limit: int | None = LEARNT, hold_out: bool = True) -> None:
        self._learning, self._held_out = Thinned(limit), Thinned(JUDGED)
        self._judging = hold_out

    def add(self, documents: Iterable[Document], progress: Callable[[], None] | None = None) -> Sample:
        """Read all documents; of a long text parts are taken, not just its beginning."""
        for number, block in enumerate(_blocks(documents)):
            judged = self._judging and number % HELD_OUT == HELD_OUT // 2
            (self._held_out if judged else self._learning).offer(block)
            if progress is not None and number % 64 == 0:
                progress()
        return self

    def __enter__(self) -> Sample:
        return self

    def __exit__(self, *_: object) -> None:
        self._learning.close()
        self._held_out.close()

    @property
    def size(self) -> int:
        """Bytes to learn from."""
        return self._learning.size

    def learning(self) -> Iterator[str]:
        return self._learning.texts()

    def held_out(self) -> Iterator[str]:
        """Texts to judge by; none if there are too few."""
        return self._held_out.texts()


class Thinned:
    """Blocks on the disk: every n-th of those offered, where n doubles whenever they outgrow the limit.

    So any number of blocks can be offered without knowing it before, and those kept are evenly spread.
    """

    def __init__(self, limit: int | None) -> None:
        self.limit, self.size = limit, 0
        self._file: IO[bytes] = tempfile.TemporaryFile(prefix="etymon-")  # noqa: SIM115
        self._places: list[tuple[int, int, int]] = []  # offset, packed bytes, bytes of text
        self._every, self._offered = 1, 0

    def offer(self, block: list[str]) -> None:
        if self._offered % self._every == 0:
            packed = pickle.dumps(block)
            size = sum(len(text.encode()) for text in block)
            self._places.append((self._file.tell(), len(packed), size))
            self._file.write(packed)
            self.size += size
            while self.limit is not None and self.size > self.limit and len(self._places) > 1:
                self._halve()
        self._offered += 1

    def _halve(self) -> None:
        self._every *= 2
        thinner: IO[bytes] = tempfile.TemporaryFile(prefix="etymon-")  # noqa: SIM115
        places = []
        for offset, length, size in self._places[::2]:
            self._file.seek(offset)
            places.append((thinner.tell(), length, size))
            thinner.write(self._file.read(length))
        self._file.close()
        self._file, self._places = thinner, places
        self.size = sum(size for *_, size in places)

    def texts(self) -> Iterator[str]:
        for offset, length, _ in self._places:
            self._file.seek(offset)
            yield from pickle.loads(self._file.read(length))

    def close(self) -> None:
        self._file.close()


def _blocks(documents: Iterable[Document]) -> Iterator[list[str]]:
    """Neighbouring texts of about BLOCK characters; long texts in pieces."""
    block: list[str] = []
    size = 0
    for document in documents:
        for start, stop in pieces(document.text, BLOCK):
            if start < stop:
                block.append(document.text[start:stop])
                size += stop - start
            if size >= BLOCK:
                yield block
                block, size = [], 0
    if block:
        yield block
