"""Frozen representations: texts through a model, every layer's states, pooled to one vector a text or a word.

Legend: N tokens, U units (texts or words), L layers with the input of the first as number 0, D width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import psutil
import torch
from torch import Tensor

from etymon.errors import EtymonError
from etymon.families.model import Model
from etymon.generation.text import source_tokenizer_of
from etymon.nn.batch import Batch, Layout
from etymon.nn.layers import eval_mode

# Of all tokens of a text, special ones included; the class token; the last token.
POOLINGS = ("mean", "cls", "last")
Pieces = Literal["first", "mean"]
Place = str | tuple[int, int]
"""What is read of a text: one of `POOLINGS`, or the word at the characters [start, stop)."""


class Reader:
    """Texts as a model reads them: framed, cut to its positions (or to a shorter `length`), in batches of
    similar length."""

    def __init__(self, model: Model, length: int | None = None) -> None:
        self.model, self.tokenizer = model, source_tokenizer_of(model)
        # A model that reads letters can tell words apart that its tokenizer does not know.
        self.words: Any = self.tokenizer.lexicon if "letters" in model.capabilities else self.tokenizer
        framing = self.tokenizer.framing
        # A framing puts the same tokens around every text: no need to build each one by itself.
        place, ids_of = framing.single.index(0), dict(framing.role_ids)
        self.before, self.after = (
            np.array([ids_of[str(role)] for role in part], np.int32)
            for part in (framing.single[:place], framing.single[place + 1 :])
        )
        self.apart = framing.apart
        self.has_class = "class" in framing.single
        self.class_last = self.has_class and framing.single.index("class") > place
        limits = [limit for limit in (model.positions, length) if limit is not None]
        self.length = min(limits, default=None)
        """Tokens of a text at most, the framing's included."""
        self.room = None if self.length is None else self.length - framing.overhead()
        self.cut = 0
        """How many texts were too long so far."""

    def require_class_token(self, others: str) -> None:
        if not self.has_class:
            raise EtymonError(f"{self.model.family.title} has no class token to pool by: use {others}")

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The ids of texts, without the framing."""
        if self.words is not self.tokenizer:
            self.words.forget()
        return [self.truncate(ids) for ids in self.words.encode_batch(texts)]

    def truncate(self, ids: np.ndarray) -> np.ndarray:
        """The ids that fit into the model's positions; counts the texts that lose some."""
        if self.room is None or len(ids) <= self.room:
            return ids
        self.cut += 1
        return ids[: self.room]

    def batches(self, encoded: Sequence[np.ndarray], size: int) -> Iterator[tuple[np.ndarray, Batch]]:
        """Texts by number and as a batch, the short ones first."""
        # Texts of similar length together: attention pads within a batch.
        order = np.argsort([len(ids) for ids in encoded], kind="stable")
        for first in range(0, len(order), size):
            chosen = order[first : first + size]
            rows = [np.concatenate((self.before, encoded[number], self.after)) for number in chosen]
            if not all(map(len, [encoded[number] for number in chosen] if self.apart else rows)):
                raise EtymonError("an empty text has no tokens to make a vector of: leave it out")
            segments = self.tokenizer.framing.segments(rows)
            yield chosen, Batch.of(rows, segments=segments, device=self.model.device)

    def text_states(self, x_ND: Tensor, layout: Layout) -> tuple[Tensor, Layout]:
        """The states that a text's vector is made of: all, or where the framing stands apart those of the
        text alone."""
        if not self.apart:
            return x_ND, layout
        lengths = torch.tensor(layout.lengths, device=layout.device)[layout.row]
        inner = (layout.index >= len(self.before)) & (layout.index < lengths - len(self.after))
        fewer = len(self.before) + len(self.after)
        return x_ND[inner], Layout([length - fewer for length in layout.lengths], layout.device)


@dataclass(frozen=True)
class Representations:
    """`states[layer, unit]` float32; a unit that has no token within the model's positions is not
    `present`."""

    states: np.ndarray
    present: np.ndarray
    cut: int


