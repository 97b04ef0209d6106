"""Rules, how they compile, and that every way of computing attention is the same attention.

Legend: N query tokens, H heads, K head width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from etymon.nn import grouping as row_groups
from etymon.nn.batch import Batch
from etymon.nn.embeddings import BucketedBias
from etymon.nn.visibility import (
    BandRule,
    CausalRule,
    FullRule,
    Rule,
    Scoring,
    cached_view,
    flat_view,
    group_rows,
)

LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=7)
HEADS, WIDTH = 2, 4
PREFIX = 4

# What the rules mean, for one query and one key of a row.
MEANINGS: dict[Rule, Callable[[int, int], bool]] = {
    FullRule(): lambda query, key: True,
    CausalRule(): lambda query, key: key <= query,
    BandRule(3): lambda query, key: query - 2 <= key <= query,
}
# The same with a prefix that is read in both directions.
PREFIXED: dict[Rule, Callable[[int, int], bool]] = {
    FullRule(): lambda query, key: key <= query or key < PREFIX,
    CausalRule(): lambda query, key: key <= query or key < PREFIX,
    BandRule(3): lambda query, key: abs(query - key) < 3 and (key <= query or key < PREFIX),
}


def batch_of(lengths: list[int] | tuple[int, ...], prefix: int | None = None) -> Batch:
    rows = [[1] * length for length in lengths]
    return Batch.of(rows, prefix=None if prefix is None else [prefix] * len(rows))


def parts(tokens: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(tokens, HEADS, WIDTH, generator=generator, dtype=torch.float64, requires_grad=True)


def by_hand(
    q: Tensor, k: Tensor, v: Tensor, queries: Batch, keys: Batch, sees: Callable[[int, int], bool]
) -> Tensor:
    """Row by row, with nothing compiled and nothing padded; who sees nothing gets zeros."""
    outputs = []
    for row, (length, seen) in enumerate(zip(queries.layout.lengths, keys.layout.lengths, strict=True)):
        first, begin = int(queries.layout.first[row]), int(keys.layout.first[row])
        hidden = keys.hidden_keys
        for query in range(length):
            visible = [
                begin + key
                for key in range(seen)
                if sees(query, key) and (hidden is None or not bool(hidden[begin + key]))
            ]
            scores = torch.einsum("hk,thk->ht", q[first + query], k[visible]) * 0.5
            outputs.append(torch.einsum("ht,thk->hk", scores.softmax(-1), v[visible]))
    return torch.stack(outputs)


def assert_same_attention(queries: Batch, keys: Batch | None, rule: Rule) -> None:
    source = queries if keys is None else keys
    q, k, v = parts(queries.layout.tokens, 1), parts(source.layout.tokens, 2), parts(source.layout.tokens, 3)
    meanings = MEANINGS if source.prefix is None else PREFIXED
    expected = by_hand(q, k, v, queries, source, meanings[rule])
    weights = torch.randn(expected.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    gradients = torch.autograd.grad((expected * weights).sum(), (q, k, v))
    for seen in (None, []):  # the fused kernel and the eager formula
        got = flat_view(rule, queries, keys).attend(q, k, v, Scoring(0.5, seen=seen))
        torch.testing.assert_close(got, expected)
        found = torch.autograd.grad((got * weights).sum(), (q, k, v))
        for one, other in zip(found, gradients, strict=True):
            torch.testing.assert_close(one, other)


@pytest.fixture(params=["grouped", "split"])
def grouping(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once as it would be, and once with groups so cheap that every length has its own."""
    if request.param == "split":
        monkeypatch.setattr(row_groups, "GROUP_COST", 0.0)


@pytest.mark.usefixtures("grouping")
@pytest.mark.parametrize("rule", MEANINGS, ids=str)
@pytest.mark.parametrize("lengths", [[5], [4, 4, 4], [1, 2, 5, 9], [9, 2, 5, 2, 1], [3, 8, 3]], ids=str)
def test_rules_mean_what_they_say(rule: Rule, lengths: list[int]) -> None:
    assert_same_attention(batch_of(lengths), None, rule)


@pytest.mark.usefixtures("grouping")
@pytest.mark.parametrize("rule", MEANINGS, ids=str)
@pytest.mark.parametrize("lengths", [[6, 6], [1, 2, 5, 9], [9, 2, 5, 2, 1]], ids=str)
def test_rules_honour_a_prefix(rule: Rule, lengths: list[int]) -> None:
    assert_same_attention(batch_of(lengths, PREFIX), None, rule)


