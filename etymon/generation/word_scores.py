"""Surprisal word by word: the log-probabilities of a text's tokens, added up over its words."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from etymon.generation.likelihood import Score, WordScore
from etymon.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class WordSpan:
    """Tokens [first, last) and characters [start, stop) of a word, without white space around it."""

    first: int
    last: int
    start: int
    stop: int


def word_spans(text: str, begins_word: np.ndarray, tokenizer: Tokenizer) -> Iterator[WordSpan]:
    """The words of a text; `begins_word` says of each token whether one begins there."""
    ids, starts, stops = tokenizer.offsets(text, quiet=True)
    begins = begins_word.copy()
    # White space that is a token belongs to the word behind it, as everywhere else.
    is_blank = np.array([not text[a:b].strip() for a, b in zip(starts.tolist(), stops.tolist())], bool)
    begins[1:] |= is_blank[1:] & ~is_blank[:-1]
    begins[1:] &= ~is_blank[:-1]
    begins[:1] = True
    for first, last in pairwise([*np.flatnonzero(begins).tolist(), len(ids)]):
        start, stop = int(starts[first]), int(stops[last - 1])
        # Tokens of some tokenizers stand for the space before a word as well.
        word = text[start:stop]
        start += len(word) - len(word.lstrip())
        # White space at the end of a text belongs to no word.
        if word.strip():
            yield WordSpan(first, last, start, start + len(word.strip()))


def score_words(score: Score, begins_word: np.ndarray, tokenizer: Tokenizer) -> list[WordScore]:
    """The surprisal of every word of a scored text; `begins_word` says of each token whether one begins
    there.

    A word whose first token was given, and not scored, is left out, and so is an end token behind the text.
    """
    # An end token of a target is scored behind the words.
    given = max(0, len(begins_word) - len(score.log_probs))
    words = []
    for span in word_spans(score.text, begins_word, tokenizer):
        if span.first >= given:
            total = math.fsum(score.log_probs[span.first - given : span.last - given])
            word, size = score.text[span.start : span.stop], span.last - span.first
            words.append(WordScore(word, -total / math.log(2), size, span.start, span.stop))
    return words


def word_rows(scores: list[Score]) -> list[dict[str, Any]]:
    """A row of a table for every word of every text, in the columns of `etymon surprisal`."""
    return [
        {
            "text": number,
            "word": word.word,
            "start": word.start,
            "stop": word.stop,
            "tokens": word.tokens,
            "surprisal": word.surprisal,
        }
        for number, score in enumerate(scores, 1)
        for word in score.words or ()
    ]