def represent(
    model: Model,
    units: Sequence[tuple[str, Place]],
    *,
    pieces: Pieces = "first",
    batch_size: int = 32,
    on_batch: Callable[[int, int], None] = lambda done, total: None,
) -> Representations:
    """Every layer's vectors of units (text, place); each distinct text goes through the model once."""
    reader = Reader(model)
    if any(place == "cls" for _, place in units):
        reader.require_class_token("mean or last")
    units_of: dict[str, list[int]] = {}
    for number, (text, _) in enumerate(units):
        units_of.setdefault(text, []).append(number)
    encoded: list[np.ndarray] = []
    ranges = np.zeros((len(units), 2), np.int64)  # of tokens within the framed row
    for text, numbers in units_of.items():
        ids, starts, stops = reader.words.offsets(text)
        encoded.append(reader.truncate(ids))
        for number in numbers:
            ranges[number] = _tokens(reader, len(encoded[-1]), starts, stops, units[number][1], pieces)
    present = ranges[:, 0] < ranges[:, 1]
    numbers_of = [np.array(numbers)[present[numbers]] for numbers in units_of.values()]
    states: np.ndarray | None = None
    done = 0
    with torch.inference_mode(), eval_mode(model):
        for chosen, batch in reader.batches(encoded, batch_size):
            layers = model.layers(batch)
            if states is None:
                shape = (len(layers), len(units), layers[0].shape[1])
                size, free = 4 * math.prod(shape), psutil.virtual_memory().available
                # Probes work on standardised copies, and a mix of layers on another one while it learns.
                if 4 * size > free:
                    raise EtymonError(
                        f"{len(units):,} vectors of {len(layers)} layers take {size / 1e9:.1f} GB, four "
                        f"times, and {free / 1e9:.1f} GB are free: use fewer with --examples, or fewer "
                        "tasks at once"
                    )
                states = np.zeros(shape, np.float32)
            into = np.concatenate([numbers_of[text] for text in chosen])
            begins = np.repeat(batch.layout.host_starts, [len(numbers_of[text]) for text in chosen])
            if len(into):
                for layer, x_ND in enumerate(layers):
                    states[layer, into] = _means(x_ND, ranges[into] + begins[:, None]).float().cpu().numpy()
            done += len(chosen)
            on_batch(done, len(encoded))
    assert states is not None
    return Representations(states, present, reader.cut)


def _tokens(
    reader: Reader, length: int, starts: np.ndarray, stops: np.ndarray, place: Place, pieces: Pieces
) -> tuple[int, int]:
    """The tokens of the framed row whose mean a unit is."""
    row = len(reader.before) + length + len(reader.after)
    if isinstance(place, str):
        if reader.apart:  # of the text alone
            begin, row = len(reader.before), len(reader.before) + length
            return (begin, row) if place == "mean" else (max(begin, row - 1), row)
        if place == "mean":
            return 0, row
        return (row - 1, row) if place == "last" or reader.class_last else (0, 1)
    # The first token that ends behind the word's start, up to the first that starts at its end. A token may
    # reach beyond the word, such as one with the space before it.
    start, stop = place
    first = int(np.searchsorted(np.maximum.accumulate(stops), start, side="right"))
    last = min(int(np.searchsorted(starts, stop, side="left")), length)
    if pieces == "first":
        last = min(last, first + 1)
    return len(reader.before) + first, len(reader.before) + last


def _means(x_ND: Tensor, ranges: np.ndarray) -> Tensor:
    """The mean of the tokens [start, stop) of every range."""
    # Ranges may overlap (a word and its text): every range gathers its tokens, T in all, and adds them up.
    lengths = ranges[:, 1] - ranges[:, 0]
    unit = np.repeat(np.arange(len(ranges)), lengths)
    within = np.arange(len(unit)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    token_T, unit_T = (torch.from_numpy(part).to(x_ND.device) for part in (ranges[unit, 0] + within, unit))
    sums_UD = x_ND.new_zeros(len(ranges), x_ND.shape[1]).index_add_(0, unit_T, x_ND[token_T])
    return sums_UD / torch.from_numpy(lengths).to(x_ND)[:, None]
