"""Span corruption (T5, section 3.3.4): spans of the input are replaced by sentinels, the decoder writes them out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from etymon.data import noise, plans
from etymon.data.store import Split
from etymon.data.tokenizer import Tokenizer
from etymon.errors import EtymonError
from etymon.nn.batch import Batch
from etymon.objectives.objective import Objective, Prepared, Term, Unit, by_length, needed_id


@dataclass(frozen=True)
class DenoisingExample:
    ids: np.ndarray
    targets: np.ndarray


@dataclass
class DenoisingPrepared(Prepared):
    source: Batch
    decoder: Batch
    targets: Tensor


class SpanCorruption(Objective):
    """`length` is what the encoder reads after corruption: 512 comes from 568 tokens and asks for 114."""

    name = "span-corruption"
    heads = frozenset({"vocabulary"})
    requires = frozenset({"encoder-decoder"})
    likelihood = None

    def __init__(
        self,
        tokenizer: Tokenizer,
        length: int,
        density: float = 0.15,
        mean_span: float = 3.0,
        random_roll: bool = False,
    ) -> None:
        self.density, self.mean_span, self.random_roll = density, mean_span, random_roll
        # A span that is rolled over the end becomes two: one sentinel more on both sides.
        self.raw_length, target_length = noise.raw_length_for(length - random_roll, density, mean_span)
        self.target_length = target_length + random_roll
        self.end = needed_id(tokenizer, "end", self.name)
        self.start = needed_id(tokenizer, "pad", self.name)
        self.sentinels = tokenizer.sentinels
        needed = noise.noise_counts(self.raw_length, density, mean_span)[1] + random_roll
        if len(self.sentinels) < needed:
            raise EtymonError(
                f"inputs of {length} tokens have {needed} corrupted spans, but the tokenizer has "
                f"{len(self.sentinels)} sentinels: shorten the inputs, or train a tokenizer with more"
            )

    def plan(self, split: Split, seed: int, epoch: int, *, shuffle: bool = True) -> np.ndarray:
        return plans.chunks(split, self.raw_length, seed, epoch, shuffle=shuffle)

    def prepare(self, split: Split, row: np.ndarray, rng: np.random.Generator) -> DenoisingExample:
        start, stop = row.tolist()
        ids = split.tokens[start:stop].astype(np.int64)
        mask = noise.random_spans_mask(len(ids), self.density, self.mean_span, rng, self.random_roll)
        shown = noise.replace_spans_with_sentinels(ids, mask, self.sentinels)
        target = noise.span_target_with_sentinels(ids, mask, self.sentinels)
        return DenoisingExample(np.append(shown, self.end), np.append(target, self.end))

    def collate(self, examples: Sequence[DenoisingExample]) -> DenoisingPrepared:
        examples = by_length(examples)
        source = Batch.of([example.ids for example in examples])
        decoder = Batch.of([np.concatenate([[self.start], example.targets[:-1]]) for example in examples])
        targets = np.concatenate([example.targets for example in examples])
        return DenoisingPrepared(
            counts={"spans": len(targets)},
            tokens=source.layout.tokens + decoder.layout.tokens,
            bytes=0.0,
            source=source,
            decoder=decoder,
            targets=torch.from_numpy(targets),
        )

    def loss(self, unit: Unit, prepared: DenoisingPrepared) -> dict[str, Term]:
        model = unit.model
        hidden, _ = model.decode(prepared.decoder, model.encode(prepared.source))
        total = model.heads["vocabulary"].loss(hidden, None, prepared.targets)
        return {"spans": Term(total)}
