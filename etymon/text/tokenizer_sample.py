"""Text to learn a tokenizer from: a bounded amount, spread evenly over all there is, kept on the disk."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import IO

from etymon.errors import EtymonError
from etymon.text.cutting import pieces
from etymon.text.reading import Document

LEARNT = 200_000_000  # bytes are enough to learn from
BLOCK = 1 << 12  # characters that are taken or left together
HELD_OUT = 20  # of so many blocks one is not learnt from, but judged by
JUDGED = 4_000_000  # bytes are enough to judge by


class Sample:
    """Texts, as often as they are asked for: every n-th block of those offered, where n doubles whenever they outgrow
    the limit. So any number of blocks can be offered without knowing it before, and those kept are evenly spread."""

    def __init__(self, file: IO[bytes], limit: int) -> None:
        self._file, self._limit = file, limit
        self._kept: list[tuple[int, int]] = []  # where a block is, and bytes of text in it
        self._every, self._offered = 1, 0
        self.size = 0
        """Bytes of text."""

    def offer(self, block: list[str]) -> None:
        if self._offered % self._every == 0:
            self._kept.append((self._file.seek(0, 2), sum(len(text.encode()) for text in block)))
            pickle.dump(block, self._file)
            self.size += self._kept[-1][1]
            while self.size > self._limit and len(self._kept) > 1:
                del self._kept[1::2]
                self._every *= 2
                self.size = sum(size for _, size in self._kept)
        self._offered += 1

    def __iter__(self) -> Iterator[str]:
        for place, _ in self._kept:
            self._file.seek(place)
            yield from pickle.load(self._file)


@contextmanager
def sampled(
    documents: Iterable[Document],
    limit: int = LEARNT,
    *,
    hold_out: bool = True,
    progress: Callable[[], None] = lambda: None,
) -> Iterator[tuple[Sample, Sample]]:
    """Texts to learn from, and others to judge by (none if there are few). Of a long text parts are taken, not just
    its beginning."""
    with tempfile.TemporaryFile(prefix="etymon-") as file:
        learning, judging = Sample(file, limit), Sample(file, JUDGED)
        try:
            for number, block in enumerate(_blocks(documents)):
                held_out = hold_out and number % HELD_OUT == HELD_OUT // 2
                (judging if held_out else learning).offer(block)
                if number % 64 == 0:
                    progress()
            file.flush()
        except OSError as error:
            raise EtymonError(
                f"cannot write to the temporary folder {tempfile.gettempdir()} ({error.strerror}): set TMPDIR to one "
                "with more room, or learn from less text (etymon tokenizer --limit)"
            ) from error
        yield learning, judging


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
