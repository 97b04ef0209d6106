"""Denoising: an encoder reads a corrupted text, and the decoder writes the original or what is missing (T5,
section 3.3; BART, section 2.2). How it is corrupted is one of the noises of `sampling.corruption`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, ClassVar

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
from etymon.settings import in_table, option, settings
from etymon.text.store import Split
from etymon.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class DenoisingExample:
    ids: np.ndarray
    targets: np.ndarray


@dataclass
class Seq2SeqBatch(MicroBatch):
    """What an encoder reads (None without one), what a decoder reads, and the targets that it predicts."""

    source: Batch | None
    decoder: Batch
    """With a source, the first token of its rows is a placeholder: see `inputs`."""
    targets: Tensor
    at: Tensor | None = None
    """Where targets are predicted; None if everywhere."""

    @staticmethod
    def of(term: str, pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> Seq2SeqBatch:
        """Sources and targets for an encoder and a decoder."""
        source = Batch.of([ids for ids, _ in pairs])
        decoder = Batch.of([np.concatenate([[0], target[:-1]]) for _, target in pairs])
        targets = np.concatenate([target for _, target in pairs]).astype(np.int64)
        tokens = source.layout.tokens + decoder.layout.tokens
        return Seq2SeqBatch({term: len(targets)}, tokens, source, decoder, torch.from_numpy(targets))

    def inputs(self, model: Any) -> Batch:
        """What the decoder reads: over an encoder, the targets behind the token that the model begins
        with."""
        if self.source is None:
            return self.decoder
        # Examples are made without a model, and only that knows its start token (T5's is the pad).
        ids_N = self.decoder.ids.index_fill(0, self.decoder.layout.first, model.decoder_start)
        return replace(self.decoder, ids=ids_N)

    def loss(self, model: Any, smoothing: float) -> Tensor:
        """The summed loss. `smoothing` is the share of every target's probability that is spread over all
        words, in training alone."""
        inputs = self.inputs(model)
        if self.source is None:
            hidden, _ = model.hidden(inputs)
        else:
            hidden, _ = model.decode(inputs, model.encode(self.source))
        head = model.heads["vocabulary"]
        # Validation without smoothing: a likelihood that can be compared.
        if smoothing and model.training:
            return head.smoothed_loss(hidden, self.at, self.targets, smoothing)
        return head.loss(hidden, self.at, self.targets, Context(inputs))


SENTINELS = 100
"""Of a new tokenizer, where spans are written behind them: T5's number."""
MEAN_SPAN = 3.0
"""Tokens: T5's (table 7 of the paper) and, as the mean of a Poisson distribution, BART's."""


@settings
class SpanOptions:
    """How much is corrupted. None, not a number, is the default, since not every noise has each amount."""

    density: float | None = option(
        None, "share of the tokens that are corrupted (the noise's published one)", gt=0, le=1
    )
    mean_span: float | None = option(None, "mean length of a corrupted span, in tokens or words (3)", gt=0)
    # Off, as in the released code: a text then always begins uncorrupted.
    random_roll: bool = option(False, "turn the corrupted spans round by a random number of tokens")

    @property
    def shows_sentinels(self) -> bool:
        """Whether sentinels stand for what is cut out, so that a tokenizer has to have some."""
        return True


@settings
class DenoisingOptions(SpanOptions):
    noise: Annotated[str, in_table(NOISES)] = option("bart", "how the text is corrupted")
    smoothing: float = option(
        0.0, "share of every target's probability that all words have, in training", ge=0, lt=1
    )

    def __post_init__(self) -> None:
        for name in ("density", "mean_span", "random_roll"):
            if getattr(self, name) and name not in NOISES[self.noise].amounts:
                raise ValueError(f"the noise {self.noise!r} has no {name}: leave it out")

    @property
    def shows_sentinels(self) -> bool:
        return NOISES[self.noise].target == "sentinels"


