"""A model with a memory that is as simple as can be: GPT-2 which is also told a vector of what its stream has read so far."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from etymon.families import get_family
from etymon.families.model import Model


class Trail:
    """Of every row, a running mean of hidden states; `length` is only kept."""

    def __init__(self, rows: int, length: int | None, dim: int) -> None:
        self.length = length
        self.lengths: tuple[int, ...] = (0,) * rows
        self.mean_RD = torch.zeros(rows, dim)

    def select(self, rows: Tensor) -> Trail:
        chosen = Trail(len(rows), self.length, self.mean_RD.shape[1])
        chosen.lengths = tuple(self.lengths[row] for row in rows.tolist())
        chosen.mean_RD = self.mean_RD[rows]
        return chosen

    def forget(self, rows: Sequence[int]) -> None:
        self.mean_RD = self.mean_RD.clone()
        self.mean_RD[list(rows)] = 0
        self.lengths = tuple(0 if row in rows else length for row, length in enumerate(self.lengths))

    def tensors(self) -> dict[str, Tensor]:
        return {"mean": self.mean_RD}

    def load(self, tensors: Mapping[str, Tensor], lengths: Sequence[int]) -> None:
        self.mean_RD, self.lengths = tensors["mean"], tuple(lengths)


@contextmanager
def carrying() -> Iterator[None]:
    """GPT-2 has a memory."""
    family, hidden = get_family("gpt2"), Model.hidden
    plain = family.capabilities

    def remember(model: Model, rows: int, length: int | None = None) -> Trail:
        return Trail(rows, length, model.shape.dim)

    def told(model: Model, batch: Any, state: Any = None, embedded: Any = None) -> tuple[Tensor, Any]:
        if not isinstance(state, Trail):
            return hidden(model, batch, state, embedded)
        found_ND, _ = hidden(model, batch)
        found_ND = found_ND + state.mean_RD[batch.layout.row]
        means_RD = torch.stack([part.mean(0) for part in found_ND.split(list(batch.layout.lengths))])
        state.mean_RD = (state.mean_RD + means_RD).detach() / 2
        state.lengths = tuple(a + b for a, b in zip(state.lengths, batch.layout.lengths, strict=True))
        return found_ND, state

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Model, "remember", remember, raising=False)
        patch.setattr(Model, "hidden", told)
        object.__setattr__(family, "capabilities", plain | {"memory"})
        try:
            yield
        finally:
            object.__setattr__(family, "capabilities", plain)
