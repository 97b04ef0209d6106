"""What a call is fed: arguments that are ticked off as they are used, and texts in both layouts.

Legend: B rows, N cells of the rectangle, D width.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from etymon.nn.batch import Batch

# They ask what to return, and a case's outputs say that already.
NEUTRAL = {"output_hidden_states", "output_attentions", "use_cache", "return_dict"}


class Arguments(dict[str, Any]):
    """The arguments of a call, with a note of those that nobody has taken."""

    def __init__(self, values: dict[str, Any]) -> None:
        super().__init__(values)
        self.untouched = set(values) - NEUTRAL

    def take(self, name: str) -> Any:
        self.untouched.discard(name)
        return self.get(name)


class Text:
    """Padded rows of ids in both layouts. Leading axes (choices) are flattened into rows."""

    def __init__(
        self,
        ids: Tensor,
        mask: Tensor | None,
        segments: Tensor | None = None,
        positions: Tensor | None = None,
        count_hidden: bool = True,
    ) -> None:
        self.leading = ids.shape[:-1]
        self.ids, self.mask, self.segments = (as_rows(column) for column in (ids, mask, segments))
        self.positions = None if positions is None else as_rows(positions).expand(self.ids.shape)
        whole = torch.ones_like(self.ids) if self.mask is None else self.mask
        self.real = whole.bool()
        self.count_hidden = count_hidden

    @property
    def rectangle(self) -> Batch:
        return Batch.of_rectangle(self.ids, self.mask, segments_RT=self.segments, positions_RT=self.positions)

    @property
    def ragged(self) -> Batch:
        def rows(column: Tensor) -> list[list[int]]:
            return [row[real].tolist() for row, real in zip(column, self.real, strict=True)]

        counted = torch.ones_like(self.ids) if self.count_hidden else self.real.long()
        places = counted.cumsum(1) - 1
        positions = rows(places if self.positions is None else self.positions)
        segments = None if self.segments is None else rows(self.segments)
        starts = [row[0] if row else 0 for row in positions]
        batch = Batch.of(rows(self.ids), segments=segments, starts=starts)
        if all(row == list(range(start, start + len(row))) for row, start in zip(positions, starts)):
            return batch
        flat = torch.tensor([position for row in positions for position in row])
        return replace(batch, positions=flat, last_position=int(flat.max()), counted=False)

    def shaped(self, x_ND: Tensor) -> Tensor:
        """Flat cells as the reference shapes them."""
        return x_ND.view(*self.leading, self.ids.shape[1], *x_ND.shape[1:])

    def flat_index(self, place_B: Tensor) -> Tensor:
        """The flat index of one place a row."""
        return torch.arange(len(self.ids)) * self.ids.shape[1] + place_B.reshape(-1)

    def last_where(self, wanted: Tensor) -> Tensor:
        """The flat index of the last cell of each row that is wanted (its first cell if none is)."""
        return self.flat_index((torch.arange(self.ids.shape[1]) * wanted).argmax(-1))


def as_rows(column: Tensor | None) -> Any:
    """Leading axes flattened into one."""
    return None if column is None else column.reshape(-1, column.shape[-1])
