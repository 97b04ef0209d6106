"""Multi-head attention over ragged rows.

Query, key, value and output are separate matrices, as published: optimisers and adapters work per matrix, and
fusing them gained nothing measurable.

Legend: N query tokens, M key tokens, D width, H heads, K head width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from etymon.nn.batch import Batch
from etymon.nn.linear import Linear
from etymon.nn.state import Cache, Places
from etymon.nn.visibility import CachedView, FlatView, PairBias


@dataclass
class Memory:
    """An encoder's output, with the batch it came from."""

    hidden_MD: Tensor
    batch: Batch


@dataclass(kw_only=True)
class Wanted:
    """Part of what a layer is told: the places whose output somebody wants, in the order of its view's queries."""

    at: Tensor | None = None
    """None: all."""

    def wanted(self, x_ND: Tensor) -> Tensor:
        return x_ND if self.at is None else x_ND.index_select(0, self.at)


@dataclass
class Sight(Wanted):
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

    def forward(self, x_ND: Tensor, sight: Sight) -> Tensor:
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

    def across(self, x_ND: Tensor, sight: Sight) -> Tensor:
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
        dropout = self.dropout if self.training else 0.0
        out_NHK = view.attend(
            q_NHK, k_MHK, v_MHK, scale=self.scale, dropout=dropout, seen=self.seen, pairs=pairs
        )
        return self.output(out_NHK.reshape(-1, self.heads * self.head_dim))
