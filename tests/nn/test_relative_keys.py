"""Learned vectors of distances against the plain formula in float64, whatever the layout of the rows.

Legend: R rows, H heads, Q queries, T keys, K head width.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

import etymon
from etymon.nn.attention import Attention, LayerInputs, RelativeKeys, skew
from etymon.nn.batch import Batch
from etymon.nn.cache import KeyValueState, Places
from etymon.nn.visibility import CausalRule, FullRule, Rule, cached_view, flat_view

POSITIONS, DIM, HEADS = 9, 12, 3
KINDS = {"relative_key": False, "relative_key_query": True}
LENGTHS = [7, 2, 9, 1, 7]


def formula(q_HQK: Tensor, k_HTK: Tensor, table_LK: Tensor, *, meets_keys: bool, first: int = 0) -> Tensor:
    """What distances add to scores, one pair after the other (Shaw et al. 2018, eq. 4; Huang et al. 2020, eq. 12), for queries
    whose first stands at the position `first`."""
    heads, queries, keys = len(q_HQK), q_HQK.shape[1], k_HTK.shape[1]
    scores = torch.zeros(heads, queries, keys, dtype=q_HQK.dtype)
    for i in range(queries):
        for j in range(keys):
            farthest = (len(table_LK) - 1) // 2
            e_K = table_LK[max(-farthest, min(farthest, first + i - j)) + farthest]
            for h in range(heads):
                scores[h, i, j] = q_HQK[h, i] @ e_K + (k_HTK[h, j] @ e_K if meets_keys else 0.0)
    return scores / math.sqrt(q_HQK.shape[-1])


def attended(attention: Attention, x_TD: Tensor, *, causal: bool = False) -> Tensor:
    """One row by the formula."""
    part = attention.relative
    assert isinstance(part, RelativeKeys)
    q, k, v = (
        project(x_TD).view(-1, HEADS, DIM // HEADS).transpose(0, 1)
        for project in (attention.query, attention.key, attention.value)
    )
    scores = q @ k.transpose(1, 2) / math.sqrt(DIM // HEADS)
    scores = scores + formula(q, k, part.table.weight, meets_keys=part.meets_keys)
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[1:], dtype=torch.bool).triu(1), -math.inf)
    return attention.output((scores.softmax(-1) @ v).transpose(0, 1).reshape(-1, DIM))


def attention_with(kind: str) -> Attention:
    part = RelativeKeys(POSITIONS, DIM // HEADS, meets_keys=KINDS[kind])
    made = Attention(DIM, HEADS, relative=part).double()
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.6)
    return made


def texts(lengths: list[int]) -> tuple[Batch, Tensor]:
    generator = torch.Generator().manual_seed(len(lengths))
    x_ND = torch.randn(sum(lengths), DIM, generator=generator, dtype=torch.float64)
    return Batch.of([[0] * length for length in lengths]), x_ND


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rule", [FullRule(), CausalRule()], ids=str)
@pytest.mark.parametrize("lengths", [LENGTHS, [5, 5], [1]], ids=str)
def test_ragged_rows_and_their_gradients_are_the_formulas(kind: str, rule: Rule, lengths: list[int]) -> None:
    attention, (batch, x_ND) = attention_with(kind), texts(lengths)
    weight = torch.linspace(-1, 1, x_ND.numel(), dtype=torch.float64).view(x_ND.shape)
    found = {}
    for way in ("fast", "formula"):
        x = x_ND.clone().requires_grad_()
        if way == "fast":
            out = attention(x, LayerInputs(view=flat_view(rule, batch)))
        else:
            causal = isinstance(rule, CausalRule)
            out = torch.cat([attended(attention, row, causal=causal) for row in x.split(lengths)])
        attention.zero_grad()
        (out * weight).sum().backward()
        assert x.grad is not None
        found[way] = [out, x.grad, *(p.grad.clone() for p in attention.parameters() if p.grad is not None)]
    for fast, plain in zip(found["fast"], found["formula"], strict=True):
        torch.testing.assert_close(fast, plain)


@pytest.mark.parametrize("kind", KINDS)
def test_attention_weights_that_are_traced_are_those_that_are_used(kind: str) -> None:
    attention, (batch, x_ND) = attention_with(kind), texts(LENGTHS)
    fast = attention(x_ND, LayerInputs(view=flat_view(FullRule(), batch)))
    attention.seen = []
    torch.testing.assert_close(attention(x_ND, LayerInputs(view=flat_view(FullRule(), batch))), fast)
    assert attention.seen[0].shape == (len(LENGTHS), HEADS, 9, 9)


@pytest.mark.parametrize("kind", KINDS)
def test_positions_that_are_told_count_and_not_places(kind: str) -> None:
    """Every other position: distances double."""
    attention, (batch, x_ND) = attention_with(kind), texts([4, 3])
    whole, wide_ND = Batch.of([[0] * 7]), torch.zeros(7, DIM, dtype=torch.float64)
    wide_ND[::2] = x_ND[:4]
    hidden = torch.arange(7) % 2 == 1
    expected = attention(
        wide_ND,
        LayerInputs(
            view=flat_view(FullRule(), Batch(whole.ids, whole.layout, whole.positions, hidden_keys=hidden))
        ),
    )
    told = Batch(batch.ids, batch.layout, 2 * batch.positions, last_position=6, counted=False)
    got = attention(x_ND, LayerInputs(view=flat_view(FullRule(), told)))
    torch.testing.assert_close(got[:4], expected[::2])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("steps", [[1, 1, 1, 1, 1, 1], [3, 1, 2]], ids=str)
def test_step_by_step_with_a_cache_is_the_whole_text(kind: str, steps: list[int]) -> None:
    attention, (batch, x_ND) = attention_with(kind), texts([6, 6])
    whole = attention(x_ND, LayerInputs(view=flat_view(CausalRule(), batch))).view(2, 6, DIM)
    state, done, parts = KeyValueState(1, 2, 6), 0, []
    for count in steps:
        rows = [[0] * count] * 2
        new = Batch.of(rows)
        new = Batch(new.ids, new.layout, new.positions + done, counted=False)
        view = cached_view(CausalRule(), new, (done, done))
        inputs = LayerInputs(view=view, places=Places(new.layout, (done, done)), cache=state.self_caches[0])
        x_new = x_ND.view(2, 6, DIM)[:, done : done + count].reshape(-1, DIM)
        parts.append(attention(x_new, inputs).view(2, count, DIM))
        done += count
    torch.testing.assert_close(torch.cat(parts, 1), whole)


@pytest.mark.parametrize("kind", KINDS)
def test_scores_do_not_change_when_all_positions_move_together(kind: str) -> None:
    part = attention_with(kind).relative
    assert isinstance(part, RelativeKeys)
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, HEADS, count, DIM // HEADS, generator=generator).double() for count in (3, 4))
    away = torch.arange(3)[:, None] - torch.arange(4) + 2
    torch.testing.assert_close(part(q, k, 2, 0.5), part(q, k, away[None], 0.5))
    expected = formula(q[0], k[0], part.table.weight, meets_keys=KINDS[kind], first=2)
    torch.testing.assert_close(part(q, k, 2, 0.5)[0], expected)
    for one in range(3):
        got = part(q[:, :, one : one + 1], k, away[None, one : one + 1], 0.5)
        torch.testing.assert_close(got[0, :, 0], expected[:, one])


@pytest.mark.parametrize("kind", KINDS)
def test_farther_tokens_are_taken_for_the_farthest(kind: str) -> None:
    """As Shaw et al. clip distances; here behind a past of twelve tokens."""
    part = attention_with(kind).relative
    assert isinstance(part, RelativeKeys)
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, HEADS, count, DIM // HEADS, generator=generator).double() for count in (4, 16))
    expected = formula(q[0], k[0], part.table.weight, meets_keys=KINDS[kind], first=12)
    torch.testing.assert_close(part(q, k, 12, 0.5)[0], expected)
    away = torch.arange(12, 16)[:, None] - torch.arange(16)
    torch.testing.assert_close(part(q, k, away[None], 0.5)[0], expected)


def test_skewed_rows_begin_one_further_left_each() -> None:
    met = torch.arange(24.0, dtype=torch.float64).view(1, 1, 4, 6)
    expected = torch.stack([met[0, 0, row, 3 - row : 6 - row] for row in range(4)])
    assert torch.equal(skew(met, 3)[0, 0], expected)
    assert torch.equal(skew(met[..., :1, :], 6), met[..., :1, :])
    assert gradcheck(lambda x: skew(x, 3), met.requires_grad_())


@pytest.mark.parametrize("family", ["bert", "roberta", "albert", "electra"])
@pytest.mark.parametrize("kind", KINDS)
def test_models_with_distances_read_texts_as_if_alone(family: str, kind: str) -> None:
    shape = {"vocabulary": 31, "positions": 12, "dim": 16, "layers": 2, "heads": 2, "inner_dim": 20}
    shape |= {"embedding_dim": 12} if family in ("albert", "electra") else {}
    model = etymon.build(
        family, shape={**shape, "position_kind": kind, "deviation": 0.3}, heads=["classification"]
    )
    assert not any("embeddings.positions" in name for name, _ in model.named_parameters())
    rows = [[4, 7, 9, 2, 30, 11, 5], [5, 6], [6, 5], [8, 3, 11, 10, 2]]
    with torch.no_grad():
        whole = model.eval().answer("classification", Batch.of(rows))  # the last layer for first tokens alone
        states, _ = model.hidden(Batch.of(rows))
        torch.testing.assert_close(whole, model.read("classification", states, Batch.of(rows)))
        alone = torch.cat([model.answer("classification", Batch.of([row])) for row in rows])
    torch.testing.assert_close(whole, alone, atol=1e-5, rtol=1e-5)
    with pytest.raises(etymon.EtymonError, match="13 tokens, but the model has 12 positions"):
        model.hidden(Batch.of([[4] * 13]))
