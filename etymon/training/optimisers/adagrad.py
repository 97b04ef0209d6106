"""Adagrad (Duchi et al. 2011): every number's rate falls with the squares of its gradients so far."""

from __future__ import annotations

from typing import Any

import torch

from etymon.training.optimisers.stepping import Optimiser


class Adagrad(Optimiser):
    """As bilm-tf has it: sums of squares begin at one, so that no first step is a jump. Decay is apart, as everywhere here.

    (PyTorch's own makes its state beforehand, which cannot be begun anew after a rehearsal.)
    """

    def update(self, held: list[Any], group: dict[str, Any]) -> None:
        for parameter in held:
            gradient, kept = parameter.grad, self.state[parameter]
            if not kept:
                kept["sum"] = torch.ones_like(parameter)
            kept["sum"].addcmul_(gradient, gradient)
            parameter.mul_(1 - group["lr"] * group["weight_decay"])
            parameter.addcdiv_(gradient, kept["sum"].sqrt(), value=-group["lr"])
