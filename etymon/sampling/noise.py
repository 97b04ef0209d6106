"""The noise algebra: a noise mask, what the input shows of it, and what the target asks for.

Masked language modelling, by tokens, words or n-grams, span corruption, dropping and infilling are
combinations of these small pure functions (after the preprocessors of T5 and BART's); `corruption` names
those of encoder-decoders. Each takes its randomness as an explicit generator, and each is invertible: input
and target together still hold the original text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from etymon.errors import EtymonError

# ---------------------------------------------------------------- which positions are noise


def count_mask(candidates: np.ndarray, count: int, rng: Generator) -> np.ndarray:
    """Exactly `count` of the candidate positions (a boolean array), or all of them if there are fewer."""
    mask = np.zeros(len(candidates), bool)
    mask[rng.permutation(np.flatnonzero(candidates))[:count]] = True
    return mask


def masked_count(length: int, density: float = 0.15) -> int:
    """How many of `length` tokens BERT hides: the rounded share, at least one."""
    return max(1, round(density * length))


def chance_count(length: int, density: float, rng: Generator) -> int:
    """How many of `length` tokens RoBERTa hides: the share, rounded up or down by chance so that the mean is
    exact."""
    return int(density * length + rng.random())


def words_mask(
    word_starts: np.ndarray,
    candidates: np.ndarray,
    budget: int,
    rng: Generator,
    longest: int = 1,
    is_strict: bool = False,
) -> np.ndarray:
    """Whole words, up to `longest` side by side, from random places on, until `budget` positions are noise.

    `word_starts` marks the positions that begin a word; a word ends where the next begins or where a
    position is no candidate. As in ALBERT's pipeline: from every word on, in random order, n words with a
    probability proportional to 1/n (of those n that the text still has); fewer if they would exceed the
    budget, none if they would exceed it all the same or overlap with earlier ones. Where every word is
    longer than the budget, as in a text without spaces, single tokens are hidden; or, if `is_strict`, one of
    the shortest words.
    """
    starts = np.flatnonzero(candidates & (word_starts | ~np.append(False, candidates[:-1])))
    stops = np.flatnonzero(candidates & ~np.append(candidates[1:] & ~word_starts[1:], False)) + 1
    sizes, numbers = (stops - starts).tolist(), np.arange(len(starts))
    # n is drawn for all words at once: by inverting the cumulated 1/n, as far as the text reaches.
    chances = np.cumsum(1 / np.arange(1, longest + 1))
    possible = chances[np.minimum(longest, len(starts) - numbers) - 1]
    furthest = np.searchsorted(chances, rng.random(len(starts)) * possible, side="right") + numbers
    mask = np.zeros(len(candidates), bool)
    for first in rng.permutation(len(starts)).tolist():
        if budget <= 0:
            break
        for last in range(int(furthest[first]), first - 1, -1):
            size = sum(sizes[first : last + 1])
            if size <= budget:
                # Words need not touch: what lies between two of them is no candidate and stays.
                span = slice(starts[first], stops[last])
                if not mask[span].any():
                    mask[span] = candidates[span]
                    budget -= size
                break
    if mask.any() or not is_strict:
        return mask if mask.any() else count_mask(candidates, budget, rng)
    shortest = np.flatnonzero(stops - starts == min(sizes, default=0))
    if len(shortest):
        word = int(rng.choice(shortest))
        mask[starts[word] : stops[word]] = True
    return mask


def weighted_mask(weights: np.ndarray, count: int, rng: Generator) -> np.ndarray:
    """`count` positions drawn without replacement by their weights; those of weight 0 never."""
    places = np.flatnonzero(weights)
    # Whichever of several clocks rings next is chosen by the rates: the first `count` rings are the sample.
    rings = rng.standard_exponential(len(places)) / weights[places]
    mask = np.zeros(len(weights), bool)
    mask[places[np.argsort(rings)[:count]]] = True
    return mask


def repeated_places(candidates: np.ndarray, count: int, rng: Generator) -> np.ndarray:
    """`count` of the candidate positions drawn with replacement, in order: some may come twice."""
    places = np.flatnonzero(candidates)
    return np.sort(rng.choice(places, count if len(places) else 0))


def noise_counts(length: int, density: float, mean_span: float) -> tuple[int, int]:
    """T5's arithmetic: how many of `length` tokens are noise, in how many spans."""
    if length < 2:
        raise ValueError(f"span noise needs at least 2 tokens, not {length}")
    noise = min(max(round(length * density), 1), length - 1)
    return noise, min(max(round(noise / mean_span), 1), length - noise)


