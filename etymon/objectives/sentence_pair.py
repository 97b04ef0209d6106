"""Masked language modelling of two texts, and a question about both: does the second follow the first?

Next sentences (BERT, section 3.1) set a continuation against text from another document; sentence order
(ALBERT, section 3.1) sets two consecutive texts against the same two swapped, which the topic alone does not
give away.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from etymon.objectives.masked import MaskedBatch, MaskedLM
from etymon.objectives.objective import Term
from etymon.sampling import plans
from etymon.text.store import Split
from etymon.text.tokenizer import Tokenizer


class SentencePair(MaskedLM):
    """What both have in common: rows of two spans and a label, 1 where the second text does not follow the
    first."""

    requires = frozenset({"bidirectional", "pairs"})
    head: ClassVar[str]
    pairs: ClassVar[Callable[..., np.ndarray]]

    def __init__(
        self, tokenizer: Tokenizer, length: int, masking: str = "bert", density: float = 0.15, copies: int = 0
    ) -> None:
        super().__init__(tokenizer, length, masking=masking, density=density, copies=copies)

    def spans(self, split: Split, seed: int, epoch: int, shuffle: bool) -> np.ndarray:
        # The special tokens around two texts: [CLS] A [SEP] B [SEP] has three.
        overhead = self.framing.overhead(pair=True)
        return type(self).pairs(split, self.length, seed, epoch, overhead=overhead, shuffle=shuffle)

    def _counts(self, masked: int, tokens: int, rows: int) -> dict[str, float]:
        return {**super()._counts(masked, tokens, rows), self.head: rows, f"{self.head}_accuracy": rows}

    def terms(self, model: Any, micro: MaskedBatch, hidden: Tensor) -> dict[str, Term]:
        # Read from the hidden states that the masked tokens are predicted from: one pass for both.
        logits = model.read(self.head, hidden, micro.batch)
        return {
            **super().terms(model, micro, hidden),
            self.head: Term(F.cross_entropy(logits, micro.labels, reduction="sum")),
            f"{self.head}_accuracy": Term((logits.argmax(-1) == micro.labels).sum(), 0.0),
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
