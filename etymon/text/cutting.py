"""Where a long text can be cut without changing its tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator

PIECE = 1 << 14  # characters that are encoded at once
PART = 1 << 20  # characters of a document that are held at once
NEAR = 1 << 12  # a good cut is usually not far from the limit

# Cut before the last white space in front of a word: no pre-tokenizer of ours joins anything across it.
LINE_CUT = re.compile(r"\n(?=\S)")
SPACE_CUT = re.compile(r"\s(?=\S)")
SENTENCE_CUT = re.compile(r"(?<=[。！？｡؟۔।॥።។။])(?=\w)")


def cut_place(text: str, start: int, stop: int) -> int:
    """The last good place to cut in [start, stop): before a line, a word or a sentence; else `stop`."""
    for begin in (max(start, stop - NEAR), start):
        for pattern in (LINE_CUT, SPACE_CUT, SENTENCE_CUT):
            place = -1
            for match in pattern.finditer(text, begin, stop):
                place = match.start()
            if place > start:
                return place
    return stop


def pieces(text: str, limit: int = PIECE) -> Iterator[tuple[int, int]]:
    """Spans of at most `limit` characters that cover the text and are encoded like the whole."""
    start = 0
    while len(text) - start > limit:
        stop = cut_place(text, start + limit // 2, start + limit)
        yield start, stop
        start = stop
    yield start, len(text)


def parts(text: str, limit: int | None = None) -> tuple[list[str], str]:
    """The front of a growing text in parts, as far as it is longer than `limit`, and the rest."""
    *front, rest = (text[start:stop] for start, stop in pieces(text, limit or PART))
    return front, rest
