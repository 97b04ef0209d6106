"""What a model reads: flat columns with one entry a token, and the lengths of the rows.

Tokens of all rows lie end to end on one flat axis. Hidden states are `[tokens, dim]`, so that no matrix
product multiplies padding. Only attention needs rows side by side: it works on a few groups of rows of
similar length (see `visibility`), padded to `[row, time]` and unpadded again by their layout.

Legend: N tokens, R rows, T longest row of a group, U distinct words, C characters of a word.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Letters:
    """Every distinct word of a batch by its letters, `[U, C]`, and the word of every token: as rows are
    read from their beginning, and as they are read from their end."""

    letters_UC: Tensor
    ahead_N: Tensor
    back_N: Tensor

    def to(self, device: torch.device | str) -> Letters:
        return Letters(*(part.to(device) for part in (self.letters_UC, self.ahead_N, self.back_N)))


@dataclass
class Batch:
    """Tokens of several rows, end to end.

    `positions` count from 0 (a family adds its own offset). `hidden_keys` marks tokens that nobody may see,
    such as padding in a rectangle that came from elsewhere. `prefix` is, for every token, the length of its
    row's prefix, which is read in both directions; what follows it is read from left to right.
    """

    ids: Tensor
    layout: Layout
    positions: Tensor
    segments: Tensor | None = None
    prefix: Tensor | None = None
    hidden_keys: Tensor | None = None
    letters: Letters | None = None
    """For models that read words by their letters; if None, the model spells the ids itself."""
    order: Tensor | None = None
    """For models that factorise a text in any order: a token sees those of its own number and of smaller
    ones."""
    backward: int | None = None
    """For models that count distances: so many rows, the last ones, are texts that were turned round. None:
    as the model's shape says."""
    seen_until: Tensor | None = None
    """For rows that are trees, depth first: the place in its row from which on nobody sees a token, which is
    where its branch ends. Only for causal layers that see everything before."""
    last_position: int = 0
    counted: bool = True
    """Positions are 0, 1, 2, ... in every row."""
    views: dict[Any, Any] = field(default_factory=dict, repr=False)
    """Compiled visibility by rule: made once a batch, whatever the number of layers."""

    @property
    def device(self) -> torch.device:
        return self.ids.device

    @staticmethod
    def of(
        rows: Sequence[Sequence[int] | np.ndarray],
        *,
        segments: Sequence[Sequence[int] | np.ndarray] | None = None,
        starts: Sequence[int] | None = None,
        prefix: Sequence[int] | None = None,
        device: torch.device | str = "cpu",
    ) -> Batch:
        """Rows of ids of any lengths; `starts` are the positions of the rows' first tokens (default 0),
        `prefix` the lengths of their prefixes."""
        layout = Layout([len(row) for row in rows], device)
        positions, begins = layout.index, [0] * len(rows)
        if starts is not None:
            begins = list(starts)
            positions = positions + torch.tensor(begins, device=device)[layout.row]
        # A prefix of one token sees what it would see anyway: no column, and attention keeps its fast path.
        prefixes = torch.tensor(list(prefix), device=device) if prefix and max(prefix) > 1 else None
        return Batch(
            ids=_flat(rows, device),
            layout=layout,
            positions=positions,
            segments=None if segments is None else _flat(segments, device),
            prefix=None if prefixes is None else prefixes[layout.row],
            # Known on the host: comparing it with the table of positions waits for no device.
            last_position=max((b + n - 1 for b, n in zip(begins, layout.lengths, strict=True)), default=0),
            counted=not any(begins),
        )

    @staticmethod
    def of_rectangle(
        ids_RT: Tensor,
        mask_RT: Tensor | None = None,
        *,
        segments_RT: Tensor | None = None,
        positions_RT: Tensor | None = None,
    ) -> Batch:
        """A padded rectangle, every cell kept: masked cells are computed and never seen.

        Useful where each cell has to equal another library's. `Batch.of` is the way that wastes nothing.
        """
        rows, length = ids_RT.shape
        layout = Layout([length] * rows, ids_RT.device)
        positions = layout.index if positions_RT is None else positions_RT.expand(rows, length).reshape(-1)
        # A mask that hides nothing would only cost attention its fast path.
        hidden = None if mask_RT is None or bool(mask_RT.all()) else ~mask_RT.bool().reshape(-1)
        return Batch(
            ids=ids_RT.reshape(-1),
            layout=layout,
            positions=positions,
            segments=None if segments_RT is None else segments_RT.reshape(-1),
            hidden_keys=hidden,
            last_position=int(positions.max()) if positions_RT is not None else length - 1,
            counted=positions_RT is None,
        )

    def to(self, device: torch.device | str) -> Batch:
        moved = {
            name: value.to(device)
            # Whatever has an entry a token.
            for name in (
                "ids",
                "positions",
                "segments",
                "prefix",
                "hidden_keys",
                "letters",
                "order",
                "seen_until",
            )
            if (value := getattr(self, name)) is not None
        }
        # Views hold tensors of the old device, and are compiled anew.
        return replace(self, layout=self.layout.to(device), views={}, **moved)


@dataclass(frozen=True)
class QueryPositions:
    """Places of a batch that are predicted, by their flat index in order, and how many of them every row
    has."""

    at: Tensor
    counts: Sequence[int]


