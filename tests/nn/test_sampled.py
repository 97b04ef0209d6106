"""Sampled softmax: what is drawn, how likely that was, and the loss by a plain formula."""

from __future__ import annotations

import math

import pytest
import torch

from etymon.nn.adaptive import SampledVocabulary, log_expected_count, log_uniform


def test_draws_are_different_seeded_and_counted() -> None:
    torch.manual_seed(4)
    drawn, tries = log_uniform(50, 60)
    assert len(set(drawn.tolist())) == 50 and int(drawn.max()) < 60 and tries >= 50
    torch.manual_seed(4)
    again, _ = log_uniform(50, 60)
    assert torch.equal(drawn, again)


def test_words_are_drawn_as_often_as_they_are_expected() -> None:
    torch.manual_seed(0)
    counts, expected = torch.zeros(30, dtype=torch.double), torch.zeros(30, dtype=torch.double)
    for _ in range(400):
        drawn, tries = log_uniform(8, 30)
        counts[drawn] += 1
        expected += log_expected_count(torch.arange(30), 30, tries).exp()
    # Tries and words hang together a little: TensorFlow's expectation is as near as this.
    torch.testing.assert_close(counts / 400, expected / 400, rtol=0.2, atol=0.05)
    assert counts[0] > 3 * counts[20]


def test_probabilities_of_single_draws_add_up_to_one() -> None:
    once = log_expected_count(torch.arange(1000), 1000, 1).exp()
    assert float(once.sum()) == pytest.approx(1.0)
    assert float(once[0]) == pytest.approx(math.log(2) / math.log(1001))


def head(words: int = 40, dim: int = 6) -> SampledVocabulary:
    generator = torch.Generator().manual_seed(1)
    made = SampledVocabulary(torch.randn(words, dim, generator=generator), bias=True).double()
    with torch.no_grad():
        made.bias.copy_(torch.randn(words, generator=generator))  # type: ignore[union-attr]
    return made


def test_the_loss_is_tensorflow_s_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    vocabulary, x_nD = (
        head(),
        torch.randn(5, 6, dtype=torch.double, generator=torch.Generator().manual_seed(2)),
    )
    targets, sampled = torch.tensor([3, 0, 9, 3, 39]), torch.tensor([0, 7, 3, 20])
    monkeypatch.setattr("etymon.nn.adaptive.log_uniform", lambda *_: (sampled, 11))
    x_nD.requires_grad_()
    loss = vocabulary.sampled_loss(x_nD, None, targets, 4)

    def score(row: int, word: int) -> torch.Tensor:
        p = math.log((word + 2) / (word + 1)) / math.log(41)
        return x_nD[row] @ vocabulary.weight[word] + vocabulary.bias[word] - math.log(1 - (1 - p) ** 11)  # type: ignore[index]

    expected = torch.zeros((), dtype=torch.double)
    for row, target in enumerate(targets.tolist()):
        others = [score(row, word) for word in sampled.tolist() if word != target]  # never against itself
        expected = expected + torch.stack([score(row, target), *others]).logsumexp(0) - score(row, target)
    torch.testing.assert_close(loss, expected)
    parameters = [x_nD, *vocabulary.parameters()]
    for ours, theirs in zip(
        torch.autograd.grad(loss, parameters), torch.autograd.grad(expected, parameters), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


def test_a_sample_of_everything_is_everything() -> None:
    vocabulary, x_nD, targets = head(), torch.randn(5, 6, dtype=torch.double), torch.tensor([3, 0, 9, 3, 39])
    assert torch.equal(vocabulary.sampled_loss(x_nD, None, targets, 40), vocabulary.loss(x_nD, None, targets))
