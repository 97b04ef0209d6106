"""Permutation language modelling (XLNet, sections 2.2 to 2.5): tokens are predicted in an order that is drawn
anew.

A sample is a piece of running text, which is remembered, and behind it two pieces as `A <sep> B <sep> <cls>`:
half of the time B goes on from A. In both halves short spans are targets, one token in `predict` altogether
(the paper's partial prediction). What is no target is seen by all; targets and special tokens are seen by
those that come later in the order. The first half sees nothing of the second.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from torch import Tensor

from etymon.errors import EtymonError
from etymon.nn.batch import Batch, QueryPositions
from etymon.objectives.objective import (
    MemoryOptions,
    StreamBatch,
    Streaming,
    Term,
    Unit,
    concatenate,
    needed_id,
    place_word_starts,
    stream_fields,
    target_terms,
)
from etymon.sampling import plans
from etymon.sampling.streams import FRESH, ORDER, START, STOP, STREAM, Reset, read, stream_segments
from etymon.settings import option, settings
from etymon.text.store import Split
from etymon.text.tokenizer import Tokenizer

logger = logging.getLogger("etymon.objectives")

A_START, A_STOP, B_START, B_STOP, BACKWARD = range(5, 10)
"""Further columns of the plan: the two pieces, and whether everything is read from its end."""


@dataclass(frozen=True)
class PermutedExample:
    ids: np.ndarray
    segments: np.ndarray
    order: np.ndarray
    """A token sees those of smaller numbers; 0 is seen by all."""
    places: np.ndarray
    stream: int
    fresh: bool
    backward: bool

    @property
    def targets(self) -> np.ndarray:
        return self.ids[self.places]


@dataclass
class PermutationBatch(StreamBatch):
    batch: Batch
    at: Tensor
    target_counts: tuple[int, ...]
    """How many targets every row has."""
    targets: Tensor


@settings
class PermutationOptions(MemoryOptions):
    # Released XLNet predicts a sixth of 512 tokens (`num_predict` 85), in spans of 1 to 5.
    predict: int = option(6, "tokens for each that is predicted", ge=1)
    longest: int = option(5, "tokens of a predicted span at most; short spans are drawn more often", ge=1)
    reuse: int = option(0, "tokens of a sample that are running text (0: half of its length)", ge=0)
    # Read from the end, distances are counted the other way round: relative positions learn both signs.
    both_ways: bool = option(True, "read every other stream from its end")
    reset: Literal["epoch", "never"] = option("epoch", "when a stream forgets")


class Permutation(Streaming):
    """A sample is running text, of which streams are made, and two pieces of text behind it."""

    name = "permutation"
    heads = frozenset({"vocabulary"})
    requires = frozenset({"two-stream"})
    Options = PermutationOptions

    def __init__(self, tokenizer: Tokenizer, length: int, options: PermutationOptions | None = None) -> None:
        options = options or PermutationOptions()
        self.length, self.predict, self.longest = length, options.predict, options.longest
        self.reuse, self.both_ways = options.reuse or length // 2, options.both_ways
        self.memory, self.validation_memory = options.memory, options.validation_memory
        self.reset: Reset = options.reset
        self.framing = tokenizer.framing
        self.separator = needed_id(tokenizer, "end", self.name)
        self.word_starts = tokenizer.word_starts
        # Spans of n tokens with a chance of 1/n, as in the released code.
        chances = 1 / np.arange(1, self.longest + 1)
        self.chances = (chances / chances.sum()).cumsum()[:-1]
        self.room = length - self.reuse - self.framing.overhead(pair=True)
        """Of A and B together."""
        # Options and length meet here: none of them is wrong by itself.
        if self.room < 2 or self.reuse < 2:
            raise EtymonError(
                f"permutation needs room: of {length} tokens {self.reuse} are remembered and {self.room} are "
                "for two pieces of text, with 1 or more in spans and between them; give a greater length"
            )

    # --- which text

    def plan(
        self, split: Split, seed: int, epoch: int, *, shuffle: bool = True, streams: int = 1
    ) -> np.ndarray:
        """The columns of `sampling/streams.py`, and those above. Forward streams have even numbers, backward
        ones odd."""
        both_ways = shuffle and self.both_ways and streams % 2 == 0
        if shuffle and self.both_ways and not both_ways and epoch == 0:
            logger.warning("a batch of %d samples has no halves: all of it is read forward", streams)
        forward_streams = streams // 2 if both_ways else streams
        table = stream_segments(
            split, self.reuse, seed, epoch, forward_streams, reset=self.reset, shuffle=shuffle
        )
        table = np.column_stack((table, np.zeros((len(table), 5), np.int64)))
        table[:, START] += 1  # what is predicted stands in its own place: no token before it is needed
        if both_ways:
            # Beside every stream the same text from its end: rows of both take turns, and so do their
            # numbers.
            forward = table.reshape(-1, forward_streams, table.shape[1])  # time, stream
            back = forward[::-1].copy()
            back[:, :, FRESH], back[:, :, BACKWARD] = forward[:, :, FRESH], 1
            forward[:, :, STREAM] *= 2
            back[:, :, STREAM] = forward[:, :, STREAM] + 1
            table = np.stack([forward, back], 2).reshape(-1, table.shape[1])
        rng = plans.key(seed, "permutation", epoch)
        table[:, A_START : B_STOP + 1] = self._pieces(table, split.stream_length, rng)
        return table

    def readings(self, split: Split, plan: np.ndarray) -> float:
        # The running text once in every direction, and the two pieces of each sample, which are text as well.
        spans = ((START, STOP), (A_START, A_STOP), (B_START, B_STOP))
        total = sum((plan[:, stop] - plan[:, start]).sum() for start, stop in spans)
        return float(total / split.stream_length)

    def _pieces(self, table: np.ndarray, end: int, rng: np.random.Generator) -> np.ndarray:
        """Where A and B lie in a text of `end` tokens. Backward, they lie before the running text."""

        def anywhere(lengths: np.ndarray) -> np.ndarray:
            return (rng.random(len(table)) * (end - lengths + 1)).astype(np.int64)

        is_back = table[:, BACKWARD] == 1
        # Counted from where the reading begins: the end, if it goes backward.
        first = np.where(is_back, end - table[:, START], table[:, STOP])
        left = np.clip(end - first, 0, self.room)
        a_length = np.minimum(rng.integers(1, self.room, len(table)), end)
        follows = (rng.random(len(table)) < 0.5) & (left == self.room)
        first = np.where(left < a_length, anywhere(a_length), first)  # at the very end of the text
        b_length = np.minimum(self.room - a_length, end)
        second = np.where(follows, first + a_length, anywhere(b_length))
        spans = np.stack([first, first + a_length, second, second + b_length], 1)
        return np.where(is_back[:, None], end - spans[:, [1, 0, 3, 2]], spans)

    def prepare(self, split: Split, row: np.ndarray, rng: np.random.Generator) -> PermutedExample:
        turn = -1 if row[BACKWARD] else 1

        def tokens(start: int, stop: int, text: Split = split, separator: int = self.separator) -> np.ndarray:
            span = np.array([start, stop, row[STREAM], row[FRESH], row[ORDER]])
            return read(text, span, separator)[::turn]

        first, second = (row[A_START], row[A_STOP]), (row[B_START], row[B_STOP])
        running = tokens(row[START], row[STOP])
        framed = self.framing.frame(tokens(*first), tokens(*second))
        is_running_special = np.zeros(len(running), bool)
        words = (self.word_starts[running], self.word_starts[framed.ids])
        if (flags := split.word_flags) is not None:
            texts = [tokens(*span, flags, 1) for span in (first, second)]
            words = (
                tokens(row[START], row[STOP], flags, 1).astype(bool),
                place_word_starts(framed.special, texts),
            )
        goal = self.length // self.predict
        halves = (
            (running.astype(np.int64), is_running_special, (goal - goal // 2) / self.reuse),
            (framed.ids.astype(np.int64), framed.special, goal // 2 / (self.length - self.reuse)),
        )
        order: list[np.ndarray] = []
        places: list[np.ndarray] = []
        done = steps = 0
        for (ids, special, share), begins in zip(halves, words, strict=True):
            # Words begin where they begin, however they are read: spans are chosen in the text's direction.
            is_target = self.spans(begins[::turn], special[::turn], round(share * len(ids)), rng)[::turn]
            numbers = np.zeros(len(ids), np.int64)
            ordered = np.flatnonzero(is_target | special)
            numbers[ordered] = 1 + rng.permutation(len(ordered))
            # The second half's numbers are above all of the first's, which therefore sees nothing of it.
            order.append(steps + numbers)
            places.append(done + np.flatnonzero(is_target))
            done, steps = done + len(ids), steps + len(ordered) + 1
        return PermutedExample(
            np.concatenate([half[0] for half in halves]),
            np.concatenate([np.zeros(len(running), np.int64), framed.segments]),
            np.concatenate(order),
            np.concatenate(places),
            int(row[STREAM]),
            bool(row[FRESH]),
            bool(row[BACKWARD]),
        )

    # --- what is predicted

    def spans(
        self, word_starts: np.ndarray, special: np.ndarray, goal: int, rng: np.random.Generator
    ) -> np.ndarray:
        """Which tokens are targets: `goal` of them, in spans that begin with a word, in turn with `predict`
        times their size; single ones where too few came together. A span's size is 1 to `longest`, with a
        chance of 1 / size."""
        length = len(word_starts)
        starts = np.append(np.flatnonzero(word_starts & ~special), length)
        is_target, now = np.zeros(length, bool), 0
        while (count := int(is_target.sum())) < goal and now < length:
            size = min(1 + int(np.searchsorted(self.chances, rng.random(), side="right")), goal - count)
            # A span lies anywhere in a window of (predict + 1) times its size, as in the released code.
            before = int(rng.integers(size * self.predict))
            begin = int(starts[min(int(np.searchsorted(starts, now + before)), len(starts) - 1)])
            if begin + size >= length:
                break
            is_target[begin : begin + size] = ~special[begin : begin + size]
            now = begin + size + size * self.predict - before
        free = np.flatnonzero(~is_target & ~special)
        more = min(max(0, goal - int(is_target.sum())), len(free))
        is_target[rng.choice(free, more, replace=False)] = True
        return is_target

    def collate(self, examples: Sequence[PermutedExample]) -> PermutationBatch:
        # A slice always has the same streams, so this is always the same order, as a `StreamBatch` has to
        # keep it.
        examples = sorted(examples, key=lambda example: example.backward)
        segments = [example.segments for example in examples]
        batch = Batch.of([example.ids for example in examples], segments=segments)
        batch.order = concatenate(examples, "order")
        batch.backward = sum(example.backward for example in examples)
        at = batch.layout.flat([example.places for example in examples])
        return PermutationBatch(
            counts={"permuted": len(at), "permuted_accuracy": len(at)},
            tokens=batch.layout.tokens,
            batch=batch,
            at=at,
            target_counts=tuple(len(example.places) for example in examples),
            targets=concatenate(examples, "targets"),
            **stream_fields(examples),
        )

    def loss(self, unit: Unit, micro: PermutationBatch) -> dict[str, Term]:
        # The query stream knows a target's position and not the target (section 2.3).
        queries = QueryPositions(micro.at, micro.target_counts)
        hidden_nD, state = unit.model.two_stream(micro.batch, queries, unit.recall(micro), reuse=self.reuse)
        unit.keep(micro, state)
        return target_terms("permuted", unit.model, hidden_nD, None, micro.targets)
