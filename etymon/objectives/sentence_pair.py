"""Masked language modelling of two texts, and a question about both: does the second follow the first?

Next sentences (BERT, section 3.1) set a continuation against text from another document; sentence order (ALBERT, section
3.1) sets two consecutive texts against the same two swapped, which the topic alone does not give away.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from etymon.objectives.masked import MaskedBatch, MaskedExample, MaskedLM
from etymon.objectives.objective import Term, by_length
from etymon.sampling import plans
from etymon.text.store import Split
from etymon.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class PairExample(MaskedExample):
    label: int


@dataclass
class PairBatch(MaskedBatch):
    labels: Tensor


class SentencePair(MaskedLM):
    """What both have in common: rows of two spans and a label, 1 where the second text does not follow the first."""

    requires = frozenset({"bidirectional", "pairs"})
    head: ClassVar[str]
    pairs: ClassVar[Callable[..., np.ndarray]]

    def __init__(
        self, tokenizer: Tokenizer, length: int, masking: str = "bert", density: float = 0.15, copies: int = 0
    ) -> None:
        super().__init__(tokenizer, length, masking=masking, density=density, copies=copies)

    def spans(self, split: Split, seed: int, epoch: int, shuffle: bool) -> np.ndarray:
        overhead = self.framing.overhead(pair=True)
        return type(self).pairs(split, self.length, seed, epoch, overhead=overhead, shuffle=shuffle)

    def example_of(self, split: Split, row: np.ndarray, rng: np.random.Generator) -> PairExample:
        *where, label = row.tolist()
        return PairExample(**vars(self.example(self.framed(split, *where), split, rng)), label=label)

    def collate(self, examples: Sequence[Any]) -> PairBatch:
        examples = by_length(examples)
        labels = torch.tensor([example.label for example in examples])
        return PairBatch(**vars(super().collate(examples)), labels=labels)

    def _counts(self, masked: int, tokens: int, rows: int) -> dict[str, float]:
        return {**super()._counts(masked, tokens, rows), self.head: rows, f"{self.head}_accuracy": rows}

    def _terms(self, model: Any, prepared: Any, hidden: Tensor) -> dict[str, Term]:
        logits = model.read(self.head, hidden, prepared.batch)
        return {
            **super()._terms(model, prepared, hidden),
            self.head: Term(F.cross_entropy(logits, prepared.labels, reduction="sum")),
            f"{self.head}_accuracy": Term((logits.argmax(-1) == prepared.labels).sum(), 0.0),
        }


class MaskedNextSentence(SentencePair):
    name = "masked-next-sentence"
    head = "next_sentence"
    heads = frozenset({"vocabulary", head})
    pairs = staticmethod(plans.sentence_pairs)


class MaskedSentenceOrder(SentencePair):
    name = "masked-sentence-order"
    head = "sentence_order"
    heads = frozenset({"vocabulary", head})
    pairs = staticmethod(plans.ordered_pairs)

    def __init__(
        self,
        tokenizer: Tokenizer,
        length: int,
        masking: str = "ngram",
        density: float = 0.15,
        copies: int = 0,
    ) -> None:
        super().__init__(tokenizer, length, masking, density, copies)
