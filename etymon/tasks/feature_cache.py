"""Layers of a frozen body, kept by example: every text goes through the model once, and not once an epoch.

Legend: L layers, N tokens of a batch, n of a row, D width.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from etymon.families.model import Model
from etymon.nn.batch import Batch, Layout, Letters

MOST_BYTES = 2 << 30


class FeatureCache:
    """What `Model.layers` says of the rows of batches, by keys: the number of an example, or, if it has
    several rows, with that of the row. What does not fit into `MOST_BYTES` is computed every time."""

    def __init__(self, model: Model) -> None:
        assert model.frozen_body, "a body that learns says something else every time: set model.frozen_body"
        self.model = model
        self.bytes = 0
        self.kept: dict[Hashable, np.ndarray] = {}
        """`[L, n, D]` of every row that was kept."""

    def layers(self, keys: Sequence[Hashable], batch: Batch) -> list[Tensor]:
        """As `Model.layers(batch)`; `keys` are those of its rows."""
        new = [place for place, key in enumerate(keys) if key not in self.kept]
        computed = dict(zip(new, self._computed(batch, new), strict=True)) if new else {}
        for place, states in computed.items():
            if self.bytes + states.nbytes <= MOST_BYTES:
                self.kept[keys[place]] = states
                self.bytes += states.nbytes
        found = [computed[place] if place in computed else self.kept[key] for place, key in enumerate(keys)]
        whole_LND = torch.from_numpy(np.concatenate(found, 1)).to(batch.device)
        return list(whole_LND.unbind())

    def _computed(self, batch: Batch, places: Sequence[int]) -> list[np.ndarray]:
        chosen = batch if len(places) == batch.layout.rows else _rows(batch, places)
        states_LND = torch.stack(self.model.layers(chosen)).float().cpu().numpy()
        stops = np.cumsum(chosen.layout.lengths)[:-1]
        # Copies: a part of a larger array would keep all of it.
        return [part.copy() for part in np.split(states_LND, stops, axis=1)]


def _rows(batch: Batch, places: Sequence[int]) -> Batch:
    """Some rows of a batch, as a batch of their own."""
    layout = Layout([batch.layout.lengths[place] for place in places], batch.device)
    starts = torch.from_numpy(batch.layout.host_starts[list(places)]).to(batch.device)
    at_n = starts[layout.row] + layout.index
    columns = {
        name: column[at_n]
        for name in ("ids", "positions", "segments", "prefix", "hidden_keys", "order")
        if (column := getattr(batch, name)) is not None
    }
    if (words := batch.letters) is not None:
        columns["letters"] = Letters(words.letters_UC, words.ahead_N[at_n], words.back_N[at_n])
    return replace(batch, layout=layout, views={}, **columns)
