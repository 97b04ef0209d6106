"""Words by their letters, for models that read characters (ELMo): those of a word tokenizer, and those beyond its vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from etymon.text.tokenizer import Tokenizer

LONGEST = 50
"""Characters of a word, with the marks of its beginning and end: longer ones are cut."""
BEGIN_TEXT, END_TEXT, BEGIN_WORD, END_WORD, PADDING = range(257, 262)
"""Bytes are 1 to 256, since 0 is no word at all (the numbers of AllenNLP)."""


class Lexicon:
    """The words of a tokenizer by number. Words that it does not know get numbers behind its last one when a text brings them,
    so that a model can tell them apart by their letters."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.unknown = tokenizer.id("unknown")
        self.size = tokenizer.size
        # A word's row is filled when it is first asked for.
        self._spelled = np.zeros((self.size, LONGEST), np.int16)
        self._others: dict[str, int] = {}
        self._words: list[str] = []
        for role, mark in (("begin", BEGIN_TEXT), ("end", END_TEXT)):
            if (number := tokenizer.id(role)) is not None:
                self._spelled[number] = _row([mark])

    def spelled(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The letters of every distinct word, as far as the longest goes, and which of them every id is."""
        words, index = np.unique(ids, return_inverse=True)
        known = words[words < self.size]
        for number in known[self._spelled[known, 0] == 0].tolist():
            self._spelled[number] = letters(self.tokenizer.tokens[number])
        others = [letters(self._words[number - self.size]) for number in words[len(known) :].tolist()]
        found = np.concatenate([self._spelled[known], np.reshape(others, (-1, LONGEST))]).astype(np.int16)
        used = int((found != PADDING).sum(1).max(initial=1))
        return found[:, :used], index.reshape(-1)

    def forget(self) -> None:
        """Drops the words beyond the vocabulary, and their numbers."""
        self._others, self._words = {}, []

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The ids of texts, unknown words with numbers of their own."""
        return [
            self.offsets(text)[0] if (ids == self.unknown).any() else ids
            for text, ids in zip(texts, self.tokenizer.encode_batch(texts, quiet=True), strict=True)
        ]

    def offsets(self, text: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """As the tokenizer's, unknown words with numbers of their own."""
        ids, starts, stops = self.tokenizer.offsets(text, quiet=True)
        normalizer = self.tokenizer.backend.normalizer
        for place in np.flatnonzero(ids == self.unknown).tolist():
            word = text[starts[place] : stops[place]]
            ids[place] = self._number(word if normalizer is None else normalizer.normalize_str(word))
        return ids, starts, stops

    def _number(self, word: str) -> int:
        if word not in self._others:
            self._others[word] = self.size + len(self._words)
            self._words.append(word)
        return self._others[word]


def letters(word: str) -> np.ndarray:
    """The bytes of a word between its marks, and padding."""
    return _row([byte + 1 for byte in word.encode("utf-8", "ignore")[: LONGEST - 2]])


def _row(inside: Sequence[int]) -> np.ndarray:
    row = np.full(LONGEST, PADDING, np.int16)
    row[: len(inside) + 2] = [BEGIN_WORD, *inside, END_WORD]
    return row
