"""Causal language modelling over streams with a memory (Transformer-XL, section 3.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from etymon.nn.batch import Batch
from etymon.nn.vocabulary import Context
from etymon.objectives.causal import CausalBatch, CausalExample, asked
from etymon.objectives.objective import (
    FROM_MODEL,
    StreamBatch,
    Streaming,
    Term,
    Unit,
    needed_id,
    text_lengths,
)
from etymon.sampling import streams as text_streams
from etymon.sampling.streams import FRESH, STREAM, Reset
from etymon.text.store import Split
from etymon.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Segment(CausalExample):
    stream: int
    fresh: bool


@dataclass
class RecurrentBatch(CausalBatch, StreamBatch):
    pass


class Recurrent(Streaming):
    """Streams of the text are read in segments of `length` tokens, and each segment sees what its stream remembers of those
    before: up to `memory` tokens, `validation_memory` where the model is judged, 0 for none. No gradient goes back there.

    `reset` says when a stream forgets: with each epoch, also with each document, or never. Only the `recent` share of a
    segment is asked for in training (0.5: its second half); judged is all of it.
    """

    name = "recurrent"
    heads = frozenset({"vocabulary"})
    requires = frozenset({"causal", "memory"})
    likelihood = "loss"
    choices = {"reset": ("epoch", "document", "never")}

    def __init__(
        self,
        tokenizer: Tokenizer,
        length: int,
        memory: int = FROM_MODEL,
        validation_memory: int = FROM_MODEL,
        reset: Reset = "epoch",
        recent: float = 1.0,
    ) -> None:
        self.length, self.memory, self.validation_memory = length, memory, validation_memory
        self.reset: Reset = reset
        self.recent = recent
        self.separator = needed_id(tokenizer, "end", self.name)
        self.text_lengths = text_lengths(tokenizer)

    def plan(
        self, split: Split, seed: int, epoch: int, *, shuffle: bool = True, streams: int = 1
    ) -> np.ndarray:
        """The columns of `data/streams.py`, and how many tokens of a segment are asked for."""
        table = text_streams.stream_segments(
            split, self.length, seed, epoch, streams, reset=self.reset, shuffle=shuffle
        )
        sizes = table[:, text_streams.STOP] - table[:, text_streams.START] - 1
        recent = np.maximum(1, np.ceil(sizes * self.recent).astype(np.int64)) if shuffle else sizes
        return np.column_stack((table, recent))

    def prepare(self, split: Split, row: np.ndarray, rng: np.random.Generator) -> Segment:
        ids = text_streams.read(split, row, self.separator)
        return Segment(ids[:-1], ids[len(ids) - row[-1] :], int(row[STREAM]), bool(row[FRESH]))

    def collate(self, examples: Sequence[Segment]) -> RecurrentBatch:
        batch = Batch.of([example.ids for example in examples])
        return RecurrentBatch(
            **asked(examples, batch, self.text_lengths),
            streams=tuple(example.stream for example in examples),
            fresh=tuple(example.fresh for example in examples),
        )

    def loss(self, unit: Unit, prepared: RecurrentBatch) -> dict[str, Term]:
        hidden, state = unit.model.hidden(prepared.batch, unit.recall(prepared))
        unit.keep(prepared, state)
        head, context = unit.model.heads["vocabulary"], Context(prepared.batch)
        return {"loss": Term(head.loss(hidden, prepared.at, prepared.targets, context))}
