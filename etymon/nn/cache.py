"""What a model carries from one call to the next.

Decodes carry key/value caches and the window of a pointer; streams of text anything that is a `StreamState`.

Legend: N new tokens, R rows, H heads, C capacity, K head width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from functools import cached_property
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from etymon.nn.batch import Batch, Layout
from etymon.nn.precision import widen
from etymon.nn.visibility import CachedView, FlatView, FullRule, Rule, cached_view, flat_view
from etymon.nn.window import PointerWindow


class StreamState(Protocol):
    """A state that streams of text carry from segment to segment, in training too. It holds no history."""

    lengths: tuple[int, ...]

    def select(self, rows: Tensor) -> Self:
        """The given rows, in that order."""

    def forget(self, rows: Sequence[int]) -> None:
        """These rows begin anew."""

    def tensors(self) -> dict[str, Tensor]:
        """What has to be saved to go on exactly."""

    def load(self, tensors: Mapping[str, Tensor], lengths: Sequence[int]) -> None:
        """The inverse of `tensors` and `lengths`."""


class Places:
    """Where the new tokens of one call go: behind the past ones of their rows. All layers share it."""

    def __init__(self, layout: Layout, past: Sequence[int]) -> None:
        self.layout, self.past = layout, past
        self.needed = max((old + new for old, new in zip(past, layout.lengths, strict=True)), default=0)
        # Rows that stand at the same place are written as one slice, without an index.
        self.even = layout.equal and len(set(past)) <= 1

    @cached_property
    def indices(self) -> tuple[Tensor, Tensor]:
        """The row of every token and its place there."""
        past_R = torch.tensor(self.past, device=self.layout.device)
        return self.layout.row, self.layout.index + past_R[self.layout.row]


class Cache:
    """The keys and values of one attention: `[R, H, C, K]`, filled from the left."""

    def __init__(self, capacity: int = 0) -> None:
        self.capacity = capacity
        self.parts: list[Tensor] = []
        """Keys and values; none before the first tokens."""
        self.arrays: list[Tensor] = []
        """The arrays that these are the first rows of, where there is room for rows that join."""

    def append(self, k_NHK: Tensor, v_NHK: Tensor, places: Places) -> None:
        """Writes the new tokens of every row behind its past ones."""
        layout, end = places.layout, places.needed
        self._reserve(end, layout.rows, k_NHK)
        for part, new_NHK in zip(self.parts, (k_NHK, v_NHK), strict=True):
            # A step of a decode, by far the commonest call.
            if places.even and layout.longest == 1:
                part[:, :, end - 1] = new_NHK
            elif places.even:
                new_RTHK = new_NHK.view(layout.rows, layout.longest, *new_NHK.shape[1:])
                part[:, :, end - layout.longest : end] = new_RTHK.transpose(1, 2)
            else:
                row_N, place_N = places.indices
                part[row_N, :, place_N] = new_NHK.to(part.dtype)

    def fill(self, k_NHK: Tensor, v_NHK: Tensor, layout: Layout) -> None:
        """Writes the first tokens of every row."""
        self.append(k_NHK, v_NHK, Places(layout, (0,) * layout.rows))

    def _reserve(self, needed: int, rows: int, like: Tensor) -> None:
        room = self.parts[0].shape[2] if self.parts else 0
        if self.parts and needed <= room:
            return
        # Doubling keeps the copying linear where the caller could not say how long the text will become.
        grown = max(needed, 2 * room) if self.parts else max(self.capacity, needed)
        old = self.parts
        # One query and many keys of half precision are slow on a processor: 328 µs for 8 rows of 64 keys with
        # 12 heads, where float32 took 74 (docs/lab-notes.md).
        dtype = widen(like[:0]).dtype if like.device.type == "cpu" else like.dtype
        self.parts = [
            like.new_zeros(rows, like.shape[1], grown, like.shape[2], dtype=dtype) for _ in range(2)
        ]
        self.arrays = []
        for part, before in zip(self.parts, old):
            part[:, :, :room] = before

    def make_room(self, rows: int, cells: int, filled: int) -> None:
        """Room for so many rows of so many cells, of which `filled` are worth keeping; rows that come later
        are then written in place."""
        arrays = []
        for part, array in zip(self.parts, self.arrays or self.parts, strict=True):
            # After `reorder` the rows lie in another array than the one with the room.
            if array.data_ptr() != part.data_ptr() or len(array) < rows or array.shape[2] < cells:
                array = part.new_zeros(rows, part.shape[1], cells, part.shape[3])
                array[: len(part), :, :filled] = part[:, :, :filled]
            arrays.append(array)
        self.parts = [array[: len(part)] for array, part in zip(arrays, self.parts, strict=True)]
        self.arrays = arrays

    def join(self, other: Cache, filled: int) -> None:
        """Adds the rows of another cache, of which `filled` cells are worth copying, behind its own; there is
        room for them (`make_room`)."""
        for number, (array, new) in enumerate(zip(self.arrays, other.parts, strict=True)):
            rows = len(self.parts[number])
            array[rows : rows + len(new), :, :filled] = new[:, :, :filled]
            self.parts[number] = array[: rows + len(new)]

    def pick(self, rows: Tensor, filled: int) -> Cache:
        """Chosen rows, of which `filled` cells are worth copying."""
        picked = Cache(self.capacity)
        picked.parts = [_pick_rows(part, rows, filled) for part in self.parts]
        return picked

    def keep(self, rows: int, to: Tensor, source: Tensor, filled: int) -> None:
        """The first `rows` rows go on, some of them as copies of others."""
        # Most steps of a beam search move nobody.
        if len(to):
            for part in self.parts:
                cells = part[:, :, :filled]
                # `index_select` copies before anything is written: rows may change places with each other.
                cells.index_copy_(0, to, cells.index_select(0, source))
        self.parts = [part[:rows] for part in self.parts]

    def reorder(self, rows: Tensor, filled: int, spare: Tensor | None) -> Tensor | None:
        """The same where most rows change places: they go to a spare array, and what they leave is the next
        spare one."""
        for number, part in enumerate(self.parts):
            # Allocated once: from then on, two arrays of equal size take turns.
            if spare is None or spare.shape[1:] != part.shape[1:] or len(spare) < len(rows):
                spare = torch.zeros_like(part)
            torch.index_select(part[:, :, :filled], 0, rows, out=spare[: len(rows), :, :filled])
            self.parts[number] = spare[: len(rows)]
            spare = part
        return spare

    def without(self, first: int, capacity: int) -> Cache:
        """A copy that has dropped its first cells, with room for `capacity`."""
        # Cells beyond those that are left stay zero: what nobody may see has to be finite all the same.
        copy = Cache(capacity)
        for part in self.parts:
            left = part[:, :, first:][:, :, :capacity]
            new = part.new_zeros(*part.shape[:2], capacity, part.shape[3])
            new[:, :, : left.shape[2]] = left
            copy.parts.append(new)
        return copy


def _pick_rows(part_RHCK: Tensor, rows: Tensor, filled: int) -> Tensor:
    rows = rows.to(part_RHCK.device)
    if filled == part_RHCK.shape[2]:
        return part_RHCK.index_select(0, rows)
    # What nobody may see has to be finite all the same.
    picked = part_RHCK.new_zeros(len(rows), *part_RHCK.shape[1:])
    picked[:, :, :filled] = part_RHCK[:, :, :filled].index_select(0, rows)
    return picked


def _move(caches: Sequence[Cache], rows: Tensor, moved: Sequence[int], filled: int) -> None:
    to = torch.tensor(moved, dtype=torch.long, device=rows.device)
    for cache in caches:
        cache.keep(len(rows), to, rows[to], filled)


Mark = tuple[Any, ...]
"""Lengths, window, and whatever else a state needs to come back."""


class KeyValueState:
    """The caches of a decoder's layers; `cross` holds the encoder's keys, projected once, `window` what a
    pointer sees."""

    def __init__(self, layers: int, rows: int, capacity: int = 0) -> None:
        self.lengths: tuple[int, ...] = (0,) * rows
        self.self_caches = [Cache(capacity) for _ in range(layers)]
        self.cross_caches = [Cache() for _ in range(layers)]
        self.cross_lengths: tuple[int, ...] = ()
        self.sources: tuple[int, ...] = tuple(range(rows))
        """The row of the cross caches that each row looks at: neighbours may share one, equally many of
        them."""
        self.spare: Tensor | None = None
        self.window: PointerWindow | None = None

    @property
    def empty(self) -> bool:
        return not any(self.lengths)

    @property
    def filled_cells(self) -> int:
        """How much of the caches is worth copying."""
        return max(self.lengths, default=0)

    def places(self, layout: Layout) -> Places:
        """Where new tokens go."""
        return Places(layout, self.lengths)

    def view(self, rule: Rule, batch: Batch) -> FlatView | CachedView:
        """What new tokens see of their rows."""
        return flat_view(rule, batch) if self.empty else cached_view(rule, batch, self.lengths)

    def cross_view(self, batch: Batch, memory: Batch) -> FlatView | CachedView:
        """What they see of an encoder's rows."""
        if memory.hidden_keys is not None:
            raise ValueError("a running decode needs a memory without hidden keys: encode ragged rows")
        if not self.cross_lengths:
            # A source does not grow while a text is decoded: its lengths are those of the first call.
            self.cross_lengths = memory.layout.lengths
        return cached_view(FullRule(), batch, self.cross_lengths, fixed=True)

    def advance(self, layout: Layout) -> None:
        self.lengths = tuple(old + new for old, new in zip(self.lengths, layout.lengths, strict=True))

    def mark(self) -> Mark:
        """Where the rows are, to come back to."""
        return self.lengths, copy(self.window)

    def rewind(self, mark: Mark) -> None:
        """Back to a mark: what came after it is written over, and nothing is copied."""
        self.lengths, self.window = mark[0], copy(mark[1])

    def select(self, rows: Tensor) -> KeyValueState:
        """The given rows, in that order (beams reorder, finished rows leave)."""
        chosen = copy(self)
        chosen.spare = None
        chosen.self_caches = [cache.pick(rows, self.filled_cells) for cache in self.self_caches]
        # The arrays of an encoder are the largest of a decode: rows of one source share them while they can.
        chosen.cross_caches = self._picked_cross(self._cross_rows(rows))
        chosen._rows_of(self, rows)
        return chosen

    def keep(self, rows: Tensor) -> None:
        """The same in place, for at most as many rows as there are: only rows that change places are
        copied."""
        order = rows.tolist()
        # Most beams stay where they are: copying only those that move saves most of the traffic.
        moved = [place for place, row in enumerate(order) if place != row]
        # Gradients cannot go through an array that is written over and over.
        if 2 * len(moved) > len(order) and not torch.is_grad_enabled():
            for cache in self.self_caches:
                self.spare = cache.reorder(rows, self.filled_cells, self.spare)
        else:
            _move(self.self_caches, rows, moved, self.filled_cells)
        cross = self._cross_rows(rows)
        if len(cross) > len(self.cross_lengths):  # neighbours have parted: to each its own
            self.cross_caches = self._picked_cross(cross)
        else:
            moved = [place for place, row in enumerate(cross.tolist()) if place != row]
            _move(self.cross_caches, cross, moved, max(self.cross_lengths, default=0))
        self._rows_of(self, rows)

    def can_join(self, other: Any) -> bool:
        """Whether the rows of another decode of the same model may go on beside these."""
        return True

    def make_room(self, rows: int, cells: int) -> None:
        """Arrays of its own tokens for `rows` rows of `cells` cells, where they are smaller: others may then
        join without copying these again."""
        for cache in self.self_caches:
            cache.make_room(rows, max(cells, self.filled_cells), self.filled_cells)

    def join(self, other: Any, rows: int, cells: int) -> None:
        """Adds the rows of another decode behind its own, and makes room for `rows` rows of `cells` cells."""
        rows = max(rows, len(self.lengths) + len(other.lengths))
        self.make_room(rows, max(cells, other.filled_cells))
        for mine, new in zip(self.self_caches, other.self_caches, strict=True):
            mine.join(new, other.filled_cells)
        if self.cross_lengths:
            for each in (self, other):
                each._part_sources()
            filled = max(other.cross_lengths)
            for mine, new in zip(self.cross_caches, other.cross_caches, strict=True):
                mine.make_room(rows, max(*self.cross_lengths, filled), max(self.cross_lengths))
                mine.join(new, filled)
            self.cross_lengths += other.cross_lengths
        self.lengths += other.lengths
        self.sources = tuple(range(len(self.lengths)))
        self.spare = None
        if self.window is not None:
            self.window.join(other.window)

    def _part_sources(self) -> None:
        """To each row its own row of the cross caches."""
        if len(self.cross_lengths) < len(self.lengths):
            self.cross_caches = self._picked_cross(torch.tensor(self.sources))
            self.cross_lengths = tuple(self.cross_lengths[row] for row in self.sources)
            self.sources = tuple(range(len(self.lengths)))

    def _picked_cross(self, rows: Tensor) -> list[Cache]:
        return [cache.pick(rows, max(self.cross_lengths, default=0)) for cache in self.cross_caches]

    def _cross_rows(self, rows: Tensor) -> Tensor:
        """The rows of the cross caches for chosen rows: one for all neighbours that look at the same, if
        they are equally many."""
        wanted = [self.sources[row] for row in rows.tolist()]
        distinct = [row for row, before in zip(wanted, [-1, *wanted]) if row != before]
        # Attention reads shared rows as one row of `share` times as many queries, so that all have to have as
        # many.
        share = len(wanted) // max(1, len(distinct))
        if [row for row in distinct for _ in range(share)] == wanted:
            wanted = distinct
        return torch.tensor(wanted, dtype=torch.long, device=rows.device)

    def _rows_of(self, other: KeyValueState, rows: Tensor) -> None:
        # Lengths are on the host, where views are made without waiting for a device.
        order, cross = rows.tolist(), other._cross_rows(rows).tolist()
        self.lengths = tuple(other.lengths[row] for row in order)
        self.cross_lengths = tuple(other.cross_lengths[row] for row in cross) if other.cross_lengths else ()
        self.sources = tuple(place * len(cross) // len(order) for place in range(len(order)))
        self.window = None if other.window is None else other.window.select(rows)

    # Cells beyond a row's length are overwritten by the next tokens, and masked until then.
    def crop(self, lengths: Sequence[int]) -> None:
        """Every row forgets what lies beyond its length; nothing is copied."""
        dropped = [old - new for old, new in zip(self.lengths, lengths, strict=True)]
        if min(dropped, default=0) < 0 or min(lengths, default=0) < 0:
            raise ValueError(f"rows of {self.lengths} tokens cannot be cropped to {tuple(lengths)}")
        self.lengths = tuple(lengths)
        if self.window is not None and self.window.new:
            if any(lengths):
                self.window.crop(dropped)
            else:
                self.window = PointerWindow(self.window.reach)

    def fork(self, copies: int) -> KeyValueState:
        """Every row repeated `copies` times, side by side (beams, shared prefixes)."""
        return self.select(torch.arange(len(self.lengths)).repeat_interleave(copies))
