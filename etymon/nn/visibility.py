"""Who may see whom, and how attention is then computed.

A *rule* says which keys a query may see, as a pure function of their columns. A *view* is a rule compiled for
one batch, once, whatever the number of layers: to nothing, to the causal flag, or to a mask.

Legend: N query tokens, M key tokens, R rows (of a group), H heads, Q and T longest query and key row, K
head width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from etymon.nn.batch import Batch, Layout, permute, token_order
from etymon.nn.grouping import group_rows
from etymon.nn.layers import StoredAttention
from etymon.nn.layers import dropout as drop
from etymon.nn.precision import follow, is_half

Bias = Callable[[Tensor, Tensor], Tensor]
"""Positions of queries `[R|1, Q]` and keys `[R|1, T]` to an additive bias `[R|1, H, Q, T]`."""
PairBias = Callable[[Tensor, Tensor, int | Tensor, float], Tensor]
"""Queries, keys, their distances and the scale of scores to an additive bias `[R, H, Q, T]`. Distances are
query minus key position, `[R|1, Q, T]`, or that of the first query from the first key where both are
neighbours."""


@dataclass(frozen=True)
class Scoring:
    """What one attention layer adds to a view: how scores are scaled, and what happens to the weights."""

    scale: float
    dropout: float = 0.0
    seen: list[Tensor] | None = None
    """If given, weights `[R, H, Q, T]` are built by the eager formula and appended."""
    pairs: PairBias | None = None
    """A bias of this layer alone, which depends on its queries and keys."""


class Rule(Protocol):
    """Which keys a query may see, by their places in the row."""

    def plain(self, longest: int) -> str | None:
        """How it compiles without a mask for rows up to a length: `full`, `causal`, or None if it takes a
        mask."""

    def allowed(self, query_RQ: Tensor, key_RT: Tensor, prefix_RT: Tensor | None = None) -> Tensor:
        """`[R, Q, T]`. `prefix_RT` is the length of a row's prefix, which is read in both directions."""


@dataclass(frozen=True)
class CausalRule:
    """A query sees itself and what came before (decoders). Within a row's prefix, if it has one, it sees
    what comes after as well."""

    def plain(self, longest: int) -> str | None:
        return "causal"

    def allowed(self, query_RQ: Tensor, key_RT: Tensor, prefix_RT: Tensor | None = None) -> Tensor:
        before = key_RT[:, None, :] <= query_RQ[:, :, None]
        return before if prefix_RT is None else before | (key_RT < prefix_RT)[:, None, :]


@dataclass(frozen=True)
class FullRule:
    """Every query sees every key of its row (encoders); where rows have prefixes, it is as in a decoder."""

    def plain(self, longest: int) -> str | None:
        return "full"

    def allowed(self, query_RQ: Tensor, key_RT: Tensor, prefix_RT: Tensor | None = None) -> Tensor:
        if prefix_RT is not None:  # rows of a hybrid objective, some of them read from left to right
            return CausalRule().allowed(query_RQ, key_RT, prefix_RT)
        return torch.ones_like(query_RQ[:, :, None] + key_RT[:, None, :], dtype=torch.bool)


@dataclass(frozen=True)
class BandRule(CausalRule):
    """A query sees itself and the `width - 1` tokens before it (the sparse layers of GPT-3). A prefix lifts
    the order, not the reach: within it, a query sees as many tokens after itself as before."""

    width: int

    def plain(self, longest: int) -> str | None:
        return "causal" if longest <= self.width else None

    def allowed(self, query_RQ: Tensor, key_RT: Tensor, prefix_RT: Tensor | None = None) -> Tensor:
        distance = query_RQ[:, :, None] - key_RT[:, None, :]
        return super().allowed(query_RQ, key_RT, prefix_RT) & (distance.abs() < self.width)


@dataclass(frozen=True)
class Group:
    """Rows of similar length, computed side by side."""

    rows: Sequence[int]
    query: Layout
    key: Layout
    mask: Tensor | None
    """Boolean, or a float bias to add; broadcasts to `[R, H, Q, T]`."""
    causal: bool