def _flat(rows: Sequence[Sequence[int] | np.ndarray], device: torch.device | str) -> Tensor:
    if not len(rows):
        return torch.zeros(0, dtype=torch.long, device=device)
    ids = np.concatenate([np.asarray(row, dtype=np.int64) for row in rows])
    return torch.from_numpy(ids).to(device)


class Layout:
    """Where each row's tokens lie on the flat axis. Lengths are known on the host: no device sync is ever
    needed.

    Tokens are padded to `[R, T]` and unpadded again; a plain view when rows are equal.
    """

    is_padded = False
    """Whether rows have padding, and sizes may be symbols (`nn/padded.py`)."""

    def __init__(self, lengths: Sequence[int], device: torch.device | str = "cpu") -> None:
        self.lengths = tuple(int(length) for length in lengths)
        self.device = torch.device(device)
        self.rows = len(self.lengths)
        self.tokens = sum(self.lengths)
        self.longest = max(self.lengths, default=0)
        # Rows of one length are padded and unpadded by a view, without an index.
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
        indices = [start + row for start, row in zip(self.host_starts, places, strict=True)]
        return torch.from_numpy(np.concatenate(indices).astype(np.int64)).to(self.device)

    def mean(self, flat: Tensor) -> Tensor:
        """The mean of every row's tokens, `[R, ...]`."""
        # The mean of an empty row is 0 and not NaN.
        counts = torch.tensor(self.lengths, device=self.device).clamp(min=1)
        sums = flat.new_zeros(self.rows, *flat.shape[1:]).index_add(0, self.row, flat)
        return sums / counts.view(-1, *([1] * (flat.dim() - 1)))

    def to(self, device: torch.device | str) -> Layout:
        return self if torch.device(device) == self.device else Layout(self.lengths, device)

    @cached_property
    def _indices(self) -> tuple[Tensor, Tensor, Tensor]:
        """For every cell of the padded rectangle its token, for every token its cell, and the blank cells."""
        lengths, starts, time = np.asarray(self.lengths), self.host_starts, np.arange(self.longest)
        real = time < lengths[:, None]
        # A blank cell repeats its row's first token: any finite value does, since no mask lets it be seen.
        tokens = np.where(real, starts[:, None] + time, starts[:, None]).ravel()
        tokens = tokens.clip(max=max(0, self.tokens - 1))  # the last row may be empty
        cells, blanks = np.flatnonzero(real), np.flatnonzero(~real)
        token_of_cell, cell_of_token, blank_cells = (
            torch.from_numpy(part.astype(np.int64)).to(self.device) for part in (tokens, cells, blanks)
        )
        return token_of_cell, cell_of_token, blank_cells

    @cached_property
    def real(self) -> Tensor:
        """Which cells of `[R, T]` hold a token."""
        lengths = torch.tensor(self.lengths, device=self.device)
        return torch.arange(self.longest, device=self.device) < lengths[:, None]

    def pad(self, flat: Tensor) -> Tensor:
        """Flat tokens `[N, ...]` as rows side by side, `[R, T, ...]`."""
        # Rows of one length are such a rectangle already: nothing is copied.
        if not self.equal:
            token_of_cell, cell_of_token, _ = self._indices
            flat = _Gather.apply(flat, token_of_cell, cell_of_token, None)
        return flat.reshape(self.rows, self.longest, *flat.shape[1:])

    def unpad(self, padded: Tensor) -> Tensor:
        """Rows side by side `[R, T, ...]` as flat tokens, `[N, ...]`; blank cells get no gradient."""
        flat = padded.reshape(self.rows * self.longest, *padded.shape[2:])
        if not self.equal:
            token_of_cell, cell_of_token, blank_cells = self._indices
            flat = _Gather.apply(flat, cell_of_token, token_of_cell, blank_cells)
        return flat


class _Gather(torch.autograd.Function):
    """Rows of a flat tensor by an index whose inverse is known, so that the gradient is a gather as well.

    (The generic backward of an index is a scatter-add: slower, and not deterministic on every device.)
    """

    @staticmethod
    def forward(ctx: Any, flat: Tensor, index: Tensor, inverse: Tensor, blank: Tensor | None) -> Tensor:
        ctx.save_for_backward(inverse, blank)
        return flat.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        inverse, blank = ctx.saved_tensors
        # Every token has one place: a gather by the inverse is the whole sum.
        unpadded = gradient.contiguous().index_select(0, inverse)
        if blank is not None:
            # Blank cells repeat a token, whose gradient they must not get.
            unpadded.index_fill_(0, blank, 0)
        return unpadded, None, None, None


def permute(flat: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
    """The tokens in another order."""
    return _Gather.apply(flat, order, inverse, None)


def token_order(layout: Layout, order: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """The flat index that brings rows into `order`, and its inverse."""
    lengths, starts = np.asarray(layout.lengths)[list(order)], layout.host_starts[list(order)]
    # How far every token of a row moves.
    shifts = np.repeat(starts - np.concatenate([[0], np.cumsum(lengths)])[:-1], lengths)
    forward = torch.from_numpy(np.arange(layout.tokens) + shifts).to(layout.device)
    return forward, torch.argsort(forward)