@pytest.mark.parametrize("prefix", [0, 1])
@pytest.mark.parametrize("rule", [CausalRule(), BandRule(4)], ids=str)
def test_a_prefix_of_nothing_is_no_prefix(rule: Rule, prefix: int) -> None:
    (group,) = flat_view(rule, batch_of([4, 4], prefix)).groups
    assert group.mask is None and group.causal
    (group,) = flat_view(rule, batch_of([4, 4], 2)).groups
    assert group.mask is not None and not group.causal


def test_a_prefix_comes_first() -> None:
    with pytest.raises(ValueError, match="at once"):
        cached_view(CausalRule(), batch_of([3, 3], 2), (1, 1))


@pytest.mark.usefixtures("grouping")
@pytest.mark.parametrize(("queries", "keys"), [([3, 1, 4], [2, 6, 6]), ([2, 2], [5, 1]), ([1, 4], [3, 3])])
def test_queries_and_keys_of_other_batches(queries: list[int], keys: list[int]) -> None:
    assert_same_attention(batch_of(queries), batch_of(keys), FullRule())


@pytest.mark.usefixtures("grouping")
@pytest.mark.parametrize("rule", [FullRule(), CausalRule(), BandRule(3)], ids=str)
def test_hidden_keys_are_seen_by_nobody(rule: Rule) -> None:
    batch = batch_of([4, 2, 5])
    hidden = torch.zeros_like(batch.ids, dtype=torch.bool)
    hidden[[1, 5, 8]] = True
    assert_same_attention(replace(batch, hidden_keys=hidden, views={}), None, rule)


