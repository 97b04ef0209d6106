"""Masked language modelling, with next-sentence prediction or without (BERT, section 3.1).

15% of the tokens are asked for; of these 80% are shown as the mask, 10% as themselves, 10% as a random token. Masks
are drawn anew every epoch; `whole_words` hides all pieces of a word or none. With next sentences, pairs are built from documents as the released pipeline does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from etymon.data import noise, plans
from etymon.data.store import Split
from etymon.data.tokenizer import Tokenizer
from etymon.nn.batch import Batch
from etymon.objectives.objective import Prepared, Term, by_length, flat_starts, needed_id


@dataclass(frozen=True)
class MaskedExample:
    ids: np.ndarray
    segments: np.ndarray
    places: np.ndarray
    targets: np.ndarray
    random_next: int


@dataclass
class MaskedPrepared(Prepared):
    batch: Batch
    at: Tensor
    targets: Tensor
    random_next: Tensor


class Masked:
    name = "masked"
    heads = frozenset({"vocabulary"})
    requires = frozenset({"bidirectional"})
    likelihood = None

    def __init__(
        self, tokenizer: Tokenizer, length: int, density: float = 0.15, whole_words: bool = False
    ) -> None:
        self.length, self.density = length, density
        self.word_starts = tokenizer.word_starts if whole_words else None
        self.framing = tokenizer.framing
        self.mask = needed_id(tokenizer, "mask", self.name)
        self.separator = needed_id(tokenizer, "separator", self.name)
        self.vocabulary = (0, tokenizer.size)

    def plan(self, split: Split, seed: int, epoch: int, *, shuffle: bool = True) -> np.ndarray:
        room = self.length - self.framing.overhead()
        return plans.chunks(split, room, seed, epoch, self.separator, shuffle=shuffle)

    def prepare(self, split: Split, row: np.ndarray, rng: np.random.Generator) -> MaskedExample:
        start, stop = row.tolist()
        tokens = split.stream(start, stop, self.separator)
        return self._masked(self.framing.frame(tokens), rng)

    def _masked(self, framed: Any, rng: np.random.Generator, random_next: int = 0) -> MaskedExample:
        ids = framed.ids.astype(np.int64)
        candidates = ~framed.special & (ids != self.separator)
        count = noise.masked_count(len(ids), self.density)
        if self.word_starts is None:
            mask = noise.count_mask(candidates, min(count, int(candidates.sum())), rng)
        else:
            mask = noise.whole_word_mask(self.word_starts[ids], candidates, count, rng)
        places, targets = noise.at(ids, mask)
        shown = noise.mask_eighty_ten_ten(ids, mask, self.mask, self.vocabulary, rng)
        return MaskedExample(shown, framed.segments, places, targets, random_next)

    def collate(self, examples: Sequence[MaskedExample]) -> MaskedPrepared:
        examples = by_length(examples)
        starts = flat_starts([example.ids for example in examples])
        at = np.concatenate([start + example.places for start, example in zip(starts, examples, strict=True)])
        batch = Batch.of(
            [example.ids for example in examples], segments=[example.segments for example in examples]
        )
        return MaskedPrepared(
            counts=self._counts(len(at), len(examples)),
            tokens=batch.layout.tokens,
            bytes=0.0,
            batch=batch,
            at=torch.from_numpy(at),
            targets=torch.from_numpy(np.concatenate([example.targets for example in examples])),
            random_next=torch.tensor([example.random_next for example in examples]),
        )

    def _counts(self, masked: int, rows: int) -> dict[str, float]:
        return {"masked": masked, "masked_accuracy": masked}

    def loss(self, model: Any, prepared: MaskedPrepared) -> dict[str, Term]:
        hidden, _ = model.hidden(prepared.batch)
        return self._terms(model, prepared, hidden)

    def _terms(self, model: Any, prepared: MaskedPrepared, hidden: Tensor) -> dict[str, Term]:
        head, count = model.heads["vocabulary"], prepared.counts["masked"]
        terms = {"masked": Term(head.loss(hidden, prepared.at, prepared.targets), count)}
        if not model.training:  # a second look at the logits: only where time is not counted
            right = (head.ranks(hidden, prepared.at, prepared.targets) == 0).sum()
            terms["masked_accuracy"] = Term(right, count, weight=0.0)
        return terms


class MaskedNextSentence(Masked):
    """Pairs of text: does the second follow the first, or come from another document?"""

    name = "masked-next-sentence"
    heads = frozenset({"vocabulary", "next_sentence"})
    requires = frozenset({"bidirectional", "segments"})

    def plan(self, split: Split, seed: int, epoch: int, *, shuffle: bool = True) -> np.ndarray:
        overhead = self.framing.overhead(pair=True)
        return plans.sentence_pairs(split, self.length, seed, epoch, overhead=overhead, shuffle=shuffle)

    def prepare(self, split: Split, row: np.ndarray, rng: np.random.Generator) -> MaskedExample:
        a_start, a_stop, b_start, b_stop, is_random = row.tolist()
        framed = self.framing.frame(split.tokens[a_start:a_stop], split.tokens[b_start:b_stop])
        return self._masked(framed, rng, is_random)

    def _counts(self, masked: int, rows: int) -> dict[str, float]:
        return {**super()._counts(masked, rows), "next_sentence": rows, "next_sentence_accuracy": rows}

    def _terms(self, model: Any, prepared: MaskedPrepared, hidden: Tensor) -> dict[str, Term]:
        logits = model.read("next_sentence", hidden, prepared.batch)
        rows = prepared.counts["next_sentence"]
        right = (logits.argmax(-1) == prepared.random_next).sum()
        return {
            **super()._terms(model, prepared, hidden),
            "next_sentence": Term(F.cross_entropy(logits, prepared.random_next, reduction="sum"), rows),
            "next_sentence_accuracy": Term(right, rows, weight=0.0),
        }
