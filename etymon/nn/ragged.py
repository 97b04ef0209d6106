"""Ragged rows without padding: tokens of all rows lie end to end on one flat axis.

Hidden states are `[tokens, dim]`, so no matrix product ever multiplies padding. Only attention needs rows
side by side; it works on a few groups of rows of similar length (see `visibility`), lifted to `[row, time]`
and lowered again by their layout.

Legend: N tokens, R rows, T longest row of a group.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor


class Layout:
    """Where each row's tokens lie on the flat axis. Lengths are known on the host: no device sync is ever needed.

    Tokens are lifted to `[R, T]` and lowered again; a plain view when rows are equal.
    """

    def __init__(self, lengths: Sequence[int], device: torch.device | str = "cpu") -> None:
        self.lengths = tuple(int(length) for length in lengths)
        self.device = torch.device(device)
        self.rows = len(self.lengths)
        self.tokens = sum(self.lengths)
        self.longest = max(self.lengths, default=0)
        self.equal = len(set(self.lengths)) <= 1

    @cached_property
    def host_starts(self) -> np.ndarray:
        """The flat index of every row's first token, `[R]`."""
        return np.concatenate([[0], np.cumsum(self.lengths)])[:-1].astype(np.int64)

    @cached_property
    def first(self) -> Tensor:
        """The flat index of every row's first token, on the device."""
        return torch.from_numpy(self.host_starts).to(self.device)

    @cached_property
    def last(self) -> Tensor:
        """The flat index of every row's last token, on the device."""
        return self.first + torch.tensor(self.lengths, device=self.device) - 1

    @cached_property
    def row(self) -> Tensor:
        """The row of every token, `[N]`."""
        return torch.from_numpy(np.repeat(np.arange(self.rows), self.lengths)).to(self.device)

    @cached_property
    def index(self) -> Tensor:
        """The place of every token within its row, `[N]`."""
        return torch.arange(self.tokens, device=self.device) - self.first[self.row]

    def flat(self, places: Sequence[np.ndarray]) -> Tensor:
        """Places in every row as flat indices, row after row."""
        found = [start + row for start, row in zip(self.host_starts, places, strict=True)]
        return torch.from_numpy(np.concatenate(found).astype(np.int64)).to(self.device)

    def mean(self, flat: Tensor) -> Tensor:
        """The mean of every row's tokens, `[R, ...]`."""
        counts = torch.tensor(self.lengths, device=self.device).clamp(min=1)
        sums = flat.new_zeros(self.rows, *flat.shape[1:]).index_add(0, self.row, flat)
        return sums / counts.view(-1, *([1] * (flat.dim() - 1)))

    def to(self, device: torch.device | str) -> Layout:
        return self if torch.device(device) == self.device else Layout(self.lengths, device)

    @cached_property
    def _indices(self) -> tuple[Tensor, Tensor, Tensor]:
        lengths, starts, time = np.asarray(self.lengths), self.host_starts, np.arange(self.longest)
        real = time < lengths[:, None]
        # A blank cell repeats its row's first token: any finite value does, since no mask lets it be seen.
        lift = np.where(real, starts[:, None] + time, starts[:, None]).ravel()
        lift = lift.clip(max=max(0, self.tokens - 1))  # the last row may be empty
        lower, blank = np.flatnonzero(real), np.flatnonzero(~real)
        lift_index, lower_index, blank_index = (
            torch.from_numpy(part.astype(np.int64)).to(self.device) for part in (lift, lower, blank)
        )
        return lift_index, lower_index, blank_index

    @cached_property
    def real(self) -> Tensor:
        """Which cells of `[R, T]` hold a token."""
        lengths = torch.tensor(self.lengths, device=self.device)
        return torch.arange(self.longest, device=self.device) < lengths[:, None]

    def lift(self, flat: Tensor) -> Tensor:
        """`[n, ...]` to `[R, T, ...]`."""
        if not self.equal:
            lift, lower, _ = self._indices
            flat = _Gather.apply(flat, lift, lower, None)
        return flat.reshape(self.rows, self.longest, *flat.shape[1:])

    def lower(self, padded: Tensor) -> Tensor:
        """`[R, T, ...]` to `[n, ...]`; blank cells are dropped and receive no gradient."""
        flat = padded.reshape(self.rows * self.longest, *padded.shape[2:])
        if not self.equal:
            lift, lower, blank = self._indices
            flat = _Gather.apply(flat, lower, lift, blank)
        return flat


class _Gather(torch.autograd.Function):
    """Rows of a flat tensor by an index whose inverse is known, so that the gradient is a gather as well.

    (The generic backward of an index is a scatter-add: slower, and not deterministic on every device.)
    """

    @staticmethod
    def forward(ctx, flat: Tensor, index: Tensor, inverse: Tensor, blank: Tensor | None) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(inverse, blank)
        return flat.index_select(0, index)

    @staticmethod
    def backward(ctx, gradient: Tensor):  # type: ignore[no-untyped-def]
        inverse, blank = ctx.saved_tensors
        lowered = gradient.contiguous().index_select(0, inverse)
        if blank is not None:
            lowered.index_fill_(0, blank, 0)
        return lowered, None, None, None


def permute(flat: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
    """The tokens in another order."""
    return _Gather.apply(flat, order, inverse, None)


def token_order(layout: Layout, order: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """The flat index that brings rows into `order`, and its inverse."""
    lengths, starts = np.asarray(layout.lengths)[list(order)], layout.host_starts[list(order)]
    shifts = np.repeat(starts - np.concatenate([[0], np.cumsum(lengths)])[:-1], lengths)
    forward = torch.from_numpy(np.arange(layout.tokens) + shifts).to(layout.device)
    return forward, torch.argsort(forward)
