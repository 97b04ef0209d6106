"""The rows of a table as tokens, and plans over them: bundles of so many examples drawn at random, or of
examples of similar length with about so many tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, pairwise

import numpy as np

from etymon.sampling.plans import key

JITTER = 0.1
"""By which share lengths are blurred before examples are ordered by them, so that every epoch has other
bundles."""
NONE = -1
"""Fills the rows of a plan up to the largest bundle."""


class Ragged:
    """Sequences of numbers, or of rows of them, end to end."""

    def __init__(self, sequences: Sequence[np.ndarray], dtype: type = np.int32) -> None:
        self.lengths = np.array([len(sequence) for sequence in sequences], np.int64)
        self.stops = np.cumsum(self.lengths)
        parts: list[np.ndarray] = [np.asarray(sequence, dtype) for sequence in sequences]
        self.flat = np.concatenate(parts) if parts else np.zeros(0, dtype)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, number: int) -> np.ndarray:
        stop = self.stops[number]
        return self.flat[stop - self.lengths[number] : stop]


@dataclass
class Examples:
    """The examples of a split: what a task keeps of each, by name, and the tokens a model reads of it
    (`sizes`)."""

    columns: Mapping[str, Ragged | np.ndarray]
    """Sequences, or arrays with a row for every example."""
    sizes: np.ndarray
    words: np.ndarray
    """White-space words of every example, as budgets count them."""
    serial: int = field(default_factory=count().__next__)
    """Tells this split's examples from another's of the same number."""

    def __len__(self) -> int:
        return len(self.sizes)

    def example(self, number: int) -> dict[str, np.ndarray]:
        return {name: column[number] for name, column in self.columns.items()}


def bundles(sizes: np.ndarray, tokens: int, seed: int, epoch: int, *, shuffle: bool = True) -> np.ndarray:
    """Every example once, in bundles of neighbours by size that hold at most `tokens` tokens, or one
    example: rows of their numbers, filled up with `NONE`. In order of size if not `shuffle`."""
    rng = key(seed, "bundles", epoch)
    blurred = sizes * (1 + JITTER * rng.uniform(-1, 1, len(sizes))) if shuffle else sizes
    order = np.argsort(blurred, kind="stable")
    # Greedily: a bundle takes as many of the next examples as fit, found by their running total.
    totals = np.append(0, np.cumsum(sizes[order]))
    cuts = [0]
    while cuts[-1] < len(order):
        full = int(np.searchsorted(totals, totals[cuts[-1]] + tokens, side="right")) - 1
        cuts.append(max(full, cuts[-1] + 1))
    # The bundles change places, or every epoch would go from short examples to long ones.
    table = pad_rows([order[start:stop] for start, stop in pairwise(cuts)])
    return table[rng.permutation(len(table))] if shuffle else table


def bundles_of_rows(
    sizes: np.ndarray, rows: int, seed: int, epoch: int, *, shuffle: bool = True
) -> np.ndarray:
    """Every example once, in bundles of `rows` drawn at random, the last one smaller; by size, if not
    `shuffle`."""
    rng = key(seed, "bundles", epoch)
    order = rng.permutation(len(sizes)) if shuffle else np.argsort(sizes, kind="stable")
    table = np.full((-(-len(order) // rows), rows), NONE, np.int64)
    table.reshape(-1)[: len(order)] = order
    return table


def pack_bundles(plan: np.ndarray, count: int) -> list[np.ndarray]:
    """The rows of a plan, `count` of them flattened into one: how many and how wide, then the rows
    themselves. `unpack_bundle` takes them apart."""
    parts = (plan[first : first + count] for first in range(0, len(plan), count))
    return [np.concatenate([part.shape, part.reshape(-1)]) for part in parts]


def unpack_bundle(row: np.ndarray) -> np.ndarray:
    """The rows that `pack_bundles` put into one, whatever fills it up."""
    count, width = row[:2]
    return row[2 : 2 + count * width].reshape(count, width)


def pad_rows(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Rows of different lengths as one table, filled up with `NONE`."""
    table = np.full((len(rows), max(map(len, rows), default=1)), NONE, np.int64)
    for number, row in enumerate(rows):
        table[number, : len(row)] = row
    return table