class Denoising(Objective):
    """`length` is what the encoder reads at most."""

    name = "denoising"
    heads = frozenset({"vocabulary"})
    requires = frozenset({"encoder-decoder"})
    likelihood = None
    Options: ClassVar[type] = DenoisingOptions
    term = "denoising"

    def __init__(self, tokenizer: Tokenizer, length: int, options: DenoisingOptions | None = None) -> None:
        options = options or DenoisingOptions()
        noise, random_roll, self.smoothing = options.noise, options.random_roll, options.smoothing
        self.noise, self.framing, self.word_starts = NOISES[noise], tokenizer.framing, tokenizer.word_starts
        self.whole_words = self.noise.cut == "words"
        density, mean_span = options.density or self.noise.density, options.mean_span or MEAN_SPAN
        around, sentinels = self.framing.overhead(), tokenizer.sentinels
        self.raw_length = length - around
        if noise == "spans":
            # T5's arithmetic: so many raw tokens that the corrupted input is exactly `length` (512 come from
            # 568). A span that is rolled over the end becomes two: one sentinel more on both sides.
            room = length - (around - 1) - random_roll
            self.raw_length, _ = algebra.raw_length_for(room, density, mean_span)
        if self.raw_length < 2:
            raise EtymonError(
                f"an input of {length} tokens is too short to be corrupted: use {around + 2} or more"
            )
        if self.noise.target == "sentinels":
            if self.noise.cut == "spans":
                members = getattr(self.noise, "members", [(density, mean_span)])
                counts = [algebra.noise_counts(self.raw_length, *member)[1] for member in members]
                needed = max(counts) + random_roll
            else:  # the number of runs varies: six deviations above its mean hardly ever come
                mean = self.raw_length * density * (1 - density) + 1
                needed = math.ceil(mean + 6 * math.sqrt(mean))
            if len(sentinels) < needed:
                raise EtymonError(
                    f"inputs of {length} tokens have {needed} corrupted spans, but the tokenizer has "
                    f"{len(sentinels)} sentinels: shorten the inputs, or train a tokenizer with more "
                    "(--sentinels)"
                )
        # T5 has no mask token: its first sentinel stands in.
        mask = sentinels[0] if sentinels else 0
        if self.noise.masks and (tokenizer.id("mask") is not None or not sentinels):
            mask = needed_id(tokenizer, "mask", self.name)
        self.amounts = Amounts(density, mean_span, random_roll, mask, sentinels, tokenizer.size)

    def plan(self, split: Split, seed: int, epoch: int, *, shuffle: bool = True) -> np.ndarray:
        return plans.chunks(split, self.raw_length, seed, epoch, shuffle=shuffle)

    def prepare(self, split: Split, row: np.ndarray, rng: np.random.Generator) -> DenoisingExample:
        start, stop = row.tolist()
        ids = split.tokens[start:stop].astype(np.int64)
        # Sentences that begin in this span, for noises that shuffle them.
        first, last = np.searchsorted(split.sentences, (start, stop))
        flags = split.word_flags
        words = self.word_starts[ids] if flags is None else flags.tokens[start:stop].astype(bool)
        text = Text(ids, words, np.asarray(split.sentences[first:last]) - start)
        shown, target = self.noise.corrupt(text, self.amounts, rng)
        return DenoisingExample(self.framing.frame(shown).ids, self.framing.frame(target).ids)

    def collate(self, examples: Sequence[DenoisingExample]) -> Seq2SeqBatch:
        pairs = [(example.ids, example.targets) for example in by_length(examples)]
        return Seq2SeqBatch.of(self.term, pairs)

    def loss(self, unit: Unit, micro: Seq2SeqBatch) -> dict[str, Term]:
        return {self.term: Term(micro.loss(unit.model, self.smoothing))}


class SpanCorruption(Denoising):
    """T5's, whose arithmetic is exact: an input of 512 comes from 568 tokens, with 114 targets."""

    name = "span-corruption"
    term = "spans"
    Options = SpanOptions

    def __init__(self, tokenizer: Tokenizer, length: int, options: SpanOptions | None = None) -> None:
        amounts = asdict(options or SpanOptions())
        super().__init__(tokenizer, length, DenoisingOptions(noise="spans", **amounts))
