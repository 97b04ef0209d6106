"""What one step of a recurrent decoder reads and changes.

Legend: n rows of a step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from etymon.families.rnn.state import States
from etymon.nn.layers import Linear


@dataclass
class StepStates:
    """The states of the rows of one step, layer by layer."""

    hidden: list[Tensor]
    cells: list[Tensor]
    """Of an LSTM; else none."""
    fed: Tensor | None = None

    @staticmethod
    def of(states: States, has_cells: bool, feeds: bool) -> StepStates:
        cells = list(states[1]) if has_cells else []
        return StepStates(list(states[0]), cells, states[-1][0] if feeds else None)

    def first(self, rows: int) -> StepStates:
        """Those of the first rows, in lists of their own."""
        hidden, cells = ([part[:rows] for part in parts] for parts in (self.hidden, self.cells))
        return StepStates(hidden, cells, None if self.fed is None else self.fed[:rows])

    def stacked(self) -> States:
        states = [torch.stack(parts) for parts in (self.hidden, self.cells) if parts]
        return states if self.fed is None else [*states, self.fed[None]]


@dataclass
class StepMaps:
    """What all steps of a call share: the words' part of the first layer's gates, the map of what a step
    reads beside its word, and the query's map with the last layer's recurrent one (`join_query`)."""

    gates: Tensor
    extra: Tensor
    joint: tuple[Tensor, Tensor]
    sizes: list[int] | None


def join_query(layer: Any, query: nn.Module | None) -> tuple[tuple[Tensor, Tensor], list[int] | None]:
    """The query's map and the last layer's recurrent one, both of the state before, as one product, and
    how it splits; None for the latter if there is no such query."""
    weight, bias = layer.weight_hh_l0, layer.bias_hh_l0
    if type(query) is not Linear:  # there is none, or it has eight bits or an adapter
        return (weight, bias), None
    query_bias = bias.new_zeros(query.out_features) if query.bias is None else query.bias
    # Both read the state before: one product a step instead of two.
    joint = torch.cat([query.weight, weight]), torch.cat([query_bias, bias])
    return joint, [len(query.weight), len(weight)]