def random_spans_mask(
    length: int, density: float, mean_span: float, rng: Generator, roll: bool = False
) -> np.ndarray:
    """T5's noise: spans of random lengths between kept runs of random lengths, beginning with a kept run.

    With one span that would always be the end of the text: `roll` turns the mask by a random amount, which
    may put a part of a span at the other end.
    """
    noise, spans = noise_counts(length, density, mean_span)
    runs = np.empty(2 * spans, np.int64)
    for parity, total in enumerate((length - noise, noise)):
        # An ordered sum of positive numbers, every such sum equally likely.
        cuts = np.sort(rng.permutation(total - 1)[: spans - 1]) + 1
        runs[parity::2] = np.diff(cuts, prepend=0, append=total)
    mask = np.repeat(np.arange(2 * spans) % 2 == 1, runs)
    return np.roll(mask, rng.integers(length)) if roll else mask


@dataclass(frozen=True)
class NoiseSpans:
    """Spans `[start, stop)` in order, which may touch and do not overlap, and how many empty ones lie
    anywhere."""

    starts: np.ndarray
    stops: np.ndarray
    empty: int = 0

    @staticmethod
    def of(mask: np.ndarray) -> NoiseSpans:
        """The runs of noise of a mask."""
        # Where noise begins and ends, in turn.
        edges = np.flatnonzero(np.diff(mask, prepend=False, append=False))
        return NoiseSpans(edges[0::2], edges[1::2])

    def mask(self, length: int) -> np.ndarray:
        """For each of `length` positions, whether it lies in a span."""
        edges = np.zeros(length + 1, np.int64)
        np.add.at(edges, self.starts, 1)
        np.add.at(edges, self.stops, -1)
        return np.cumsum(edges)[:-1] > 0


def infill_spans(word_starts: np.ndarray, density: float, mean_span: float, rng: Generator) -> NoiseSpans:
    """BART's noise: whole words from random ones on, as many as a Poisson variable says, until the share is
    used up.

    The budget is the share of the words, rounded up; the last span is cut to it. Spans are drawn from any
    words, so one may run into the next, and both are then one; a span ends with the text. What stands before
    the first whole word stays; where no word begins, every token is one. A draw of 0 is an empty span:
    nothing is taken out there, and a mask shown all the same.
    """
    firsts = np.flatnonzero(word_starts if word_starts.any() else ~word_starts)
    budget = int(np.ceil(density * len(firsts)))
    if not budget:
        return NoiseSpans(firsts[:0], firsts[:0])
    # As many draws as would do if each were one word; more only if most were 0.
    sizes = rng.poisson(mean_span, budget)
    while sizes.sum() < budget:
        sizes = np.append(sizes, rng.poisson(mean_span, budget))
    sizes = sizes[: int(np.searchsorted(np.cumsum(sizes), budget)) + 1]
    sizes[-1] -= sizes.sum() - budget
    empty = int((sizes == 0).sum())
    sizes = sizes[sizes > 0]
    words = rng.permutation(len(firsts))[: len(sizes)]
    order = np.argsort(words)
    starts = firsts[words[order]]
    stops = np.append(firsts, len(word_starts))[np.minimum((words + sizes)[order], len(firsts))]
    # Spans that overlap become one: a group begins where no earlier span reaches.
    groups = np.flatnonzero(np.append(True, starts[1:] >= np.maximum.accumulate(stops)[:-1]))
    starts, stops = starts[groups], np.maximum.reduceat(stops, groups)
    # As many empty ones as there is room for: the input never becomes longer than the text.
    return NoiseSpans(starts, stops, min(empty, int((stops - starts).sum()) - len(starts)))


# ---------------------------------------------------------------- in which order


