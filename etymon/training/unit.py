"""The training unit: the one module that training calls, and the only one that is ever wrapped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn

from etymon.nn.initialise import align
from etymon.objectives.objective import FROM_MODEL, Objective, StreamBatch, Term
from etymon.training.memories import Memories


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
        # In a tuple, so that it is no part of the unit: neither trained nor wrapped.
        self._teacher = (teacher,)
        align(self)
        self.memories = Memories()
        """What streams remember: kept outside the parameters, by the number of the stream."""

    @property
    def teacher(self) -> Any:
        return self._teacher[0]

    def recall(self, prepared: StreamBatch) -> Any:
        """The state of the slice's streams; None if the objective or the model remembers nothing."""
        asked: Any = self.objective
        length = asked.memory
        if not self.training and asked.validation_memory != FROM_MODEL:
            length = asked.validation_memory
        model: Any = self.model
        if length == 0 or "memory" not in model.capabilities:
            return None
        device = next(self.parameters()).device
        return self.memories.recall(
            prepared, lambda rows: model.remember(rows, None if length == FROM_MODEL else length), device
        )

    def keep(self, prepared: StreamBatch, state: Any) -> None:
        if state is not None:
            self.memories.keep(prepared, state)

    @contextmanager
    def isolated_memory(self, memories: Memories | None = None) -> Iterator[None]:
        """Inside, streams are others, which begin anew or with these memories; afterwards the old ones go on as if nothing
        had been."""
        kept, self.memories = self.memories, memories or Memories()
        try:
            yield
        finally:
            self.memories = kept

    def forward(self, prepared: Any) -> dict[str, Term]:
        return self.objective.loss(self, prepared)
