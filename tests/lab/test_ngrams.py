"""Kneser-Ney: exact beside counting by hand, probabilities that sum to one, and better than what it is made of."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
import pytest

from etymon.lab.ngrams import (
    USUAL_DISCOUNTS,
    NgramModel,
    estimate_discounts,
    fit_weight,
    mix,
    texts_log_probs,
    training_stream,
)
from etymon.text.store import Split


def by_hand(ids: list[int], vocabulary: int, order: int) -> dict[tuple[int, ...], dict[int, float]]:
    """Probabilities by context, from dictionaries and the definition alone."""
    seen = {n: Counter(tuple(ids[i : i + n]) for i in range(len(ids) - n + 1)) for n in range(1, order + 1)}
    tables: dict[tuple[int, ...], dict[int, float]] = {}
    lower = dict.fromkeys(range(vocabulary), 1 / vocabulary)
    for n in range(1, order + 1):
        counts: Counter[tuple[int, ...]] = seen[n]
        if n < order:
            before: dict[tuple[int, ...], set[int]] = defaultdict(set)
            for gram in seen[n + 1]:
                before[gram[1:]].add(gram[0])
            counts = Counter({gram: len(before[gram]) for gram in seen[n]})
        often = Counter(counts.values())
        discounts = [0.0, 0.5, 1.0, 1.5]
        if all(often[c] for c in (1, 2, 3, 4)):
            y = often[1] / (often[1] + 2 * often[2])
            tried = [0.0, *(c - (c + 1) * y * often[c + 1] / often[c] for c in (1, 2, 3))]
            if all(0 <= discount <= c for c, discount in enumerate(tried)):
                discounts = tried
        for context in {gram[:-1] for gram in counts}:
            total = sum(count for gram, count in counts.items() if gram[:-1] == context)
            shorter = lower if n == 1 else tables[context[1:]]
            if not total:
                tables[context] = dict(shorter)
                continue
            following = {gram[-1]: count for gram, count in counts.items() if gram[:-1] == context}
            rest = sum(discounts[min(count, 3)] for count in following.values()) / total
            tables[context] = {
                word: max(0.0, following.get(word, 0) - discounts[min(following.get(word, 0), 3)]) / total
                + rest * shorter[word]
                for word in range(vocabulary)
            }
    return tables


def probability(
    tables: dict[tuple[int, ...], dict[int, float]], context: tuple[int, ...], word: int
) -> float:
    while context not in tables:
        context = context[1:]
    return tables[context][word]


def sequence(length: int, vocabulary: int, seed: int = 0) -> list[int]:
    """A sequence in which the last two tokens tell a good deal about the next."""
    rng = np.random.default_rng(seed)
    ids = [0, 1]
    for _ in range(length - 2):
        likely = (3 * ids[-1] + ids[-2]) % vocabulary
        ids.append(likely if rng.random() < 0.7 else int(vocabulary * rng.random() ** 2))
    return ids


@pytest.mark.parametrize(
    ("order", "length", "vocabulary"), [(1, 60, 7), (2, 200, 9), (3, 400, 11), (4, 300, 6)]
)
def test_probabilities_are_those_of_counting_by_hand_and_sum_to_one(
    order: int, length: int, vocabulary: int
) -> None:
    ids = sequence(length, vocabulary - 1)  # the last token of the vocabulary is never seen
    model, tables = NgramModel.train(np.array(ids), vocabulary, order), by_hand(ids, vocabulary, order)
    rng = np.random.default_rng(1)
    contexts = [tuple(ids[i : i + order - 1]) for i in range(0, length - order, 17)]
    contexts += [tuple(rng.integers(0, vocabulary, order - 1).tolist()) for _ in range(20)]
    for context in contexts:
        rows = [np.array([*context, word]) for word in range(vocabulary)]
        answers = np.exp([model.log_probs(row)[-1] for row in rows])
        expected = [probability(tables, context, word) for word in range(vocabulary)]
        assert answers.sum() == pytest.approx(1, abs=1e-12)
        assert answers == pytest.approx(expected, rel=1e-12)


def test_a_longer_order_predicts_held_out_text_better_and_an_unknown_one_no_worse_than_chance() -> None:
    ids = np.array(sequence(20_000, 30))
    train, held_out = ids[:18_000], ids[18_000:]
    bits = [-NgramModel.train(train, 30, order).log_probs(held_out).mean() / np.log(2) for order in (1, 2, 3)]
    # A token alone says little about the next; two of them give it away seven times of ten.
    assert bits[0] > bits[1] > bits[2] + 1.5
    noise = np.random.default_rng(0).integers(0, 30, 4000)
    assert -NgramModel.train(noise[:3000], 30, 2).log_probs(noise[3000:]).mean() < np.log(30) * 1.05


def test_discounts_are_chens_and_goodmans_or_the_usual_ones_of_a_small_text() -> None:
    counts = np.repeat([1, 2, 3, 4, 7], [100, 40, 20, 12, 30])
    y = 100 / 180
    expected = [0.0, 1 - 2 * y * 0.4, 2 - 3 * y * 0.5, 3 - 4 * y * 0.6]
    assert estimate_discounts(counts) == pytest.approx(expected)
    assert (estimate_discounts(np.array([1, 1, 2])) == USUAL_DISCOUNTS).all()


def test_documents_are_parted_and_texts_are_scored_alone_but_for_their_separators() -> None:
    split = Split.of([0, 1, 2, 0, 1, 3], [0, 3], [0, 3])
    stream = training_stream(split, separator=4)
    assert stream.tolist() == [4, 0, 1, 2, 4, 0, 1, 3, 4]
    model = NgramModel.train(stream, 5, 3)
    one, two = texts_log_probs(model, [np.array([0, 1]), np.array([0, 3])], 4)
    assert len(one) == len(two) == 2
    assert one[0] == pytest.approx(model.log_probs(np.array([4, 0, 1]))[1])
    assert two[1] < one[1]


def test_a_mixture_is_fitted_to_its_maximum_and_no_worse_than_either_part() -> None:
    rng = np.random.default_rng(2)
    first, second = np.log(rng.uniform(0.01, 0.9, 500)), np.log(rng.uniform(0.01, 0.9, 500))
    weight = fit_weight(first, second)
    best = max(np.linspace(0.001, 0.999, 999), key=lambda each: mix(first, second, each).sum())
    assert weight == pytest.approx(best, abs=2e-3)
    assert mix(first, second, weight).sum() > max(first.sum(), second.sum())
    assert fit_weight(first, first - 5) == pytest.approx(1, abs=1e-6)
    assert mix(first, second, 1.0) == pytest.approx(first)
    with pytest.raises(ValueError, match="two tokens"):
        NgramModel.train(np.array([1]), 3)
