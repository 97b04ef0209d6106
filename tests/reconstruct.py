"""The way back from noise: what was shown and what was asked for are together the original."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from etymon.text.store import Split


def sentence_spans(split: Split, index: int) -> list[tuple[int, int]]:
    """The sentences of one document as spans [start, stop) of its split's tokens."""
    first, last = split.first_sentences[index : index + 2]
    return list(pairwise([*split.sentences[first:last].tolist(), int(split.documents[index + 1])]))


def from_spans(shown: np.ndarray, target: np.ndarray, sentinels: Sequence[int] | np.ndarray) -> np.ndarray:
    """The original ids from an input and a target with sentinels."""
    marks = [*np.flatnonzero(np.isin(target, sentinels)), len(target)]
    spans = {int(target[mark]): target[mark + 1 : stop] for mark, stop in pairwise(marks)}
    parts: list[np.ndarray] = []
    position = 0
    for place in np.flatnonzero(np.isin(shown, sentinels)).tolist():
        parts += [shown[position:place], spans.get(int(shown[place]), target[:0])]
        position = place + 1
    return np.concatenate([*parts, shown[position:]])


def from_at(shown: np.ndarray, places: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """The original ids from a masked input and the tokens asked for."""
    original = shown.copy()
    original[places] = tokens
    return original


def from_dropped(kept: np.ndarray, dropped: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """The original ids from what was kept, what was dropped, and where."""
    original = np.empty(len(mask), kept.dtype)
    original[mask] = dropped
    original[~mask] = kept
    return original
