"""Causal language modelling: every token is predicted from those before it (GPT-2, section 2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from etymon.nn.batch import Batch
from etymon.nn.vocabulary import Context
from etymon.objectives.objective import MicroBatch, Objective, Term, Unit, by_length, needed_id, text_lengths
from etymon.sampling import plans
from etymon.text.store import Split
from etymon.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class CausalExample:
    ids: np.ndarray
    targets: np.ndarray
    """What the last of the ids are asked for. Those before them are given: to `causal`, they and the first that is asked are
    a prefix, read in both directions."""


@dataclass
class CausalBatch(MicroBatch):
    batch: Batch
    targets: Tensor
    at: Tensor | None
    """Where targets are asked for; None if everywhere."""


def asked(examples: Sequence[CausalExample], batch: Batch, text_lengths: np.ndarray) -> dict[str, Any]:
    """The fields of a `CausalBatch`: a batch of these examples, and what the last of their ids are asked for."""
    targets = np.concatenate([example.targets for example in examples])
    at = batch.layout.flat([np.arange(len(one.ids) - len(one.targets), len(one.ids)) for one in examples])
    count_bytes, characters = text_lengths[targets].sum(0).tolist()
    return {
        "counts": {"loss": len(targets)},
        "tokens": batch.layout.tokens,
        "bytes": count_bytes,
        "characters": characters,
        "batch": batch,
        "targets": torch.from_numpy(targets),
        "at": None if len(at) == batch.layout.tokens else at,
    }


class CausalLM(Objective):
    """Documents follow one another, an end token between them, and are cut into windows of `length` tokens.

    In training, `z_loss` times log² of the softmax's normaliser is added for every target (GPT-J: 1e-4)."""

    name = "causal"
    heads = frozenset({"vocabulary"})
    requires = frozenset({"causal"})
    likelihood = "loss"

    def __init__(self, tokenizer: Tokenizer, length: int, z_loss: float = 0.0) -> None:
        self.length, self.z_loss = length, z_loss
        self.separator = needed_id(tokenizer, "end", self.name)
        self.text_lengths = text_lengths(tokenizer)

    def plan(self, split: Split, seed: int, epoch: int, *, shuffle: bool = True) -> np.ndarray:
        return plans.stream_windows(split, self.length, seed, epoch, shuffle=shuffle)

    def prepare(self, split: Split, row: np.ndarray, rng: np.random.Generator) -> CausalExample:
        start, stop = row.tolist()
        ids = split.stream(start, stop, self.separator)
        return CausalExample(ids[:-1], ids[1:])

    def collate(self, examples: Sequence[CausalExample]) -> CausalBatch:
        examples = by_length(examples)
        prefix = [len(example.ids) - len(example.targets) + 1 for example in examples]
        batch = Batch.of([example.ids for example in examples], prefix=prefix)
        return CausalBatch(**asked(examples, batch, self.text_lengths))

    def loss(self, unit: Unit, prepared: CausalBatch) -> dict[str, Term]:
        hidden, _ = unit.model.hidden(prepared.batch)
        return self._terms(unit.model, prepared, hidden)

    def _terms(self, model: Any, prepared: CausalBatch, hidden: Tensor) -> dict[str, Term]:
        head = model.heads["vocabulary"]
        if self.z_loss and model.training:
            return {
                "loss": Term(head.smoothed_loss(hidden, prepared.at, prepared.targets, z_loss=self.z_loss))
            }
        return {"loss": Term(head.loss(hidden, prepared.at, prepared.targets, Context(prepared.batch)))}