@pytest.mark.parametrize("seen", [None, []], ids=["fused", "eager"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_who_sees_nothing_gets_zeros_and_finite_gradients(
    seen: list[Tensor] | None, dtype: torch.dtype
) -> None:
    batch = batch_of([3, 3])
    hidden = torch.tensor([True, False, False, True, True, True])
    view = flat_view(CausalRule(), replace(batch, hidden_keys=hidden, views={}))
    q, k, v = (parts(6, seed).detach().to(dtype).requires_grad_() for seen_by, seed in enumerate((1, 2, 3)))
    out = view.attend(q, k, v, Scoring(0.5, seen=seen))
    assert not out[[0, 3, 4, 5]].any()
    assert out[[1, 2]].all()
    for gradient in torch.autograd.grad(out.square().sum(), (q, k, v)):
        assert gradient.isfinite().all()
        assert not gradient[[0, 3, 4, 5]].any()


@given(LENGTHS, st.sampled_from(sorted(MEANINGS, key=str)))
@settings(deadline=None, max_examples=25)
def test_any_lengths(lengths: list[int], rule: Rule) -> None:
    assert_same_attention(batch_of(lengths), None, rule)


@given(LENGTHS, st.data())
@settings(deadline=None, max_examples=60)
def test_groups_hold_every_row_once(keys: list[int], data: st.DataObject) -> None:
    queries = data.draw(st.lists(st.integers(1, 9), min_size=len(keys), max_size=len(keys)))
    cost = row_groups.GROUP_COST
    for row_groups.GROUP_COST in (0.0, 60.0, cost):
        order, spans = group_rows(tuple(queries), tuple(keys))
        rows = list(range(len(keys))) if order is None else list(order)
        assert sorted(rows) == list(range(len(keys)))
        assert [place for start, stop in spans for place in range(start, stop)] == list(range(len(keys)))
        assert all(start < stop for start, stop in spans)


def test_rows_of_one_length_are_one_group_without_a_mask() -> None:
    for rule, causal in ((FullRule(), False), (CausalRule(), True), (BandRule(4), True)):
        (group,) = flat_view(rule, batch_of([4, 4])).groups
        assert group.mask is None
        assert group.causal is causal
    (masked,) = flat_view(BandRule(3), batch_of([4, 4])).groups
    assert masked.mask is not None


@pytest.mark.parametrize("lengths", [[6, 6], [2, 6, 3]], ids=str)
def test_a_band_as_wide_as_the_rows_is_causal(lengths: list[int]) -> None:
    batch = batch_of(lengths)
    tokens = batch.layout.tokens
    q, k, v = parts(tokens, 1), parts(tokens, 2), parts(tokens, 3)
    causal = flat_view(CausalRule(), batch).attend(q, k, v, Scoring(0.5))
    torch.testing.assert_close(flat_view(BandRule(6), batch).attend(q, k, v, Scoring(0.5)), causal)
    assert not torch.allclose(flat_view(BandRule(5), batch).attend(q, k, v, Scoring(0.5)), causal)


@pytest.mark.parametrize("rule", [FullRule(), CausalRule(), BandRule(3)], ids=str)
def test_a_plain_rule_is_its_mask(rule: Rule) -> None:
    """What is compiled to nothing or to a flag is what the mask would have said."""
    index = torch.arange(5)[None]
    allowed = rule.allowed(index, index)[0]
    meaning = torch.tensor([[MEANINGS[rule](query, key) for key in range(5)] for query in range(5)])
    assert torch.equal(allowed, meaning)
    plain = rule.plain(5)
    assert plain in ("full", "causal", None)
    if plain is not None:
        assert torch.equal(
            allowed, torch.ones(5, 5).bool() if plain == "full" else torch.ones(5, 5).tril().bool()
        )


def test_a_rule_is_compiled_once_a_batch() -> None:
    batch = batch_of([3, 2])
    assert flat_view(CausalRule(), batch) is flat_view(CausalRule(), batch)
    assert flat_view(CausalRule(), batch) is not flat_view(FullRule(), batch)


@pytest.mark.usefixtures("grouping")
@pytest.mark.parametrize("rule", [FullRule(), CausalRule()], ids=str)
@pytest.mark.parametrize("starts", [None, [5, 0, 2]], ids=["counted", "started"])
def test_a_bias_on_the_scores(rule: Rule, starts: list[int] | None) -> None:
    batch = Batch.of([[1] * length for length in (4, 2, 7)], starts=starts)
    bias = BucketedBias(HEADS, 8, 16, bidirectional=isinstance(rule, FullRule)).double()
    torch.nn.init.normal_(bias.table.weight, generator=torch.Generator().manual_seed(0))
    tokens = batch.layout.tokens
    q, k, v = parts(tokens, 1), parts(tokens, 2), parts(tokens, 3)
    outputs = []
    for row, length in enumerate(batch.layout.lengths):
        here = slice(int(batch.layout.first[row]), int(batch.layout.first[row]) + length)
        places = torch.arange(length)[None]
        scores = torch.einsum("qhk,thk->hqt", q[here], k[here]) * 0.5 + bias(places, places)[0]
        allowed = torch.tensor([[MEANINGS[rule](i, j) for j in range(length)] for i in range(length)])
        weights = scores.masked_fill(~allowed, float("-inf")).softmax(-1)
        outputs.append(torch.einsum("hqt,thk->qhk", weights, v[here]))
    expected = torch.cat(outputs)
    for seen in (None, []):
        got = flat_view(rule, batch).with_bias(bias).attend(q, k, v, Scoring(0.5, seen=seen))
        torch.testing.assert_close(got, expected)


@pytest.mark.usefixtures("grouping")
def test_weights_are_in_the_order_of_the_rows() -> None:
    lengths = [2, 5, 1, 5]
    batch = batch_of(lengths)
    tokens = batch.layout.tokens
    seen: list[Tensor] = []
    flat_view(CausalRule(), batch).attend(
        parts(tokens, 1), parts(tokens, 2), parts(tokens, 3), Scoring(0.5, seen=seen)
    )
    assert seen[0].shape == (4, HEADS, 5, 5)
    for row, length in enumerate(lengths):
        weights = seen[0][row]
        torch.testing.assert_close(
            weights[:, :length].sum(-1), torch.ones(HEADS, length, dtype=torch.float64)
        )
        assert not weights[:, length:].any()
        assert not weights.triu(1).any()


@pytest.mark.parametrize("rule", [CausalRule(), BandRule(3), FullRule()], ids=str)
@pytest.mark.parametrize("past", [(2, 2), (3, 1), (0, 4)], ids=str)
@pytest.mark.parametrize("new", [(1, 1), (2, 2), (1, 3)], ids=str)
def test_new_tokens_over_a_past(rule: Rule, past: tuple[int, ...], new: tuple[int, ...]) -> None:
    """A cached view gives the new tokens what a view of the whole rows gives them."""
    totals = [old + more for old, more in zip(past, new, strict=True)]
    whole, batch = batch_of(totals), batch_of(new)
    tokens = whole.layout.tokens
    q, k, v = parts(tokens, 1), parts(tokens, 2), parts(tokens, 3)
    is_new = torch.cat([torch.arange(total) >= old for total, old in zip(totals, past, strict=True)])
    expected = by_hand(q, k, v, whole, whole, MEANINGS[rule])[is_new]
    keys, values = (torch.zeros(2, HEADS, 10, WIDTH, dtype=torch.float64) for _ in range(2))
    for row, total in enumerate(totals):
        here = slice(int(whole.layout.first[row]), int(whole.layout.first[row]) + total)
        keys[row, :, :total], values[row, :, :total] = k[here].transpose(0, 1), v[here].transpose(0, 1)
    for seen in (None, []):
        got = cached_view(rule, batch, past).attend(q[is_new], keys, values, Scoring(0.5, seen=seen))
        torch.testing.assert_close(got, expected)
