"""The same LSTM over padded rows, as a program can follow it.

Legend: T steps, R rows, G directions, D width of the input, C cells, F four times that, P width of the
output.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from etymon.nn.padded_recurrent import PaddedPacking, keep_states, scan_steps
from etymon.nn.recurrent import lstm_step


def run_padded(
    parts: Sequence[Any],
    x_GTRD: Sequence[Tensor],
    packings: Sequence[PaddedPacking],
    hidden_GRP: Tensor,
    cell_GRC: Tensor,
    cell_clip: float | None = None,
    projection_clip: float | None = None,
) -> tuple[list[Tensor], Tensor, Tensor]:
    """The outputs `[T, R, P]` of every direction, and the last hidden and cell states of every row."""
    outputs, hidden, cells = [], [], []
    for part, x_TRD, packing, *begin in zip(parts, x_GTRD, packings, hidden_GRP, cell_GRC, strict=True):

        def step(carried: list[Tensor], now: list[Tensor], part: Any = part) -> tuple[list[Tensor], Tensor]:
            given_RF, real_R1 = now
            gates_RF = given_RF + F.linear(carried[0], part.state.weight)
            y_RC, cell_RC = lstm_step(gates_RF, carried[1], cell_clip)
            y_RP = y_RC if part.projection is None else F.linear(y_RC, part.projection.weight)
            y_RP = y_RP if projection_clip is None else y_RP.clamp(-projection_clip, projection_clip)
            return keep_states([y_RP, cell_RC], carried, real_R1), y_RP

        given_TRF = F.linear(x_TRD, part.input.weight, part.state.bias)
        last, y_TRP = scan_steps(step, begin, [given_TRF, packing.real_TR1])
        outputs.append(y_TRP)
        hidden.append(last[0])
        cells.append(last[1])
    return outputs, torch.stack(hidden), torch.stack(cells)
