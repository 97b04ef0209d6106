"""Surprisal word by word: the log-probabilities of a text's tokens, added up over its words."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

from etymon.generation.likelihood import Score, WordScore
from etymon.text.tokenizer import Tokenizer


def score_words(score: Score, begins_word: np.ndarray, tokenizer: Tokenizer) -> list[WordScore]:
    """The surprisal of every word of a scored text; `begins_word` says of each token whether one begins
    there.

    A word whose first token was given, and not scored, is left out, and so is an end token behind the text.
    """
    ids, starts, stops = tokenizer.offsets(score.text, quiet=True)
    begins = begins_word.copy()
    # White space that is a token belongs to the word behind it, as everywhere else.
    is_blank = np.array([not score.text[a:b].strip() for a, b in zip(starts.tolist(), stops.tolist())], bool)
    begins[1:] |= is_blank[1:] & ~is_blank[:-1]
    begins[1:] &= ~is_blank[:-1]
    begins[:1] = True
    given = max(0, len(ids) - len(score.log_probs))
    words = []
    for first, stop in pairwise([*np.flatnonzero(begins).tolist(), len(ids)]):
        if first >= given:
            word = score.text[int(starts[first]) : int(stops[stop - 1])].strip()
            total = math.fsum(score.log_probs[first - given : stop - given])
            words.append(WordScore(word, -total / math.log(2), stop - first))
    return words