@dataclass(frozen=True)
class FlatView:
    """Keys come from the same flat batch as the queries, or from another flat batch (cross-attention)."""

    groups: tuple[Group, ...]
    query: Batch
    key: Batch
    order: tuple[int, ...] | None

    @property
    def positions(self) -> Tensor:
        return self.query.positions

    @cached_property
    def counted(self) -> bool:
        """Positions are 0, 1, 2, ... in every row: distances and biases are then the same in all."""
        return self.query.counted and self.key.counted

    def attend(self, q_NHK: Tensor, k_MHK: Tensor, v_MHK: Tensor, scoring: Scoring) -> Tensor:
        """Attention output `[N, H, K]`."""
        if self.order is not None:
            (forward, backward), key_order = self._token_orders
            q_NHK = permute(q_NHK, forward, backward)
            k_MHK, v_MHK = permute(k_MHK, *key_order), permute(v_MHK, *key_order)
        query_sizes = [group.query.tokens for group in self.groups]
        key_sizes = [group.key.tokens for group in self.groups]
        outputs, weights = [], []
        parts = q_NHK.split(query_sizes), k_MHK.split(key_sizes), v_MHK.split(key_sizes)
        for number, (group, q, k, v) in enumerate(zip(self.groups, *parts, strict=True)):
            q_RHQK, k_RHTK, v_RHTK = (
                layout.pad(flat).transpose(1, 2)
                for layout, flat in ((group.query, q), (group.key, k), (group.key, v))
            )
            distances = 0 if scoring.pairs is None else self._distances[number]
            out_RHQK, weights_RHQT = attend(
                q_RHQK, k_RHTK, v_RHTK, group.mask, group.causal, scoring, distances
            )
            outputs.append(group.query.unpad(out_RHQK.transpose(1, 2)))
            weights.append(weights_RHQT)
        if scoring.seen is not None:
            scoring.seen.append(self._rectangle([part for part in weights if part is not None]))
        out_NHK = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        return out_NHK if self.order is None else permute(out_NHK, backward, forward)

    @cached_property
    def _token_orders(self) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Of queries and of keys; the same for all layers."""
        assert self.order is not None
        query_order = token_order(self.query.layout, self.order)
        if self.key is self.query:
            return query_order, query_order
        return query_order, token_order(self.key.layout, self.order)

    def _positions(self, group: Group) -> tuple[Tensor, Tensor]:
        """Of a group's queries `[R, Q]` and keys `[R, T]`."""
        query_RQ = _pad_rows(self.query.positions, self.query, group.query, group.rows)
        return query_RQ, _pad_rows(self.key.positions, self.key, group.key, group.rows)

    @cached_property
    def _distances(self) -> list[int | Tensor]:
        """Of every group's queries from its keys; the same for all layers."""
        if self.counted:
            return [0] * len(self.groups)
        pairs = map(self._positions, self.groups)
        return [query_RQ[:, :, None] - key_RT[:, None, :] for query_RQ, key_RT in pairs]

    def _rectangle(self, weights: list[Tensor]) -> Tensor:
        """The groups' weights in the order of the batch's rows, zero beyond each row's end."""
        queries, keys = self.query.layout.longest, self.key.layout.longest
        padded = []
        for part, group in zip(weights, self.groups, strict=True):
            part = part.masked_fill(~group.query.real[:, None, :, None], 0)
            padded.append(F.pad(part, (0, keys - part.shape[-1], 0, queries - part.shape[-2])))
        whole = torch.cat(padded)
        return whole if self.order is None else whole[torch.tensor(np.argsort(self.order))]

    def with_bias(self, bias: Bias) -> FlatView:
        """The same view with a bias on the scores, computed once for all layers that share it."""
        if self.counted:
            longest = (self.query.layout.longest, self.key.layout.longest)
            whole_1HQT = bias(*(torch.arange(n, device=self.query.device)[None] for n in longest))
        groups = []
        for group in self.groups:
            if self.counted:
                bias_RHQT = whole_1HQT[:, :, : group.query.longest, : group.key.longest]
            else:
                bias_RHQT = bias(*self._positions(group))
            groups.append(replace(group, mask=_add_mask(bias_RHQT, group.mask, group.causal), causal=False))
        return replace(self, groups=tuple(groups))


