"""Causal language modelling: every token is predicted from those before it (GPT-2, section 2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from etymon.data import plans
from etymon.data.store import Split
from etymon.data.tokenizer import Tokenizer
from etymon.nn.batch import Batch
from etymon.objectives.objective import Objective, Prepared, Term, Unit, by_length, byte_lengths, needed_id


@dataclass(frozen=True)
class CausalExample:
    ids: np.ndarray
    targets: np.ndarray


@dataclass
class CausalPrepared(Prepared):
    batch: Batch
    targets: Tensor


class Causal(Objective):
    """Documents follow one another, an end token between them, and are cut into windows of `length` tokens."""

    name = "causal"
    heads = frozenset({"vocabulary"})
    requires = frozenset({"causal"})
    likelihood = "loss"

    def __init__(self, tokenizer: Tokenizer, length: int) -> None:
        self.length = length
        self.separator = needed_id(tokenizer, "end", self.name)
        self.byte_lengths = byte_lengths(tokenizer)

    def plan(self, split: Split, seed: int, epoch: int, *, shuffle: bool = True) -> np.ndarray:
        return plans.stream_windows(split, self.length, seed, epoch, shuffle=shuffle)

    def prepare(self, split: Split, row: np.ndarray, rng: np.random.Generator) -> CausalExample:
        start, stop = row.tolist()
        ids = split.stream(start, stop, self.separator)
        return CausalExample(ids[:-1], ids[1:])

    def collate(self, examples: Sequence[CausalExample]) -> CausalPrepared:
        examples = by_length(examples)
        batch = Batch.of([example.ids for example in examples])
        targets = np.concatenate([example.targets for example in examples])
        return CausalPrepared(
            counts={"loss": len(targets)},
            tokens=len(targets),
            bytes=float(self.byte_lengths[targets].sum()),
            batch=batch,
            targets=torch.from_numpy(targets),
        )

    def loss(self, unit: Unit, prepared: CausalPrepared) -> dict[str, Term]:
        hidden, _ = unit.model.hidden(prepared.batch)
        total = unit.model.heads["vocabulary"].loss(hidden, None, prepared.targets)
        return {"loss": Term(total)}
