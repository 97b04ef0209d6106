"""Causal language modelling: every token is predicted from those before it (GPT-2, section 2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from etymon.nn.batch import Batch
from etymon.nn.vocabulary import Context
from etymon.objectives.objective import (
    MicroBatch,
    Objective,
    Term,
    Unit,
    by_length,
    concatenate,
    needed_id,
    text_lengths,
)
from etymon.sampling import plans
from etymon.settings import option, settings
from etymon.text.store import Split
from etymon.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class CausalExample:
    ids: np.ndarray
    targets: np.ndarray
    """What the last of the ids predict."""
    prefix: int = field(default=1, kw_only=True)
    """So many ids at the beginning are read in both directions; one is as good as none."""


@dataclass
class CausalBatch(MicroBatch):
    batch: Batch
    targets: Tensor
    at: Tensor | None
    """Where targets are predicted; None if everywhere."""


def causal_fields(
    examples: Sequence[CausalExample], batch: Batch, text_lengths: np.ndarray
) -> dict[str, Any]:
    """The fields of a `CausalBatch` of these examples, whose ids the batch holds."""
    targets = concatenate(examples, "targets")
    places = [np.arange(len(each.ids) - len(each.targets), len(each.ids)) for each in examples]
    # Bits per byte compare models of different tokenizers: losses by the token do not.
    byte_count, characters = text_lengths[targets.numpy()].sum(0).tolist()
    return {
        "counts": {"loss": len(targets)},
        "tokens": batch.layout.tokens,
        "bytes": byte_count,
        "characters": characters,
        "batch": batch,
        "targets": targets,
        "at": None if len(targets) == batch.layout.tokens else batch.layout.flat(places),
    }


@settings
class NextTokenOptions:
    # GPT-J was trained with 1e-4; GPT-2 and GPT-3 without.
    z_loss: float = option(
        0.0, "in training, weight of log² of the softmax's normaliser at every target", ge=0
    )


@settings
class CausalOptions(NextTokenOptions):
    isolated: bool = option(False, "let no document see another one that is packed into the same sample")


class CausalLM(Objective):
    """Documents follow one another, an end token between them, and are cut into windows of `length` tokens."""

    name = "causal"
    heads = frozenset({"vocabulary"})
    requires = frozenset({"causal"})
    likelihood = "loss"
    Options: ClassVar[type] = CausalOptions

    def __init__(self, tokenizer: Tokenizer, length: int, options: Any = None) -> None:
        options = options or self.Options()
        self.length, self.z_loss = length, options.z_loss
        self.isolated: bool = getattr(options, "isolated", False)
        self.separator = needed_id(tokenizer, "end", self.name)
        self.text_lengths = text_lengths(tokenizer)

    def plan(self, split: Split, seed: int, epoch: int, *, shuffle: bool = True) -> np.ndarray:
        return plans.stream_windows(split, self.length, seed, epoch, shuffle=shuffle)

    def prepare(self, split: Split, row: np.ndarray, rng: np.random.Generator) -> CausalExample:
        start, stop = row.tolist()
        ids = split.stream(start, stop, self.separator)
        return CausalExample(ids[:-1], ids[1:])

    def collate(self, examples: Sequence[CausalExample]) -> CausalBatch:
        if self.isolated:
            examples = [part for example in examples for part in self._documents(example)]
        examples = by_length(examples)
        batch = Batch.of(
            [example.ids for example in examples], prefix=[example.prefix for example in examples]
        )
        return CausalBatch(**causal_fields(examples, batch, self.text_lengths))

    def _documents(self, example: CausalExample) -> list[CausalExample]:
        """Returns a row for each document of a sample; each begins with the separator before it."""
        # The same tokens and targets, none of them padding: only who sees whom changes, and positions.
        starts = np.flatnonzero(example.ids[1:] == self.separator) + 1
        return list(map(CausalExample, np.split(example.ids, starts), np.split(example.targets, starts)))

    def loss(self, unit: Unit, micro: CausalBatch) -> dict[str, Term]:
        hidden, _ = unit.model.hidden(micro.batch)
        return self.terms(unit.model, micro, hidden)

    def terms(self, model: Any, micro: CausalBatch, hidden: Tensor) -> dict[str, Term]:
        """The terms of the loss, from hidden states that were computed already."""
        head = model.heads["vocabulary"]
        # It keeps logits from drifting; validation reports the loss without it.
        if self.z_loss and model.training:
            return {"loss": Term(head.smoothed_loss(hidden, micro.at, micro.targets, z_loss=self.z_loss))}
        return {"loss": Term(head.loss(hidden, micro.at, micro.targets, Context(micro.batch)))}
