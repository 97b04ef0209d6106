"""Small parts against their formulas."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import gradcheck

from etymon.nn.attention import Attention
from etymon.nn.batch import Batch
from etymon.nn.blocks import FeedForward, ParallelBlock, Stack
from etymon.nn.embeddings import BucketedBias, Rotary
from etymon.nn.heads import DeepProjection, Pooler, Projection
from etymon.nn.initialise import constant, initialise, normal, truncated_normal
from etymon.nn.layers import ACTIVATIONS, Linear, RootMeanSquareNorm
from etymon.nn.visibility import CausalRule

# Key position minus query position -> bucket, of 32 buckets up to a distance of 128.
BOTH_WAYS = {
    0: 0, -1: 1, -7: 7, -8: 8, -11: 8, -12: 9, -16: 10, -23: 11, -32: 12, -46: 13, -64: 14, -91: 15, -200: 15,
    1: 17, 8: 24, 16: 26, 64: 30, 127: 31,
}  # fmt: skip
BACKWARDS = {-8: 8, -16: 16, -23: 18, -32: 21, -46: 24, -64: 26, -91: 29, -127: 31, 1: 0, 5: 0, 200: 0}


@pytest.mark.parametrize(("bidirectional", "expected"), [(True, BOTH_WAYS), (False, BACKWARDS)])
def test_buckets_of_distance(bidirectional: bool, expected: dict[int, int]) -> None:
    bias = BucketedBias(2, 32, 128, bidirectional=bidirectional)
    assert bias.bucket(torch.tensor(list(expected))).tolist() == list(expected.values())


@pytest.mark.parametrize("bidirectional", [True, False])
def test_all_buckets_are_those_of_transformers(bidirectional: bool) -> None:
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    distance = torch.arange(-700, 701)
    for buckets, longest in ((32, 128), (8, 20), (8, 12), (16, 64)):
        ours = BucketedBias(1, buckets, longest, bidirectional=bidirectional).bucket(distance)
        theirs = t5.T5Attention._relative_position_bucket(distance, bidirectional, buckets, longest)
        assert torch.equal(ours, theirs)


def test_a_bias_is_looked_up_by_distance() -> None:
    bias = BucketedBias(3, 8, 16, bidirectional=True)
    torch.nn.init.normal_(bias.table.weight, generator=torch.Generator().manual_seed(0))
    query, key = torch.tensor([[0, 3], [5, 6]]), torch.tensor([[1, 2, 9], [0, 5, 6]])
    found = bias(query, key)
    assert found.shape == (2, 3, 2, 3)
    for row in range(2):
        for i in range(2):
            for j in range(3):
                bucket = bias.bucket(key[row, j] - query[row, i])
                assert torch.equal(found[row, :, i, j], bias.table.weight[bucket])


def test_rotation_is_that_of_complex_numbers() -> None:
    generator = torch.Generator().manual_seed(0)
    x_NHK, positions_N = torch.randn(5, 2, 10, generator=generator), torch.tensor([0, 1, 2, 7, 1900])
    turned_NHK = Rotary(6)(positions_N)(x_NHK)
    speeds = torch.tensor([10000 ** (-2 * pair / 6) for pair in range(3)])
    angles_NP = positions_N[:, None] * speeds
    pairs_NHP = torch.view_as_complex(x_NHK[..., :6].reshape(5, 2, 3, 2)) * torch.exp(1j * angles_NP)[:, None]
    torch.testing.assert_close(
        turned_NHK[..., :6], torch.view_as_real(pairs_NHP).flatten(-2), atol=2e-4, rtol=0
    )
    assert torch.equal(turned_NHK[..., 6:], x_NHK[..., 6:])
    assert torch.equal(turned_NHK[0], x_NHK[0])


def test_turned_scores_know_only_distances() -> None:
    generator = torch.Generator().manual_seed(1)
    q_NHK, k_NHK = torch.randn(2, 1, 1, 8, generator=generator, dtype=torch.float64)
    scores = [
        float((Rotary(8)(torch.tensor([at]))(q_NHK) * Rotary(8)(torch.tensor([at - 3]))(k_NHK)).sum())
        for at in (3, 4, 50)
    ]
    assert scores == pytest.approx([scores[0]] * 3, abs=1e-5)
    assert abs(scores[0] - float((q_NHK * k_NHK).sum())) > 0.1


def test_a_parallel_block_adds_both_parts_of_one_norm() -> None:
    block = ParallelBlock(
        Attention(8, 2), FeedForward(8, 12, "gelu"), torch.nn.LayerNorm(8), residual_scale=0.5
    ).eval()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.normal_(0, 0.3, generator=generator)
        x_ND, batch = torch.randn(4, 8, generator=generator), Batch.of([[1, 2, 3, 4]])
        n_ND = block.attention_norm(x_ND)
        own = block.attention
        q, k, v = (part(n_ND).view(4, 2, 4).transpose(0, 1) for part in (own.query, own.key, own.value))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(0, 1).reshape(4, 8)
        expected = x_ND + 0.5 * (own.output(mixed) + block.feed_forward(n_ND))
        torch.testing.assert_close(Stack([block], CausalRule())(x_ND, batch), expected)


def test_root_mean_square_norm() -> None:
    norm = RootMeanSquareNorm(6, epsilon=1e-3).double()
    generator = torch.Generator().manual_seed(0)
    torch.nn.init.normal_(norm.weight, generator=generator)
    x = torch.randn(4, 6, generator=generator, dtype=torch.float64, requires_grad=True)
    expected = norm.weight * x / (x.square().mean(-1, keepdim=True) + 1e-3).sqrt()
    torch.testing.assert_close(norm(x), expected)
    assert gradcheck(norm, x)


def test_activations_are_the_published_formulas() -> None:
    x = torch.linspace(-12, 12, 97, dtype=torch.float64)
    gelu = x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))
    tanh_gelu = 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    formulas = {
        "relu": x.clamp(min=0),
        "gelu": gelu,
        "gelu_python": gelu,
        "gelu_10": gelu.clamp(-10, 10),
        "gelu_tanh": tanh_gelu,
        "gelu_fast": tanh_gelu,
        "gelu_pytorch_tanh": tanh_gelu,
        "gelu_python_tanh": tanh_gelu,
        "gelu_accurate": tanh_gelu,
        "quick_gelu": x / (1 + torch.exp(-1.702 * x)),
        "silu": x * torch.sigmoid(x),
        "swish": x * torch.sigmoid(x),
        "hardswish": x * (x + 3).clamp(0, 6) / 6,
        "mish": x * torch.tanh(torch.log(1 + torch.exp(x))),
        "relu2": x.clamp(min=0) ** 2,
        "relu6": x.clamp(0, 6),
        "leaky_relu": torch.where(x > 0, x, 0.01 * x),
        "tanh": torch.tanh(x),
        "sigmoid": 1 / (1 + torch.exp(-x)),
        "laplace": 0.5 * (1 + torch.erf((x - 0.707107) / (0.282095 * math.sqrt(2)))),
        "linear": x,
    }
    assert set(formulas) == set(ACTIVATIONS)
    for name, expected in formulas.items():
        torch.testing.assert_close(ACTIVATIONS[name](x), expected)


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_feed_forward(gated: bool, bias: bool) -> None:
    part = FeedForward(4, 6, "silu", gated=gated, bias=bias)
    for parameter in part.parameters():
        torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(parameter.numel()))
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(9))
    inner = F.linear(x, part.inner.weight, part.inner.bias)
    if part.gate is None:
        inner = F.silu(inner)
    else:
        inner = F.silu(F.linear(x, part.gate.weight, part.gate.bias)) * inner
    torch.testing.assert_close(part(x), F.linear(inner, part.outer.weight, part.outer.bias))
    assert len(list(part.parameters())) == (3 if gated else 2) * (2 if bias else 1)


def test_task_heads() -> None:
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    pooler, flat, deep = Pooler(4), Projection(4, 2, dropout=0.5), DeepProjection(4, 2, dropout=0.5)
    for head in (pooler, flat, deep):
        head.eval()
        for parameter in head.parameters():
            torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(pooler(x), torch.tanh(pooler.dense(x)))
    torch.testing.assert_close(flat(x), flat.linear(x))
    torch.testing.assert_close(deep(x), deep.linear(torch.tanh(deep.dense(x))))


def test_first_values_depend_on_seed_and_name_alone() -> None:
    rules = [("*bias", constant(0.0)), ("*.weight", normal(0.5))]
    small, large = (
        torch.nn.ModuleDict({"b": Linear(3, 2)}),
        torch.nn.ModuleDict({"a": Linear(3, 2), "b": Linear(3, 2)}),
    )
    for model in (small, large):
        initialise(model, rules, seed=4)
    assert torch.equal(small["b"].weight, large["b"].weight)
    assert not torch.equal(large["a"].weight, large["b"].weight)
    initialise(large, rules, seed=5)
    assert not torch.equal(small["b"].weight, large["b"].weight)
    initialise(large, rules, seed=4, only=lambda name: name.startswith("a."))
    assert not torch.equal(small["b"].weight, large["b"].weight)
    assert not large["b"].bias.any()


def test_a_parameter_without_a_rule_is_an_error() -> None:
    with pytest.raises(LookupError, match="no rule initialises bias"):
        initialise(Linear(2, 2), [("weight", normal(1.0))])


def test_truncated_normal_stays_within_two_deviations() -> None:
    drawn = torch.empty(5000)
    truncated_normal(0.1)(drawn, torch.Generator().manual_seed(0))
    assert 0.19 < float(drawn.abs().max()) <= 0.2
