"""Recurrent layers over padded rows, as tensors alone: a loop over time whose length a program need not know.

Padding changes no state: a row's state waits while others are read on. So rows may have padding on either
side, and are read backwards by turning all of them round, padding included.

Legend: R rows, T steps, D width of states, G of all gates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from etymon.nn.batch import Layout
from etymon.nn.padded import PaddedLayout
from etymon.nn.recurrent import Packing, gru_step, lstm_step

Step = Callable[[list[Tensor], list[Tensor]], tuple[list[Tensor], Tensor]]
"""From what is carried and one moment's inputs to what is carried on and that moment's output."""


def make_packing(layout: Layout, *, backwards: bool = False) -> Packing:
    """The order in which recurrent layers read the tokens of a layout."""
    if isinstance(layout, PaddedLayout):
        return PaddedPacking(layout, backwards=backwards)
    return Packing(layout, backwards=backwards)


class PaddedPacking(Packing):
    """Padded rows in the order of steps, `[T, R, ...]`."""

    def __init__(self, layout: PaddedLayout, *, backwards: bool = False) -> None:
        self.layout, self.backwards = layout, backwards
        # Rows stay in their order: none is taken before another.
        self.rows = self.back = cast(Tensor, slice(None))
        # By an index: strides of a view of choices would become conditions on its sizes.
        visible_RT = layout.pad(layout.visible_RT.reshape(-1))
        self.real_TR1 = self._turn(visible_RT.transpose(0, 1)[..., None])

    def _turn(self, x_TR: Tensor) -> Tensor:
        return x_TR.flip(0) if self.backwards else x_TR

    def pack(self, flat: Tensor) -> Tensor:
        return self._turn(self.layout.pad(flat).transpose(0, 1))

    def flat(self, packed: Tensor) -> Tensor:
        return self.layout.unpad(self._turn(packed).transpose(0, 1))

    def run(self, layer: nn.Module, packed: Tensor, begin: Any = None) -> tuple[Tensor, Any]:
        outputs, last = [], []
        recurrent: Any = layer
        for number, end in enumerate(("", "_reverse") if recurrent.bidirectional else ("",)):
            x_TRX, real_TR1 = (part.flip(0) if end else part for part in (packed, self.real_TR1))
            first = self._begin(recurrent, packed, begin, number)
            y_TRD, states = _run_layer(recurrent, end, x_TRX, real_TR1, first)
            outputs.append(y_TRD.flip(0) if end else y_TRD)
            last.append(states)
        stacked = tuple(torch.stack(parts) for parts in zip(*last, strict=True))
        return torch.cat(outputs, -1), stacked if len(stacked) > 1 else stacked[0]

    def _begin(self, layer: Any, like: Tensor, begin: Any, direction: int) -> list[Tensor]:
        if begin is not None:
            return [part[direction] for part in (begin if isinstance(begin, tuple) else (begin,))]
        parts = 2 if isinstance(layer, nn.LSTM) else 1
        return [like.new_zeros(like.shape[1], layer.hidden_size) for _ in range(parts)]


def _run_layer(
    layer: Any, end: str, x_TRX: Tensor, real_TR1: Tensor, begin: list[Tensor]
) -> tuple[Tensor, list[Tensor]]:
    """One direction of a layer of PyTorch: its outputs and its last states, an LSTM's cells among them."""
    weights = [getattr(layer, f"{name}_l0{end}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
    weight_ih, weight_hh, bias_ih, bias_hh = weights

    def step(carried: list[Tensor], now: list[Tensor]) -> tuple[list[Tensor], Tensor]:
        gates_RG, real_R1 = now
        own_RG = F.linear(carried[0], weight_hh, bias_hh)
        if len(carried) == 1:
            new = [gru_step(gates_RG, own_RG, carried[0])]
        else:
            new = list(lstm_step(gates_RG + own_RG, carried[1]))
        kept = keep_states(new, carried, real_R1)
        return kept, kept[0]

    # The inputs' part of the gates of all steps in one product.
    last, y_TRD = scan_steps(step, begin, [F.linear(x_TRX, weight_ih, bias_ih), real_TR1])
    return y_TRD, last


def keep_states(new: Sequence[Tensor], old: Sequence[Tensor], real_R1: Tensor) -> list[Tensor]:
    """New states of rows that have a token now, and the old ones of others."""
    return [torch.where(real_R1, after, before) for after, before in zip(new, old, strict=True)]


def scan_steps(step: Step, begin: list[Tensor], inputs: list[Tensor]) -> tuple[list[Tensor], Tensor]:
    """What is carried behind the last step, and the outputs of all of them, `[T, R, ...]`.

    While a program is traced this is one operator, whose number of steps stays free; else a plain loop.
    """
    if torch.compiler.is_compiling():
        # Only here: older versions of PyTorch, with which nothing is exported, have none.
        from torch._higher_order_ops.scan import scan

        def copy_output(carried: list[Tensor], now: list[Tensor]) -> tuple[list[Tensor], Tensor]:
            after, output = step(carried, now)
            # An output may not be what is carried on as well.
            return after, output.clone()

        last, outputs = scan(copy_output, [part.contiguous() for part in begin], inputs)
        return list(last), outputs
    carried, outputs = list(begin), []
    for number in range(len(inputs[0])):
        carried, output = step(carried, [part[number] for part in inputs])
        outputs.append(output)
    return carried, torch.stack(outputs)
