"""The training unit: the one module that training calls, and the only one that is ever wrapped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from etymon.objectives.objective import OWN, Objective, Streamed, Term
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
        self._teacher = (
            teacher,
        )  # in a tuple, so that it is no part of the unit: neither trained nor wrapped
        self._memories = Memories()

    @property
    def teacher(self) -> Any:
        return self._teacher[0]

    # --- what streams remember: kept outside the parameters, by the number of the stream

    def recall(self, prepared: Streamed) -> Any:
        """The state of the slice's streams; None if the objective or the model remembers nothing."""
        asked: Any = self.objective
        length = asked.memory
        if not self.training and asked.validation_memory != OWN:
            length = asked.validation_memory
        model: Any = self.model
        if length == 0 or "memory" not in model.capabilities:
            return None
        device = next(self.parameters()).device
        return self._memories.recall(
            prepared, lambda rows: model.remember(rows, None if length == OWN else length), device
        )

    def keep(self, prepared: Streamed, state: Any) -> None:
        if state is not None:
            self._memories.keep(prepared, state)

    def memories(self) -> Memories:
        """What streams remember now, as a copy."""
        return self._memories.copy()

    @contextmanager
    def apart(self, memories: Memories | None = None) -> Iterator[None]:
        """Inside, streams are others, which begin anew or with these memories; afterwards the old ones go on as if nothing
        had been."""
        kept, self._memories = self._memories, memories or Memories()
        try:
            yield
        finally:
            self._memories = kept

    def forget(self) -> None:
        """All streams begin anew."""
        self._memories = Memories()

    def memory_tensors(self) -> dict[str, Tensor]:
        return self._memories.tensors()

    def restore_memory(self, tensors: Mapping[str, Tensor]) -> None:
        self._memories = Memories(tensors)

    def forward(self, prepared: Any) -> dict[str, Term]:
        return self.objective.loss(self, prepared)
