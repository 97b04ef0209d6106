"""Multi-head attention over ragged rows.

Query, key, value and output are separate matrices, as published: optimisers and adapters work per matrix, and
fusing them gained nothing measurable.

Legend: N query tokens, M key tokens, D width, H heads, K head width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from etymon.nn.batch import Batch
from etymon.nn.cache import Cache, Places
from etymon.nn.layers import Embedding, Linear
from etymon.nn.visibility import CachedView, FlatView, PairBias, Scoring


@dataclass
class Memory:
    """An encoder's output, with the batch it came from."""

    hidden_MD: Tensor
    batch: Batch


@dataclass(kw_only=True)
class QuerySubset:
    """Part of what a layer is told: the places whose output somebody wants, in the order of its view's queries."""

    at: Tensor | None = None
    """None: all."""

    def wanted(self, x_ND: Tensor) -> Tensor:
        return x_ND if self.at is None else x_ND.index_select(0, self.at)


@dataclass
class LayerInputs(QuerySubset):
    """What one layer looks at: itself, perhaps an encoder's memory, perhaps a past."""

    view: FlatView | CachedView
    places: Places | None = None
    cache: Cache | None = None
    memory: Memory | None = None
    cross_view: FlatView | CachedView | None = None
    cross_cache: Cache | None = None


Turn = Callable[[Tensor], Tensor]
"""Queries or keys `[N, H, K]`, turned by angles that their positions decide."""


