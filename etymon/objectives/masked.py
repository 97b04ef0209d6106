"""Masked language modelling (BERT, section 3.1): some tokens are hidden, and the model predicts what they
were; alone, or of two texts and with a question about both: does the second follow the first?

The published ways to choose and to show them are `objectives.masking.SCHEMES`. Masks are drawn anew every
epoch, unless there are fixed `copies`, as when BERT's text was masked beforehand.

Next sentences (BERT, section 3.1) set a continuation against text from another document; sentence order
(ALBERT, section 3.1) sets two consecutive texts against the same two swapped, which the topic alone does not
give away.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from etymon.nn.batch import Batch
from etymon.objectives.masking import SCHEMES, Masking
from etymon.objectives.objective import (
    MicroBatch,
    Objective,
    Term,
    Unit,
    by_length,
    concatenate,
    needed_id,
    place_word_starts,
    target_terms,
)
from etymon.sampling import plans
from etymon.settings import in_table, option, settings
from etymon.text.store import Split
from etymon.text.tokenizer import Tokenizer

SchemeName = Annotated[str, in_table(SCHEMES)]
Packing = Literal["stream", "full-sentences", "doc-sentences", "segments"]


@dataclass(frozen=True)
class MaskedExample:
    ids: np.ndarray
    segments: np.ndarray
    places: np.ndarray
    targets: np.ndarray
    label: int = 0
    """Of two texts: 1 where the second does not follow the first."""
    uniforms: np.ndarray = field(default_factory=lambda: np.empty(0, np.float32))
    """For every place, what a generator's draw there is made from."""


@dataclass
class MaskedBatch(MicroBatch):
    batch: Batch
    at: Tensor
    targets: Tensor
    labels: Tensor
    uniforms: Tensor


@settings
class MaskingOptions:
    """What every objective with masked tokens can be told."""

    masking: SchemeName = option("bert", "how tokens are chosen and shown")
    density: float = option(0.15, "share of the tokens that are predicted", ge=0, le=1)
    # BERT's text was masked beforehand, several times over (`dupe_factor`); RoBERTa found drawing anew as
    # good or better (section 4.1).
    copies: int = option(0, "fixed masks of the whole text, used in turn (0: drawn anew every epoch)", ge=0)


@settings
class PackedOptions(MaskingOptions):
    packing: Packing = option("stream", "how the text is cut into samples")


@settings
class ShiftableOptions(PackedOptions):
    # So that masked and next words are read in the same way (GPT-BERT, Charpentier & Samuel 2024, section 2).
    shifted: bool = option(False, "predict a masked token from the state of the place before it")


@settings
class MaskedOptions(ShiftableOptions):
    # Nothing else in masked words asks the first token for anything, and a classifier reads it alone.
    summary: float = option(
        0.0, "weight of naming a sample's masked tokens from its first token alone, in any order", ge=0
    )


