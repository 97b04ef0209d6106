"""The score functions against Transformers' own, on random rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from etymon.generation import DecodingSettings
from etymon.generation.processors import (
    Processing,
    draw,
    forbid_repeated_ngrams,
    keep_top_k,
    keep_top_p,
    penalise_repetition,
    warp,
)

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
        return Processing(
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


def test_draws_follow_the_warped_distribution(scores):
    """Chi-square against the exact probabilities; draws outside the filters never happen."""
    stats = pytest.importorskip("scipy.stats")
    settings = DecodingSettings(sample=True, temperature=0.7, top_k=9, top_p=0.95)
    warped = warp(scores[:1], settings)
    expected = warped.double().softmax(-1)[0].numpy()
    assert 1 < (expected > 0).sum() < VOCABULARY
    draws = 20_000
    uniforms = torch.from_numpy(np.random.default_rng(5).random(draws))
    counts = np.bincount(draw(warped.expand(draws, -1), uniforms), minlength=VOCABULARY)
    assert counts[expected == 0].sum() == 0
    kept = expected > 0
    assert stats.chisquare(counts[kept], expected[kept] / expected[kept].sum() * draws).pvalue > 1e-3


def test_draw_at_the_edges():
    scores = torch.tensor([[float("-inf"), 0.0, 0.0, float("-inf")]]).expand(4, -1)
    uniforms = torch.tensor([0.0, 0.4999, 0.5001, 1.0], dtype=torch.float64)
    assert draw(scores, uniforms).tolist() == [1, 1, 2, 2]
