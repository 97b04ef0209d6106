"""What streams of text and long decodes remember (Transformer-XL, section 3.2).

Training and scoring carry a `SegmentMemory`, every layer's inputs of the last tokens: keys and values are
made of them anew, with gradients for the maps that make them and none for what was read before. Decoding
carries a `SlidingState`, the keys and values themselves. A segment, and a decode's prompt, see `length`
tokens behind their first one; what a decode goes on with sees as many behind itself, token by token,
however many come in a call.

Legend: D width, R rows, Q longest row of a segment, M remembered tokens, H heads, L distances, K head width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from etymon.nn.batch import Layout
from etymon.nn.cache import KeyValueState, Mark
from etymon.nn.relative import DistanceSinusoids

SPARE = 64
"""Tokens beyond its reach that a decode keeps, so that it can be cropped by as many."""


class SegmentMemory:
    """Every layer's inputs of the last `length` tokens of each row, `[R, M, D]` a layer, the newest last.

    `lengths` says how many of them there are, by row. Rows begin with none, or `filled` with zeros that are
    seen: the published PyTorch and TensorFlow codes differ in that.
    """

    def __init__(self, layers: int, rows: int, length: int, *, filled: Tensor | None = None) -> None:
        self.length, self.filled = length, filled
        self.lengths: tuple[int, ...] = (0 if filled is None else length,) * rows
        # A memory of zeros is attended to and dilutes the softmax: part of what such models were trained on.
        blank = None if filled is None or not length else filled.new_zeros(rows, length, filled.shape[-1])
        self.layers: list[Tensor | None] = [blank] * layers

    @property
    def width(self) -> int:
        """M, the largest number of tokens that a row remembers."""
        return 0 if self.layers[0] is None else self.layers[0].shape[1]

    def missing(self, device: torch.device) -> Tensor | None:
        """Which of the cells hold no token, `[R, M]`; None if all do."""
        if min(self.lengths, default=0) == self.width:
            return None
        lengths_R1 = torch.tensor(self.lengths, device=device)[:, None]
        return torch.arange(self.width, device=device) < self.width - lengths_R1

    def extend(self, inputs: Sequence[Tensor], lengths: Sequence[int]) -> None:
        """Adds a segment: every layer's inputs `[R, Q, D]`, of which `lengths` are real. They are
        detached."""
        totals = [old + new for old, new in zip(self.lengths, lengths, strict=True)]
        kept = min(self.length, max(totals, default=0))
        self.lengths = tuple(min(self.length, total) for total in totals)
        if kept:
            self.layers = [
                _latest(past, x_RQD.detach(), lengths, kept)
                for past, x_RQD in zip(self.layers, inputs, strict=True)
            ]

    def forget(self, rows: Sequence[int]) -> None:
        """Starts these rows anew."""
        begin = 0 if self.filled is None else self.length
        self.lengths = tuple(begin if row in rows else old for row, old in enumerate(self.lengths))
        if self.filled is not None and self.layers[0] is not None:
            # A product and no assignment: other states may share these tensors.
            kept = torch.tensor([[[float(row not in rows)]] for row in range(len(self.lengths))])
            self.layers = [None if part is None else part * kept.to(part) for part in self.layers]

    def select(self, rows: Tensor) -> SegmentMemory:
        chosen = SegmentMemory(len(self.layers), 0, self.length, filled=self.filled)
        chosen.lengths = tuple(self.lengths[row] for row in rows.tolist())
        chosen.layers = [
            None if part is None else part.index_select(0, rows.to(part.device)) for part in self.layers
        ]
        return chosen

    def tensors(self) -> dict[str, Tensor]:
        return {
            f"memory.{layer}": part.contiguous() for layer, part in enumerate(self.layers) if part is not None
        }

    def load(self, tensors: Mapping[str, Tensor], lengths: Sequence[int]) -> None:
        """The inverse of `tensors` and `lengths`."""
        self.layers = [tensors.get(f"memory.{layer}") for layer in range(len(self.layers))]
        self.lengths = tuple(int(length) for length in lengths)
        # A checkpoint may have been written with a longer memory: the newest tokens are kept.
        if self.width > self.length:
            self.layers = [None if part is None else part[:, -self.length :] for part in self.layers]
            self.lengths = tuple(min(self.length, length) for length in self.lengths)
        # Or with a shorter one: zeros that are seen stand for what is older, as before the first token.
        elif self.filled is not None and self.width < self.length:
            older = (0, 0, self.length - self.width, 0)
            self.layers = [None if part is None else F.pad(part, older) for part in self.layers]
            self.lengths = (self.length,) * len(self.lengths)


def _latest(past_RMD: Tensor | None, x_RQD: Tensor, lengths: Sequence[int], kept: int) -> Tensor:
    """The last `kept` tokens of every row, of those remembered and those of a segment."""
    equal = len(set(lengths)) <= 1
    if equal and x_RQD.shape[1] >= kept:
        return x_RQD[:, -kept:]
    whole = x_RQD if past_RMD is None else torch.cat([past_RMD, x_RQD], 1)
    if equal:
        return whole[:, -kept:]
    ends = torch.tensor(lengths, device=x_RQD.device)[:, None] + (whole.shape[1] - x_RQD.shape[1])
    # Cells before a row's first token may hold anything: `missing` hides them.
    index = (ends - kept + torch.arange(kept, device=x_RQD.device)).clamp_(min=0)
    return whole.gather(1, index[..., None].expand(-1, -1, whole.shape[-1]))


class SlidingState(KeyValueState):
    """The keys and values of a decode that sees `reach` tokens back (0: all) and drops older ones now and
    then.

    Cell 0 of the caches holds token `dropped` of every row; with a start `filled` with zeros that number is
    negative at first. The distances through their maps are computed once and kept as well.
    """

    def __init__(self, layers: int, rows: int, capacity: int, reach: int, *, filled: bool) -> None:
        super().__init__(layers, rows, min(capacity, 2 * (reach + SPARE)) if reach else capacity)
        self.reach, self.filled = reach, filled
        self.dropped = -reach if filled else 0
        self.reading = False
        """This call is the first one, which reads the prompts in segments."""
        self.tables: list[Tensor | None] = [None] * layers

    @property
    def cached_lengths(self) -> tuple[int, ...]:
        return tuple(length - self.dropped for length in self.lengths)

    @property
    def filled_cells(self) -> int:
        return max(self.cached_lengths, default=0)

    def advance(self, layout: Layout) -> None:
        super().advance(layout)
        # The shortest row decides: all rows drop as many cells, so that one number describes them.
        least, needed = min(self.cached_lengths, default=0), self.reach + SPARE
        if not self.reach or least <= 2 * needed:  # dropping costs a copy: only every `needed` tokens
            return
        # Into new arrays: a mark may still refer to the old ones.
        self.dropped += least - needed
        room = max(2 * needed, self.filled_cells) + 1
        self.self_caches = [cache.without(least - needed, room) for cache in self.self_caches]

    def crop(self, lengths: Sequence[int]) -> None:
        if not any(lengths):
            self.dropped = -self.reach if self.filled else 0
        elif any(length - self.dropped < min(length, self.reach) for length in lengths):
            raise ValueError(f"a decode that drops what is out of reach can be cropped by {SPARE} tokens")
        super().crop(lengths)

    def can_join(self, other: Any) -> bool:
        # One number describes all rows: those that have dropped others cannot go on beside these.
        return self.dropped == other.dropped

    def mark(self) -> Mark:
        return (*super().mark(), self.dropped, self.self_caches)

    def rewind(self, mark: Mark) -> None:
        # Caches were replaced only if something was dropped since.
        super().rewind(mark[:2])
        if self.dropped != mark[2]:
            self.dropped, self.self_caches = mark[2:]

    def table(
        self, layer: int, attention: Any, sinusoids: DistanceSinusoids, needed: int, like: Tensor
    ) -> Tensor:
        """The distances `needed - 2`, ..., 0, -1 through a layer's map, `[H, L, K]`."""
        table_HLK = self.tables[layer]
        if table_HLK is None or table_HLK.shape[1] < needed:
            size = needed if table_HLK is None else max(needed, 2 * table_HLK.shape[1])
            distances = torch.arange(size - 2, -2, -1, device=like.device)
            table_HLK = attention.distances(sinusoids(distances).to(like.dtype))
            # A new list: states that were selected from this one share the old.
            self.tables = [table_HLK if at == layer else old for at, old in enumerate(self.tables)]
        return table_HLK[:, -needed:]
