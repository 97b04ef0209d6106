"""Padded rows as tensors alone: what `torch.export` can follow, with a number of rows and a length that it
does not know.

A `Batch` of a `PaddedLayout` goes through the same models as any other. Padding is computed and never seen,
and nothing is read on the host: sizes are those of tensors, which may be symbols.

Legend: R rows, T tokens of a row with padding, N = R * T, P tokens of the past, S = P + T, H heads, Q
queries, K head width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from etymon.nn.batch import Batch, Layout
from etymon.nn.cache import Cache, KeyValueState, Places
from etymon.nn.visibility import Bias, CachedView, FlatView, FullRule, Rule, Scoring, attend


class PaddedLayout(Layout):
    """Rows side by side, of which `visible_RS` marks the tokens: of the past, if there is one (of `past`
    tokens with padding), and the new ones behind them."""

    is_padded = True

    splits_axes = False
    """Whether tokens become rows by a view. Its guards make `torch.export` tell apart rows of one token from
    others, and its program would refuse them; ONNX has no guards, and a view costs nothing there."""

    def __init__(self, visible_RS: Tensor, past: int | None = None) -> None:
        self.visible_RS, self.past = visible_RS, past
        # Sizes stay as they are where there is no past: whatever is subtracted, even nothing, becomes a
        # guard.
        self.visible_RT = visible_RS if past is None else visible_RS[:, past:]
        self.rows, self.longest = self.visible_RT.shape
        self.tokens = self.rows * self.longest
        self.device = visible_RS.device
        self.equal = True

    @cached_property
    def first(self) -> Tensor:
        return torch.arange(self.rows, device=self.device) * self.longest

    @cached_property
    def last(self) -> Tensor:
        # Of the tokens, not of the padding behind them.
        places_T = torch.arange(self.longest, device=self.device)
        return self.first + (places_T * self.visible_RT).amax(1)

    @cached_property
    def row(self) -> Tensor:
        rows_R = torch.arange(self.rows, device=self.device)
        return rows_R[:, None].expand(self.rows, self.longest).reshape(-1)

    @cached_property
    def index(self) -> Tensor:
        places_T = torch.arange(self.longest, device=self.device)
        return places_T[None].expand(self.rows, self.longest).reshape(-1)

    @cached_property
    def real(self) -> Tensor:
        return self.visible_RT

    @cached_property
    def _cells_RT(self) -> Tensor:
        return self.first[:, None] + torch.arange(self.longest, device=self.device)

    def pad(self, flat: Tensor) -> Tensor:
        return super().pad(flat) if self.splits_axes else flat[self._cells_RT]

    def unpad(self, padded: Tensor) -> Tensor:
        return padded.flatten(0, 1)

    def mean(self, flat: Tensor) -> Tensor:
        weights_RT = self.visible_RT.to(flat.dtype)
        weighted = self.pad(flat) * weights_RT[..., None]
        return weighted.sum(1) / weights_RT.sum(1, keepdim=True).clamp(min=1)


def padded_batch(
    ids_RT: Tensor,
    visible_RS: Tensor,
    *,
    past: int | None = None,
    segments_RT: Tensor | None = None,
    positions_RT: Tensor | None = None,
    splits_axes: bool = False,
) -> Batch:
    """Padded rows of ids; `visible_RS` is true of tokens, and of those of the past before them."""
    layout = PaddedLayout(visible_RS.bool(), past)
    layout.splits_axes = splits_axes
    positions_N = layout.index if past is None else layout.index + past
    positions_N = positions_N if positions_RT is None else positions_RT.reshape(-1)
    return Batch(
        ids=ids_RT.reshape(-1),
        layout=layout,
        positions=positions_N,
        segments=None if segments_RT is None else segments_RT.reshape(-1),
        hidden_keys=~layout.visible_RT.reshape(-1),
        # How long rows are is known when a program runs: its caller keeps to the model's positions.
        last_position=0 if torch.compiler.is_compiling() else int(positions_N.max()),
        counted=positions_RT is None,
    )


def padded_view(rule: Rule, query: Batch, key: Batch) -> FlatView:
    """A rule compiled for padded rows."""
    assert isinstance(query.layout, PaddedLayout) and isinstance(key.layout, PaddedLayout)
    mask = additive_mask(rule, query.layout, key.layout.visible_RT)
    return PaddedView((), query, key, None, mask)


def additive_mask(rule: Rule, query: PaddedLayout, visible_RS: Tensor) -> Tensor:
    """`[R, 1, Q or 1, S]`: 0 where a query sees a key, else the least number. A query that sees nothing gets
    the mean of all keys: a number, which nobody reads."""
    allowed = visible_RS[:, None, :]
    if not isinstance(rule, FullRule):
        index_1S = torch.arange(visible_RS.shape[1], device=query.device)[None]
        allowed = allowed & rule.allowed(query_places(query), index_1S)
    return torch.where(allowed, 0.0, torch.finfo(torch.float32).min)[:, None]


def query_places(query: PaddedLayout) -> Tensor:
    """Of new tokens in their rows, `[1, Q]`."""
    places_1Q = torch.arange(query.longest, device=query.device)[None]
    return places_1Q if query.past is None else places_1Q + query.past


@dataclass(frozen=True)
class PaddedView(FlatView):
    """Keys come from the same padded rows as the queries, or from others (cross-attention)."""

    mask: Tensor
    """To add to scores, `[R or 1, H or 1, Q or 1, T]`."""

    def attend(self, q_NHK: Tensor, k_MHK: Tensor, v_MHK: Tensor, scoring: Scoring) -> Tensor:
        queries, keys = self.query.layout, self.key.layout
        q_RHQK = queries.pad(q_NHK).transpose(1, 2)
        k_RHTK, v_RHTK = (keys.pad(part).transpose(1, 2) for part in (k_MHK, v_MHK))
        distances: int | Tensor = 0 if scoring.pairs is None else self._places_apart
        out_RHQK, weights = attend(q_RHQK, k_RHTK, v_RHTK, self.mask, False, scoring, distances)
        if scoring.seen is not None and weights is not None:
            scoring.seen.append(weights)
        return queries.unpad(out_RHQK.transpose(1, 2))

    @cached_property
    def _places_apart(self) -> Tensor:
        query_1Q, key_1T = self._places
        return query_1Q[:, :, None] - key_1T[:, None, :]

    @property
    def _places(self) -> tuple[Tensor, Tensor]:
        assert isinstance(self.query.layout, PaddedLayout)
        keys = self.key.layout.longest
        return query_places(self.query.layout), torch.arange(keys, device=self.query.device)[None]

    def with_bias(self, bias: Bias) -> FlatView:
        return replace(self, mask=bias(*self._places) + self.mask)


@dataclass(frozen=True)
class PaddedCachedView(CachedView):
    """Keys come from a cache that holds the past and the new tokens, `[R, H, S, K]`."""

    def attend(self, q_NHK: Tensor, keys_RHCK: Tensor, values_RHCK: Tensor, scoring: Scoring) -> Tensor:
        q_RHQK = self.query.pad(q_NHK).transpose(1, 2)
        distances: int | Tensor = 0
        if scoring.pairs is not None:
            query_1Q, key_1S = self._places
            distances = query_1Q[:, :, None] - key_1S[:, None, :]
        out_RHQK, _ = attend(q_RHQK, keys_RHCK, values_RHCK, self.mask, False, scoring, distances)
        return self.query.unpad(out_RHQK.transpose(1, 2))

    @property
    def _places(self) -> tuple[Tensor, Tensor]:
        assert isinstance(self.query, PaddedLayout)
        return query_places(self.query), torch.arange(self.reach, device=self.query.device)[None]

    def with_bias(self, bias: Bias) -> CachedView:
        assert self.mask is not None
        return replace(self, mask=bias(*self._places) + self.mask)


class PaddedCache(Cache):
    """Keys and values as tensors that grow by being joined: nothing is written in place."""

    def __init__(self, *parts_RHPK: Tensor) -> None:
        super().__init__()
        self.parts = list(parts_RHPK)

    def append(self, k_NHK: Tensor, v_NHK: Tensor, places: Places) -> None:
        self.fill(k_NHK, v_NHK, places.layout)

    def fill(self, k_NHK: Tensor, v_NHK: Tensor, layout: Layout) -> None:
        new = [layout.pad(part).transpose(1, 2) for part in (k_NHK, v_NHK)]
        pairs = zip(self.parts, new, strict=True)
        self.parts = [torch.cat(pair, 2) for pair in pairs] if self.parts else new


class PaddedState(KeyValueState):
    """The caches of a decode over padded rows, as a program takes and gives them: a pair of keys and values
    a layer, and of an encoder's."""

    def __init__(self, past: Sequence[tuple[Tensor, ...]], cross: Sequence[tuple[Tensor, ...]] = ()) -> None:
        self.self_caches = [PaddedCache(*parts) for parts in past]
        self.cross_caches = [PaddedCache(*parts) for parts in cross]
        self.window = None

    @property
    def empty(self) -> bool:
        return False

    def places(self, layout: Layout) -> Places:
        return PaddedPlaces(layout)

    def advance(self, layout: Layout) -> None:
        """The caches have grown by themselves."""

    def view(self, rule: Rule, batch: Batch) -> CachedView:
        layout = batch.layout
        assert isinstance(layout, PaddedLayout)
        mask = additive_mask(rule, layout, layout.visible_RS)
        return PaddedCachedView(layout, batch.positions, layout.visible_RS.shape[1], mask)

    def cross_view(self, batch: Batch, memory: Batch) -> CachedView:
        layout, keys = batch.layout, memory.layout
        assert isinstance(layout, PaddedLayout) and isinstance(keys, PaddedLayout)
        mask = additive_mask(FullRule(), layout, keys.visible_RT)
        return PaddedCachedView(layout, batch.positions, keys.longest, mask)


class PaddedPlaces(Places):
    """New tokens go behind the past ones of all rows."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout


class PaddedMemory:
    """What every layer remembers of padded rows, `[R, M, D]`, as a program takes and gives it: up to `length`
    tokens, of which `missing_RM` are none (None: all are)."""

    def __init__(self, layers: Sequence[Tensor], length: int, missing_RM: Tensor | None = None) -> None:
        self.layers, self.length = list(layers), length
        self.width, self._missing_RM = layers[0].shape[1], missing_RM

    def missing(self, device: torch.device) -> Tensor | None:
        return self._missing_RM

    def extend(self, inputs: Sequence[Tensor], lengths: Sequence[int]) -> None:
        """Adds a segment: every layer's inputs `[R, Q, D]`, padding included."""
        whole = [torch.cat(pair, 1) for pair in zip(self.layers, inputs, strict=True)]
        # By a number of cells from the left: a program does not know whether there are more than are kept.
        first = torch.sym_max(whole[0].shape[1] - self.length, 0)
        self.layers = [part_RSD[:, first:] for part_RSD in whole]
