"""Adagrad (Duchi et al. 2011): every number's rate falls with the squares of its gradients so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


class Adagrad(torch.optim.Optimizer):
    """As bilm-tf has it: sums of squares begin at one, so that no first step is a jump. Decay is apart, as everywhere here.

    (PyTorch's own makes its state beforehand, which cannot be begun anew after a rehearsal.)
    """

    def __init__(self, groups: Sequence[dict[str, Any]], *, learning_rate: float) -> None:
        super().__init__(groups, {"lr": learning_rate, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        assert closure is None, "gradients are there before the step"
        for group in self.param_groups:
            for parameter in group["params"]:
                if (gradient := parameter.grad) is None:
                    continue
                kept = self.state[parameter]
                if not kept:
                    kept["sum"] = torch.ones_like(parameter)
                kept["sum"].addcmul_(gradient, gradient)
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.addcdiv_(gradient, kept["sum"].sqrt(), value=-group["lr"])
