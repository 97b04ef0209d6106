"""What our own optimisers share: a step is an update of every group's parameters that have gradients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor


class Optimiser(torch.optim.Optimizer):
    """`defaults` hold for the groups that do not say otherwise; those that an optimiser has no use for do no harm."""

    def __init__(self, groups: Sequence[dict[str, Any]], **defaults: Any) -> None:
        super().__init__(groups, defaults)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        assert closure is None, "gradients are there before the step"
        for group in self.param_groups:
            if held := [parameter for parameter in group["params"] if parameter.grad is not None]:
                self.update(held, group)

    def moments(self, held: list[Any], *names: str) -> Iterator[list[Tensor]]:
        """The state of those names, each a tensor for every parameter, which begins at zero."""
        for name in names:
            for parameter in held:
                if name not in self.state[parameter]:
                    self.state[parameter][name] = torch.zeros_like(parameter)
            yield [self.state[parameter][name] for parameter in held]

    def update(self, held: list[Any], group: dict[str, Any]) -> None:
        """One step of `held`, the group's parameters that have gradients."""
        raise NotImplementedError
