"""Adam's step through PyTorch's fused kernel, with and without bias correction."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from etymon.training.optimisers.stepping import Optimiser

LONG_AGO = 1e7
"""A step count at which beta^step is 0 for every beta in use, so that a correction by 1 - beta^step is none."""


def fused_adam(
    held: list[Any], group: dict[str, Any], state: dict[Tensor, Any], *, corrected: bool = True
) -> None:
    """One AdamW step of a group: one pass over memory, four times as fast on a CPU as separate operations."""
    for parameter in held:
        kept = state[parameter]
        if not kept:
            kept["exp_avg"], kept["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
            if corrected:
                kept["step"] = torch.zeros((), device=parameter.device)
        if corrected:
            kept["step"] += 1
    long_ago = torch.full((), LONG_AGO, device=held[0].device)
    torch._fused_adamw_(
        held,
        [parameter.grad for parameter in held],
        [state[parameter]["exp_avg"] for parameter in held],
        [state[parameter]["exp_avg_sq"] for parameter in held],
        [],
        [state[parameter]["step"] if corrected else long_ago for parameter in held],
        lr=group["lr"],
        beta1=group["betas"][0],
        beta2=group["betas"][1],
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        amsgrad=False,
        maximize=False,
    )


class BertAdam(Optimiser):
    """Adam as BERT's released code has it: weight decay apart from the moments, and no bias correction.

    Without the correction the first step is (1 - beta1) / sqrt(1 - beta2) times as long, 3.2 times at the usual betas:
    one more reason for warm-up.
    """

    def update(self, held: list[Any], group: dict[str, Any]) -> None:
        fused_adam(held, group, self.state, corrected=False)
