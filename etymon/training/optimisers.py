"""Optimisers over named parameters, with state that is saved and restored by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn


def adamw(
    module: nn.Module,
    *,
    learning_rate: float,
    betas: tuple[float, float],
    epsilon: float,
    weight_decay: float,
    undecayed: Sequence[str],
) -> torch.optim.AdamW:
    """AdamW (fused) with two groups: parameters whose names match `undecayed` are not decayed."""
    named = [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]
    free = [
        parameter for name, parameter in named if any(fnmatchcase(name, pattern) for pattern in undecayed)
    ]
    chosen = {id(parameter) for parameter in free}
    decayed = [parameter for _, parameter in named if id(parameter) not in chosen]
    groups = [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": free, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]], lr=learning_rate, betas=betas, eps=epsilon, fused=True
    )


def optimiser_tensors(optimiser: torch.optim.Optimizer, module: nn.Module) -> dict[str, Tensor]:
    """The optimiser's state as tensors named `<quantity>/<parameter>`."""
    return {
        f"{quantity}/{name}": value
        for name, parameter in module.named_parameters()
        for quantity, value in optimiser.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }


def restore_optimiser(
    optimiser: torch.optim.Optimizer, module: nn.Module, tensors: Mapping[str, Tensor]
) -> None:
    """Puts back what `optimiser_tensors` gave."""
    parameters = dict(module.named_parameters())
    for key, value in tensors.items():
        quantity, name = key.split("/", 1)
        # Fused kernels want the step counter, too, where the parameter is.
        optimiser.state[parameters[name]][quantity] = value.to(parameters[name].device).clone()
