"""Recurrent layers over ragged rows, packed: all first tokens, all second ones, ... the longest row first.

No step computes padding, and on a busy machine padded rows were not clearly faster or slower at the lengths
of sentences.

Legend: n rows of a step, D width of states, G of all gates.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from etymon.nn.batch import Layout, permute

Kind = Literal["gru", "lstm"]


class GRU(nn.GRU):
    def reset_parameters(self) -> None:
        pass


class LSTM(nn.LSTM):
    def reset_parameters(self) -> None:
        pass


def recurrent(kind: Kind, inputs: int, dim: int, *, bidirectional: bool = False) -> GRU | LSTM:
    """One layer with blank parameters."""
    return (GRU if kind == "gru" else LSTM)(inputs, dim, bidirectional=bidirectional)


class Packing:
    """The flat tokens of a layout in the order of steps; `backwards` reads every row from its end."""

    def __init__(self, layout: Layout, *, backwards: bool = False) -> None:
        lengths = np.asarray(layout.lengths)
        # The longest row first, so that the rows of a step are always the first ones.
        rows = np.argsort(-lengths, kind="stable")
        steps = np.arange(layout.longest)
        sizes = (lengths[:, None] > steps).sum(0)
        # Where the tokens of every step begin in the packed order.
        starts = np.cumsum(sizes) - sizes
        step = np.repeat(steps, sizes)
        row = rows[np.arange(len(step)) - np.repeat(starts, sizes)]
        index = layout.host_starts[row] + (lengths[row] - 1 - step if backwards else step)
        self.steps = tuple(zip(starts.tolist(), (starts + sizes).tolist()))
        """The slices of the packed tokens that are one step each."""
        # `PackedSequence` wants these on the host.
        self.batch_sizes = torch.from_numpy(sizes)
        self.index, self.inverse, self.rows, self.back = (
            torch.from_numpy(part.astype(np.int64)).to(layout.device)
            for part in (index, np.argsort(index), rows, np.argsort(rows))
        )

    def pack(self, flat: Tensor) -> Tensor:
        return permute(flat, self.index, self.inverse)

    def flat(self, packed: Tensor) -> Tensor:
        return permute(packed, self.inverse, self.index)

    def run(self, layer: nn.Module, packed: Tensor, begin: Any = None) -> tuple[Tensor, Any]:
        """A layer over all rows at once."""
        out, last = layer(PackedSequence(packed, self.batch_sizes), begin)
        return out.data, last


def gru_step(gates_nG: Tensor, own_nG: Tensor, h_nD: Tensor) -> Tensor:
    """PyTorch's: the reset gate falls on the recurrent part of the candidate, its bias included."""
    reset, update, new = gates_nG.chunk(3, -1)
    own_reset, own_update, own_new = own_nG.chunk(3, -1)
    # The published GRU resets the state before its map; PyTorch, and so every model here, after it.
    candidate = torch.tanh(new + torch.sigmoid(reset + own_reset) * own_new)
    return torch.lerp(candidate, h_nD, torch.sigmoid(update + own_update))


def lstm_step(gates_nG: Tensor, c_nD: Tensor, clip: float | None = None) -> tuple[Tensor, Tensor]:
    """The output and the cells, which may be clipped."""
    enter, forget, new, out = gates_nG.chunk(4, -1)
    c_nD = torch.sigmoid(forget) * c_nD + torch.sigmoid(enter) * torch.tanh(new)
    c_nD = c_nD if clip is None else c_nD.clamp(-clip, clip)
    return torch.sigmoid(out) * torch.tanh(c_nD), c_nD
