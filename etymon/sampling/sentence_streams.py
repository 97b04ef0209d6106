"""A text as streams of sentences: something stands between any two, and not only between documents (ELMo's training text)."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from etymon.text.store import Split

SEPARATOR = -1
"""Between sentences: what it is depends on who reads."""


class Sentences(Split):
    """A split with a separator between the sentences of its documents."""

    def __init__(self, split: Split) -> None:
        self.tokens, self.sentences = split.tokens, split.sentences
        self.bytes, self.words = split.bytes, split.words
        inner = np.setdiff1d(split.sentences, split.documents)
        self.documents = np.asarray(split.documents) + np.searchsorted(inner, split.documents)
        # In the order of the text every sentence is a document.
        self._single = object.__new__(Split)
        self._single.tokens = split.tokens
        starts = np.sort(np.concatenate((inner, split.documents[:-1])))
        self._single.documents = np.append(starts, len(split.tokens))

    def document(self, index: int) -> Any:
        """Something to take slices of: a document may be a whole library, and a segment of it is short."""
        return _Document(self, int(self.documents[index]) + index, int(self.documents[index + 1]) + index)

    @property
    def stream_length(self) -> int:
        return self._single.stream_length

    def stream(self, start: int, stop: int, separator: int) -> np.ndarray:
        return self._single.stream(start, stop, separator)


class _Document:
    """The place of a document in the stream that follows the text."""

    def __init__(self, sentences: Sentences, start: int, stop: int) -> None:
        self._sentences, self._start, self._stop = sentences, start, stop

    def __len__(self) -> int:
        return self._stop - self._start

    def __getitem__(self, part: slice) -> np.ndarray:
        start, stop, _ = part.indices(len(self))
        return self._sentences.stream(self._start + start, self._start + max(start, stop), SEPARATOR)


@lru_cache(maxsize=4)
def by_sentence(split: Split) -> Sentences:
    return Sentences(split)
