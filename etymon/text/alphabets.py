"""Characters of a text: how often each occurs, what a tokenizer's pipeline makes of it,
and which of them get tokens."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np
import tokenizers

from etymon.text.words import SPACELESS

COVERED = 0.9998
"""The share of a text's characters that have tokens before anything is merged, as far as there is room."""
MOST_LETTERS = 3 / 4
"""The share of a vocabulary that characters get at most, before it is known what is left empty."""
MANY_STRIPPED = 0.005
"""The share of letters outside Latin and Greek above which accents stay."""
ACCENTED = ("LATIN", "GREEK", "COMBINING")
"""Scripts in which a letter without its accent is still the same letter,
by how the names of letters begin."""


class CharacterCounts:
    """How often each character occurs; much faster than a Counter."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._counts = np.zeros(0x110000, np.int64)
        for text in texts:
            self.add(text)

    def add(self, text: str) -> None:
        counts = np.bincount(np.frombuffer(text.encode("utf-32-le"), np.uint32))
        self._counts[: len(counts)] += counts

    def __iter__(self) -> Iterator[str]:
        return map(chr, np.flatnonzero(self._counts).tolist())

    def __getitem__(self, letter: str) -> int:
        return int(self._counts[ord(letter)])

    def ranked(self) -> list[str]:
        """The characters, most frequent first."""
        return sorted(self, key=lambda letter: (-self[letter], letter))

    def share(self, belongs: Callable[[str], bool]) -> float:
        """The share of the characters, white space aside, that belong to some set."""
        letters = [letter for letter in self if not letter.isspace()]
        total = sum(self[letter] for letter in letters)
        return sum(self[letter] for letter in letters if belongs(letter)) / max(1, total)


def choose_letters(
    counts: Mapping[str, int], usual: int, most: int, cost: Callable[[str], int]
) -> tuple[list[str], list[str]]:
    """The letters that get tokens before anything is merged, and the others, both most frequent first.

    These are the `usual` number of them. Where those are less than `COVERED` of the text, as in scripts of
    thousands of letters, there are more, as long as their tokens (`cost` says how many a letter needs) are
    at most `most`.
    """
    ranked = sorted(counts, key=lambda letter: (-counts[letter], letter))
    enough = COVERED * sum(counts.values())
    covered = tokens = 0
    for number, letter in enumerate(ranked):
        tokens += cost(letter)
        if number >= usual and (covered >= enough or tokens > most):
            return ranked[:number], ranked[number:]
        covered += counts[letter]
    return ranked, []


def normalise_letter(backend: tokenizers.Tokenizer, letter: str) -> str:
    """What the pipeline makes of a character, without white space."""
    return "".join((backend.normalizer.normalize_str(letter) if backend.normalizer else letter).split())


def normalised_counts(counts: CharacterCounts, backend: tokenizers.Tokenizer) -> dict[str, int]:
    """How often each character occurs in the text as the pipeline normalises it."""
    sums: dict[str, int] = {}
    for letter in counts:
        for result in normalise_letter(backend, letter):
            sums[result] = sums.get(result, 0) + counts[letter]
    return sums


def is_ideograph(letter: str) -> bool:
    """Whether BERT's pipeline makes a word of the character, so that it has no form inside of words."""
    return "CJK" in unicodedata.name(letter, "")


def is_of_thousands(letter: str) -> bool:
    """Whether a character is of a script of thousands, which no text has all of: ideographs, Korean."""
    return is_ideograph(letter) or "가" <= letter <= "힣"


def can_continue(letter: str) -> bool:
    """Whether a character can stand inside a word: punctuation and ideographs are words by themselves."""
    is_symbol = letter.isascii() and not letter.isalnum()
    return not (is_ideograph(letter) or is_symbol or unicodedata.category(letter).startswith("P"))


def is_spaceless(letter: str) -> bool:
    """Whether a character is of a script that has no spaces between words."""
    return SPACELESS.match(letter) is not None


def loses_by_stripping(letter: str) -> bool:
    """Whether BERT's stripping of accents makes another letter of it, or nothing: vowel signs, voiced kana
    and Korean syllables, which fall apart. Accents of Latin and Greek letters do not count."""
    if unicodedata.name(letter, "").startswith(ACCENTED):
        return False
    parts = unicodedata.normalize("NFD", letter)
    return "".join(part for part in parts if unicodedata.category(part) != "Mn") != letter
