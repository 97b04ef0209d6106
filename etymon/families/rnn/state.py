"""What a recurrent decoder carries from one call to the next.

Legend: R rows, N tokens, L layers, D width of states, F width of what is fed to the next step, T longest
source, A width of alignments, H width of annotations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from etymon.nn.batch import Layout
from etymon.nn.window import SPARE

States = list[Tensor]
"""Hidden states `[L, R, D]`, an LSTM's cells `[L, R, D]`, and with input feeding what is fed next, `[1, R,
F]`.

Rows are always the second axis; behind every token of a call they are N and not R.
"""


def pick_states(states: States, rows: Tensor) -> States:
    return [part.index_select(1, rows) for part in states]


def concatenate_states(parts: Sequence[States]) -> States:
    return [torch.cat(same, 1) for same in zip(*parts, strict=True)]


@dataclass
class Source:
    """The encoded source rows that a decoder attends to, and the part of the scores that depends on them
    alone."""

    values_RTH: Tensor
    lengths_R: Tensor
    numbers: tuple[int, ...]
    """Rows of the same number are copies of one source: such rows need no copying when beams change
    places."""
    keys_RTA: Tensor | None = None
    missing_RT: Tensor | None = None

    def at(self, rows: Tensor) -> Source:
        numbers = tuple(self.numbers[row] for row in rows.tolist())
        # Beams of one source that change places attend to the same rows: nothing to copy.
        if numbers == self.numbers[: len(numbers)]:
            return self.first(len(numbers))
        return self._pick(lambda part: part.index_select(0, rows), numbers)

    def first(self, rows: int) -> Source:
        if rows == len(self.numbers):
            return self
        return self._pick(lambda part: part[:rows], self.numbers[:rows])

    def join(self, other: Source) -> Source:
        """These rows and those of another behind them, padded to the longest."""
        longest = max(self.values_RTH.shape[1], other.values_RTH.shape[1])

        def together(mine: Tensor, theirs: Tensor) -> Tensor:
            return torch.cat([F.pad(part, (0, 0, 0, longest - part.shape[1])) for part in (mine, theirs)])

        lengths_R = torch.cat([self.lengths_R, other.lengths_R])
        keys_RTA = missing_RT = None
        if self.keys_RTA is not None and other.keys_RTA is not None:
            keys_RTA = together(self.keys_RTA, other.keys_RTA)
            missing_RT = torch.arange(longest, device=lengths_R.device) >= lengths_R[:, None]
        values_RTH, numbers = together(self.values_RTH, other.values_RTH), tuple(range(len(lengths_R)))
        return Source(values_RTH, lengths_R, numbers, keys_RTA, missing_RT)

    def _pick(self, pick: Callable[[Tensor], Tensor], numbers: tuple[int, ...]) -> Source:
        optional = (None if part is None else pick(part) for part in (self.keys_RTA, self.missing_RT))
        return Source(pick(self.values_RTH), pick(self.lengths_R), numbers, *optional)


class PaddedRecurrentState:
    """The same of padded rows, as a program takes and gives it: states before a call, then those behind
    it."""

    def __init__(self, source: Source | None = None, now: States | None = None) -> None:
        self.source, self.now = source, now

    def begin(self, source: Source, first: States) -> None:
        self.source, self.now = source, first

    def advance(self, layout: Layout, states: States) -> None:
        self.now = states


class RecurrentState:
    """The states of a decoder's rows, and those behind the tokens of the last `SPARE` calls, to which it
    can be cropped."""

    def __init__(self, rows: int) -> None:
        self.lengths: tuple[int, ...] = (0,) * rows
        self.now: States | None = None
        self.source: Source | None = None
        self.past: list[tuple[States, list[tuple[int, int, int]]]] = []
        """A call's states, and by row its lengths before and after and an offset: the state behind the
        token that makes a row `n` tokens long is number `offset + n`."""

    def begin(self, source: Source, first: States) -> None:
        self.source, self.now = source, first
        # The state of length 0 counts as that of a call, so that rows can be cropped to nothing.
        self.past = [(first, [(-1, 0, row) for row in range(len(self.lengths))])]

    def advance(self, layout: Layout, states: States) -> None:
        """Takes the states behind the tokens of a call."""
        self.now = pick_states(states, layout.last)
        before = self.lengths
        self.lengths = tuple(old + new for old, new in zip(before, layout.lengths, strict=True))
        offsets = [start - old - 1 for start, old in zip(layout.host_starts.tolist(), before, strict=True)]
        spans = list(zip(before, self.lengths, offsets, strict=True))
        # A new list: a mark refers to the old one.
        self.past = [*self.past, (states, spans)][-SPARE - 1 :]

    def select(self, rows: Tensor) -> Self:
        selected, order = type(self)(0), rows.tolist()
        selected.lengths = tuple(self.lengths[row] for row in order)
        if self.now is not None and self.source is not None:
            selected.now, selected.source = pick_states(self.now, rows), self.source.at(rows)
            # The tensors of earlier calls are shared, and only the rows' offsets are picked.
            selected.past = [(states, [spans[row] for row in order]) for states, spans in self.past]
        return selected

    def keep(self, rows: Tensor) -> None:
        self.__dict__ = self.select(rows).__dict__

    def fork(self, copies: int) -> Self:
        device = None if self.now is None else self.now[0].device
        return self.select(torch.arange(len(self.lengths), device=device).repeat_interleave(copies))

    def can_join(self, other: Any) -> bool:
        return True

    def make_room(self, rows: int, cells: int) -> None:
        """What a row holds does not grow: there is nothing to make room for."""

    def join(self, other: Any, rows: int, cells: int) -> None:
        """Adds the rows of another decode behind its own, none of which can be cropped afterwards."""
        assert self.now is not None and self.source is not None
        self.now = concatenate_states([self.now, other.now])
        self.source, self.past = self.source.join(other.source), []
        self.lengths += other.lengths

    def crop(self, lengths: Sequence[int]) -> None:
        if any(not 0 <= new <= old for new, old in zip(lengths, self.lengths, strict=True)):
            raise ValueError(f"rows of {self.lengths} tokens cannot be cropped to {tuple(lengths)}")
        if tuple(lengths) == self.lengths or self.now is None:
            return
        self.now = concatenate_states([self._state_at(row, length) for row, length in enumerate(lengths)])
        self.lengths = tuple(lengths)

    def _state_at(self, row: int, length: int) -> States:
        # The newest call first: a crop mostly goes back a few tokens.
        for states, spans in reversed(self.past):
            before, after, offset = spans[row]
            if before < length <= after:
                return [part.narrow(1, offset + length, 1) for part in states]
        raise ValueError(f"a recurrent state can be cropped by {SPARE} calls")

    def mark(self) -> Any:
        """Where the rows are, for `rewind`. Nothing is copied: no list or tensor of it is changed in
        place."""
        return self.lengths, self.now, self.past

    def rewind(self, mark: Any) -> None:
        self.lengths, self.now, self.past = mark
