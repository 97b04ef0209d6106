"""What a model carries from one call to the next.

One protocol for key/value caches, and later memories of segments, recurrent states and pointer windows: per-row
lengths, choosing and repeating rows, detaching, and the tensors to save.

Legend: N new tokens, R rows, H heads, C capacity, K head width.
"""

from __future__ import annotations

from typing import Protocol, Self

import torch
from torch import Tensor

from etymon.nn.ragged import Layout


class State(Protocol):
    lengths: tuple[int, ...]

    def select(self, rows: Tensor) -> Self:
        """The given rows, in that order (beams reorder, finished rows leave)."""

    def fork(self, copies: int) -> Self:
        """Every row repeated `copies` times, side by side (beams, shared prefixes)."""

    def detach(self) -> Self:
        """The same values without their history."""

    def tensors(self) -> dict[str, Tensor]:
        """What has to be saved to go on exactly."""


class Cache:
    """The keys and values of one attention: `[R, H, C, K]`, filled from the left."""

    def __init__(self, capacity: int = 0) -> None:
        self.capacity = capacity
        self.keys: Tensor | None = None
        self.values: Tensor | None = None

    def append(self, k_NHK: Tensor, v_NHK: Tensor, layout: Layout, past: tuple[int, ...]) -> None:
        """Writes the new tokens of every row behind its past ones."""
        needed = max((old + new for old, new in zip(past, layout.lengths, strict=True)), default=0)
        self._reserve(needed, layout.rows, k_NHK)
        assert self.keys is not None and self.values is not None
        if layout.equal and len(set(past)) <= 1:
            begin, length = past[0] if past else 0, layout.longest
            shape = (layout.rows, length, *k_NHK.shape[1:])
            self.keys[:, :, begin : begin + length] = k_NHK.view(shape).transpose(1, 2)
            self.values[:, :, begin : begin + length] = v_NHK.view(shape).transpose(1, 2)
        else:
            place = layout.index + torch.tensor(past, device=k_NHK.device)[layout.row]
            self.keys[layout.row, :, place] = k_NHK
            self.values[layout.row, :, place] = v_NHK

    def _reserve(self, needed: int, rows: int, like: Tensor) -> None:
        if self.keys is not None and needed <= self.keys.shape[2]:
            return
        # Doubling keeps the copying linear where the caller could not say how long the text will become.
        grown = max(self.capacity, needed) if self.keys is None else max(needed, 2 * self.keys.shape[2])
        for name in ("keys", "values"):
            old: Tensor | None = getattr(self, name)
            new = like.new_zeros(rows, like.shape[1], grown, like.shape[2])
            if old is not None:
                new[:, :, : old.shape[2]] = old
            setattr(self, name, new)

    def pick(self, rows: Tensor) -> Cache:
        picked = Cache(self.capacity)
        if self.keys is not None and self.values is not None:
            picked.keys, picked.values = self.keys[rows], self.values[rows]
        return picked

    def detached(self) -> Cache:
        copy = Cache(self.capacity)
        if self.keys is not None and self.values is not None:
            copy.keys, copy.values = self.keys.detach(), self.values.detach()
        return copy


class KeyValueState:
    """The caches of a decoder's layers; `cross` holds the encoder's keys, projected once."""

    def __init__(self, layers: int, rows: int, capacity: int = 0) -> None:
        self.lengths: tuple[int, ...] = (0,) * rows
        self.self_caches = [Cache(capacity) for _ in range(layers)]
        self.cross_caches = [Cache() for _ in range(layers)]
        self.cross_lengths: tuple[int, ...] = ()

    @property
    def empty(self) -> bool:
        return not any(self.lengths)

    def advance(self, layout: Layout) -> None:
        self.lengths = tuple(old + new for old, new in zip(self.lengths, layout.lengths, strict=True))

    def select(self, rows: Tensor) -> KeyValueState:
        chosen = KeyValueState(0, 0)
        places = rows.tolist()
        chosen.lengths = tuple(self.lengths[row] for row in places)
        chosen.self_caches = [cache.pick(rows) for cache in self.self_caches]
        chosen.cross_caches = [cache.pick(rows) for cache in self.cross_caches]
        chosen.cross_lengths = tuple(self.cross_lengths[row] for row in places) if self.cross_lengths else ()
        return chosen

    def fork(self, copies: int) -> KeyValueState:
        return self.select(torch.arange(len(self.lengths)).repeat_interleave(copies))

    def detach(self) -> KeyValueState:
        copy = KeyValueState(0, 0)
        copy.lengths, copy.cross_lengths = self.lengths, self.cross_lengths
        copy.self_caches = [cache.detached() for cache in self.self_caches]
        copy.cross_caches = [cache.detached() for cache in self.cross_caches]
        return copy

    def tensors(self) -> dict[str, Tensor]:
        named = {}
        for kind, caches in (("self", self.self_caches), ("cross", self.cross_caches)):
            for layer, cache in enumerate(caches):
                if cache.keys is not None and cache.values is not None:
                    named[f"{kind}.{layer}.keys"] = cache.keys
                    named[f"{kind}.{layer}.values"] = cache.values
        return named
