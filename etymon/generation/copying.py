"""The longest run of tokens that a text has in common with a corpus, exactly, in bounded memory.

A text with a copy of `n` tokens has one of every shorter length too, so the length is found by bisection, for all texts side by
side. One pass over the corpus tells for given lengths which texts have a copy: the hash of every window is taken out of
running sums in blocks of a million tokens, looked up among the hashes of the texts' windows, and what agrees is compared
token by token. So hashes only save time, and memory is that of a block, however long the corpus. A copy lies within one
document.

Legend: B tokens of a block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

BLOCK = 1 << 20
FILTER_BITS = 20
MULTIPLIER, SPREAD = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9
"""Odd numbers: the first has an inverse modulo 2^64, the second spreads small ids over all bits."""


@dataclass(frozen=True)
class Copy:
    """`length` tokens of a text, from `start` on, that the corpus has from `source` on."""

    length: int = 0
    start: int = 0
    source: int = 0


def longest_copies(
    texts: Sequence[Sequence[int]], tokens: np.ndarray, documents: np.ndarray, block: int = BLOCK
) -> list[Copy]:
    """For every text its longest copy. `documents` are the offsets of the corpus's documents, and its end."""
    rows = [np.asarray(text, np.int64) for text in texts]
    found = [Copy() for _ in rows]
    beyond = [len(row) + 1 for row in rows]  # so many are too many
    doubling = True
    while any(high - one.length > 1 for one, high in zip(found, beyond, strict=True)):
        asked: dict[int, set[int]] = {}
        for number, (one, high) in enumerate(zip(found, beyond, strict=True)):
            # At first powers of two, all in one pass: most copies are short, and the bounds are near then.
            lengths = (
                (1 << power for power in range(high.bit_length())) if doubling else [(one.length + high) // 2]
            )
            for length in lengths:
                if one.length < length < high:
                    asked.setdefault(length, set()).add(number)
        copies = _copies(rows, asked, tokens, documents, block)
        for length in sorted(asked):
            for number in asked[length]:
                if number in copies and copies[number].length >= length:
                    found[number] = copies[number]
                else:
                    beyond[number] = min(beyond[number], length)
        doubling = False
    return found


def _copies(
    rows: list[np.ndarray],
    asked: Mapping[int, set[int]],
    tokens: np.ndarray,
    documents: np.ndarray,
    block: int,
) -> dict[int, Copy]:
    """By text a copy of the longest of the asked lengths that it has one of."""
    longest = max(asked)
    powers, inverses = _powers(max(block + longest, *map(len, rows)))
    found: dict[int, Copy] = {}
    queries: dict[int, _Windows] = {}
    for begin in range(0, len(tokens), block):
        part_B = np.asarray(tokens[begin : begin + block + longest - 1])
        sums = _sums(part_B, powers)
        for length in sorted(asked, reverse=True):
            open_ = [
                number for number in asked[length] if number not in found or found[number].length < length
            ]
            count = min(block, len(part_B) - length + 1)
            if not open_ or count < 1:
                continue
            if length not in queries or queries[length].numbers != open_:
                queries[length] = _Windows(rows, open_, length, powers, inverses)
            query = queries[length]
            hashes_B = (sums[length : length + count] - sums[:count]) * inverses[:count]
            hits = query.hits(hashes_B)
            first, last = (
                np.searchsorted(documents, begin + hits + shift, "right") for shift in (0, length - 1)
            )
            hits = hits[first == last]
            # Of places with the same hash one is enough, unless hashes agree by chance.
            for each, at in zip(*np.unique(hashes_B[hits], return_index=True), strict=True):
                for number, start in query.by_hash[int(each)]:
                    window = rows[number][start : start + length]
                    if number in found and found[number].length >= length:
                        continue
                    places = [hits[at]]
                    if not np.array_equal(part_B[hits[at] : hits[at] + length], window):
                        places = [
                            place
                            for place in hits[hashes_B[hits] == each]
                            if np.array_equal(part_B[place : place + length], window)
                        ]
                    if places:
                        found[number] = Copy(length, start, begin + int(places[0]))
    return found


class _Windows:
    """The windows of some texts, by hash."""

    def __init__(
        self,
        rows: list[np.ndarray],
        numbers: list[int],
        length: int,
        powers: np.ndarray,
        inverses: np.ndarray,
    ) -> None:
        self.numbers = numbers
        self.by_hash: dict[int, list[tuple[int, int]]] = {}
        for number in numbers:
            sums = _sums(rows[number], powers)
            count = len(rows[number]) - length + 1
            hashes = (sums[length : length + count] - sums[:count]) * inverses[:count]
            for start, each in enumerate(hashes.tolist()):
                self.by_hash.setdefault(each, []).append((number, start))
        self.sorted = np.sort(np.array(list(self.by_hash), np.uint64))
        self.filter = np.zeros(1 << FILTER_BITS, bool)
        self.filter[self.sorted >> np.uint64(64 - FILTER_BITS)] = True

    def hits(self, hashes_B: np.ndarray) -> np.ndarray:
        """The places whose hash is one of these."""
        # The first bits tell nearly all others apart at the cost of one look.
        near = np.flatnonzero(self.filter[hashes_B >> np.uint64(64 - FILTER_BITS)])
        at = np.searchsorted(self.sorted, hashes_B[near])
        return near[self.sorted[np.minimum(at, len(self.sorted) - 1)] == hashes_B[near]]


def _powers(count: int) -> tuple[np.ndarray, np.ndarray]:
    """MULTIPLIER^i and MULTIPLIER^-i modulo 2^64."""

    def powers(base: int) -> np.ndarray:
        column = np.full(count, base, np.uint64)
        column[0] = 1
        return np.cumprod(column, dtype=np.uint64)

    return powers(MULTIPLIER), powers(pow(MULTIPLIER, -1, 1 << 64))


def _sums(part_B: np.ndarray, powers: np.ndarray) -> np.ndarray:
    """Running sums of the tokens times powers: a difference of two, divided by a power, is the hash of a window."""
    spread = (part_B.astype(np.uint64) + np.uint64(1)) * np.uint64(SPREAD)
    return np.concatenate(
        (np.zeros(1, np.uint64), np.cumsum(spread * powers[: len(part_B)], dtype=np.uint64))
    )