@dataclass(frozen=True)
class CachedView:
    """Keys come from a cache `[R, H, capacity, K]`; the batch holds only the new tokens of each row."""

    query: Layout
    positions: Tensor
    reach: int
    mask: Tensor | None

    def attend(self, q_NHK: Tensor, keys_RHCK: Tensor, values_RHCK: Tensor, scoring: Scoring) -> Tensor:
        """Attention output `[N, H, K]`."""
        q_RHQK = self.query.pad(q_NHK).transpose(1, 2)
        k_RHTK, v_RHTK = keys_RHCK[:, :, : self.reach], values_RHCK[:, :, : self.reach]
        distances = 0 if scoring.pairs is None else self._distances
        out_RHQK, weights = attend(q_RHQK, k_RHTK, v_RHTK, self.mask, False, scoring, distances)
        if scoring.seen is not None and weights is not None:
            scoring.seen.append(weights)
        return self.query.unpad(out_RHQK.transpose(1, 2))

    @cached_property
    def _distances(self) -> Tensor:
        query_RQ = self.query.pad(self.positions)
        return query_RQ[:, :, None] - torch.arange(self.reach, device=query_RQ.device)

    def with_bias(self, bias: Bias) -> CachedView:
        query_RQ = self.query.pad(self.positions)
        key_1T = torch.arange(self.reach, device=query_RQ.device)[None]
        if (query_RQ == query_RQ[:1]).all():  # rows that stand at the same place share one bias
            query_RQ = query_RQ[:1]
        return replace(self, mask=_add_mask(bias(query_RQ, key_1T), self.mask))


def flat_view(rule: Rule, query: Batch, key: Batch | None = None) -> FlatView:
    """The rule compiled for a batch (and the batch its keys come from), made once and kept with the batch."""
    name = (rule, id(key))
    if name in query.views:
        return query.views[name]
    key = query if key is None else key
    if query.layout.is_padded:
        from etymon.nn.padded import padded_view  # which stands on this file

        query.views[name] = padded_view(rule, query, key)
        return query.views[name]
    order, spans = group_rows(query.layout.lengths, key.layout.lengths)
    # Without a mask the fused kernels are fastest: hidden keys and prefixes need one.
    plain = rule.plain(key.layout.longest) if key.hidden_keys is None else None
    if key.prefix is not None or (plain == "causal" and key.seen_until is not None):
        plain = None
    groups = []
    for start, stop in spans:
        rows = range(start, stop) if order is None else order[start:stop]
        queries = keys = Layout([query.layout.lengths[row] for row in rows], query.device)
        if key is not query:
            keys = Layout([key.layout.lengths[row] for row in rows], key.device)
        mask = None
        if plain is None:
            index_RQ, index_RT = (
                torch.arange(part.longest, device=part.device).expand(part.rows, -1)
                for part in (queries, keys)
            )
            prefix_RT = None if key.prefix is None else _pad_rows(key.prefix, key, keys, rows)
            mask = rule.allowed(index_RQ, index_RT, prefix_RT)
            if key.seen_until is not None:
                mask = mask & (index_RQ[:, :, None] < _pad_rows(key.seen_until, key, keys, rows)[:, None, :])
            if key.hidden_keys is not None:
                mask = mask & ~_pad_rows(key.hidden_keys, key, keys, rows)[:, None, :]
        # Blank cells come last in a row, so a causal query can never see one.
        if not keys.equal and plain != "causal":
            # Rectangles are padded to their longest row.
            real = keys.real[:, None, :]
            mask = real if mask is None else mask & real
        mask = None if mask is None else mask[:, None]
        groups.append(Group(rows, queries, keys, mask, causal=plain == "causal"))
    query.views[name] = FlatView(tuple(groups), query, key, order)
    return query.views[name]


