"""What a recurrent decoder carries from one call to the next.

Legend: R rows, L layers, D width of states, F of what is fed, T longest source, A width of alignments, H of annotations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from etymon.nn.batch import Layout
from etymon.nn.cache import SPARE


@dataclass
class Carried:
    """States of every layer, an LSTM's cells, and what is fed to the next step; of rows, or of tokens."""

    h_LRD: Tensor
    c_LRD: Tensor | None = None
    fed_RF: Tensor | None = None

    def changed(self, change: Callable[[Tensor, int], Tensor]) -> Carried:
        """Every part by a function that is told on which axis the rows lie."""
        c_LRD = None if self.c_LRD is None else change(self.c_LRD, 1)
        return Carried(change(self.h_LRD, 1), c_LRD, None if self.fed_RF is None else change(self.fed_RF, 0))

    def at(self, rows: Tensor) -> Carried:
        return self.changed(lambda part, axis: part.index_select(axis, rows))

    def cell(self, row: int) -> Carried:
        return self.changed(lambda part, axis: part.narrow(axis, row, 1))

    @staticmethod
    def joined(parts: Sequence[Carried]) -> Carried:
        first = parts[0]
        return Carried(
            torch.cat([part.h_LRD for part in parts], 1),
            None if first.c_LRD is None else torch.cat([part.c_LRD for part in parts], 1),  # type: ignore[misc]
            None if first.fed_RF is None else torch.cat([part.fed_RF for part in parts]),  # type: ignore[misc]
        )


@dataclass
class Source:
    """What a decoder looks at: annotations, and the part of the scores that depends on them alone. `numbers` tell rows of
    the same source, which need not be copied when they change places."""

    values_RTH: Tensor
    keys_RTA: Tensor | None
    missing_RT: Tensor | None
    lengths_R: Tensor
    numbers: tuple[int, ...]

    @staticmethod
    def of(
        layout: Layout, values_RTH: Tensor, keys_RTA: Tensor | None, missing_RT: Tensor | None = None
    ) -> Source:
        lengths_R = torch.tensor(layout.lengths, device=layout.device, dtype=values_RTH.dtype)
        return Source(values_RTH, keys_RTA, missing_RT, lengths_R, tuple(range(layout.rows)))

    def at(self, rows: Tensor) -> Source:
        numbers = tuple(self.numbers[row] for row in rows.tolist())
        if numbers == self.numbers[: len(numbers)]:
            return self.first(len(numbers))
        return self._changed(lambda part: part.index_select(0, rows), numbers)

    def first(self, rows: int) -> Source:
        if rows == len(self.numbers):
            return self
        return self._changed(lambda part: part[:rows], self.numbers[:rows])

    def _changed(self, change: Callable[[Tensor], Tensor], numbers: tuple[int, ...]) -> Source:
        keys = None if self.keys_RTA is None else change(self.keys_RTA)
        missing = None if self.missing_RT is None else change(self.missing_RT)
        return Source(change(self.values_RTH), keys, missing, change(self.lengths_R), numbers)


@dataclass
class Call:
    """The states behind every token of one call, and where they are: by row, the length before, the new tokens, the first."""

    states: Carried
    before: tuple[int, ...]
    new: tuple[int, ...]
    first: tuple[int, ...]

    def select(self, rows: Sequence[int]) -> Call:
        return Call(
            self.states, *(tuple(part[row] for row in rows) for part in (self.before, self.new, self.first))
        )


Mark = tuple[tuple[int, ...], Carried | None, list[Call]]


class RecurrentState:
    """The states of a decoder's rows now, and those of the last calls, so that it can be cropped by `SPARE` of them."""

    def __init__(self, rows: int) -> None:
        self.lengths: tuple[int, ...] = (0,) * rows
        self.now: Carried | None = None
        self.source: Source | None = None
        self.past: list[Call] = []

    def begin(self, source: Source, first: Carried) -> None:
        rows = len(self.lengths)
        self.source, self.now = source, first
        self.past = [Call(first, (-1,) * rows, (1,) * rows, tuple(range(rows)))]

    def advance(self, layout: Layout, states: Carried) -> None:
        """Takes up the states behind the tokens of a call."""
        self.now = states.at(layout.last)
        self.past.append(Call(states, self.lengths, layout.lengths, tuple(layout.host_starts.tolist())))
        del self.past[: -SPARE - 1]
        self.lengths = tuple(old + new for old, new in zip(self.lengths, layout.lengths, strict=True))

    def select(self, rows: Tensor) -> Self:
        chosen, order = type(self)(0), rows.tolist()
        chosen.lengths = tuple(self.lengths[row] for row in order)
        if self.now is not None and self.source is not None:
            chosen.now, chosen.source = self.now.at(rows), self.source.at(rows)
            chosen.past = [call.select(order) for call in self.past]
        return chosen

    def keep(self, rows: Tensor) -> None:
        self.__dict__ = self.select(rows).__dict__

    def fork(self, copies: int) -> Self:
        device = None if self.now is None else self.now.h_LRD.device
        return self.select(torch.arange(len(self.lengths), device=device).repeat_interleave(copies))

    def crop(self, lengths: Sequence[int]) -> None:
        if any(not 0 <= new <= old for new, old in zip(lengths, self.lengths, strict=True)):
            raise ValueError(f"rows of {self.lengths} tokens cannot be cropped to {tuple(lengths)}")
        if tuple(lengths) == self.lengths or self.now is None:
            return
        self.now = Carried.joined([self._behind(row, length) for row, length in enumerate(lengths)])
        self.lengths = tuple(lengths)

    def _behind(self, row: int, length: int) -> Carried:
        for call in reversed(self.past):
            place = length - 1 - call.before[row]
            if 0 <= place < call.new[row]:
                return call.states.cell(call.first[row] + place)
        raise ValueError(f"a recurrent state can be cropped by {SPARE} calls")

    def mark(self) -> Mark:
        """Where the rows are, to come back to."""
        return self.lengths, self.now, list(self.past)

    def rewind(self, mark: Mark) -> None:
        self.lengths, self.now, self.past = mark[0], mark[1], list(mark[2])
