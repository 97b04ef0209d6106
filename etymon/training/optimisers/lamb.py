"""LAMB (You et al. 2019) as ALBERT's released code has it: Adam's direction, a length in proportion to the weights."""

from __future__ import annotations

from typing import Any

import torch

from etymon.training.optimisers.stepping import Optimiser


class Lamb(Optimiser):
    """Every tensor moves by the rate times its own norm, along Adam's update (without bias correction) plus decay.

    So one rate serves large batches, for which Adam's is too small in some layers and too large in others. Where
    weights or update are all zero, and in groups with `adapted` false (biases and norms), the update is taken as it is.
    """

    def update(self, held: list[Any], group: dict[str, Any]) -> None:
        gradients = [parameter.grad for parameter in held]
        means, squares = self.moments(held, "exp_avg", "exp_avg_sq")
        torch._foreach_lerp_(means, gradients, 1 - group["betas"][0])
        torch._foreach_mul_(squares, group["betas"][1])
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - group["betas"][1])
        roots = torch._foreach_sqrt(squares)
        torch._foreach_add_(roots, group["eps"])
        updates = torch._foreach_div(means, roots)
        torch._foreach_add_(updates, held, alpha=group["weight_decay"])
        if group["adapted"]:
            own, moved = (torch.stack(torch._foreach_norm(each)) for each in (held, updates))
            ratios = torch.where((own > 0) & (moved > 0), own / moved, 1.0)
            torch._foreach_mul_(updates, list(ratios))
        torch._foreach_add_(held, updates, alpha=-group["lr"])