class MaskedLM(Objective):
    """Rows of its plans, by packing:

    - `stream`, `full-sentences`, `doc-sentences`: start, stop of a span of the stream, separators included
    - `segments`: start, stop, start, stop of two spans of the tokens, the second of which may be empty
    - `SentencePair`, which has no packing: the same and a label

    With fixed `copies`, one more column: the key of the row's masks.
    """

    name = "masked"
    heads = frozenset({"vocabulary"})
    requires = frozenset({"bidirectional"})
    Options: ClassVar[type] = MaskedOptions

    def __init__(self, tokenizer: Tokenizer, length: int, options: Any = None) -> None:
        self.options = options = options or self.Options()
        self.length, self.copies = length, options.copies
        self.framing = tokenizer.framing
        needed_id(tokenizer, "mask", self.name)  # refused by the name of this objective
        self.separator = needed_id(tokenizer, "separator", self.name)
        self.masking = Masking(options.masking, tokenizer, options.density, length)
        self.shifted = getattr(options, "shifted", False)
        self.summary: float = getattr(options, "summary", 0.0)
        self.whole_words = self.masking.scheme.whole_words

    def plan(self, split: Split, seed: int, epoch: int, *, shuffle: bool = True) -> np.ndarray:
        if not self.copies:
            return self.spans(split, seed, epoch, shuffle)
        copy = epoch % self.copies
        rows = self.spans(split, seed, copy, shuffle)
        # Masks are drawn from this key and the row, so that a copy shows the same ones in all its epochs.
        masks_key = int(plans.key(seed, "copy", copy).integers(2**63))
        rows = np.column_stack((rows, np.full(len(rows), masks_key, np.int64)))
        return plans.order_rows(rows, shuffle, seed, "copies", epoch)

    def spans(self, split: Split, seed: int, epoch: int, shuffle: bool) -> np.ndarray:
        """The plan of an epoch without the key of masks."""
        how = self.options.packing
        if how == "segments":
            return plans.segments(split, self.length, self.framing, seed, epoch, shuffle=shuffle)
        room = self.length - self.framing.overhead()
        if how == "stream":
            return plans.chunks(split, room, seed, epoch, self.separator, shuffle=shuffle)
        across = how == "full-sentences"
        return plans.whole_sentences(split, room, seed, epoch, across=across, shuffle=shuffle)

    def readings(self, split: Split, plan: np.ndarray) -> float:
        if plan.shape[1] < 4:  # spans of the stream, which share the text among them
            return 1.0
        # Samples of two texts may take the second one from anywhere, and cut off what is too long.
        start, stop, second_start, second_stop = plan[:, :4].T
        return float((stop - start + second_stop - second_start).sum() / len(split.tokens))

    def prepare(self, split: Split, row: np.ndarray, rng: np.random.Generator) -> MaskedExample:
        if self.copies:
            *columns, masks_key = row.tolist()
            row, rng = row[:-1], plans.key(masks_key, *columns)
        label = 0
        if len(row) == 2:
            start, stop = row.tolist()
            framed = self.framing.frame(split.stream(start, stop, self.separator))
        else:
            start, stop, second_start, second_stop, *labels = row.tolist()
            second = split.tokens[second_start:second_stop]
            framed = self.framing.frame(split.tokens[start:stop], second if len(second) else None)
            label = labels[0] if labels else 0
        ids = framed.ids.astype(np.int64)
        # Separators between documents are text to the framing, and yet nothing to predict.
        special, segmented = framed.special | (ids == self.separator), None
        if self.whole_words and (flags := split.word_flags) is not None:
            texts = [flags.stream(start, stop, 1)]
            if len(row) > 2:
                spans = ((start, stop), (second_start, second_stop))
                texts = [flags.tokens[first:last].astype(bool) for first, last in spans]
            segmented = place_word_starts(framed.special, texts)
        places, shown = self.draw(ids, special, split, rng, segmented)
        if self.shifted:
            places = places[places > 0]  # before the first token there is no state to read
        return MaskedExample(shown, framed.segments, places, ids[places], label)

    def draw(
        self,
        ids: np.ndarray,
        special: np.ndarray,
        split: Split,
        rng: np.random.Generator,
        segmented: np.ndarray | None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """The places to predict, in order, and the ids that the model is shown."""
        return self.masking.draw(ids, special, split, rng, segmented)

    def collate(self, examples: Sequence[MaskedExample]) -> MaskedBatch:
        examples = by_length(examples)
        segments = [example.segments for example in examples]
        batch = Batch.of([example.ids for example in examples], segments=segments)
        # Logits are computed at these places only, 15% of all.
        at = batch.layout.flat([example.places - self.shifted for example in examples])
        return MaskedBatch(
            counts=self._counts(len(at), batch.layout.tokens, len(examples)),
            tokens=batch.layout.tokens,
            batch=batch,
            at=at,
            targets=concatenate(examples, "targets"),
            labels=torch.tensor([example.label for example in examples]),
            uniforms=concatenate(examples, "uniforms"),
        )

    def _counts(self, masked: int, tokens: int, rows: int) -> dict[str, float]:
        counts: dict[str, float] = {"masked": masked, "masked_accuracy": masked}
        return {**counts, "summary": masked} if self.summary else counts

    def loss(self, unit: Unit, micro: MaskedBatch) -> dict[str, Term]:
        hidden, _ = unit.model.hidden(micro.batch)
        return self.terms(unit.model, micro, hidden)

    def terms(self, model: Any, micro: MaskedBatch, hidden: Tensor) -> dict[str, Term]:
        """The terms of the loss, from hidden states that were computed already."""
        terms = target_terms("masked", model, hidden, micro.at, micro.targets)
        if self.summary:
            layout = micro.batch.layout
            log_probs_RV = model.heads["vocabulary"].log_probs(hidden, layout.first)
            loss = -log_probs_RV[layout.row[micro.at], micro.targets].sum()
            terms["summary"] = Term(loss, self.summary)
        return terms


class SentencePair(MaskedLM):
    """What both have in common: rows of two spans and a label, 1 where the second text does not follow the
    first."""

    requires = frozenset({"bidirectional", "pairs"})
    # No packing: how the text is cut is what these objectives are about.
    Options = MaskingOptions
    head: ClassVar[str]
    pairs: ClassVar[Callable[..., np.ndarray]]

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


@settings
class SentenceOrderOptions(MaskingOptions):
    masking: SchemeName = option("ngram", "how tokens are chosen and shown")


class MaskedSentenceOrder(SentencePair):
    name = "masked-sentence-order"
    head = "sentence_order"
    heads = frozenset({"vocabulary", head})
    pairs = staticmethod(plans.ordered_pairs)
    Options = SentenceOrderOptions
