"""The training unit: the one module that training calls, and the only one that is ever wrapped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from etymon.objectives.objective import Objective, Term


class TrainingUnit(nn.Module):
    """A model, whoever trains beside it, and the objective; `forward` gives the terms of a slice.

    Wrappers for many devices see every parameter through this one `forward`. Calling other methods of a wrapped
    module would leave gradients unsynchronised without a word.
    """

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        companions: Mapping[str, nn.Module] | None = None,
        bridges: Mapping[str, nn.Module] | None = None,
        teacher: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.companions = nn.ModuleDict(dict(companions or {}))
        self.bridges = nn.ModuleDict(dict(bridges or {}))
        self.objective = objective
        self._teacher = (
            teacher,
        )  # in a tuple, so that it is no part of the unit: neither trained nor wrapped

    @property
    def teacher(self) -> Any:
        return self._teacher[0]

    def forward(self, prepared: Any) -> dict[str, Term]:
        return self.objective.loss(self, prepared)