class Attention(nn.Module):
    def __init__(
        self,
        dim: int,
        heads: int,
        head_dim: int | None = None,
        *,
        bias: bool = True,
        output_bias: bool | None = None,
        scale: float | None = None,
        dropout: float = 0.0,
        rotary: Callable[[Tensor], Turn] | None = None,
        relative: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.heads, self.head_dim = heads, head_dim or dim // heads
        self.scale = self.head_dim**-0.5 if scale is None else scale
        self.dropout = dropout
        self.rotary = rotary
        self.relative = relative
        """Of self-attention: what the distances of queries and keys add to their scores."""
        inner = self.heads * self.head_dim
        self.query = Linear(dim, inner, bias=bias)
        self.key = Linear(dim, inner, bias=bias)
        self.value = Linear(dim, inner, bias=bias)
        self.output = Linear(inner, dim, bias=bias if output_bias is None else output_bias)
        self.joined: nn.Module | None = None
        """Query, key and value as one matrix, where that is faster: with weights of eight bits."""
        self.seen: list[Tensor] | None = None
        """Set by `etymon.trace`: attention weights are then built and kept."""

    def forward(self, x_ND: Tensor, sight: LayerInputs) -> Tensor:
        """Self-attention."""
        if self.joined is None:
            q_NHK, k_NHK, v_NHK = self._heads(self.query(sight.wanted(x_ND))), *self.project(x_ND)
        else:
            q_NHK, k_NHK, v_NHK = map(self._heads, self.joined(x_ND).chunk(3, -1))
            q_NHK = sight.wanted(q_NHK)
        if self.rotary is not None:
            turn = self.rotary(sight.view.positions)
            turn_keys = turn
            if sight.at is not None:
                assert isinstance(sight.view, FlatView)
                turn_keys = self.rotary(sight.view.key.positions)
            q_NHK, k_NHK = turn(q_NHK), turn_keys(k_NHK)
        if sight.cache is not None:
            assert sight.places is not None
            sight.cache.append(k_NHK, v_NHK, sight.places)
        return self._attend(sight.view, q_NHK, k_NHK, v_NHK, sight.cache, self.relative)

    def across(self, x_ND: Tensor, sight: LayerInputs) -> Tensor:
        """Cross-attention to the memory; a running decode projects the memory only once."""
        assert sight.memory is not None and sight.cross_view is not None
        q_NHK = self._heads(self.query(x_ND))
        cache = sight.cross_cache
        if cache is None or not cache.parts:
            k_MHK, v_MHK = self.project(sight.memory.hidden_MD)
            if cache is not None:
                layout = sight.memory.batch.layout
                cache.append(k_MHK, v_MHK, Places(layout, (0,) * layout.rows))
        else:
            k_MHK = v_MHK = q_NHK  # unused: the view reads the cache
        return self._attend(sight.cross_view, q_NHK, k_MHK, v_MHK, cache)

    def project(self, x_MD: Tensor) -> tuple[Tensor, Tensor]:
        return self._heads(self.key(x_MD)), self._heads(self.value(x_MD))

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(-1, self.heads, self.head_dim)

    def _attend(
        self,
        view: FlatView | CachedView,
        q_NHK: Tensor,
        k_MHK: Tensor,
        v_MHK: Tensor,
        cache: Cache | None,
        pairs: PairBias | None = None,
    ) -> Tensor:
        if isinstance(view, CachedView):
            assert cache is not None
            k_MHK, v_MHK = cache.parts
        scoring = Scoring(self.scale, self.dropout if self.training else 0.0, self.seen, pairs)
        out_NHK = view.attend(q_NHK, k_MHK, v_MHK, scoring)
        return self.output(out_NHK.reshape(-1, self.heads * self.head_dim))


# --- relative_keys: Positions as learned vectors of distances, which queries (and keys) meet like further keys.
#
#     score(i, j) = (q_i k_j + q_i e_(i-j)) / sqrt(K)                   (Shaw et al. 2018, the part of the keys)
#     score(i, j) = (q_i k_j + q_i e_(i-j) + k_j e_(i-j)) / sqrt(K)     (Huang et al. 2020, their fourth method)
#
# Nothing of size `[Q, T, K]` is made: queries meet every distance that occurs in one product, and a pair's entry is then found in
# it by reading its rows with another stride.
#
# Legend: R rows, H heads, Q queries, T keys, K head width, L distances, P positions.


class RelativeKeys(nn.Module):
    """What distances add to the scores of one attention; `meets_keys` adds what keys have with them, too. With `scaled` off,
    the scale of the scores is not theirs (ALBERT in Transformers 4).

    The table has a row for every distance from -(P - 1) to P - 1: query position minus key position. What is farther away is
    taken for the farthest.
    """

    def __init__(self, positions: int, head_dim: int, *, meets_keys: bool, scaled: bool = True) -> None:
        super().__init__()
        self.table = Embedding(2 * positions - 1, head_dim)
        self.positions, self.meets_keys, self.scaled = positions, meets_keys, scaled

    def forward(self, q_RHQK: Tensor, k_RHTK: Tensor, distances: int | Tensor, scale: float) -> Tensor:
        """`[R, H, Q, T]`, scale included. `distances` is how far the first query stands behind the first key where queries and
        keys are each neighbours, and otherwise `[R or 1, Q, T]`."""
        scale = scale if self.scaled else 1.0
        if isinstance(distances, int):
            return self._of_neighbours(q_RHQK, k_RHTK, distances, scale)
        rows_RQT = (distances + self.positions - 1).clamp(0, 2 * self.positions - 2)
        if q_RHQK.shape[2] == 1:
            return self._of_one_query(q_RHQK, k_RHTK, rows_RQT, scale)
        table_KL = self.table.weight.T * scale
        shape = *q_RHQK.shape[:3], k_RHTK.shape[2]
        scores = (q_RHQK @ table_KL).gather(-1, rows_RQT[:, None].expand(shape))
        if self.meets_keys:
            columns = rows_RQT.transpose(1, 2)[:, None].expand(*shape[:2], shape[3], shape[2])
            scores = scores + (k_RHTK @ table_KL).gather(-1, columns).transpose(-1, -2)
        return scores

    def _of_neighbours(self, q_RHQK: Tensor, k_RHTK: Tensor, offset: int, scale: float) -> Tensor:
        queries, keys = q_RHQK.shape[2], k_RHTK.shape[2]
        first, count, rows = self.positions + offset - keys, queries + keys - 1, self.table.num_embeddings
        table_LK = self.table.weight[first : first + count]
        if first < 0 or first + count > rows:
            places_L = torch.arange(first, first + count, device=table_LK.device)
            table_LK = self.table(places_L.clamp_(0, rows - 1))
        table_LK = table_LK * scale
        scores = skew(q_RHQK @ table_LK.flip(0).T, keys)
        if self.meets_keys:
            scores = scores + skew(k_RHTK @ table_LK.T, queries).transpose(-1, -2)
        return scores

    def _of_one_query(self, q_RHQK: Tensor, k_RHTK: Tensor, rows_RQT: Tensor, scale: float) -> Tensor:
        """A step of a decode, or a head that reads one place: so few distances that their vectors can be looked up."""
        table_R1TK = self.table(rows_RQT) * scale
        met_RHTK = q_RHQK + k_RHTK if self.meets_keys else q_RHQK
        return (met_RHTK * table_R1TK).sum(-1)[:, :, None]


def skew(met_RHAL: Tensor, count: int) -> Tensor:
    """`[..., A, count]` out of `[..., A, A + count - 1]`: of every row as many entries, each row beginning one further left."""
    places, width = met_RHAL.shape[-2:]
    assert width == places + count - 1
    if places == 1:
        return met_RHAL
    # Without its first entries the array read in rows that are shorter by one: no entry is copied.
    flat = met_RHAL.flatten(-2)[..., places - 1 : places - 1 + places * (width - 1)]
    return flat.unflatten(-1, (places, width - 1))[..., :count]
