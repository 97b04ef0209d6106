"""Permutation language modelling (XLNet, sections 2.2 to 2.5): tokens are predicted in an order that is drawn anew.

A sample is a piece of running text, which is remembered, and behind it two pieces as `A <sep> B <sep> <cls>`: half of the time B
goes on from A. In both halves short spans are asked for, one token in `predict` altogether. What is not asked is seen by all;
what is asked, and the special tokens, are seen by those that come later in the order. The first half sees nothing of the second.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from etymon.errors import EtymonError
from etymon.nn.batch import Batch, QueryPositions
from etymon.objectives.objective import (
    FROM_MODEL,
    StreamBatch,
    Streaming,
    Term,
    Unit,
    needed_id,
    target_terms,
)
from etymon.sampling import plans
from etymon.sampling import streams as text_streams
from etymon.sampling.streams import FRESH, ORDER, START, STREAM, Reset
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
    places: np.ndarray
    stream: int
    fresh: bool
    backward: bool


@dataclass
class PermutationBatch(StreamBatch):
    batch: Batch
    at: Tensor
    asked: tuple[int, ...]
    targets: Tensor


class Permutation(Streaming):
    """`reuse` tokens of the `length` are running text, half of them unless told (0). With `both_ways`, every other stream is
    read from its end, as distances are then counted the other way round too. Spans have up to `longest` tokens, short ones
    more often. `memory` tokens of the running text before are remembered, as for other streams."""

    name = "permutation"
    heads = frozenset({"vocabulary"})
    requires = frozenset({"two-stream"})
    choices = {"reset": ("epoch", "never")}

    def __init__(
        self,
        tokenizer: Tokenizer,
        length: int,
        predict: int = 6,
        longest: int = 5,
        reuse: int = 0,
        both_ways: bool = True,
        memory: int = FROM_MODEL,
        validation_memory: int = FROM_MODEL,
        reset: Reset = "epoch",
    ) -> None:
        self.length, self.predict, self.longest = length, predict, longest
        self.reuse, self.both_ways = reuse or length // 2, both_ways
        self.memory, self.validation_memory = memory, validation_memory
        self.reset: Reset = reset
        self.framing = tokenizer.framing
        self.separator = needed_id(tokenizer, "end", self.name)
        self.word_starts = tokenizer.word_starts
        chances = 1 / np.arange(1, longest + 1)
        self.chances = (chances / chances.sum()).cumsum()[:-1]
        self.room = length - self.reuse - self.framing.overhead(pair=True)
        """Of A and B together."""
        if self.room < 2 or self.reuse < 2 or predict < 1 or longest < 1:
            raise EtymonError(
                f"permutation needs room: of {length} tokens {self.reuse} are remembered and {self.room} are for two pieces "
                "of text, with 1 or more in spans and between them; give a greater length"
            )

    # --- which text

    def plan(
        self, split: Split, seed: int, epoch: int, *, shuffle: bool = True, streams: int = 1
    ) -> np.ndarray:
        """The columns of `data/streams.py`, and those above. Forward streams have even numbers, backward ones odd."""
        turned = shuffle and self.both_ways and streams % 2 == 0
        if shuffle and self.both_ways and not turned and epoch == 0:
            logger.warning("a batch of %d samples has no halves: all of it is read forward", streams)
        table = text_streams.stream_segments(
            split,
            self.reuse,
            seed,
            epoch,
            streams // 2 if turned else streams,
            reset=self.reset,
            shuffle=shuffle,
        )
        table = np.column_stack((table, np.zeros((len(table), 5), np.int64)))
        table[:, START] += 1  # what is predicted stands in its own place: no token before it is needed
        if turned:
            table = _with_turned(table, streams // 2)
        ends, rng = split.stream_length, plans.key(seed, "permutation", epoch)
        table[:, A_START : B_STOP + 1] = self._pieces(table, ends, rng)
        return table

    def readings(self, split: Split, plan: np.ndarray) -> float:
        """The running text once in every direction, and the two pieces of each sample, which are text as well."""
        spans = ((START, text_streams.STOP), (A_START, A_STOP), (B_START, B_STOP))
        return float(
            sum((plan[:, stop] - plan[:, start]).sum() for start, stop in spans) / split.stream_length
        )

    def _pieces(self, table: np.ndarray, ends: int, rng: np.random.Generator) -> np.ndarray:
        """Where A and B lie. Behind the running text, for who reads from the end, is before it."""
        back = table[:, BACKWARD] == 1
        # As if read from its own beginning.
        first = np.where(back, ends - table[:, START], table[:, text_streams.STOP])
        left = np.clip(ends - first, 0, self.room)
        cut = np.minimum(rng.integers(1, self.room, len(table)), ends)
        following = (rng.random(len(table)) < 0.5) & (left == self.room)
        first = np.where(left < cut, _anywhere(rng, ends - cut), first)  # at the very end of the text
        rest = np.minimum(self.room - cut, ends)
        second = np.where(following, first + cut, _anywhere(rng, ends - rest))
        spans = np.stack([first, first + cut, second, second + rest], 1)
        return np.where(back[:, None], ends - spans[:, [1, 0, 3, 2]], spans)

    def prepare(self, split: Split, row: np.ndarray, rng: np.random.Generator) -> PermutedExample:
        def read(start: int, stop: int) -> np.ndarray:
            where = np.array([start, stop, row[STREAM], row[FRESH], row[ORDER]])
            found = text_streams.read(split, where, self.separator)
            return found[::-1] if row[BACKWARD] else found

        running = read(row[START], row[text_streams.STOP])
        framed = self.framing.frame(read(row[A_START], row[A_STOP]), read(row[B_START], row[B_STOP]))
        goal, other = self.length // self.predict, self.length - self.reuse
        halves = (
            (running.astype(np.int64), np.zeros(len(running), bool), (goal - goal // 2) / self.reuse),
            (framed.ids.astype(np.int64), framed.special, goal // 2 / other),
        )
        turn = -1 if row[BACKWARD] else 1  # words begin where they begin, however they are read
        order: list[np.ndarray] = []
        places: list[np.ndarray] = []
        done = steps = 0
        for ids, special, share in halves:
            asked = self.spans(ids[::turn], special[::turn], round(share * len(ids)), rng)[::turn]
            own = np.zeros(len(ids), np.int64)
            ordered = np.flatnonzero(asked | special)
            own[ordered] = 1 + rng.permutation(len(ordered))
            order.append(steps + own)
            places.append(done + np.flatnonzero(asked))
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

    # --- what is asked

    def spans(self, ids: np.ndarray, special: np.ndarray, goal: int, rng: np.random.Generator) -> np.ndarray:
        """Which tokens are asked: `goal` of them, in spans that begin with a word, in turn with `predict` times their size;
        single ones where too few came together. A span's size is 1 to `longest`, with a chance of 1 / size."""
        starts = np.append(np.flatnonzero(self.word_starts[ids] & ~special), len(ids))
        asked, now = np.zeros(len(ids), bool), 0
        while (count := int(asked.sum())) < goal and now < len(ids):
            size = min(1 + int(np.searchsorted(self.chances, rng.random(), side="right")), goal - count)
            before = int(rng.integers(size * self.predict))
            begin = int(starts[min(int(np.searchsorted(starts, now + before)), len(starts) - 1)])
            if begin + size >= len(ids):
                break
            asked[begin : begin + size] = ~special[begin : begin + size]
            now = begin + size + size * self.predict - before
        free = np.flatnonzero(~asked & ~special)
        more = min(max(0, goal - int(asked.sum())), len(free))
        asked[rng.choice(free, more, replace=False)] = True
        return asked

    def collate(self, examples: Sequence[PermutedExample]) -> PermutationBatch:
        # Always the same streams: always the same order.
        examples = sorted(examples, key=lambda example: example.backward)
        batch = Batch.of(
            [example.ids for example in examples], segments=[example.segments for example in examples]
        )
        batch.order = torch.from_numpy(np.concatenate([example.order for example in examples]))
        batch.backward = sum(example.backward for example in examples)
        at = batch.layout.flat([example.places for example in examples])
        targets = np.concatenate([example.ids[example.places] for example in examples])
        return PermutationBatch(
            counts={"permuted": len(at), "permuted_accuracy": len(at)},
            tokens=batch.layout.tokens,
            streams=tuple(example.stream for example in examples),
            fresh=tuple(example.fresh for example in examples),
            batch=batch,
            at=at,
            asked=tuple(len(example.places) for example in examples),
            targets=torch.from_numpy(targets),
        )

    def loss(self, unit: Unit, prepared: PermutationBatch) -> dict[str, Term]:
        state = unit.recall(prepared)
        asked = QueryPositions(prepared.at, prepared.asked)
        hidden_nD, state = unit.model.two_stream(prepared.batch, asked, state, reuse=self.reuse)
        unit.keep(prepared, state)
        return target_terms("permuted", unit.model, hidden_nD, None, prepared.targets)


def _anywhere(rng: np.random.Generator, room: np.ndarray) -> np.ndarray:
    return (rng.random(len(room)) * (room + 1)).astype(np.int64)


def _with_turned(table: np.ndarray, streams: int) -> np.ndarray:
    """Beside every stream its own text from the end: rows of both take turns, and so do their numbers."""
    forward = table.reshape(-1, streams, table.shape[1])  # time, stream
    back = forward[::-1].copy()
    back[:, :, [STREAM, FRESH, BACKWARD]] = forward[:, :, [STREAM, FRESH, BACKWARD]]
    forward[:, :, STREAM] *= 2
    back[:, :, STREAM] = 2 * back[:, :, STREAM] + 1
    back[:, :, BACKWARD] = 1
    both = np.stack([forward, back], 2)
    return both.reshape(-1, table.shape[1])
