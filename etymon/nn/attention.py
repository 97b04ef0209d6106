"""Multi-head attention over ragged rows.

Query, key, value and output are separate matrices, as published: optimisers and adapters work per matrix, and
fusing them gained nothing measurable.

Learned vectors of distances (`RelativeKeys`) are met by queries, and by keys, like further keys:

    score(i, j) = (q_i k_j + q_i e_(i-j)) / sqrt(K)                   (Shaw et al. 2018, the part of the keys)
    score(i, j) = (q_i k_j + q_i e_(i-j) + k_j e_(i-j)) / sqrt(K)     (Huang et al. 2020, their fourth method)

Legend: N query tokens, M key tokens, D width, R rows, H heads, Q queries, T keys, K head width, L
distances, P positions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from etymon.nn.batch import Batch
from etymon.nn.cache import Cache, Places
from etymon.nn.layers import Embedding, Linear
from etymon.nn.precision import follow
from etymon.nn.products import JoinedProducts
from etymon.nn.visibility import CachedView, FlatView, PairBias, Scoring


@dataclass
class Memory:
    """An encoder's output, with the batch it came from."""

    hidden_MD: Tensor
    batch: Batch


class QuerySubset:
    """The tokens whose output a layer computes, by their flat places in the order of its view's queries
    (`at`; None: all tokens).

    Inputs of layers are no dataclasses: where parameters are sharded, PyTorch would take those apart to find
    tensors, and put copies together again.
    """

    at: Tensor | None = None

    def select(self, x_ND: Tensor) -> Tensor:
        return x_ND if self.at is None else x_ND.index_select(0, self.at)


class LayerInputs(QuerySubset):
    """A layer's inputs beside its hidden states: what its tokens see, an encoder's memory, and caches of
    the past."""

    def __init__(
        self,
        view: FlatView | CachedView,
        places: Places | None = None,
        cache: Cache | None = None,
        memory: Memory | None = None,
        cross_view: FlatView | CachedView | None = None,
        cross_cache: Cache | None = None,
        at: Tensor | None = None,
    ) -> None:
        self.view, self.places, self.cache = view, places, cache
        self.memory, self.cross_view, self.cross_cache = memory, cross_view, cross_cache
        self.at = at


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
        """For self-attention: what the distances of queries and keys add to their scores (`RelativeKeys`)."""
        inner = self.heads * self.head_dim
        self.query = Linear(dim, inner, bias=bias)
        self.key = Linear(dim, inner, bias=bias)
        self.value = Linear(dim, inner, bias=bias)
        self.output = Linear(inner, dim, bias=bias if output_bias is None else output_bias)
        self.fused: nn.Module | None = None
        """Query, key and value as one matrix, where that is faster: with weights of eight bits."""
        self.joined = JoinedProducts()
        """The same for other weights, made of them where a model is only read from."""
        self.seen: list[Tensor] | None = None
        """Set by `etymon.trace`: attention weights are then built and kept."""

    def forward(self, x_ND: Tensor, inputs: LayerInputs) -> Tensor:
        """Self-attention."""
        together = self._project_together(x_ND) if inputs.at is None or self.fused is not None else None
        if together is None:
            q_NHK, k_NHK, v_NHK = self._heads(self.query(inputs.select(x_ND))), *self.project(x_ND)
        else:
            # One product for all three, then the wanted queries.
            q_NHK, k_NHK, v_NHK = together.view(-1, 3, self.heads, self.head_dim).unbind(1)
            q_NHK = inputs.select(q_NHK)
        view, cache = inputs.view, inputs.cache
        if self.rotary is not None:
            turn = turn_keys = self.rotary(view.positions)
            if isinstance(view, FlatView) and inputs.at is not None:
                # Queries are fewer than keys, and stand elsewhere.
                turn_keys = self.rotary(view.key.positions)
            q_NHK, k_NHK = turn(q_NHK), turn_keys(k_NHK)
        if cache is not None:
            assert inputs.places is not None
            cache.append(k_NHK, v_NHK, inputs.places)
        return self._attend(view, q_NHK, k_NHK, v_NHK, cache, self.relative)

    def across(self, x_ND: Tensor, inputs: LayerInputs) -> Tensor:
        """Cross-attention to the memory; a running decode projects the memory only once."""
        memory, cache = inputs.memory, inputs.cross_cache
        assert memory is not None and inputs.cross_view is not None
        q_NHK = self._heads(self.query(x_ND))
        k_MHK = v_MHK = q_NHK  # unused where the view reads a filled cache
        if cache is None or not cache.parts:
            k_MHK, v_MHK = self.project(memory.hidden_MD)
            if cache is not None:
                cache.fill(k_MHK, v_MHK, memory.batch.layout)
        return self._attend(inputs.cross_view, q_NHK, k_MHK, v_MHK, cache)

    def _project_together(self, x_ND: Tensor) -> Tensor | None:
        """Queries, keys and values side by side; None where they are three products."""
        if self.fused is not None:
            together: Tensor = self.fused(x_ND)
            return together
        maps = self.query, self.key, self.value
        # A map with an adapter is more than its matrix.
        return self.joined.multiply(x_ND, maps) if all(type(part) is Linear for part in maps) else None

    def train(self, mode: bool = True) -> Attention:
        if mode:
            self.joined = JoinedProducts()
        return super().train(mode)

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
        # Caches may have another type than what is computed in.
        out_NHK = view.attend(follow(q_NHK, k_MHK), k_MHK, v_MHK, scoring)
        return self.output(follow(out_NHK.reshape(-1, self.heads * self.head_dim), q_NHK))


