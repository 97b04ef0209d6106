"""The noises of encoder-decoders, by name: in which order the text is shown, what is cut out of it, what is shown in its
place, and what is asked for. T5's span corruption, the objectives it was compared with, and BART's are all of this form.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from etymon.sampling import noise
from etymon.sampling.noise import Spans


@dataclass(frozen=True)
class Text:
    """A sample: its ids, and where words and sentences begin in it."""

    ids: np.ndarray
    word_starts: np.ndarray
    """For every position, whether a word begins there."""
    sentences: np.ndarray
    """The positions where sentences begin."""

    def ordered(self, order: np.ndarray) -> Text:
        return Text(self.ids[order], self.word_starts[order], self.sentences)


@dataclass(frozen=True)
class Amounts:
    """How much noise there is, and the tokens that stand for it."""

    density: float
    mean_span: float
    roll: bool
    mask: int
    sentinels: Sequence[int]
    vocabulary: int


Order = Callable[[Text, np.random.Generator], np.ndarray]
Cut = Callable[[Text, Amounts, np.random.Generator], Spans]
Show = Callable[[np.ndarray, Spans, Amounts, np.random.Generator], np.ndarray]


@dataclass(frozen=True)
class Noise:
    """`asks` for everything, or for what was cut out: alone, or behind the sentinels that stand for it."""

    asks: Literal["everything", "cut", "sentinels"] = "everything"
    order: Order | None = None
    cut: Cut | None = None
    show: Show | None = None
    density: float = 0.15
    """As published."""
    masks: bool = False
    """It shows a mask token."""

    @property
    def amounts(self) -> Collection[str]:
        """The options that say how much of it there is."""
        known: dict[Cut | None, tuple[str, ...]] = {
            _tokens: ("density",),
            _words: ("density", "mean_span"),
            _spans: ("density", "mean_span", "random_roll"),
        }
        return known.get(self.cut, ())

    def corrupt(
        self, text: Text, amounts: Amounts, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """What the encoder reads, and what the decoder writes."""
        seen = text if self.order is None else text.ordered(self.order(text, rng))
        if self.cut is None or self.show is None:
            return seen.ids, text.ids
        spans = self.cut(seen, amounts, rng)
        shown = self.show(seen.ids, spans, amounts, rng)
        if self.asks == "everything":
            return shown, text.ids
        mask = spans.mask(len(text.ids))
        if self.asks == "cut":
            return shown, seen.ids[mask]
        return shown, noise.span_target_with_sentinels(seen.ids, mask, amounts.sentinels)


# --- what is cut out


def _tokens(text: Text, own: Amounts, rng: np.random.Generator) -> Spans:
    return Spans.of(rng.random(len(text.ids)) < own.density)


def _spans(text: Text, own: Amounts, rng: np.random.Generator) -> Spans:
    return Spans.of(noise.random_spans_mask(len(text.ids), own.density, own.mean_span, rng, own.roll))


def _words(text: Text, own: Amounts, rng: np.random.Generator) -> Spans:
    return noise.infill_spans(text.word_starts, own.density, own.mean_span, rng)


def _rest(text: Text, own: Amounts, rng: np.random.Generator) -> Spans:
    """All behind a point anywhere between the first token and the last (prefix language modelling)."""
    return Spans(rng.integers(1, len(text.ids), 1), np.array([len(text.ids)]))


# --- what is shown in its place


def _sentinels(ids: np.ndarray, spans: Spans, own: Amounts, rng: np.random.Generator) -> np.ndarray:
    return noise.replace_spans_with_sentinels(ids, spans.mask(len(ids)), own.sentinels)


def _one_mask(ids: np.ndarray, spans: Spans, own: Amounts, rng: np.random.Generator) -> np.ndarray:
    shown = noise.replace_spans(ids, spans, [own.mask] * len(spans.starts))
    return noise.insert_anywhere(shown, own.mask, spans.empty, rng)


def _nothing(ids: np.ndarray, spans: Spans, own: Amounts, rng: np.random.Generator) -> np.ndarray:
    return ids[~spans.mask(len(ids))]


def _masks(share: float) -> Show:
    """A mask for every token; the others are random ones."""

    def show(ids: np.ndarray, spans: Spans, own: Amounts, rng: np.random.Generator) -> np.ndarray:
        places = np.flatnonzero(spans.mask(len(ids)))
        return noise.mask_eighty_ten_ten(ids, places, own.mask, (0, own.vocabulary), rng, (share, 0.0))

    return show


# --- in which order


def _sentences(text: Text, rng: np.random.Generator) -> np.ndarray:
    return noise.sentence_order(text.sentences, len(text.ids), rng)


def _turned(text: Text, rng: np.random.Generator) -> np.ndarray:
    """From a random token on, and then what stood before it."""
    return np.roll(np.arange(len(text.ids)), -int(rng.integers(len(text.ids))))


def _shuffled(text: Text, rng: np.random.Generator) -> np.ndarray:
    return rng.permutation(len(text.ids))


MASKING = Noise(cut=_tokens, show=_masks(1.0), masks=True)
NOISES = {
    # BART: what it was trained with, and what it was compared with. Its shares of masking and deletion were not published.
    "bart": Noise(order=_sentences, cut=_words, show=_one_mask, density=0.3, masks=True),
    "infilling": Noise(cut=_words, show=_one_mask, density=0.3, masks=True),
    "sentences": Noise(order=_sentences),
    "masking": MASKING,
    "deletion": Noise(cut=_tokens, show=_nothing),
    "rotation": Noise(order=_turned),
    # T5: what it was trained with, and what it was compared with.
    "spans": Noise("sentinels", cut=_spans, show=_sentinels),
    "iid-spans": Noise("sentinels", cut=_tokens, show=_sentinels),
    "dropped": Noise("cut", cut=_tokens, show=_nothing),
    "prefix": Noise("cut", cut=_rest, show=_nothing),
    "bert": Noise(cut=_tokens, show=_masks(0.9), masks=True),
    "mass": MASKING,
    "deshuffling": Noise(order=_shuffled),
}
