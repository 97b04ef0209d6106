"""The score functions against Transformers' own, on random rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from etymon.generation import DecodingSettings
from etymon.generation.processors import (
    ScoreProcessor,
    draw,
    forbid_repeated_ngrams,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    keep_typical,
    penalise_repetition,
    warp,
)
from tests.generation.reference import fit

ROWS, VOCABULARY = 6, 12


@pytest.fixture
def scores():
    return torch.randn(ROWS, VOCABULARY, generator=torch.Generator().manual_seed(1)) * 2


@pytest.fixture
def history():
    return torch.randint(0, 4, (ROWS, 9), generator=torch.Generator().manual_seed(2))


def test_repetition_penalty(scores, history):
    process = pytest.importorskip("transformers").RepetitionPenaltyLogitsProcessor(1.3)
    assert torch.equal(penalise_repetition(scores, history, 1.3), process(history, scores))


@pytest.mark.parametrize("size", [1, 2, 3, 9, 10])
def test_repeated_ngrams(scores, history, size):
    process = pytest.importorskip("transformers").NoRepeatNGramLogitsProcessor(size)
    ours = forbid_repeated_ngrams(scores, history, torch.full((ROWS,), 9), size)
    assert torch.equal(ours, process(history, scores))


@pytest.mark.parametrize("size", [1, 2, 3])
def test_ragged_histories_are_judged_by_themselves(scores, history, size):
    settings = DecodingSettings(no_repeat_ngram=size, repetition_penalty=1.5)
    lengths = [9, 1, 4, 2, 7, 3]
    rows = [row[:length].tolist() for row, length in zip(history, lengths)]

    def processing(histories):
        return ScoreProcessor(
            settings, histories, vocabulary=VOCABULARY, end_ids=(), absent=None, device=scores.device
        )

    together = processing(rows)
    new = torch.tensor([1, 2, 3, 0, 1, 2])
    together.append(new)
    alone = [
        processing([row + [token]])(scores[[place]])
        for place, (row, token) in enumerate(zip(rows, new.tolist()))
    ]
    assert torch.equal(together(scores), torch.cat(alone))
    together.append(new.flip(0))
    together.append(new)
    together.take_back(2)
    assert torch.equal(together(scores), torch.cat(alone))
    ahead = torch.tensor([1, 0, 2, 0, 2, 1])  # rows that go different ways
    for column in (new, new.flip(0)):
        together.append(column)
    together.take_back(2 - ahead)
    further = [
        processing([[*row, token, *([token, other][:count])]])(scores[[place]])
        for place, (row, token, other, count) in enumerate(
            zip(rows, new.tolist(), new.flip(0).tolist(), ahead.tolist())
        )
    ]
    assert torch.equal(together(scores), torch.cat(further))
    together.take_back(ahead)
    together.select(torch.tensor([4, 1]))
    assert torch.equal(together(scores[[4, 1]]), torch.cat([alone[4], alone[1]]))


def test_top_k_and_top_p(scores):
    transformers = pytest.importorskip("transformers")
    for count in (1, 3, 12, 40):
        assert torch.equal(keep_top_k(scores, count), transformers.TopKLogitsWarper(count)(None, scores))
    for mass in (1e-6, 0.3, 0.9, 0.999):
        assert torch.equal(keep_top_p(scores, mass), transformers.TopPLogitsWarper(mass)(None, scores))


def test_top_p_keeps_the_token_that_crosses():
    scores = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    assert (keep_top_p(scores, 0.6) > float("-inf")).tolist() == [[True, True, False, False]]
    assert (keep_top_p(scores, 0.4) > float("-inf")).tolist() == [[True, False, False, False]]


@pytest.mark.parametrize("scale", [0.2, 1.0, 3.0])
def test_min_p_and_typical_p(scores, scale):
    transformers = pytest.importorskip("transformers")
    scores = scores * scale
    cut = scores.masked_fill(scores < -1, float("-inf"))  # as other filters leave them
    for rows in (scores, cut):
        for share in (0.01, 0.3, 1.0):
            assert torch.equal(keep_min_p(rows, share), transformers.MinPLogitsWarper(share)(None, rows))
        for mass in (1e-6, 0.2, 0.9, 0.999):
            theirs = transformers.TypicalLogitsWarper(mass)(None, rows)
            assert torch.equal(keep_typical(rows, mass), theirs)


def test_typical_tokens_may_leave_out_the_likeliest():
    scores = torch.tensor([[0.4, 0.15, 0.15, 0.15, 0.15]]).log()
    assert (keep_typical(scores, 0.5) > float("-inf")).tolist() == [[False, True, True, True, True]]


WAYS = [
    {},
    {"temperature": 0.7},
    {"temperature": 1.8},
    {"top_k": 5},
    {"top_p": 0.7},
    {"min_p": 0.04},
    {"typical_p": 0.6},
    {"temperature": 0.7, "top_k": 9, "top_p": 0.95},
    {"temperature": 1.5, "top_k": 9, "top_p": 0.95, "min_p": 0.05, "typical_p": 0.9},
]


def by_definition(logits, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, typical_p=1.0):
    """The distribution of one row, token by token, from what the filters promise."""

    def normed(weights):
        return weights / weights.sum()

    p = normed(np.exp((logits - logits.max()) / temperature))
    if top_k:
        p = normed(np.where(p >= np.sort(p)[-top_k], p, 0))
    if top_p < 1:
        order = np.argsort(-p)
        p[order[np.cumsum(p[order]) - p[order] >= top_p]] = 0
        p = normed(p)
    if min_p:
        p = normed(np.where(p >= min_p * p.max(), p, 0))
    if typical_p < 1:
        surprise = -np.log(np.maximum(p, 1e-300))
        order = np.argsort(np.abs(surprise - (p * surprise).sum()))
        p[order[np.cumsum(p[order]) - p[order] >= typical_p]] = 0
        p = normed(p)
    return p


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_draws_follow_the_exact_distribution(scores, way):
    """Chi-square against the exact probabilities; draws outside the filters never happen."""
    settings = DecodingSettings(sample=True, **way)
    wanted = by_definition(scores[0].double().numpy(), **way)
    draws = 20_000
    uniforms = torch.from_numpy(np.random.default_rng(5).random(draws))
    counts = np.bincount(draw(warp(scores[:1], settings).expand(draws, -1), uniforms), minlength=VOCABULARY)
    assert (wanted == 0).any() == bool(set(way) - {"temperature"})
    assert fit(counts, wanted) > 1e-3


def test_draw_at_the_edges():
    scores = torch.tensor([[float("-inf"), 0.0, 0.0, float("-inf")]]).expand(4, -1)
    uniforms = torch.tensor([0.0, 0.4999, 0.5001, 1.0], dtype=torch.float64)
    assert draw(scores, uniforms).tolist() == [1, 1, 2, 2]