class RelativeKeys(nn.Module):
    """What distances add to the scores of one attention; `meets_keys` adds the products of keys with them,
    too. With `scaled` off, the scale of the scores is not applied to them (ALBERT in Transformers 4).

    The table has a row for every distance from -(P - 1) to P - 1: query position minus key position. What
    is farther away is taken for the farthest.
    """

    def __init__(self, positions: int, head_dim: int, *, meets_keys: bool, scaled: bool = True) -> None:
        super().__init__()
        self.table = Embedding(2 * positions - 1, head_dim)
        self.positions, self.meets_keys, self.scaled = positions, meets_keys, scaled

    def forward(self, q_RHQK: Tensor, k_RHTK: Tensor, distances: int | Tensor, scale: float) -> Tensor:
        """`[R, H, Q, T]`, scale included. `distances` is that of the first query from the first key where
        queries and keys are each neighbours, and otherwise `[R or 1, Q, T]`."""
        scale, last = scale if self.scaled else 1.0, self.table.num_embeddings - 1
        if isinstance(distances, int):
            return self._score_neighbours(q_RHQK, k_RHTK, distances, scale)
        rows_RQT = (distances + self.positions - 1).clamp(0, last)
        if q_RHQK.shape[2] == 1:  # a step of a decode: so few distances that their vectors can be looked up
            met_RHTK = q_RHQK + k_RHTK if self.meets_keys else q_RHQK
            return (met_RHTK * (follow(self.table(rows_RQT), q_RHQK) * scale)).sum(-1)[:, :, None]
        # Queries meet all distances in one product, and each pair picks its entry: nothing of `[Q, T, K]`
        # is made.
        table_KL = follow(self.table.weight, q_RHQK).T * scale
        heads = *q_RHQK.shape[:2], -1, -1
        scores = (q_RHQK @ table_KL).gather(-1, rows_RQT[:, None].expand(heads))
        if self.meets_keys:
            columns = rows_RQT.transpose(1, 2)[:, None].expand(heads)
            scores = scores + (k_RHTK @ table_KL).gather(-1, columns).transpose(-1, -2)
        return scores

    def _score_neighbours(self, q_RHQK: Tensor, k_RHTK: Tensor, offset: int, scale: float) -> Tensor:
        queries, keys = q_RHQK.shape[2], k_RHTK.shape[2]
        first, count, rows = self.positions + offset - keys, queries + keys - 1, self.table.num_embeddings
        table_LK = self.table.weight[first : first + count]
        if first < 0 or first + count > rows:
            # Beyond the table, the farthest distances repeat.
            places_L = torch.arange(first, first + count, device=table_LK.device)
            table_LK = self.table(places_L.clamp_(0, rows - 1))
        table_LK = follow(table_LK, q_RHQK) * scale
        scores = skew(q_RHQK @ table_LK.flip(0).T, keys)
        if self.meets_keys:
            scores = scores + skew(k_RHTK @ table_LK.T, queries).transpose(-1, -2)
        return scores


def skew(met_RHAL: Tensor, count: int) -> Tensor:
    """`[..., A, count]` out of `[..., A, A + count - 1]`: of every row so many entries, each row beginning
    one further left."""
    places, width = met_RHAL.shape[-2:]
    assert width == places + count - 1
    if places == 1:
        return met_RHAL
    # Without its first entries, the array is read in rows that are shorter by one: no entry is copied.
    flat = met_RHAL.flatten(-2)[..., places - 1 : places - 1 + places * (width - 1)]
    return flat.unflatten(-1, (places, width - 1))[..., :count]
