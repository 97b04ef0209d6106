"""Questions and their contexts as windows: a context that is too long is read in parts, each with the question."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from etymon.errors import EtymonError
from etymon.tasks.reading import TextReader
from etymon.tasks.task import Notify, ignore_note
from etymon.text.framing import Framed


@dataclass(frozen=True)
class ContextTokens:
    """The tokens of a context, and the characters [start, stop) that each stands for."""

    ids: np.ndarray
    starts: np.ndarray
    stops: np.ndarray

    def of(self, start: int, stop: int) -> tuple[int, int] | None:
        """The first and the last token of some characters; None if there are none of them."""
        found = np.flatnonzero((self.stops > start) & (self.starts < stop))
        return (int(found[0]), int(found[-1])) if len(found) else None

    def characters(self, context: str, first: int, last: int) -> tuple[int, int]:
        """The characters of tokens, the last included, without the white space around them."""
        start, stop = int(self.starts[first]), int(self.stops[last])
        while start < stop and context[start].isspace():
            start += 1
        while stop > start and context[stop - 1].isspace():
            stop -= 1
        # An accent that the tokenizer drops still belongs to its letter.
        while start < stop < len(context) and unicodedata.combining(context[stop]):
            stop += 1
        return start, stop


@dataclass(frozen=True)
class ContextWindow:
    """A question and a part of its context, as a model reads them."""

    number: int
    """Of the question in its table."""
    framed: Framed
    at: int
    """Where the part begins,"""
    first: int
    """which token of the context that is,"""
    count: int
    """and how many there are."""
    words: int
    """White-space words of what is read."""

    def target(self, answer: tuple[int, int] | None, nothing: int) -> tuple[int, int]:
        """Where an answer, its first and its last token, stands in the window; `nothing` unless all of it does."""
        if answer is None or answer[0] < self.first or answer[1] >= self.first + self.count:
            return nothing, nothing
        return answer[0] - self.first + self.at, answer[1] - self.first + self.at


def windows(
    reader: TextReader,
    questions: Sequence[str],
    contexts: Sequence[str],
    stride: int,
    question_length: int,
    notify: Notify = ignore_note,
) -> tuple[list[ContextWindow], list[ContextTokens]]:
    """All windows, question by question, and the tokens of every question's context. Windows begin `stride` tokens apart, and
    together hold every token of a context. Of a question at most `question_length` tokens are read, and half the room."""
    room, pair = reader.room(pair=True), reader.framing.pair
    if room < 2:
        raise EtymonError(f"{reader.length} tokens have no room for a question and a context: raise --length")
    context_first = reader.framing.context_first
    marks = sum(isinstance(item, str) for item in pair[: pair.index(0 if context_first else 1)])
    distinct = {context: ContextTokens(*reader.words.offsets(context)) for context in dict.fromkeys(contexts)}
    tokens = [distinct[context] for context in contexts]
    most, cut, long = min(question_length, room // 2), 0, 0
    found: list[ContextWindow] = []
    for number, question in enumerate(reader.encode(questions)):
        context, (asked, left) = tokens[number], (question[:most], room - min(most, len(question)))
        rest = len(context.ids) - left
        cut, long = cut + (len(question) > most), long + (rest > 0)
        # The last window is the first that reaches the end.
        step = min(stride, left)
        for first in range(0, max(0, rest) + step, step):
            part = context.ids[first : first + left]
            read = (
                slice(*context.characters(contexts[number], first, first + len(part) - 1))
                if len(part)
                else slice(0)
            )
            words = len(questions[number].split()) + len(contexts[number][read].split())
            framed = reader.framed(part, asked) if context_first else reader.framed(asked, part)
            at = marks if context_first else marks + len(asked)
            found.append(ContextWindow(number, framed, at, first, len(part), words))
    if cut:
        notify(
            f"{cut:,} of {len(questions):,} questions are longer than {most} tokens and are cut (question_length)"
        )
    if long:
        notify(
            f"{long:,} of {len(questions):,} contexts do not fit into {reader.length} tokens and are read in parts: "
            f"{len(found):,} windows in all"
        )
    return found, tokens
