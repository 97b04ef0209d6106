"""What a model reads: flat columns with one entry a token, and the lengths of the rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from etymon.nn.ragged import Layout


@dataclass(frozen=True)
class Letters:
    """Every distinct word of a batch by its letters, `[words, characters]`, and which of them every token is: as rows are read
    from their beginning, and as they are read from their end."""

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
    row's prefix, which causal layers read in both directions.
    """

    ids: Tensor
    layout: Layout
    positions: Tensor
    segments: Tensor | None = None
    prefix: Tensor | None = None
    hidden_keys: Tensor | None = None
    letters: Letters | None = None
    """For models that read words by their letters; a model spells the ids itself if nobody did."""
    order: Tensor | None = None
    """For models that factorise a text in any order: a token sees those of its own number and of smaller ones."""
    backward: int | None = None
    """For models that count distances: so many rows, the last ones, are texts that were turned round. None: as it is custom."""
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
        """Rows of ids of any lengths; `starts` are the positions of the rows' first tokens (0 unless told), `prefix` the
        lengths of their prefixes."""
        layout = Layout([len(row) for row in rows], device)
        positions = layout.index
        if starts is not None:
            positions = positions + torch.tensor(list(starts), device=device)[layout.row]
        begins = list(starts) if starts is not None else [0] * len(rows)
        # A prefix of one token sees what it would see anyway: no column, and attention keeps its fast path.
        prefixes = torch.tensor(list(prefix), device=device) if prefix and max(prefix) > 1 else None
        return Batch(
            ids=_flat(rows, device),
            layout=layout,
            positions=positions,
            segments=None if segments is None else _flat(segments, device),
            prefix=None if prefixes is None else prefixes[layout.row],
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
            for name in ("ids", "positions", "segments", "prefix", "hidden_keys", "letters", "order")
            if (value := getattr(self, name)) is not None
        }
        return replace(self, layout=self.layout.to(device), views={}, **moved)


def _flat(rows: Sequence[Sequence[int] | np.ndarray], device: torch.device | str) -> Tensor:
    if not len(rows):
        return torch.zeros(0, dtype=torch.long, device=device)
    joined = np.concatenate([np.asarray(row, dtype=np.int64) for row in rows])
    return torch.from_numpy(joined).to(device)