def cached_view(rule: Rule, batch: Batch, past: tuple[int, ...], fixed: bool = False) -> CachedView:
    """The rule compiled for new tokens on top of rows of `past` lengths; `fixed` keys do not grow
    (cross-attention)."""
    if batch.prefix is not None:
        raise ValueError("a prefix is read at once, before anything else: its first tokens see its last")
    new, device = batch.layout, batch.device
    if (
        fixed and len(past) < new.rows
    ):  # neighbours (beams) attend to the same keys: their queries are one row
        share = new.rows // len(past)
        new = Layout([sum(new.lengths[n : n + share]) for n in range(0, new.rows, share)], device)
    totals = past if fixed else tuple(old + more for old, more in zip(past, new.lengths, strict=True))
    reach = max(totals, default=0)
    plain = rule.plain(reach)
    # Rows of equal length need no mask for blank cells, and one new token sees all that is cached.
    equal = len(set(totals)) <= 1
    if equal and (plain == "full" or (plain == "causal" and new.longest == 1)):
        return CachedView(new, batch.positions, reach, None)
    # Cells beyond a row's length hold what another row needed: hidden from this one.
    index_RT = torch.arange(reach, device=device)[None].expand(new.rows, -1)
    query_RQ = torch.tensor(past, device=device)[:, None] + torch.arange(new.longest, device=device)
    real_RT = index_RT < torch.tensor(totals, device=device)[:, None]
    mask = rule.allowed(query_RQ, index_RT) & real_RT[:, None, :]
    return CachedView(new, batch.positions, reach, mask[:, None])


STORED_KEYS = 256
"""Keys of a row up to which training in half precision keeps the weights of attention. PyTorch's fused kernel
takes 2.4 times as long with 64 keys, twice as long with 256 (docs/lab-notes.md); longer rows cost memory."""


def attend(
    q_RHQK: Tensor,
    k_RHTK: Tensor,
    v_RHTK: Tensor,
    mask: Tensor | None,
    causal: bool,
    scoring: Scoring,
    distances: int | Tensor = 0,
) -> tuple[Tensor, Tensor | None]:
    """One rectangle of attention: the fused kernel, or the eager formula when the weights are wanted."""
    scale, rate = scoring.scale, scoring.dropout
    if scoring.pairs is not None:
        bias_RHQT = scoring.pairs(q_RHQK, k_RHTK, distances, scale)
        mask, causal = _add_mask(bias_RHQT, mask, causal), False
    if mask is not None and mask.is_floating_point():
        mask = follow(mask, q_RHQK)  # all layers share it, whatever type their caches have
    if scoring.seen is None:
        is_short = is_half(q_RHQK) and q_RHQK.requires_grad and k_RHTK.shape[2] <= STORED_KEYS
        if q_RHQK.device.type == "cpu" and (rate or is_short):
            return StoredAttention.apply(q_RHQK, k_RHTK, v_RHTK, mask, causal, scale, rate), None
        out = F.scaled_dot_product_attention(
            q_RHQK, k_RHTK, v_RHTK, attn_mask=mask, dropout_p=rate, is_causal=causal, scale=scale
        )
        return out, None
    # The eager formula: tests show that it equals the kernels.
    scores = q_RHQK @ k_RHTK.transpose(-1, -2) * scale
    if causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if mask is not None and mask.dtype == torch.bool:
        # A row that may see nothing gets zeros, as from the fused kernel, and not NaN.
        weights = scores.masked_fill(~mask, float("-inf")).softmax(-1).masked_fill(~mask, 0.0)
    else:
        weights = (scores if mask is None else scores + mask).softmax(-1)
    return drop(weights, rate) @ v_RHTK, weights


def _pad_rows(column: Tensor, batch: Batch, group: Layout, rows: Sequence[int]) -> Tensor:
    """One column of a batch, of the rows of a group alone, `[R, T]`."""
    parts = column.split(batch.layout.lengths)
    return group.pad(torch.cat([parts[row] for row in rows]))


def _add_mask(bias: Tensor, mask: Tensor | None, causal: bool = False) -> Tensor:
    """A bias with a mask, or causal order, in it: a fused kernel takes one array."""
    if causal:
        mask = torch.ones(bias.shape[-2:], dtype=torch.bool, device=bias.device).tril()
    if mask is None or mask.dtype != torch.bool:
        return bias if mask is None else bias + mask
    # Not -inf: a query that may see nothing would become NaN.
    return bias.masked_fill(~mask, torch.finfo(bias.dtype).min)
