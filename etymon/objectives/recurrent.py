"""Causal language modelling over streams with a memory (Transformer-XL, section 3.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from etymon.nn.batch import Batch
from etymon.nn.vocabulary import Context
from etymon.objectives.causal import CausalBatch, CausalExample, causal_fields
from etymon.objectives.objective import (
    MemoryOptions,
    StreamBatch,
    Streaming,
    Term,
    Unit,
    needed_id,
    stream_fields,
    text_lengths,
)
from etymon.sampling.streams import FRESH, START, STOP, STREAM, Reset, read, stream_segments
from etymon.settings import option, settings
from etymon.text.store import Split
from etymon.text.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class Segment(CausalExample):
    stream: int
    fresh: bool


@dataclass
class RecurrentBatch(CausalBatch, StreamBatch):
    pass


@settings
class RecurrentOptions(MemoryOptions):
    reset: Reset = option(
        "epoch", "when a stream forgets: with each epoch, also with each document, or never"
    )
    # 0.5 is the second half of every segment: the paper's "half loss" (section 4.2).
    recent: float = option(
        1.0,
        "the share of a segment, its end, that is predicted in training; in validation, all is",
        ge=0,
        le=1,
    )


class Recurrent(Streaming):
    """Streams of the text are read in segments of `length` tokens, and each segment sees what its stream
    remembers of those before. No gradient goes back there."""

    name = "recurrent"
    heads = frozenset({"vocabulary"})
    requires = frozenset({"causal", "memory"})
    likelihood = "loss"
    Options = RecurrentOptions

    def __init__(self, tokenizer: Tokenizer, length: int, options: RecurrentOptions | None = None) -> None:
        options = options or RecurrentOptions()
        self.length, self.memory, self.validation_memory = length, options.memory, options.validation_memory
        self.reset, self.recent = options.reset, options.recent
        self.separator = needed_id(tokenizer, "end", self.name)
        self.text_lengths = text_lengths(tokenizer)

    def plan(
        self, split: Split, seed: int, epoch: int, *, shuffle: bool = True, streams: int = 1
    ) -> np.ndarray:
        """The columns of `sampling/streams.py`, and how many tokens of a segment are predicted."""
        table = stream_segments(split, self.length, seed, epoch, streams, reset=self.reset, shuffle=shuffle)
        sizes = table[:, STOP] - table[:, START] - 1
        # At least one token of a short segment, so that no row is without a loss.
        recent = np.maximum(1, np.ceil(sizes * self.recent).astype(np.int64)) if shuffle else sizes
        return np.column_stack((table, recent))

    def prepare(self, split: Split, row: np.ndarray, rng: np.random.Generator) -> Segment:
        ids = read(split, row, self.separator)
        targets = ids[len(ids) - row[-1] :]
        return Segment(ids[:-1], targets, stream=int(row[STREAM]), fresh=bool(row[FRESH]))

    def collate(self, examples: Sequence[Segment]) -> RecurrentBatch:
        # Not sorted by length: the rows' order is that of the streams.
        batch = Batch.of([example.ids for example in examples])
        return RecurrentBatch(**causal_fields(examples, batch, self.text_lengths), **stream_fields(examples))

    def loss(self, unit: Unit, micro: RecurrentBatch) -> dict[str, Term]:
        # The state comes back without gradients: the memory is an input (the paper's stop-gradient).
        hidden, state = unit.model.hidden(micro.batch, unit.recall(micro))
        unit.keep(micro, state)
        head, context = unit.model.heads["vocabulary"], Context(micro.batch)
        return {"loss": Term(head.loss(hidden, micro.at, micro.targets, context))}
