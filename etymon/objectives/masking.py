"""Which tokens are hidden from the model, and what it is shown instead: the published ways, by name."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np

from etymon.objectives.objective import needed_id
from etymon.sampling import noise
from etymon.text.store import Split
from etymon.text.tokenizer import Tokenizer

RARITY = 0.7
"""DistilBERT's: a token is asked for in proportion to count^-0.7."""


@dataclass(frozen=True)
class Masking:
    """One of `SCHEMES` for a tokenizer and for inputs of up to `longest` tokens, of which about `density` are hidden."""

    name: str
    density: float
    longest: int
    mask: int
    vocabulary: tuple[int, int]
    """The ids that a random replacement is drawn from."""
    word_starts: np.ndarray = field(repr=False, compare=False)

    @staticmethod
    def named(name: str, tokenizer: Tokenizer, density: float, longest: int) -> Masking:
        special, first = tokenizer.special_ids, 0
        while SCHEMES[name].spared and first in special:
            first += 1
        mask = needed_id(tokenizer, "mask", "masked")
        return Masking(name, density, longest, mask, (first, tokenizer.size), tokenizer.word_starts)

    def draw(
        self, ids: np.ndarray, special: np.ndarray, split: Split, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """The places asked for, in order, and the ids that the model is shown; what is asked for is `ids[places]`.

        `special` marks what the framing added and what separates documents; `split` is where the text comes from.
        """
        scheme = SCHEMES[self.name]
        places = scheme.choose(self, MaskingSample(ids, ~special, split), rng)
        return places, noise.mask_eighty_ten_ten(ids, places, self.mask, self.vocabulary, rng, scheme.shares)


class MaskingSample(NamedTuple):
    """Ids; the positions that are text; where the text comes from."""

    ids: np.ndarray
    text: np.ndarray
    split: Split


Choose = Callable[[Masking, MaskingSample, np.random.Generator], np.ndarray]
"""Chooses places."""


def _tokens(own: Masking, sample: MaskingSample, rng: np.random.Generator) -> np.ndarray:
    count = noise.masked_count(len(sample.ids), own.density)
    return np.flatnonzero(noise.count_mask(sample.text, count, rng))


def _anywhere(own: Masking, sample: MaskingSample, rng: np.random.Generator) -> np.ndarray:
    count = noise.chance_count(len(sample.ids), own.density, rng)
    return np.flatnonzero(noise.count_mask(np.ones(len(sample.ids), bool), count, rng))


def _words(own: Masking, sample: MaskingSample, rng: np.random.Generator, longest: int) -> np.ndarray:
    count = noise.masked_count(len(sample.ids), own.density)
    starts = own.word_starts[sample.ids]
    return np.flatnonzero(noise.words_mask(starts, sample.text, count, rng, longest))


def _rare(own: Masking, sample: MaskingSample, rng: np.random.Generator) -> np.ndarray:
    ids, text, split = sample
    weights = np.zeros(len(ids))
    weights[text] = split.token_counts[ids[text]] ** -RARITY
    return np.flatnonzero(noise.weighted_mask(weights, math.ceil(own.density * len(ids)), rng))


def _repeated(own: Masking, sample: MaskingSample, rng: np.random.Generator) -> np.ndarray:
    slots = int((own.density + 0.005) * own.longest)
    return noise.repeated_places(sample.text, max(1, min(slots, round(own.density * len(sample.ids)))), rng)


@dataclass(frozen=True)
class Scheme:
    choose: Choose
    shares: tuple[float, float] = (0.8, 0.1)
    """Of the chosen tokens that are shown as the mask, and as themselves; the others are shown as a random one."""
    spared: bool = False
    """Random replacements are none of the special tokens that a vocabulary begins with."""


SCHEMES = {
    # BERT: a rounded share of the input's length, at least one token, never special ones.
    "bert": Scheme(_tokens),
    # BERT's later models: the same, but all tokens of a word or none.
    "whole-words": Scheme(partial(_words, longest=1)),
    # RoBERTa, as fairseq has it: any token may be asked for, special ones too, and as few as none.
    "roberta": Scheme(_anywhere, spared=True),
    # ALBERT: one to three whole words side by side.
    "ngram": Scheme(partial(_words, longest=3)),
    # DistilBERT: rare tokens are asked for more often. It chooses out of a whole batch; here every sample has its share.
    "rare": Scheme(_rare),
    # ELECTRA: drawn with replacement, so that some tokens count twice, and never shown as another token.
    "electra": Scheme(_repeated, shares=(0.85, 0.15)),
}
