"""Which tokens are hidden from the model, and what it is shown instead: the published ways, by name."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from etymon.config import did_you_mean
from etymon.data import noise
from etymon.data.store import Split
from etymon.data.tokenizer import Tokenizer
from etymon.errors import EtymonError
from etymon.objectives.objective import needed_id

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
        if name not in SCHEMES:
            raise EtymonError(f"there is no masking {name!r}: {did_you_mean(name, SCHEMES)}")
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
        places = scheme.choose(self, ids, ~special, split, rng)
        return places, noise.mask_eighty_ten_ten(ids, places, self.mask, self.vocabulary, rng, scheme.shares)


def _tokens(
    own: Masking, ids: np.ndarray, text: np.ndarray, split: Split, rng: np.random.Generator
) -> np.ndarray:
    return np.flatnonzero(noise.count_mask(text, noise.masked_count(len(ids), own.density), rng))


def _anywhere(
    own: Masking, ids: np.ndarray, text: np.ndarray, split: Split, rng: np.random.Generator
) -> np.ndarray:
    count = noise.chance_count(len(ids), own.density, rng)
    return np.flatnonzero(noise.count_mask(np.ones(len(ids), bool), count, rng))


def _words(longest: int) -> Choose:
    def choose(
        own: Masking, ids: np.ndarray, text: np.ndarray, split: Split, rng: np.random.Generator
    ) -> np.ndarray:
        count = noise.masked_count(len(ids), own.density)
        return np.flatnonzero(noise.words_mask(own.word_starts[ids], text, count, rng, longest))

    return choose


def _rare(
    own: Masking, ids: np.ndarray, text: np.ndarray, split: Split, rng: np.random.Generator
) -> np.ndarray:
    weights = np.zeros(len(ids))
    weights[text] = split.token_counts[ids[text]] ** -RARITY
    return np.flatnonzero(noise.weighted_mask(weights, math.ceil(own.density * len(ids)), rng))


def _repeated(
    own: Masking, ids: np.ndarray, text: np.ndarray, split: Split, rng: np.random.Generator
) -> np.ndarray:
    slots = int((own.density + 0.005) * own.longest)
    return noise.repeated_places(text, max(1, min(slots, round(own.density * len(ids)))), rng)


Choose = Callable[[Masking, np.ndarray, np.ndarray, Split, np.random.Generator], np.ndarray]
"""Places out of ids; the positions that are text; where the text comes from."""


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
    "whole-words": Scheme(_words(1)),
    # RoBERTa, as fairseq has it: any token may be asked for, special ones too, and as few as none.
    "roberta": Scheme(_anywhere, spared=True),
    # ALBERT: one to three whole words side by side.
    "ngram": Scheme(_words(3)),
    # DistilBERT: rare tokens are asked for more often. It chooses out of a whole batch; here every sample has its share.
    "rare": Scheme(_rare),
    # ELECTRA: drawn with replacement, so that some tokens count twice, and never shown as another token.
    "electra": Scheme(_repeated, shares=(0.85, 0.15)),
}
