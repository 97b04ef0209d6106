"""An n-gram model of token ids: the yardstick of what a network buys beyond counting, and a partner to mix it
with.

Interpolated modified Kneser-Ney smoothing (Chen and Goodman 1999). Counts are made by sorting: an n-gram is
the number of its first n - 1 tokens among all seen so far, and its last token, in one integer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from etymon.text.store import Split

ORDER = 5
MOST_TOKENS = 1 << 24
"""Tokens that are counted at most; 16 million take about 3 GB at the fifth order."""
USUAL_DISCOUNTS = np.array([0.0, 0.5, 1.0, 1.5])
"""For n-grams seen never, once, twice and more often, where a text is too small to estimate them."""
ITERATIONS = 100


@dataclass(frozen=True)
class Order:
    """The n-grams of one length. An n-gram's context are its tokens but the last, a shorter n-gram."""

    keys: np.ndarray
    """`context * vocabulary + last token` of every n-gram that was seen, sorted."""
    shares: np.ndarray
    """Of every n-gram: its discounted count, as a share of its context's counts."""
    rest: np.ndarray
    """Of every context: what the discounts took away, as a share; 1 where nothing was counted behind it."""

    def find(self, contexts: np.ndarray, ids: np.ndarray, vocabulary: int) -> np.ndarray:
        """The places of the n-grams of these contexts and last tokens; -1 of those that were not seen."""
        keys = np.where(contexts < 0, -1, contexts * vocabulary + ids)
        places = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[places] == keys, places, -1)


@dataclass(frozen=True)
class NgramModel:
    """The probability of a token after those before it, from counts of n-grams up to a length."""

    vocabulary: int
    orders: list[Order]

    @classmethod
    def train(cls, ids: np.ndarray, vocabulary: int, order: int = ORDER) -> Self:
        """A model of one sequence of ids, all below `vocabulary`."""
        ids = np.asarray(ids, np.int64)
        if len(ids) < 2 or order < 1:
            raise ValueError("an n-gram model needs two tokens or more, and an order of 1 or more")
        order = min(order, len(ids) - 1)
        # `grams[i]` is the n-gram that ends at position i, from length to length one token longer; the empty
        # one is before every token.
        grams = np.zeros(len(ids), np.int64)
        tables: list[np.ndarray] = []
        counts, contexts_of_length, following = [], [], []
        for length in range(1, order + 1):
            contexts = grams[:-1] if length > 1 else grams
            tokens = ids[length - 1 :]
            keys, first, inverse, raw = np.unique(
                contexts * vocabulary + tokens, return_index=True, return_inverse=True, return_counts=True
            )
            if length > 1:
                # Each n-gram but the longest counts as often as different tokens were seen before it: a word
                # that only ever follows one other ("Francisco") is unlikely elsewhere.
                suffixes = grams[1:][first]
                following.append(np.bincount(suffixes, minlength=len(tables[-1])))
            tables.append(keys)
            counts.append(raw)
            contexts_of_length.append(keys // vocabulary)
            grams = inverse.reshape(-1)
        sizes = [1, *map(len, tables[:-1])]
        # Shorter n-grams count by what precedes them, the longest by how often they were seen.
        orders = [
            _discount(keys, count, contexts, size)
            for keys, count, contexts, size in zip(
                tables, [*following, counts[-1]], contexts_of_length, sizes, strict=True
            )
        ]
        return cls(vocabulary, orders)

    def log_probs(self, ids: np.ndarray) -> np.ndarray:
        """The natural logarithm of the probability of every id after those before it."""
        ids = np.asarray(ids, np.int64)
        # From the shortest context to the longest: each hands what it has discounted to the one before, and
        # the first to all tokens alike.
        probabilities = np.full(len(ids), 1 / self.vocabulary)
        contexts = np.zeros(len(ids), np.int64)
        for order in self.orders:
            grams = order.find(contexts, ids, self.vocabulary)
            is_known, is_seen = contexts >= 0, grams >= 0
            probabilities[is_known] *= order.rest[contexts[is_known]]
            probabilities[is_seen] += order.shares[grams[is_seen]]
            # The next order's context of a token is the n-gram that ends before it.
            contexts = np.concatenate((np.array([-1]), grams[:-1]))
        return np.log(probabilities)


def _discount(keys: np.ndarray, counts: np.ndarray, contexts: np.ndarray, size: int) -> Order:
    """Takes a little away from every count, by how large it is, for what was not seen. `size` is the number
    of contexts."""
    discounts = estimate_discounts(counts)
    taken = discounts[np.minimum(counts, 3)]
    totals = np.bincount(contexts, counts, size)
    rest = np.bincount(contexts, taken, size)
    # A context of the very end of the text has nothing behind it: it says what a shorter one says.
    divisors = np.where(totals > 0, totals, 1)
    return Order(keys, (counts - taken) / divisors[contexts], np.where(totals > 0, rest / divisors, 1.0))


def estimate_discounts(counts: np.ndarray) -> np.ndarray:
    """What is taken from counts of 0, 1, 2 and more, from how many n-grams were seen once to four times (Chen
    and Goodman 1999, equation 26)."""
    often = np.bincount(np.minimum(counts, 5), minlength=6).astype(float)
    if not often[1:5].all():
        return USUAL_DISCOUNTS
    ratio = often[1] / (often[1] + 2 * often[2])
    steps = np.arange(1, 4)
    discounts = steps - (steps + 1) * ratio * often[2:5] / often[1:4]
    return (
        np.concatenate(([0.0], discounts))
        if ((discounts >= 0) & (discounts <= steps)).all()
        else USUAL_DISCOUNTS
    )


def training_stream(split: Split, separator: int) -> np.ndarray:
    """The tokens of a text as one sequence, documents parted by a token of their own; the first `MOST_TOKENS`
    of them."""
    return split.stream(-1, min(split.stream_length, MOST_TOKENS), separator)


def texts_log_probs(model: NgramModel, texts: list[np.ndarray], separator: int) -> list[np.ndarray]:
    """The log-probabilities of every text's ids, each text behind a separator, which is not scored."""
    # All in one call: contexts are looked up for all tokens at once.
    stream = np.concatenate([np.concatenate(([separator], ids)) for ids in texts])
    scored = model.log_probs(stream)
    ends = np.cumsum([len(ids) + 1 for ids in texts])
    return [scored[end - len(ids) : end] for ids, end in zip(texts, ends, strict=True)]


def fit_weight(first: np.ndarray, second: np.ndarray) -> float:
    """The weight of the first of two models whose mixture finds these tokens likeliest, from the
    log-probabilities of both (expectation maximisation; there is a single maximum)."""
    weight = 0.5
    # Ratios, and not probabilities, which would vanish; exp of more than 700 has no number.
    gap = np.clip(second - first, -700, 700)
    for _ in range(ITERATIONS):
        weight = float(np.mean(weight / (weight + (1 - weight) * np.exp(gap))))
    return weight


def mix(first: np.ndarray, second: np.ndarray, weight: float) -> np.ndarray:
    """The log-probabilities of a mixture; `weight` is that of the first model."""
    weight = min(max(weight, 1e-12), 1 - 1e-12)
    return np.logaddexp(np.log(weight) + first, np.log1p(-weight) + second)
