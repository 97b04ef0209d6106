"""Where sentences start, and where a long text can be cut without changing its tokens.

The splitter of sentences is made of rules for many scripts, and fast enough for whole corpora. It is meant
for plans that cut text at natural places (sentence pairs, permutation, held-out tails), where an occasional
wrong cut costs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise

import numpy as np

PIECE = 1 << 14  # characters that are encoded at once
PART = 1 << 20  # characters of a document that are held at once
NEAR = 1 << 12  # a good cut is usually not far from the limit
# Cut before the last white space in front of a word: no pre-tokenizer of ours joins anything across it.
CUTS = [re.compile(cut) for cut in (r"\n(?=\S)", r"\s(?=\S)", r"(?<=[。！？｡؟۔।॥።។။])(?=\w)")]
"""Before a line, a word or a sentence, from the best place to the worst."""

CLOSERS = "\"'”’»›)\\]}」』）】》〉〕"
OPENERS = "\"'“‘«‹([{「『（【《〈〔¿¡-–—*_"

# Scripts with case and spaces: punctuation, closing marks, then white space. Whether it really ends the
# sentence depends on the words around it.
SPACED_END = re.compile(rf"[.!?…]+[{CLOSERS}]*\s+")
# Full stops that mean nothing else: Chinese/Japanese, Devanagari, Urdu/Arabic, Ethiopic, Khmer, Burmese.
PLAIN_END = re.compile(rf"[。！？｡؟۔।॥።፧፨។៕။][。！？｡؟۔।॥።፧፨។៕။.!?]*[{CLOSERS}]*\s*")
BLANK_LINE = re.compile(r"\n[^\S\n]*\n\s*")
ANY_LINE = re.compile(r"\n\s*")
LAST_WORD = re.compile(r"[^\s(\[{\"'“‘«—–]*$")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Followed by more of the same sentence, whatever comes next.
TITLES = _words(
    "Mr Mrs Ms Mx Dr Prof Rev Hon Messrs Mme Mlle Mgr St Ste Sr Fr Gen Col Maj Capt Cpt Lt Cmdr Adm Sgt Cpl "
    "Gov Sen Rep Pres Esq viz cf vs v e.g i.e approx ca al ed eds trans Herr Hr Frau bzw z.B"
)
# Followed by a number they are one expression ("No. 4", "p. 12", "Jan. 3"); else they may end a sentence.
BEFORE_NUMBERS = _words(
    "No Nos no nos Vol vol Ch ch Sec sec Fig fig Figs figs Eq eq p pp art Art Jan Feb Mar Apr Jun Jul Aug "
    "Sep Sept Oct Nov Dec"
)
# After "U.S." or "p.m." a capital may be a name; these words say that a new sentence has begun.
STARTERS = _words(
    "A An And As At Both But By Did Do Each For From Had Has He Her His How However I If In Is It Its My "
    "No Not Of On One Or Our She So Some Such That The Their Then There These They This Those Thus To "
    "Was We Were What When Where Which While Who Why With Yet You Your"
)
NEXT_WORD = re.compile(r"[^\W\d_]+")


def sentence_starts(text: str, wrapped: bool | None = None) -> np.ndarray:
    """The character offsets at which sentences start, ascending (int64; empty for blank text).

    A line break ends a sentence too, unless the text is hard-wrapped: then only a blank line does. `wrapped`
    says which (for a part of a longer text); None: the text itself tells.
    """
    first = len(text) - len(text.lstrip())
    if first == len(text):
        return np.zeros(0, np.int64)
    lines = BLANK_LINE if (is_wrapped(text) if wrapped is None else wrapped) else ANY_LINE
    starts = [first]
    starts += [match.end() for match in lines.finditer(text)]
    starts += [match.end() for match in PLAIN_END.finditer(text)]
    starts += [match.end() for match in SPACED_END.finditer(text) if _ends_sentence(text, match)]
    ordered = np.unique(np.array(starts, np.int64))
    return ordered[(ordered >= first) & (ordered < len(text.rstrip()))]


def _ends_sentence(text: str, match: re.Match[str]) -> bool:
    following = text[match.end() : match.end() + 24].lstrip(OPENERS)
    if following[:1].islower():
        return False  # "Stop!" he said; approx. five; ... and so on
    start = match.start()
    if match.group().rstrip() != ".":
        return True
    last = LAST_WORD.search(text, max(0, start - 24), start)
    word = last.group() if last else ""
    if word in TITLES:
        return False
    if word in BEFORE_NUMBERS and following[:1].isdigit():
        return False
    if word.isdigit():  # a numbered list item at the head of a line, else a year or a sum
        head = start - len(word)
        return head > 0 and text[head - 1] != "\n"
    if len(word) == 1 and word.isupper():
        return word == "I"  # J. K. Rowling; but: So did I. Then...
    if "." in word:  # U.S., p.m., Ph.D
        next_word = NEXT_WORD.match(following)
        return next_word is None or next_word.group() in STARTERS
    return True


def is_wrapped(text: str) -> bool:
    """Whether lines are broken in the middle of sentences: more than 30% of them go on in lower case."""
    lines = text[:65536].split("\n")
    following = [line[0] for before, line in pairwise(lines) if before and line and not line[0].isspace()]
    return len(following) > 3 and sum(map(str.islower, following)) > 0.3 * len(following)


# ---------------------------------------------------------------- where a long text can be cut


def cut_spans(text: str, limit: int = PIECE) -> Iterator[tuple[int, int]]:
    """Spans of at most `limit` characters that cover the text and are encoded like the whole."""
    start = 0
    while len(text) - start > limit:
        stop = _cut_place(text, start + limit // 2, start + limit)
        yield start, stop
        start = stop
    yield start, len(text)


def _cut_place(text: str, start: int, stop: int) -> int:
    """The last good place to cut in [start, stop); else `stop`."""
    for begin in (max(start, stop - NEAR), start):
        for pattern in CUTS:
            place = max((match.start() for match in pattern.finditer(text, begin, stop)), default=start)
            if place > start:
                return place
    return stop


def cut_texts(texts: Iterable[str], limit: int = PIECE) -> Iterator[str]:
    """The texts in pieces of at most `limit` characters."""
    return (text[start:stop] for text in texts for start, stop in cut_spans(text, limit))


def cut_front(text: str, limit: int | None = None) -> tuple[list[str], str]:
    """The front of a growing text in parts, as far as it is longer than `limit`, and the rest."""
    *front, rest = cut_texts([text], limit or PART)
    return front, rest
