"""A sample of a text of any size, evenly spread, to train a tokenizer on and to measure it with."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import IO

from etymon.errors import EtymonError
from etymon.text.reading import Document
from etymon.text.sentences import cut_texts

ENOUGH_BYTES = 200_000_000  # of text are enough to train a tokenizer on
MEASURED_BYTES = 4_000_000  # of text are enough to measure it with
BLOCK = 1 << 12  # characters that are sampled or left together
HELD_OUT = 20  # of so many blocks one is not trained on, but measured with


class TextSample:
    """Texts, as often as they are read: every n-th block of those offered, where n doubles whenever they
    outgrow the limit. So any number of blocks can be offered without knowing it before, and those kept are
    evenly spread."""

    def __init__(self, file: IO[bytes], limit: int) -> None:
        self._file, self._limit = file, limit
        self._kept: list[tuple[int, int]] = []  # where a block is, and bytes of text in it
        self._every, self._offered = 1, 0
        self.size = 0
        """Bytes of text."""
        self.offered_bytes = 0
        """Bytes of all text that was offered."""

    def offer(self, block: list[str]) -> None:
        """Keeps a block of texts, or not."""
        block_bytes = sum(len(text.encode()) for text in block)
        self.offered_bytes += block_bytes
        if self._offered % self._every == 0:
            self._kept.append((self._file.seek(0, 2), block_bytes))
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
def sample_texts(
    documents: Iterable[Document],
    limit: int = ENOUGH_BYTES,
    *,
    hold_out: bool = True,
    progress: Callable[[], None] = lambda: None,
) -> Iterator[tuple[TextSample, TextSample]]:
    """Texts to train a tokenizer on, kept on the disk, and others to measure it with (none if there are
    few). Of a long text parts are taken, not just its beginning."""
    with tempfile.TemporaryFile(prefix="etymon-") as file:
        training, measuring = TextSample(file, limit), TextSample(file, MEASURED_BYTES)
        number = size = 0
        block: list[str] = []
        try:
            for piece in chain(cut_texts((document.text for document in documents), BLOCK), [None]):
                if piece:
                    block.append(piece)
                    size += len(piece)
                if block and (size >= BLOCK or piece is None):
                    is_held_out = hold_out and number % HELD_OUT == HELD_OUT // 2
                    (measuring if is_held_out else training).offer(block)
                    if number % 64 == 0:
                        progress()
                    number, block, size = number + 1, [], 0
            file.flush()
        except OSError as error:
            raise EtymonError(
                f"cannot write to the temporary folder {tempfile.gettempdir()} ({error.strerror}): set "
                "TMPDIR to one "
                "with more room, or learn from less text (etymon tokenizer --limit)"
            ) from error
        yield training, measuring
