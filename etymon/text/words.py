"""Words as a model reads them: by their letters, or as pieces that each belong to one word; and windows over
long texts."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from etymon.text.tokenizer import BYTE_KINDS, BYTE_PIECE, Tokenizer, token_bytes

if TYPE_CHECKING:
    from etymon.text.store import Split

LONGEST = 50
"""Characters of a word, with the marks of its beginning and end: longer ones are cut."""
BEGIN_TEXT, END_TEXT, BEGIN_WORD, END_WORD, PADDING = range(257, 262)
"""Bytes are 1 to 256, since 0 is no word at all (the numbers of AllenNLP)."""
Span = tuple[int, int]
"""Characters [start, stop) of a text."""
# Thai, Lao, Tibetan; Myanmar; Khmer; Chinese and Japanese with their punctuation: no spaces between words.
SPACELESS = re.compile(
    "[\u0e00-\u0fda\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\uf900-\ufaff\uff00-\uffef\U00020000-\U000323af]"
)
MARGIN = 8
"""A window shows at least one in so many of its pieces behind the words that it is asked about, and before
them."""


BLOCK, BLOCKS = 1 << 14, 64
"""Tokens of a block, and blocks of a text, by which its scripts are told."""


class Lexicon:
    """The words of a tokenizer by number, for models that read characters. Words that it does not have get
    numbers behind its last one when a text brings them, so that a model can tell them apart by their
    letters."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.unknown = tokenizer.id("unknown")
        self.size = tokenizer.size
        # A word's row is filled when it is first asked for.
        self._spelled = np.zeros((self.size, LONGEST), np.int16)
        self._numbers: dict[str, int] = {}  # of the words beyond the vocabulary
        self._words: list[str] = []  # the same in the order of their numbers
        for role, mark in (("begin", BEGIN_TEXT), ("end", END_TEXT)):
            if (number := tokenizer.id(role)) is not None:
                self._spelled[number] = _letter_row([mark])

    def spell(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The letters of every distinct word, as far as the longest goes, and which of them every id is."""
        words, index = np.unique(ids, return_inverse=True)
        inside = words[words < self.size]
        for number in inside[self._spelled[inside, 0] == 0].tolist():
            self._spelled[number] = letters(self.tokenizer.tokens[number])
        beyond = [letters(self._words[number - self.size]) for number in words[len(inside) :].tolist()]
        rows = np.concatenate([self._spelled[inside], np.reshape(beyond, (-1, LONGEST))]).astype(np.int16)
        used = int((rows != PADDING).sum(1).max(initial=1))
        return rows[:, :used], index.reshape(-1)

    def forget(self) -> None:
        """Drops the words beyond the vocabulary, and their numbers."""
        self._numbers, self._words = {}, []

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The ids of texts, unknown words with numbers of their own."""
        return [
            self.offsets(text)[0] if (ids == self.unknown).any() else ids
            for text, ids in zip(texts, self.tokenizer.encode_batch(texts, quiet=True), strict=True)
        ]

    def offsets(self, text: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """As the tokenizer's, unknown words with numbers of their own."""
        ids, starts, stops = self.tokenizer.offsets(text, quiet=True)
        normalizer, text = self.tokenizer.backend.normalizer, self.tokenizer.normalise(text)
        for place in np.flatnonzero(ids == self.unknown).tolist():
            word = text[starts[place] : stops[place]]
            word = word if normalizer is None else normalizer.normalize_str(word)
            if word not in self._numbers:
                self._numbers[word] = self.size + len(self._words)
                self._words.append(word)
            ids[place] = self._numbers[word]
        return ids, starts, stops


def letters(word: str) -> np.ndarray:
    """The bytes of a word between its marks, and padding."""
    return _letter_row([byte + 1 for byte in word.encode("utf-8", "ignore")[: LONGEST - 2]])


def _letter_row(inside: Sequence[int]) -> np.ndarray:
    row = np.full(LONGEST, PADDING, np.int16)
    row[: len(inside) + 2] = [BEGIN_WORD, *inside, END_WORD]
    return row


# ---------------------------------------------------------------- words as pieces


@dataclass(frozen=True)
class Pieces:
    """The ids of a text, and of every word the place of its first piece and the place behind its last."""

    ids: np.ndarray
    firsts: np.ndarray
    stops: np.ndarray


@dataclass(frozen=True)
class WordWindow:
    """Pieces [start, stop) of a text, and the words [first, last) that they are asked about."""

    start: int
    stop: int
    first: int
    last: int


class WordReader:
    """Words in their context as pieces. A piece is never of two words: those that would share one are
    encoded by themselves."""

    def __init__(self, words: Tokenizer | Lexicon) -> None:
        self.words = words
        tokenizer = words.tokenizer if isinstance(words, Lexicon) else words
        roles = (tokenizer.id(role) for role in ("unknown", "end", "pad"))
        self.unknown = next((number for number in roles if number is not None), 0)
        self._alone: dict[tuple[str, bool], list[int]] = {}

    def read(self, text: str, spans: Sequence[Span]) -> Pieces:
        """The pieces of a text with these words, which are in order and apart. A word that the tokenizer
        leaves out is unknown."""
        ids, starts, stops = (part.tolist() for part in self.words.offsets(text))
        begins, ends = np.array(spans, np.int64).reshape(-1, 2).T
        # The words [low, high) that a piece has a part of: of spaces alone, none.
        low = np.searchsorted(ends, np.maximum.accumulate(starts), side="right").tolist() if ids else []
        high = np.searchsorted(begins, np.maximum.accumulate(stops), side="left").tolist() if ids else []
        torn = {word for first, last in zip(low, high) if last - first > 1 for word in range(first, last)}
        pieces: list[int] = []
        firsts: list[int] = []
        lasts: list[int] = []
        piece = 0
        for word, (start, stop) in enumerate([*spans, (len(text), len(text))]):
            # First what stands before the word and is of no other: spaces, or marks that are no words here.
            before = len(pieces)
            while piece < len(ids) and high[piece] <= word:
                if low[piece] >= high[piece]:
                    pieces.append(ids[piece])
                piece += 1
            if word == len(spans):
                break
            is_inside = len(pieces) > before or (start > 0 and not text[start - 1].isspace())
            of_word = []
            while piece < len(ids) and low[piece] == word and high[piece] == word + 1:
                of_word.append(ids[piece])
                piece += 1
            if word in torn:  # with the space before it, if no piece has that
                of_word = self._encode_alone(
                    text[start if is_inside else max(0, start - 1) : stop], is_inside
                )
            firsts.append(len(pieces))
            pieces += of_word or [self.unknown]
            lasts.append(len(pieces))
        return Pieces(np.array(pieces, np.int32), np.array(firsts), np.array(lasts))

    def _encode_alone(self, part: str, is_inside: bool) -> list[int]:
        if isinstance(self.words, Lexicon):  # its numbers may be forgotten: they are not kept here
            return self.words.offsets(part)[0].tolist()
        if (part, is_inside) not in self._alone:
            tokenizer, normalizer = self.words, self.words.backend.normalizer
            if is_inside and tokenizer.kind in ("unigram", "bpe"):
                # `encode` would put the mark of a new word before it.
                normal = tokenizer.normalise(part)
                normal = normal if normalizer is None else normalizer.normalize_str(normal)
                ids = [token.id for token in tokenizer.backend.model.tokenize(normal)]
            else:
                ids = tokenizer.encode(part, quiet=True).tolist()
            self._alone[part, is_inside] = ids
        return self._alone[part, is_inside]


def windows(pieces: Pieces, room: int) -> list[WordWindow]:
    """Parts of at most `room` pieces, cut between words, that are asked about every word once. They overlap:
    a word has others around it wherever the text is cut. Of a word that is longer than the room, its
    beginning is shown."""
    firsts, stops, margin = pieces.firsts, pieces.stops, room // MARGIN
    if len(pieces.ids) <= room:
        return [WordWindow(0, len(pieces.ids), 0, len(firsts))]
    parts, word = [], 0
    while word < len(firsts):
        last = max(word + 1, int(np.searchsorted(stops, firsts[word] + room - 2 * margin, side="right")))
        stop = int(stops[np.searchsorted(stops, stops[last - 1] + margin, side="right") - 1])
        begin = int(np.searchsorted(firsts, stop - room, side="left"))
        start = int(firsts[min(begin, word)])
        parts.append(WordWindow(start, min(stop, start + room), word, last))
        word = last
    return parts


# ---------------------------------------------------------------- tokens that begin a word


def find_word_starts(tokenizer: Tokenizer) -> np.ndarray:
    """For every id, whether it begins a word (`Tokenizer.word_starts`)."""
    kind, tokens = tokenizer.kind, tokenizer.tokens
    if kind not in (*BYTE_KINDS, "character", "unigram", "bpe"):
        return tokenizer.spaced
    begins = np.array([SPACELESS.match(_first_character(tokenizer, token)) is not None for token in tokens])
    if kind in ("unigram", "bpe"):
        begins |= np.array([_is_mark(token) for token in tokens], bool)
    return tokenizer.spaced | begins


def spaceless_share(tokenizer: Tokenizer, split: Split) -> float:
    """The share of a text's tokens with which a character of a script without spaces begins, by blocks from
    all over the text."""
    plain = (token.removeprefix(tokenizer.prefix).lstrip("▁") for token in tokenizer.tokens)
    firsts_of = (_first_character(tokenizer, token) for token in plain)
    is_spaceless = np.array([SPACELESS.match(letter) is not None for letter in firsts_of], bool)
    is_spaceless[list(tokenizer.special_ids)] = False
    firsts = np.linspace(0, max(0, len(split.tokens) - BLOCK), BLOCKS).astype(int)
    blocks = [split.tokens[first : first + BLOCK] for first in np.unique(firsts).tolist()]
    ids = np.concatenate(blocks)
    return float(is_spaceless[ids].mean()) if len(ids) else 0.0


def _first_character(tokenizer: Tokenizer, token: str) -> str:
    """The character that a token begins with. Of half a character the rest is made up, so that its script is
    known as far as its bytes tell; "" if the token goes on with one."""
    if tokenizer.kind in BYTE_KINDS:
        spelled = token_bytes(token)
    elif BYTE_PIECE.fullmatch(token):  # byte fallback: a first byte begins a word, as its character does
        spelled = bytes([int(token[3:5], 16)])
    else:
        return token[:1]
    size = 1 + sum(spelled[:1] >= lead for lead in (b"\xc0", b"\xe0", b"\xf0"))
    return spelled[:size].ljust(size, b"\xbf").decode(errors="ignore")


def _is_mark(token: str) -> bool:
    """Whether a token is punctuation or a symbol, but for apostrophes, which are inside words."""
    return token not in ("", "'", "’") and all(unicodedata.category(mark)[0] in "PS" for mark in token)
