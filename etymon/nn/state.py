"""What a model carries from one call to the next.

One protocol for key/value caches, windows of a pointer, and later memories of segments and recurrent states: per-row
lengths, choosing and repeating rows, detaching, and the tensors to save.

Legend: N new tokens, R rows, H heads, C capacity, K head width, D width, T most new tokens of a row, M places of a window.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, Self

import torch
from torch import Tensor

from etymon.nn.ragged import Layout, Padding


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


class Window:
    """Hidden states and ids of every row's tokens: those of the last call, behind the `reach` before them (-1: no token)."""

    def __init__(self, reach: int) -> None:
        self.reach = reach
        self.new: tuple[int, ...] = ()
        """How many tokens the last call brought, by row."""
        self.hidden_RMD = self.ids_RM = torch.empty(0)

    def append(self, hidden_ND: Tensor, ids_N: Tensor, layout: Layout) -> None:
        padding = Padding(layout.lengths, ids_N.device)
        if not self.new:
            before_RMD = hidden_ND.new_zeros(layout.rows, self.reach, hidden_ND.shape[1])
            before_RM = ids_N.new_full((layout.rows, self.reach), -1)
        else:
            columns = torch.tensor(self.new, device=ids_N.device)[:, None] + torch.arange(
                self.reach, device=ids_N.device
            )
            places = torch.arange(layout.rows, device=ids_N.device)[:, None], columns
            before_RMD, before_RM = self.hidden_RMD[places], self.ids_RM[places]
        new_RT = padding.lift(ids_N).masked_fill(~padding.real, -1)
        self.hidden_RMD = torch.cat([before_RMD, padding.lift(hidden_ND)], 1)
        self.ids_RM = torch.cat([before_RM, new_RT], 1)
        self.new = layout.lengths

    def select(self, rows: Tensor) -> Window:
        return self._changed(
            lambda column: column[rows], [self.new[row] for row in rows.tolist() if self.new]
        )

    def detach(self) -> Window:
        return self._changed(Tensor.detach, self.new)

    def _changed(self, change: Callable[[Tensor], Tensor], new: Sequence[int]) -> Window:
        other = Window(self.reach)
        if new:
            other.hidden_RMD, other.ids_RM, other.new = (
                change(self.hidden_RMD),
                change(self.ids_RM),
                tuple(new),
            )
        return other


class KeyValueState:
    """The caches of a decoder's layers; `cross` holds the encoder's keys, projected once, `window` what a pointer sees."""

    def __init__(self, layers: int, rows: int, capacity: int = 0) -> None:
        self.lengths: tuple[int, ...] = (0,) * rows
        self.self_caches = [Cache(capacity) for _ in range(layers)]
        self.cross_caches = [Cache() for _ in range(layers)]
        self.cross_lengths: tuple[int, ...] = ()
        self.window: Window | None = None

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
        chosen.window = None if self.window is None else self.window.select(rows)
        return chosen

    def fork(self, copies: int) -> KeyValueState:
        return self.select(torch.arange(len(self.lengths)).repeat_interleave(copies))

    def detach(self) -> KeyValueState:
        copy = KeyValueState(0, 0)
        copy.lengths, copy.cross_lengths = self.lengths, self.cross_lengths
        copy.self_caches = [cache.detached() for cache in self.self_caches]
        copy.cross_caches = [cache.detached() for cache in self.cross_caches]
        copy.window = None if self.window is None else self.window.detach()
        return copy

    def tensors(self) -> dict[str, Tensor]:
        named: dict[str, Tensor] = {}
        if self.window is not None:
            named |= {"window.hidden": self.window.hidden_RMD, "window.ids": self.window.ids_RM}
        for kind, caches in (("self", self.self_caches), ("cross", self.cross_caches)):
            for layer, cache in enumerate(caches):
                if cache.keys is not None and cache.values is not None:
                    named[f"{kind}.{layer}.keys"] = cache.keys
                    named[f"{kind}.{layer}.values"] = cache.values
        return named
