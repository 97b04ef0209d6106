"""The noises of encoder-decoders by name: T5's span corruption, BART's, and the objectives those two were
compared with.

Each is a row of a table: in which order the text is shown, what is cut out of it, what is shown in its
place, and what the decoder has to write.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.random import Generator

from etymon.sampling import noise
from etymon.sampling.noise import NoiseSpans


@dataclass(frozen=True)
class Text:
    """A sample: its ids, for every position whether a word begins there, and the positions where sentences
    begin."""

    ids: np.ndarray
    word_starts: np.ndarray
    sentences: np.ndarray


@dataclass(frozen=True)
class Amounts:
    """How much noise there is, and the tokens that stand for it."""

    density: float
    mean_span: float
    roll: bool
    mask: int
    sentinels: Sequence[int]
    vocabulary: int


@dataclass(frozen=True)
class Corruption:
    """One of the noises. The decoder writes the whole text, the cut tokens, or those behind their
    sentinels."""

    target: Literal["text", "cut", "sentinels"] = "text"
    order: Literal["sentences", "rotation", "shuffle"] | None = None
    cut: Literal["tokens", "words", "spans", "suffix"] | None = None
    show: Literal["nothing", "sentinels", "mask a span", "mask a token"] = "nothing"
    random_share: float = 0.0
    """The share of masked tokens that become a random token instead of the mask."""
    density: float = 0.15
    """The published share of tokens that are cut out."""

    @property
    def masks(self) -> bool:
        """Whether it shows a mask token."""
        return self.show.startswith("mask")

    @property
    def amounts(self) -> Collection[str]:
        """The options that say how much of it there is."""
        spans = ("density", "mean_span")
        options = {"tokens": ("density",), "words": spans, "spans": (*spans, "random_roll")}
        return options.get(self.cut or "", ())

    def corrupt(self, text: Text, amounts: Amounts, rng: Generator) -> tuple[np.ndarray, np.ndarray]:
        """Returns what the encoder reads, and what the decoder writes."""
        ids, word_starts, length = text.ids, text.word_starts, len(text.ids)
        if self.order is not None:
            if self.order == "sentences":
                order = noise.sentence_order(text.sentences, length, rng)
            elif self.order == "rotation":  # from a random token on, then what stood before it
                order = np.roll(np.arange(length), -int(rng.integers(length)))
            else:
                order = rng.permutation(length)
            ids, word_starts = ids[order], word_starts[order]

        if self.cut is None:
            return ids, text.ids
        density, mean_span, mask_id = amounts.density, amounts.mean_span, amounts.mask
        if self.cut == "tokens":
            spans = NoiseSpans.of(rng.random(length) < density)
        elif self.cut == "spans":
            spans = NoiseSpans.of(noise.random_spans_mask(length, density, mean_span, rng, amounts.roll))
        elif self.cut == "words":
            spans = noise.infill_spans(word_starts, density, mean_span, rng)
        else:  # all behind a point anywhere between the first token and the last (prefix language modelling)
            spans = NoiseSpans(rng.integers(1, length, 1), np.array([length]))
        mask = spans.mask(length)

        if self.show == "sentinels":
            shown = noise.replace_spans_with_sentinels(ids, mask, amounts.sentinels)
        elif self.show == "mask a span":
            shown = noise.replace_spans(ids, spans, [mask_id] * len(spans.starts))
            shown = noise.insert_anywhere(shown, mask_id, spans.empty, rng)
        elif self.show == "mask a token":
            shares, vocabulary = (1 - self.random_share, 0.0), (0, amounts.vocabulary)
            shown = noise.mask_eighty_ten_ten(ids, np.flatnonzero(mask), mask_id, vocabulary, rng, shares)
        else:
            shown = ids[~mask]

        if self.target == "text":
            return shown, text.ids
        if self.target == "cut":
            return shown, ids[mask]
        return shown, noise.span_target_with_sentinels(ids, mask, amounts.sentinels)


@dataclass(frozen=True)
class DenoiserMixture(Corruption):
    """One of several amounts of the same noise, drawn for every sample, each as often as the others."""

    members: tuple[tuple[float, float], ...] = ()
    """Of each its density and mean span."""

    @property
    def amounts(self) -> Collection[str]:
        return ("random_roll",)

    def corrupt(self, text: Text, amounts: Amounts, rng: Generator) -> tuple[np.ndarray, np.ndarray]:
        density, mean_span = self.members[int(rng.integers(len(self.members)))]
        return super().corrupt(text, replace(amounts, density=density, mean_span=mean_span), rng)


WHOLE = 1e9
"""A mean span that no text reaches: there is one span, which is the end of the text."""
MASKING = Corruption(cut="tokens", show="mask a token")
NOISES = {
    # BART: what it was trained with, and what it was compared with (section 2.2 of the paper). Its shares of
    # masking and deletion were not published.
    "bart": Corruption(order="sentences", cut="words", show="mask a span", density=0.3),
    "infilling": Corruption(cut="words", show="mask a span", density=0.3),
    "sentences": Corruption(order="sentences"),
    "masking": MASKING,
    "deletion": Corruption(cut="tokens"),
    "rotation": Corruption(order="rotation"),
    # T5: what it was trained with, and what it was compared with (table 3 of the paper).
    "spans": Corruption("sentinels", cut="spans", show="sentinels"),
    "iid-spans": Corruption("sentinels", cut="tokens", show="sentinels"),
    "dropped": Corruption("cut", cut="tokens"),
    "prefix": Corruption("cut", cut="suffix"),
    "bert": Corruption(cut="tokens", show="mask a token", random_share=0.1),
    "mass": MASKING,
    "deshuffling": Corruption(order="shuffle"),
    # UL2 (Tay et al. 2022, table 1): short spans and few (R), the end of the text (S), long spans or many
    # (X). Its tokens that tell a sample's kind are left out.
    "ul2": DenoiserMixture(
        "sentinels",
        cut="spans",
        show="sentinels",
        members=(
            (0.15, 3),
            (0.15, 8),
            (0.25, WHOLE),
            (0.5, 3),
            (0.5, 8),
            (0.15, 64),
            (0.5, 64),
        ),
    ),
}
