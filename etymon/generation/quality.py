"""What generated texts are like, without a judge: how much they repeat themselves, each other, and what was there before."""

from __future__ import annotations

from collections.abc import Sequence

COMPARED = 64
"""Texts that are compared with each other at most: every one is compared with all others."""


def ngrams(ids: Sequence[int], size: int) -> list[tuple[int, ...]]:
    return [tuple(ids[place : place + size]) for place in range(len(ids) - size + 1)]


def repetition(texts: Sequence[Sequence[int]], size: int) -> float | None:
    """The share of a text's n-grams that it has had before (rep-n), as a mean over texts that are long enough."""
    shares = [1 - len(set(found)) / len(found) for text in texts if (found := ngrams(text, size))]
    return sum(shares) / len(shares) if shares else None


def distinct(texts: Sequence[Sequence[int]], size: int) -> float | None:
    """Different n-grams of all texts together, as a share of all their n-grams (Li et al. 2016)."""
    found = [each for text in texts for each in ngrams(text, size)]
    return len(set(found)) / len(found) if found else None


def self_bleu(texts: Sequence[str]) -> float | None:
    """The mean BLEU of every text with all others as references (Zhu et al. 2018): 100 is always the same text.

    None for fewer than two texts, or without sacrebleu.
    """
    try:
        from sacrebleu.metrics import BLEU
    except ImportError:
        return None
    compared = list(texts)[:COMPARED]
    if len(compared) < 2:
        return None
    metric = BLEU(effective_order=True)  # a text of three words has no four in a row
    scores = [
        metric.sentence_score(text, compared[:place] + compared[place + 1 :]).score
        for place, text in enumerate(compared)
    ]
    return float(sum(scores) / len(scores))
