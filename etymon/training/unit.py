"""The training unit: the one module that training calls, and the only one that is ever wrapped."""

from __future__ import annotations

from typing import Any

from torch import nn

from etymon.objectives.objective import Objective, Term


class TrainingUnit(nn.Module):
    """A model and its objective; `forward` gives the terms of a slice.

    Wrappers for many devices see every parameter through this one `forward`. Calling other methods of a wrapped
    module would leave gradients unsynchronised without a word.
    """

    def __init__(self, model: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.model = model
        self.objective = objective

    def forward(self, prepared: Any) -> dict[str, Term]:
        return self.objective.loss(self.model, prepared)
