"""What a pointer sees of the past: hidden states and ids of the last tokens of every row.

Legend: N new tokens, R rows, D width, T most new tokens of a row, M places of a window.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from etymon.nn.batch import Layout

SPARE = 16
"""Tokens before the last call that a window can be cropped by."""


class PointerWindow:
    """Hidden states and ids of every row's tokens: those of the last call, behind the `reach` before them
    (-1: no token)."""

    def __init__(self, reach: int) -> None:
        self.reach = reach
        self.new: tuple[int, ...] = ()
        """How many tokens the last call brought, by row."""
        self._hidden_RMD = self._ids_RM = torch.empty(0, SPARE)

    @property
    def hidden_RMD(self) -> Tensor:
        return self._hidden_RMD[:, SPARE:]

    @property
    def ids_RM(self) -> Tensor:
        return self._ids_RM[:, SPARE:]

    def append(self, hidden_ND: Tensor, ids_N: Tensor, layout: Layout) -> None:
        before = self.reach + SPARE
        if not self.new:
            before_RMD = hidden_ND.new_zeros(layout.rows, before, hidden_ND.shape[1])
            before_RM = ids_N.new_full((layout.rows, before), -1)
        else:
            before_RMD, before_RM = self._latest()
        # -1 is no word: blank cells behind short rows can never be copied.
        new_RT = layout.pad(ids_N).masked_fill(~layout.real, -1)
        self._hidden_RMD = torch.cat([before_RMD, layout.pad(hidden_ND)], 1)
        self._ids_RM = torch.cat([before_RM, new_RT], 1)
        self.new = layout.lengths

    def crop(self, dropped: Sequence[int]) -> None:
        # Nothing moves: the next call looks further back by as many columns.
        self.new = tuple(new - drop for new, drop in zip(self.new, dropped, strict=True))
        if min(self.new, default=0) < -SPARE:
            raise ValueError(f"a window can be cropped by {SPARE} tokens before the last call")

    def join(self, other: PointerWindow) -> None:
        """Adds the rows of another window behind its own."""
        mine, theirs = self._latest(), other._latest()
        self._hidden_RMD, self._ids_RM = (torch.cat(pair) for pair in zip(mine, theirs, strict=True))
        self.new = (0,) * len(self._ids_RM)

    def _latest(self) -> tuple[Tensor, Tensor]:
        """What the next call looks back at: hidden states and ids `[R, reach + SPARE, ...]`."""
        device = self._ids_RM.device
        columns = torch.tensor(self.new, device=device)[:, None]
        columns = columns + torch.arange(self.reach + SPARE, device=device)
        # Behind a crop the oldest cells are none: they are spare ones, which nobody looks at.
        places = torch.arange(len(columns), device=device)[:, None], columns.clamp(min=0)
        return self._hidden_RMD[places], self._ids_RM[places]

    def select(self, rows: Tensor) -> PointerWindow:
        other = PointerWindow(self.reach)
        if self.new:
            other._hidden_RMD, other._ids_RM = self._hidden_RMD[rows], self._ids_RM[rows]
            other.new = tuple(self.new[row] for row in rows.tolist())
        return other
