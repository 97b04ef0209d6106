"""ELMo's training (Peters et al. 2018, section 3.1): a language model ahead and one back, over streams of
sentences, with one vocabulary.

Ahead, `<S> w1 ... wn` are read and `w1 ... wn </S>` predicted; back, `</S> wn ... w1` and `wn ... w1 <S>`.
Both directions go on from segment to segment with what they remember. The way back begins at the end of its
stream and comes to its beginning in the end: so what it remembers is always the text behind a segment, and
each step shows the two directions different text.

Legend: N tokens, P width of a direction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from etymon.nn.adaptive import SampledVocabulary
from etymon.nn.batch import Batch, Letters
from etymon.objectives.objective import (
    StreamBatch,
    Streaming,
    Term,
    Unit,
    concatenate,
    needed_id,
    stream_fields,
)
from etymon.sampling.streams import (
    FRESH,
    SEPARATOR,
    START,
    STOP,
    STREAM,
    read,
    split_by_sentence,
    stream_segments,
)
from etymon.settings import option, settings
from etymon.text.store import Split
from etymon.text.tokenizer import Tokenizer

BACK_START, BACK_STOP = 5, 6
"""Columns behind those of the plan of streams."""


@dataclass(frozen=True)
class TwoWayExample:
    """Words and targets, both in the order of the text."""

    ids: np.ndarray
    targets: np.ndarray
    back_ids: np.ndarray
    back_targets: np.ndarray
    stream: int
    fresh: bool


@dataclass
class TwoWayBatch(StreamBatch):
    batch: Batch
    targets: Tensor
    back_targets: Tensor


@settings
class BidirectionalOptions:
    softmax: Literal["sampled", "full"] = option(
        "sampled", "what training compares a word with: a sample of the others, or all; validation: all"
    )
    # ELMo's released configuration draws as many (`n_negative_samples_batch`).
    samples: int = option(8192, "words of a sample, which all positions of a slice share", ge=1)


class Bidirectional(Streaming):
    """A model with an adaptive softmax needs no sample. Words beyond the ones that the model predicts are
    read by their letters, and are unknown as targets."""

    name = "bidirectional"
    Options = BidirectionalOptions
    heads = frozenset({"vocabulary"})
    requires = frozenset({"two directions"})
    perplexities = ("forward", "backward")

    def __init__(
        self, tokenizer: Tokenizer, length: int, options: BidirectionalOptions | None = None
    ) -> None:
        options = options or BidirectionalOptions()
        self.length, self.sampled, self.samples = length, options.softmax == "sampled", options.samples
        self.begin, self.end, self.unknown = (
            needed_id(tokenizer, role, self.name) for role in ("begin", "end", "unknown")
        )
        self.lexicon = tokenizer.lexicon

    def plan(
        self, split: Split, seed: int, epoch: int, *, shuffle: bool = True, streams: int = 1
    ) -> np.ndarray:
        """The columns of `sampling/streams.py`, and the same segment mirrored within its stream."""
        table = stream_segments(split_by_sentence(split), self.length, seed, epoch, streams, shuffle=shuffle)
        # Mirrored at the middle of its stream: a segment that begins k tokens after the beginning has a
        # partner that ends k tokens before the end.
        first, last = np.full(streams, np.iinfo(np.int64).max), np.full(streams, -1)
        np.minimum.at(first, table[:, STREAM], table[:, START])
        np.maximum.at(last, table[:, STREAM], table[:, STOP])
        ends = (first + last)[table[:, STREAM]]
        return np.column_stack((table, ends - table[:, STOP], ends - table[:, START]))

    def prepare(self, split: Split, row: np.ndarray, rng: np.random.Generator) -> TwoWayExample:
        sentences = split_by_sentence(split)
        mirrored = row.copy()
        mirrored[[START, STOP]] = row[[BACK_START, BACK_STOP]]
        ahead, back = (read(sentences, span, SEPARATOR) for span in (row, mirrored))
        # Ahead, a separator is the beginning of the next sentence where it is read, and the end of this one
        # where it is predicted; back, the other way round.
        return TwoWayExample(
            ids=_with_marks(ahead[:-1], self.begin),
            targets=_with_marks(ahead[1:], self.end),
            back_ids=_with_marks(back[1:], self.end),
            back_targets=_with_marks(back[:-1], self.begin),
            stream=int(row[STREAM]),
            fresh=bool(row[FRESH]),
        )

    def collate(self, examples: Sequence[TwoWayExample]) -> TwoWayBatch:
        batch = Batch.of([example.ids for example in examples])
        back_ids = concatenate(examples, "back_ids")
        # Both directions read mostly the same words: each is spelled once for the slice.
        letters, index = self.lexicon.spell(torch.cat((batch.ids, back_ids)).numpy())
        ahead_N, back_N = torch.from_numpy(index).chunk(2)
        batch.letters = Letters(torch.from_numpy(letters), ahead_N, back_N)
        return TwoWayBatch(
            counts=dict.fromkeys(("loss", *self.perplexities), batch.layout.tokens),
            tokens=batch.layout.tokens,
            batch=batch,
            targets=concatenate(examples, "targets"),
            back_targets=concatenate(examples, "back_targets"),
            **stream_fields(examples),
        )

    def loss(self, unit: Unit, micro: TwoWayBatch) -> dict[str, Term]:
        """The mean of both directions, and each by itself."""
        hidden, state = unit.model.hidden(micro.batch, unit.recall(micro))
        unit.keep(micro, state)
        head = unit.model.heads["vocabulary"]

        def sum_loss(x_NP: Tensor, targets_N: Tensor) -> Tensor:
            # The lexicon spells more words than the softmax has columns for.
            targets_N = targets_N.masked_fill(targets_N >= head.size, self.unknown)
            if self.sampled and unit.model.training and isinstance(head, SampledVocabulary):
                return head.sampled_loss(x_NP, None, targets_N, self.samples)
            return head.loss(x_NP, None, targets_N)

        ahead, back = hidden.chunk(2, -1)
        forward, backward = sum_loss(ahead, micro.targets), sum_loss(back, micro.back_targets)
        return {
            "loss": Term((forward + backward) / 2),
            "forward": Term(forward.detach(), 0.0),
            "backward": Term(backward.detach(), 0.0),
        }


def _with_marks(ids: np.ndarray, mark: int) -> np.ndarray:
    return np.where(ids == SEPARATOR, mark, ids)
