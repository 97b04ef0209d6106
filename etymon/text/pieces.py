"""Words as pieces of a tokenizer, each word with pieces of its own, and windows over them where a text is too long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from etymon.text.tokenizer import Tokenizer
from etymon.text.words import Lexicon

Span = tuple[int, int]
"""Characters [start, stop) of a text."""
MARGIN = 8
"""A window shows at least one in so many of its pieces behind the words that it is asked about, and before them."""


@dataclass(frozen=True)
class Pieces:
    """The ids of a text, and of every word the place of its first piece and the place behind its last."""

    ids: np.ndarray
    firsts: np.ndarray
    stops: np.ndarray


@dataclass(frozen=True)
class Window:
    """Pieces [start, stop) of a text, and the words [first, last) that they are asked about."""

    start: int
    stop: int
    first: int
    last: int


class WordReader:
    """Words in their context as pieces. A piece is never of two words: those that would share one are encoded by themselves."""

    def __init__(self, words: Tokenizer | Lexicon) -> None:
        self.words = words
        tokenizer = words.tokenizer if isinstance(words, Lexicon) else words
        roles = (tokenizer.id(role) for role in ("unknown", "end", "pad"))
        self.unknown = next((number for number in roles if number is not None), 0)
        self._alone: dict[tuple[str, bool], list[int]] = {}

    def read(self, text: str, spans: Sequence[Span]) -> Pieces:
        """The pieces of a text with these words, which are in order and apart. A word that the tokenizer leaves out is unknown."""
        ids, starts, stops = (part.tolist() for part in self.words.offsets(text))
        begins, ends = np.array(spans, np.int64).reshape(-1, 2).T
        # The words [low, high) that a piece has a part of: of spaces alone, none.
        low = np.searchsorted(ends, np.maximum.accumulate(starts), side="right").tolist() if ids else []
        high = np.searchsorted(begins, np.maximum.accumulate(stops), side="left").tolist() if ids else []
        torn = {word for one, two in zip(low, high) if two - one > 1 for word in range(one, two)}
        found: list[int] = []
        firsts: list[int] = []
        lasts: list[int] = []
        piece = 0

        def skip(word: int) -> bool:
            """To the word, with what stands before it and is of no other, if anything does."""
            nonlocal piece
            before = len(found)
            while piece < len(ids) and high[piece] <= word:
                if low[piece] >= high[piece]:
                    found.append(ids[piece])
                piece += 1
            return len(found) > before

        for word, (start, stop) in enumerate(spans):
            inside = skip(word) or (start > 0 and not text[start - 1].isspace())
            own = []
            while piece < len(ids) and low[piece] == word and high[piece] == word + 1:
                own.append(ids[piece])
                piece += 1
            if word in torn:  # with the space before it, if no piece has that
                own = self._by_itself(text[start if inside else max(0, start - 1) : stop], inside)
            firsts.append(len(found))
            found += own or [self.unknown]
            lasts.append(len(found))
        skip(len(spans))
        return Pieces(np.array(found, np.int32), np.array(firsts), np.array(lasts))

    def _by_itself(self, part: str, inside: bool) -> list[int]:
        if isinstance(self.words, Lexicon):  # its numbers may be forgotten: they are not kept here
            return self.words.offsets(part)[0].tolist()
        if (part, inside) not in self._alone:
            self._alone[part, inside] = self._encoded(self.words, part, inside)
        return self._alone[part, inside]

    @staticmethod
    def _encoded(tokenizer: Tokenizer, part: str, inside: bool) -> list[int]:
        if not inside or tokenizer.kind not in ("unigram", "bpe"):
            return tokenizer.encode(part, quiet=True).tolist()
        # These would put the mark of a new word before it.
        normalizer = tokenizer.backend.normalizer
        normal = part if normalizer is None else normalizer.normalize_str(part)
        return [token.id for token in tokenizer.backend.model.tokenize(normal)]


def windows(pieces: Pieces, room: int) -> list[Window]:
    """Parts of at most `room` pieces, cut between words, that are asked about every word once. They overlap: a word has others
    around it wherever the text is cut. Of a word that is longer than the room, its beginning is shown."""
    if len(pieces.ids) <= room:
        return [Window(0, len(pieces.ids), 0, len(pieces.firsts))]
    firsts, stops, margin = pieces.firsts, pieces.stops, room // MARGIN
    found, word = [], 0
    while word < len(firsts):
        last = max(word + 1, int(np.searchsorted(stops, firsts[word] + room - 2 * margin, side="right")))
        stop = int(stops[np.searchsorted(stops, stops[last - 1] + margin, side="right") - 1])
        begin = int(np.searchsorted(firsts, stop - room, side="left"))
        start = int(firsts[min(begin, word)])
        found.append(Window(start, min(stop, start + room), word, last))
        word = last
    return found
