"""Dropout: its rate, its gradient, and attention under it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import etymon.nn.layers as parts


def test_rate_scale_and_seed() -> None:
    x = torch.ones(400, 500)
    torch.manual_seed(3)
    first = parts.dropout(x, 0.1)
    torch.manual_seed(3)
    assert torch.equal(first, parts.dropout(x, 0.1))
    assert not torch.equal(first, parts.dropout(x, 0.1))
    assert first.unique().tolist() == pytest.approx([0.0, 1 / 0.9])
    dropped = (first == 0).float()
    assert dropped.mean().item() == pytest.approx(0.1, abs=0.003)
    # Four elements share one draw of 64 bits: none of the four places may be special, nor tied to another.
    lanes = dropped.view(-1, 4)
    assert lanes.mean(0).tolist() == pytest.approx([0.1] * 4, abs=0.006)
    assert torch.corrcoef(lanes.T).fill_diagonal_(0).abs().max() < 0.02


def test_odd_sizes_no_rate_and_evaluation() -> None:
    assert parts.dropout(torch.ones(3, 5, 7), 0.5).shape == (3, 5, 7)
    x = torch.randn(9)
    assert parts.dropout(x, 0.0) is x
    assert parts.Dropout(0.5).eval()(x) is x


def test_gradient_goes_through_what_was_kept() -> None:
    x = torch.randn(30, 7, dtype=torch.float64, requires_grad=True)
    out = parts.dropout(x, 0.3)
    weight = torch.randn_like(out)
    (out * weight).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, weight * (out != 0) / 0.7)


@pytest.mark.parametrize("kind", ["none", "causal", "boolean", "bias"])
@pytest.mark.parametrize("rate", [0.0, 0.25])
def test_attention_equals_the_plain_formula(kind: str, rate: float, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, 5, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    keep = torch.rand(2, 3, 5, 5) >= rate
    monkeypatch.setattr(parts, "keep_mask", lambda shape, rate: keep)
    mask: torch.Tensor | None = None
    if kind == "boolean":
        mask = torch.rand(2, 1, 5, 5) < 0.6
        mask[0, 0, 2] = False  # a query that may see nothing
    elif kind == "bias":
        mask = torch.randn(1, 3, 5, 5, dtype=torch.float64, requires_grad=True)
    ours = parts.StoredAttention.apply(q, k, v, mask, kind == "causal", 0.7, rate)
    scores = q @ k.transpose(-1, -2) * 0.7
    if kind == "causal":
        scores = scores.masked_fill(~torch.ones(5, 5, dtype=torch.bool).tril(), float("-inf"))
    elif kind == "bias":
        scores = scores + mask
    weights = scores.softmax(-1)
    if kind == "boolean":
        assert mask is not None
        weights = scores.masked_fill(~mask, float("-inf")).softmax(-1).masked_fill(~mask, 0.0)
    theirs = weights * keep / (1 - rate) @ v
    torch.testing.assert_close(ours, theirs)
    inputs = [q, k, v, *([mask] if kind == "bias" and mask is not None else [])]
    weight = torch.randn_like(ours)
    for mine, other in zip(
        torch.autograd.grad((ours * weight).sum(), inputs),
        torch.autograd.grad((theirs * weight).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(mine, other)
    if rate == 0.0 and kind == "causal":
        torch.testing.assert_close(ours, F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.7))
