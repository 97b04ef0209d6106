"""The rows of a table as tokens, and plans over them: bundles of examples of similar length, with about so many tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from etymon.data.plans import key

JITTER = 0.1
"""How far lengths are blurred before examples are put in order by them, so that every epoch has other bundles."""
NONE = -1
"""Fills the rows of a plan up to the largest bundle."""


class Ragged:
    """Sequences of numbers, end to end."""

    def __init__(self, sequences: Sequence[np.ndarray]) -> None:
        self.lengths = np.array([len(sequence) for sequence in sequences], np.int64)
        self.stops = np.cumsum(self.lengths)
        empty = np.zeros(0, np.int32)
        self.flat = np.concatenate([empty, *(np.asarray(one, np.int32) for one in sequences)])

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, number: int) -> np.ndarray:
        stop = self.stops[number]
        return self.flat[stop - self.lengths[number] : stop]


@dataclass
class Examples:
    """The examples of a split: what a task keeps of each, by name, and how many tokens a model reads of it."""

    columns: Mapping[str, Ragged]
    sizes: np.ndarray
    words: np.ndarray
    """White-space words of every example, as budgets count them."""

    def __len__(self) -> int:
        return len(self.sizes)

    def example(self, number: int) -> dict[str, np.ndarray]:
        return {name: column[number] for name, column in self.columns.items()}


def bundles(sizes: np.ndarray, tokens: int, seed: int, epoch: int, *, shuffle: bool = True) -> np.ndarray:
    """Every example once, in bundles of neighbours by size that hold at most `tokens` tokens, or one example: rows of their
    numbers, filled up with `NONE`. In order of size if not `shuffle`."""
    rng = key(seed, "bundles", epoch)
    blurred = sizes * (1 + JITTER * rng.uniform(-1, 1, len(sizes))) if shuffle else sizes
    order = np.argsort(blurred, kind="stable")
    totals = np.concatenate([[0], np.cumsum(sizes[order])])
    cuts = [0]
    while cuts[-1] < len(order):
        full = int(np.searchsorted(totals, totals[cuts[-1]] + tokens, side="right")) - 1
        cuts.append(max(full, cuts[-1] + 1))
    table = np.full((len(cuts) - 1, max(np.diff(cuts), default=1)), NONE, np.int64)
    for row, (start, stop) in enumerate(pairwise(cuts)):
        table[row, : stop - start] = order[start:stop]
    return table[rng.permutation(len(table))] if shuffle else table