def sentence_order(starts: np.ndarray, length: int, rng: Generator) -> np.ndarray:
    """Sentences in random order (BART): the old place of every position. What is before the first start is
    one, too."""
    bounds = np.unique(np.concatenate(([0], starts, [length])))
    sentences = np.split(np.arange(length), bounds[1:-1])
    return np.concatenate([sentences[number] for number in rng.permutation(len(sentences))])


# ---------------------------------------------------------------- what the input shows


def mask_eighty_ten_ten(
    ids: np.ndarray,
    places: np.ndarray,
    mask_id: int,
    vocabulary: tuple[int, int],
    rng: Generator,
    shares: tuple[float, float] = (0.8, 0.1),
) -> np.ndarray:
    """At the noise places: 80% the mask token, 10% the token itself, 10% any id of range(*vocabulary).

    `shares` are those of the mask token and of the token itself; the rest is random. A place that comes
    twice is drawn twice, and masked if either draw says so.
    """
    shown = ids.copy()
    draw = rng.random(len(places))
    random_ids = rng.integers(*vocabulary, len(places))
    is_random = draw >= shares[0] + shares[1]
    shown[places[is_random]] = random_ids[is_random]
    shown[places[draw < shares[0]]] = mask_id
    return shown


def replace_spans_with_sentinels(ids: np.ndarray, mask: np.ndarray, sentinels: Sequence[int]) -> np.ndarray:
    """Every noise span becomes one sentinel: the first span `sentinels[0]`, and so on."""
    spans = NoiseSpans.of(mask)
    return replace_spans(ids, spans, _take_sentinels(sentinels, spans))


def replace_spans(ids: np.ndarray, spans: NoiseSpans, tokens: Sequence[int]) -> np.ndarray:
    """Every span that is not empty becomes one of the tokens, in order."""
    keep = ~spans.mask(len(ids))
    before = np.append(0, np.cumsum(keep))
    return np.insert(ids[keep], before[spans.starts], np.asarray(tokens, ids.dtype))


def insert_anywhere(ids: np.ndarray, token: int, count: int, rng: Generator) -> np.ndarray:
    """So many of a token between the others, before and behind them, all ways equally likely."""
    shown = np.full(len(ids) + count, token, ids.dtype)
    shown[np.sort(rng.permutation(len(shown))[count:])] = ids
    return shown


# ---------------------------------------------------------------- what the target asks


def span_target_with_sentinels(ids: np.ndarray, mask: np.ndarray, sentinels: Sequence[int]) -> np.ndarray:
    """Every noise span behind its sentinel. No sentinel closes the last one, as in T5's code (the figure
    of the paper shows one)."""
    spans = NoiseSpans.of(mask)
    before = (np.cumsum(mask) - 1)[spans.starts]
    return np.insert(ids[mask], before, np.asarray(_take_sentinels(sentinels, spans), ids.dtype))


def _take_sentinels(sentinels: Sequence[int], spans: NoiseSpans) -> Sequence[int]:
    count = len(spans.starts)
    if count > len(sentinels):
        raise EtymonError(
            f"the text needs {count} sentinels, the tokenizer has {len(sentinels)}; "
            "train it with more or use shorter inputs"
        )
    return sentinels[:count]


# ---------------------------------------------------------------- lengths


def span_lengths(raw: int, density: float = 0.15, mean_span: float = 3.0) -> tuple[int, int]:
    """Input and target length of span corruption of `raw` tokens, each with its end token."""
    noise, spans = noise_counts(raw, density, mean_span)
    return raw - noise + spans + 1, noise + spans + 1


def raw_length_for(input_length: int, density: float = 0.15, mean_span: float = 3.0) -> tuple[int, int]:
    """How many raw tokens fill an input of `input_length` after corruption, and the target's length."""
    if input_length < 3 or span_lengths(2, density, mean_span)[0] > input_length:
        raise EtymonError(
            f"an input of {input_length} tokens is too short for span corruption; use 3 or more"
        )
    if density >= 1:  # every length would be as long as a single span
        raise EtymonError("span corruption leaves some of the text: give a density below 1")
    # Lengths are rounded, so that the inverse is no formula: counted up, a few hundred steps.
    raw = 2
    while span_lengths(raw + 1, density, mean_span)[0] <= input_length:
        raw += 1
    return raw, span_lengths(raw, density, mean_span)[1]
