"""Replaced-token detection (ELECTRA, section 2): a small generator fills masked places, and the model says of every
token whether it is the original one.

Generator and model train together and share their embeddings, but no gradient runs from one to the other: the
generator learns by its own likelihood. A place that is drawn twice is guessed once and counts twice, as in the
released code (which would put the mean of two different guesses, an id without meaning, there).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from etymon.objectives.masked import MaskedBatch, MaskedExample, MaskedLM
from etymon.objectives.objective import Term, Unit, by_length
from etymon.text.store import Split
from etymon.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class ReplacedExample(MaskedExample):
    uniforms: np.ndarray
    """One a masked place: which word the generator will guess there, given its distribution."""


@dataclass
class ReplacedBatch(MaskedBatch):
    uniforms: Tensor


class Replaced(MaskedLM):
    name = "replaced"
    heads = frozenset({"replaced"})
    requires = frozenset({"bidirectional", "generator"})
    folder = "discriminator"
    companions = frozenset({"generator"})

    def __init__(
        self,
        tokenizer: Tokenizer,
        length: int,
        masking: str = "electra",
        density: float = 0.15,
        packing: str = "segments",
        weight: float = 50.0,
        temperature: float = 1.0,
    ) -> None:
        super().__init__(tokenizer, length, masking=masking, density=density, packing=packing)
        self.weight, self.temperature = weight, temperature

    def prepare(self, split: Split, row: np.ndarray, rng: np.random.Generator) -> ReplacedExample:
        example = super().prepare(split, row, rng)
        distinct, which = np.unique(example.places, return_inverse=True)
        uniforms = rng.random(len(distinct), dtype=np.float32)[which]
        return ReplacedExample(**vars(example), uniforms=uniforms)

    def collate(self, examples: Sequence[Any]) -> ReplacedBatch:
        examples = by_length(examples)
        uniforms = torch.from_numpy(np.concatenate([example.uniforms for example in examples]))
        return ReplacedBatch(**vars(super().collate(examples)), uniforms=uniforms)

    def _counts(self, masked: int, tokens: int, rows: int) -> dict[str, float]:
        return {"generator": masked, "generator_accuracy": masked, "discriminator": tokens}

    def loss(self, unit: Unit, prepared: ReplacedBatch) -> dict[str, Term]:
        generator, model, at = unit.companions["generator"], unit.model, prepared.at
        hidden, _ = generator.hidden(prepared.batch)
        head = generator.heads["vocabulary"]
        guessing, guesses = head.loss_and_sample(
            hidden, at, prepared.targets, prepared.uniforms, self.temperature
        )
        original = prepared.batch.ids.index_copy(0, at, prepared.targets)
        batch = replace(prepared.batch, ids=original.index_copy(0, at, guesses))
        replaced = batch.ids != original
        found, _ = model.hidden(batch)
        logits = model.read("replaced", found, batch)
        finding = F.binary_cross_entropy_with_logits(logits, replaced.to(logits.dtype), reduction="sum")
        right = (logits > 0) == replaced
        terms = {
            "generator": Term(guessing),
            "discriminator": Term(finding, self.weight),
            # How many were replaced is known only now: the guess may be the original.
            "accuracy_on_replaced": Term((right & replaced).sum(), 0.0, replaced.sum()),
            "accuracy_on_original": Term((right & ~replaced).sum(), 0.0, (~replaced).sum()),
        }
        if not model.training:
            terms["generator_accuracy"] = Term((head.ranks(hidden, at, prepared.targets) == 0).sum(), 0.0)
        return terms
