"""What generated texts are like: how much they repeat themselves and each other, and how much they copy from
a corpus.

Legend: B tokens of a block.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

COMPARED = 64
"""Texts that are compared with each other at most: each is compared with all others."""


def ngrams(ids: Sequence[int], size: int) -> list[tuple[int, ...]]:
    return [tuple(ids[place : place + size]) for place in range(len(ids) - size + 1)]


def repetition(texts: Sequence[Sequence[int]], size: int) -> float | None:
    """The share of a text's n-grams that it has had before (rep-n), as a mean over texts that are long
    enough."""
    shares = [1 - len(set(grams)) / len(grams) for text in texts if (grams := ngrams(text, size))]
    return sum(shares) / len(shares) if shares else None


def distinct(texts: Sequence[Sequence[int]], size: int) -> float | None:
    """Different n-grams of all texts together, as a share of all their n-grams (Li et al. 2016)."""
    grams = [gram for text in texts for gram in ngrams(text, size)]
    return len(set(grams)) / len(grams) if grams else None


def self_bleu(texts: Sequence[str]) -> float | None:
    """The mean BLEU of every text with all others as references (Zhu et al. 2018): 100 is always the same
    text.

    None for fewer than two texts, or without sacrebleu.
    """
    try:
        from sacrebleu.metrics import BLEU
    except ImportError:
        return None
    compared = list(texts)[:COMPARED]
    if len(compared) < 2:
        return None
    metric = BLEU(effective_order=True)  # a text of three words has no four in a row
    scores = [
        metric.sentence_score(text, compared[:place] + compared[place + 1 :]).score
        for place, text in enumerate(compared)
    ]
    return float(sum(scores) / len(scores))


# --- the longest run of tokens that a text has in common with a corpus, exactly, in bounded memory
#
# A text with a copy of n tokens has one of every shorter length too, so the length is searched by bisection,
# for all texts side by side. One pass over the corpus tells for given lengths which texts have a copy: the
# hash of every window is taken out of running sums in blocks of a million tokens, looked up among the hashes
# of the texts' windows, and what agrees is compared token by token. So hashes only save time, and memory is
# that of a block, however long the corpus. A copy lies within one document.

BLOCK = 1 << 20
FILTER_SHIFT = np.uint64(64 - 20)
"""The first 20 bits of a hash tell nearly all windows apart at the cost of one look."""
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
    """The longest copy of every text. `documents` are the offsets of the corpus's documents, and its end."""
    rows = [np.asarray(text, np.int64) for text in texts]
    copies = [Copy() for _ in rows]
    too_long = [len(row) + 1 for row in rows]
    doubling = True
    while any(high - copy.length > 1 for copy, high in zip(copies, too_long, strict=True)):
        numbers_by_length: dict[int, list[int]] = {}
        for number, (copy, high) in enumerate(zip(copies, too_long, strict=True)):
            lengths: Iterable[int] = [(copy.length + high) // 2]
            if (
                doubling
            ):  # at first powers of two, all in one pass: most copies are short, and the bounds near then
                lengths = (1 << power for power in range(high.bit_length()))
            for length in lengths:
                if copy.length < length < high:
                    numbers_by_length.setdefault(length, []).append(number)
        doubling = False
        _search(rows, numbers_by_length, tokens, documents, block, copies)
        for length, numbers in numbers_by_length.items():
            for number in numbers:
                if copies[number].length < length:
                    too_long[number] = min(too_long[number], length)
    return copies


def _search(
    rows: list[np.ndarray],
    numbers_by_length: Mapping[int, list[int]],
    tokens: np.ndarray,
    documents: np.ndarray,
    block: int,
    copies: list[Copy],
) -> None:
    """One pass over the corpus: sets each text's entry of `copies` to a copy of the longest of its lengths
    that has any."""
    longest = max(numbers_by_length)
    powers, inverses = _powers(max(block + longest, *map(len, rows)))
    for begin in range(0, len(tokens), block):
        part_B = np.asarray(tokens[begin : begin + block + longest - 1])
        sums = _running_sums(part_B, powers)
        for length in sorted(numbers_by_length, reverse=True):
            numbers = [number for number in numbers_by_length[length] if copies[number].length < length]
            if not numbers or len(part_B) < length:
                continue
            windows: dict[int, list[tuple[int, int]]] = {}  # text and place by hash
            for number in numbers:
                hashes = _hashes(_running_sums(rows[number], powers), length, inverses)
                for start, hash_ in enumerate(hashes.tolist()):
                    windows.setdefault(hash_, []).append((number, start))
            # Longer lengths come first: a text with a long copy is not looked for at the shorter ones.
            hashes_B = _hashes(sums, length, inverses)[:block]
            hits = _hits(hashes_B, np.sort(np.array(list(windows), np.uint64)))
            first, last = (np.searchsorted(documents, begin + hits + end, "right") for end in (0, length - 1))
            hits = hits[first == last]
            for hash_, first_hit in zip(*np.unique(hashes_B[hits], return_index=True), strict=True):
                for number, start in windows[int(hash_)]:
                    if copies[number].length >= length:
                        continue
                    window, places = rows[number][start : start + length], hits[first_hit : first_hit + 1]
                    if not np.array_equal(part_B[places[0] : places[0] + length], window):
                        # The hashes agree by chance here: perhaps not so in the other places.
                        places = hits[hashes_B[hits] == hash_]
                        places = [at for at in places if np.array_equal(part_B[at : at + length], window)]
                    if len(places):
                        copies[number] = Copy(length, start, begin + int(places[0]))


def _hits(hashes_B: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The places of hashes that are among the wanted ones, which are sorted."""
    is_near = np.zeros(1 << 20, bool)
    is_near[wanted >> FILTER_SHIFT] = True
    near = np.flatnonzero(is_near[hashes_B >> FILTER_SHIFT])
    at = np.searchsorted(wanted, hashes_B[near])
    return near[wanted[np.minimum(at, len(wanted) - 1)] == hashes_B[near]]


def _powers(count: int) -> tuple[np.ndarray, np.ndarray]:
    """MULTIPLIER^i and MULTIPLIER^-i modulo 2^64."""
    columns = np.full((2, count), [[MULTIPLIER], [pow(MULTIPLIER, -1, 1 << 64)]], np.uint64)
    columns[:, 0] = 1
    powers, inverses = np.cumprod(columns, 1, dtype=np.uint64)
    return powers, inverses


def _running_sums(part_B: np.ndarray, powers: np.ndarray) -> np.ndarray:
    """Sums of the tokens before every place, each times a power: a difference of two is the hash of a window,
    but for a power."""
    spread = (part_B.astype(np.uint64) + np.uint64(1)) * np.uint64(SPREAD)
    sums = np.cumsum(spread * powers[: len(part_B)], dtype=np.uint64)
    return np.concatenate((np.zeros(1, np.uint64), sums))


def _hashes(sums: np.ndarray, length: int, inverses: np.ndarray) -> np.ndarray:
    """The hash of every window of `length` tokens, wherever it stands."""
    return (sums[length:] - sums[:-length]) * inverses[: len(sums) - length]
