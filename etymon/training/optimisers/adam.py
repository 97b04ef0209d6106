"""Adam's step through PyTorch's fused kernel, with and without bias correction."""

from __future__ import annotations

from typing import Any

import torch

from etymon.training.optimisers.stepping import Optimiser

LONG_AGO = 1e7
"""A step count at which beta^step is 0 for every beta in use, so that a correction by 1 - beta^step is none."""


def fused_adam(
    optimiser: Optimiser, held: list[Any], group: dict[str, Any], *, corrected: bool = True
) -> None:
    """One AdamW step of a group: one pass over memory, four times as fast on a CPU as separate operations."""
    steps = [torch.full((), LONG_AGO, device=held[0].device)] * len(held)
    if corrected:
        for place, parameter in enumerate(held):
            kept = optimiser.state[parameter]
            kept["step"] = steps[place] = (
                kept["step"] + 1 if kept else torch.ones((), device=parameter.device)
            )
    means, squares = optimiser.moments(held, "exp_avg", "exp_avg_sq")
    torch._fused_adamw_(
        held,
        [parameter.grad for parameter in held],
        means,
        squares,
        [],
        steps,
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
        fused_adam(self, held, group, corrected=False)
