"""Adafactor (Shazeer and Stern 2018) with the settings that T5 was trained with.

PyTorch's own has other rules for the smallest values and scales; Transformers' factors every matrix, whatever its size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from etymon.training.optimisers.stepping import Optimiser

SMALLEST_FACTORED = 128
TINY_SQUARE, TINY_SCALE = 1e-30, 1e-3
DECAY_POWER, THRESHOLD = 0.8, 1.0


class Adafactor(Optimiser):
    """Second moments only, kept as row and column means where a matrix is large enough.

    Rates are relative: a step moves a parameter by the rate times its own root mean square (at least 0.001), and an
    update of a root mean square above 1 is scaled down to it.
    """

    def update(self, held: list[Any], group: dict[str, Any]) -> None:
        for parameter in held:
            self._move(parameter, parameter.grad, group["lr"], group["weight_decay"])

    def _move(self, parameter: Tensor, gradient: Tensor, rate: float, weight_decay: float) -> None:
        state, axes = self.state[parameter], factored_axes(parameter.shape)
        squares = gradient.square().add_(TINY_SQUARE)
        # The means over the columns of every row and over the rows of every column; or else every square itself.
        seen = {"square": squares} if axes is None else {
            "row": squares.mean(axes[1], keepdim=True), "column": squares.mean(axes[0], keepdim=True),
        }  # fmt: skip
        if not state:
            state["step"] = torch.zeros((), device=parameter.device)
            state.update({quantity: torch.zeros_like(value) for quantity, value in seen.items()})
        state["step"] += 1
        # 1 - beta2: the first step starts from its own squares.
        new_share = float(state["step"]) ** -DECAY_POWER
        for quantity, value in seen.items():
            state[quantity].lerp_(value, new_share)
        if axes is None:
            update = state["square"].rsqrt().mul_(gradient)
        else:
            row, column = state["row"], state["column"]
            update = gradient * (row / row.mean(axes[0], keepdim=True)).rsqrt_()
            update.mul_(column.rsqrt())
        scale = root_mean_square(parameter).clamp_(min=TINY_SCALE)
        step = scale / (root_mean_square(update) / THRESHOLD).clamp_(min=1.0)
        if weight_decay:
            parameter.mul_(1.0 - rate * weight_decay * scale)
        parameter.addcmul_(update, step, value=-rate)


def factored_axes(shape: torch.Size) -> tuple[int, int] | None:
    """The two largest axes, if both are large enough for their means to stand for all squares."""
    if len(shape) < 2:
        return None
    first, second = sorted(sorted(range(len(shape)), key=lambda axis: shape[axis])[-2:])
    return (first, second) if min(shape[first], shape[second]) >= SMALLEST_FACTORED else None


def root_mean_square(tensor: Tensor) -> Tensor:
    return torch.linalg.vector_norm(tensor) / tensor.numel() ** 0.5
