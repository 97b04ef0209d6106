"""Denoising: an encoder reads a text with something wrong about it, and the decoder writes what is right (T5, section 3.3;
BART, section 2.2). What is wrong is one of the noises of `data.corruption`."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from etymon.errors import EtymonError
from etymon.nn.batch import Batch
from etymon.nn.vocabulary import Context
from etymon.objectives.objective import MicroBatch, Objective, Term, Unit, by_length, needed_id
from etymon.sampling import noise as algebra
from etymon.sampling import plans
from etymon.sampling.corruption import NOISES, Amounts, Text
from etymon.text.store import Split
from etymon.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class DenoisingExample:
    ids: np.ndarray
    targets: np.ndarray


START = 0
"""Stands where the decoder's start will be, which the model says."""


@dataclass
class Seq2SeqBatch(MicroBatch):
    """A source that is read apart (or None) and what a decoder reads, which writes the targets `at` some places, or everywhere."""

    source: Batch | None
    decoder: Batch
    """With a source, its rows begin with any token: see `inputs`."""
    targets: Tensor
    at: Tensor | None = None

    @staticmethod
    def of(term: str, pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> Seq2SeqBatch:
        """Sources and targets for an encoder and a decoder."""
        source = Batch.of([one for one, _ in pairs])
        decoder = Batch.of([np.concatenate([[START], target[:-1]]) for _, target in pairs])
        targets = np.concatenate([target for _, target in pairs]).astype(np.int64)
        tokens = source.layout.tokens + decoder.layout.tokens
        return Seq2SeqBatch({term: len(targets)}, tokens, source, decoder, torch.from_numpy(targets))

    def inputs(self, model: Any) -> Batch:
        """What the decoder reads: over an encoder, the targets behind the token that the model begins with."""
        if self.source is None:
            return self.decoder
        ids_N = self.decoder.ids.index_fill(0, self.decoder.layout.first, model.decoder_start)
        return replace(self.decoder, ids=ids_N)

    def loss(self, model: Any, smoothing: float) -> Tensor:
        """The summed loss; `smoothing` is that share of every target's probability which all words have in equal parts, in
        training alone."""
        inputs = self.inputs(model)
        if self.source is None:
            hidden, _ = model.hidden(inputs)
        else:
            hidden, _ = model.decode(inputs, model.encode(self.source))
        head = model.heads["vocabulary"]
        if smoothing and model.training:
            return head.smoothed_loss(hidden, self.at, self.targets, smoothing)
        return head.loss(hidden, self.at, self.targets, Context(inputs))


class Denoising(Objective):
    """`length` is what the encoder reads at most. The `density` is the noise's published one unless told (0). `smoothing` is for
    training alone."""

    name = "denoising"
    heads = frozenset({"vocabulary"})
    requires = frozenset({"encoder-decoder"})
    likelihood = None
    choices: ClassVar[Mapping[str, Collection[str]]] = {"noise": NOISES}
    term = "denoising"
    usual = "bart"
    """The noise, unless told."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        length: int,
        noise: str = usual,
        density: float = 0.0,
        mean_span: float = 3.0,
        random_roll: bool = False,
        smoothing: float = 0.0,
    ) -> None:
        self.smoothing = smoothing
        self.noise, self.framing, self.word_starts = NOISES[noise], tokenizer.framing, tokenizer.word_starts
        density = density or self.noise.density
        around = self.framing.overhead()
        self.raw_length = length - around
        if noise == "spans":
            # A span that is rolled over the end becomes two: one sentinel more on both sides.
            self.raw_length, _ = algebra.raw_length_for(
                length - (around - 1) - random_roll, density, mean_span
            )
        if self.raw_length < 2:
            raise EtymonError(
                f"an input of {length} tokens is too short to be corrupted: use {around + 2} or more"
            )
        sentinels = tokenizer.sentinels
        if self.noise.target == "sentinels":
            self._check_sentinels(length, len(sentinels), density, mean_span, random_roll, noise)
        # T5 has no mask token: its first sentinel stands in.
        mask = sentinels[0] if sentinels else 0
        if self.noise.masks and (tokenizer.id("mask") is not None or not sentinels):
            mask = needed_id(tokenizer, "mask", self.name)
        self.amounts = Amounts(density, mean_span, random_roll, mask, sentinels, tokenizer.size)

    @classmethod
    def check_amounts(cls, options: Mapping[str, Any]) -> None:
        """Refuses none at all, and those that the noise has no use for."""
        if options.get("density") == 0:
            raise EtymonError(
                f"density of the objective {cls.name!r} cannot be 0: leave it out for the published one"
            )
        noise = options.get("noise", cls.usual)
        for option in ("density", "mean_span", "random_roll"):
            if option in options and option not in NOISES[noise].amounts:
                raise EtymonError(f"the noise {noise!r} has no {option}: leave it out")

    def _check_sentinels(
        self, length: int, there: int, density: float, mean_span: float, roll: bool, noise: str
    ) -> None:
        if noise == "spans":
            needed = algebra.noise_counts(self.raw_length, density, mean_span)[1] + roll
        else:  # the number of runs varies: six deviations above its mean hardly ever come
            mean = self.raw_length * density * (1 - density) + 1
            needed = math.ceil(mean + 6 * math.sqrt(mean))
        if there < needed:
            raise EtymonError(
                f"inputs of {length} tokens have {needed} corrupted spans, but the tokenizer has "
                f"{there} sentinels: shorten the inputs, or train a tokenizer with more"
            )

    def plan(self, split: Split, seed: int, epoch: int, *, shuffle: bool = True) -> np.ndarray:
        return plans.chunks(split, self.raw_length, seed, epoch, shuffle=shuffle)

    def prepare(self, split: Split, row: np.ndarray, rng: np.random.Generator) -> DenoisingExample:
        start, stop = row.tolist()
        ids = split.tokens[start:stop].astype(np.int64)
        first, last = np.searchsorted(split.sentences, (start, stop))
        text = Text(ids, self.word_starts[ids], np.asarray(split.sentences[first:last]) - start)
        shown, target = self.noise.corrupt(text, self.amounts, rng)
        return DenoisingExample(self.framing.frame(shown).ids, self.framing.frame(target).ids)

    def collate(self, examples: Sequence[DenoisingExample]) -> Seq2SeqBatch:
        pairs = [(example.ids, example.targets) for example in by_length(examples)]
        return Seq2SeqBatch.of(self.term, pairs)

    def loss(self, unit: Unit, prepared: Seq2SeqBatch) -> dict[str, Term]:
        return {self.term: Term(prepared.loss(unit.model, self.smoothing))}


class SpanCorruption(Denoising):
    """T5's, whose arithmetic is exact: an input of 512 comes from 568 tokens and asks for 114."""

    name = "span-corruption"
    term = "spans"
    usual = "spans"

    def __init__(
        self,
        tokenizer: Tokenizer,
        length: int,
        density: float = 0.15,
        mean_span: float = 3.0,
        random_roll: bool = False,
    ) -> None:
        super().__init__(tokenizer, length, "spans", density, mean_span, random_roll)
