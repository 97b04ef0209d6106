"""Batches that a head is asked about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from etymon.nn.batch import Batch
from etymon.objectives.objective import MicroBatch


@dataclass
class HeadPrepared(MicroBatch):
    """Rows of a batch. `at` are the places that the head is asked at, if the family does not know them itself; `rows`
    how many each example has."""

    batch: Batch
    targets: Tensor
    at: Tensor | None
    rows: tuple[int, ...]
    keys: tuple[tuple[int, int, int], ...]
    """By which the rows are known in another epoch."""
    words_at: Tensor | None = None
    words: Tensor | None = None
    words_weights: Tensor | None = None
    taught: Tensor | None = None


def parts_of(flat: np.ndarray, lengths: np.ndarray) -> list[np.ndarray]:
    return [flat[start:stop] for start, stop in pairwise([0, *np.cumsum(lengths).tolist()])]


def ask_for_words(prepared: HeadPrepared, rows: Sequence[np.ndarray]) -> None:
    """Every row's next words; each row counts once, whatever its length."""
    lengths = np.array([len(row) - 1 for row in rows])
    prepared.words_at = prepared.batch.layout.flat([np.arange(length) for length in lengths])
    prepared.words = torch.from_numpy(np.concatenate([row[1:] for row in rows]).astype(np.int64))
    prepared.words_weights = torch.from_numpy(np.repeat(1 / np.maximum(lengths, 1), lengths)).float()
    prepared.counts["language_model"] = float(len(rows))
