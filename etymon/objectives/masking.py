"""Which tokens are hidden from the model, and what it is shown instead: the published ways, by name.

A new scheme is a function that chooses places (`_tokens` is the model of one): in a plugin, or here with a
row in `PUBLISHED` and its name in `registry.MASKING`. The objectives' option `masking` then takes its name.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from etymon.objectives.objective import needed_id
from etymon.registry import MASKING as SCHEMES
from etymon.sampling import noise
from etymon.text.store import Split
from etymon.text.tokenizer import Tokenizer

RARITY = 0.7
"""DistilBERT's: a token is masked in proportion to count^-0.7."""


@dataclass(frozen=True)
class MaskingSample:
    """What a scheme may look at to choose places."""

    ids: np.ndarray
    is_text: np.ndarray
    """False for what the framing added and for what separates documents."""
    split: Split
    """Where the text comes from, with the counts of its tokens."""
    masking: Masking
    segmented: np.ndarray | None = None
    """For every token, whether a word of the text's segmenter begins with it; None without one."""

    @property
    def word_starts(self) -> np.ndarray:
        """For every token, whether a word begins with it."""
        return self.masking.word_starts[self.ids] if self.segmented is None else self.segmented


class Masking:
    """One of `SCHEMES` for a tokenizer and for inputs of up to `longest` tokens, of which about `density` are
    hidden."""

    def __init__(self, name: str, tokenizer: Tokenizer, density: float, longest: int) -> None:
        self.name, self.scheme, self.density, self.longest = name, scheme_of(name), density, longest
        self.mask, self.word_starts = needed_id(tokenizer, "mask", "masked"), tokenizer.word_starts
        # fairseq draws replacements from behind the special tokens, the other releases from all ids.
        first = 0
        while self.scheme.spares_special and first in tokenizer.special_ids:
            first += 1
        self.vocabulary = first, tokenizer.size
        """The ids that a random replacement is drawn from."""

    def draw(
        self,
        ids: np.ndarray,
        special: np.ndarray,
        split: Split,
        rng: np.random.Generator,
        segmented: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """The masked places, in order, and the ids that the model is shown; the targets are `ids[places]`."""
        places = self.scheme.choose(MaskingSample(ids, ~special, split, self, segmented), rng)
        shares = self.scheme.shares
        return places, noise.mask_eighty_ten_ten(ids, places, self.mask, self.vocabulary, rng, shares)


def _tokens(sample: MaskingSample, rng: np.random.Generator) -> np.ndarray:
    count = noise.masked_count(len(sample.ids), sample.masking.density)
    return np.flatnonzero(noise.count_mask(sample.is_text, count, rng))


def _anywhere(sample: MaskingSample, rng: np.random.Generator) -> np.ndarray:
    count = noise.chance_count(len(sample.ids), sample.masking.density, rng)
    return np.flatnonzero(noise.count_mask(np.ones(len(sample.ids), bool), count, rng))


def _words(sample: MaskingSample, rng: np.random.Generator, longest: int) -> np.ndarray:
    count = noise.masked_count(len(sample.ids), sample.masking.density)
    # A segmenter's words are hidden whole even where the shortest is longer than the share.
    is_strict = sample.segmented is not None
    mask = noise.words_mask(sample.word_starts, sample.is_text, count, rng, longest, is_strict)
    return np.flatnonzero(mask)


def _rare(sample: MaskingSample, rng: np.random.Generator) -> np.ndarray:
    # Counts of the training text: frequent tokens are learnt soon enough (DistilBERT, after XLM's masking).
    weights = np.zeros(len(sample.ids))
    weights[sample.is_text] = sample.split.token_counts[sample.ids[sample.is_text]] ** -RARITY
    count = math.ceil(sample.masking.density * len(sample.ids))
    return np.flatnonzero(noise.weighted_mask(weights, count, rng))


def _repeated(sample: MaskingSample, rng: np.random.Generator) -> np.ndarray:
    # The released code has a fixed number of slots an input, int((density + 0.005) * length).
    slots = int((sample.masking.density + 0.005) * sample.masking.longest)
    count = max(1, min(slots, round(sample.masking.density * len(sample.ids))))
    return noise.repeated_places(sample.is_text, count, rng)


@dataclass(frozen=True)
class Scheme:
    choose: Callable[[MaskingSample, np.random.Generator], np.ndarray]
    shares: tuple[float, float] = (0.8, 0.1)
    """Of the chosen tokens that are shown as the mask, and as themselves; the others are shown as a random
    one."""
    spares_special: bool = False
    """Random replacements are none of the special tokens that a vocabulary begins with."""
    whole_words: bool = False


def scheme_of(name: str) -> Scheme:
    """The scheme of that name; a plugin's may be the function alone that chooses places."""
    scheme = SCHEMES.find(name)
    return scheme if isinstance(scheme, Scheme) else Scheme(scheme)


PUBLISHED = {
    # BERT: a rounded share of the input's length, at least one token, never special ones.
    "bert": Scheme(_tokens),
    # BERT's later models: the same, but all tokens of a word or none.
    "whole-words": Scheme(partial(_words, longest=1), whole_words=True),
    # RoBERTa, as fairseq has it: any token may be masked, special ones too, and as few as none.
    "roberta": Scheme(_anywhere, spares_special=True),
    # ALBERT: one to three whole words side by side.
    "ngram": Scheme(partial(_words, longest=3), whole_words=True),
    # DistilBERT: rare tokens are masked more often. It chooses out of a whole batch; here every sample has
    # its share.
    "rare": Scheme(_rare),
    # ELECTRA: drawn with replacement, so that some tokens count twice, and never shown as another token.
    "electra": Scheme(_repeated, shares=(0.85, 0.15)),
}
