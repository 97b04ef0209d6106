"""Answers as spans: of characters, as a table gives them; of tokens, in windows of long contexts; and the
best by their scores.

Legend: N tokens, R rows, T tokens of a row, C columns, L tokens of a span at most, S beginnings and E ends
of a beam search.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from etymon.errors import EtymonError
from etymon.nn.batch import Layout
from etymon.nn.heads import SpanCandidates
from etymon.tables.table import Table, json_cell
from etymon.tasks.reading import TextReader
from etymon.tasks.task import Notify, ignore_note
from etymon.text.framing import Framed
from etymon.text.reading import SURROGATE

SHOWN = 60
"""Characters of an answer that a message repeats."""
ScoredSpan = tuple[float, int, int]
"""A score, and the first and the last token."""


# --- the right answers of a table


def places_with_ids(table: Table, column: str) -> list[str]:
    """The places of the rows with their ids, for messages. Refuses an id that two rows have."""
    seen: dict[str, str] = {}
    for place, value in zip(table.places, map(str, table.values(column)), strict=True):
        if value in seen:
            raise EtymonError(
                f"{place}: the id {value!r} is also that of {seen[value]}: give every question its own"
            )
        seen[value] = place
    return [f"{place} (id {value!r})" for value, place in seen.items()]


def read_answers(value: Any, context: str, place: str, column: str) -> list[tuple[str, int]]:
    """The answers that a cell holds, without white space around them, and where each begins. None for an
    empty list, an empty text or nothing at all."""
    # What stands in the context is a text, however it looks; other cells may be JSON.
    literal = isinstance(value, str) and value != "[]" and value in context
    try:
        pairs = _texts_and_starts(value if literal else json_cell(value))
    except (TypeError, ValueError) as error:
        raise EtymonError(
            f"{place}: column {column!r} holds no answers: give a text, a list of texts, "
            "or texts and as many answer_start"
        ) from error
    answers = []
    for text, start in pairs:
        if not isinstance(text, str) or not text.strip():
            kind = "empty" if isinstance(text, str) else f"a {type(text).__name__}"
            raise EtymonError(
                f"{place}: column {column!r} holds an answer that is {kind}; "
                "a question without an answer has an empty list"
            )
        text = SURROGATE.sub("\ufffd", text)
        shown = repr(text if len(text) <= SHOWN else text[:SHOWN] + "...")
        first = context.find(text)
        if first < 0:
            raise EtymonError(
                f"{place}: the answer {shown} is not in its context: correct one of them, or leave the "
                "row out"
            )
        if start is None:
            start = first
        if not isinstance(start, int) or start < 0 or not context.startswith(text, start):
            raise EtymonError(
                f"{place}: the answer {shown} does not begin at {start!r}, but at {first}: correct its "
                "answer_start"
            )
        answers.append((text.strip(), start + len(text) - len(text.lstrip())))
    return answers


def _texts_and_starts(value: Any) -> list[tuple[Any, Any]]:
    """Texts and, where it is given, where they begin."""
    if value is None or value == "":
        return []
    if isinstance(value, list | tuple):
        return [pair for part in value for pair in _texts_and_starts(part)]
    if not isinstance(value, Mapping):
        return [(value, None)]
    texts, starts = value.get("text"), value.get("answer_start")
    if isinstance(texts, str):
        return [(texts, starts)]
    starts = [None] * len(texts) if starts is None else starts  # type: ignore[arg-type]
    return list(zip(texts, starts, strict=True))  # type: ignore[arg-type]


# --- windows: a context that is too long is read in parts, each with the question


@dataclass(frozen=True)
class ContextTokens:
    """The tokens of a context, and the characters [start, stop) that each stands for."""

    ids: np.ndarray
    starts: np.ndarray
    stops: np.ndarray

    def of(self, start: int, stop: int) -> tuple[int, int] | None:
        """The first and the last token of some characters; None if there are none of them."""
        # All tokens that touch the answer: `1984` in `(1984)` may be a part of a token.
        inside = np.flatnonzero((self.stops > start) & (self.starts < stop))
        return (int(inside[0]), int(inside[-1])) if len(inside) else None

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
    """That of the question in its table."""
    framed: Framed
    at: int
    """The place of the part's first token in the row."""
    first: int
    """The number of that token in the context."""
    count: int
    """How many tokens the part has."""
    words: int
    """White-space words of what is read."""

    def target(self, answer: tuple[int, int] | None, nothing: int) -> tuple[int, int]:
        """The places of an answer's first and last token in the window; `nothing` twice unless it holds all
        of it."""
        if answer is None or answer[0] < self.first or answer[1] >= self.first + self.count:
            return nothing, nothing
        return answer[0] - self.first + self.at, answer[1] - self.first + self.at


def context_windows(
    reader: TextReader,
    questions: Sequence[str],
    contexts: Sequence[str],
    stride: int,
    question_length: int,
    notify: Notify = ignore_note,
) -> tuple[list[ContextWindow], list[ContextTokens]]:
    """All windows, question by question, and the tokens of every question's context. Windows begin `stride`
    tokens apart, and together hold every token of a context. Of a question at most `question_length` tokens
    are read, and half the room."""
    room, pair = reader.room(pair=True), reader.framing.pair
    if room < 2:
        raise EtymonError(f"{reader.length} tokens have no room for a question and a context: raise --length")
    context_first = reader.framing.context_first
    marks = sum(isinstance(item, str) for item in pair[: pair.index(0 if context_first else 1)])
    # Many questions share a context.
    distinct = {text: ContextTokens(*reader.words.offsets(text)) for text in dict.fromkeys(contexts)}
    tokens = [distinct[context] for context in contexts]
    # A question may not take the room of its context, however short rows are.
    most, cut, long = min(question_length, room // 2), 0, 0
    windows: list[ContextWindow] = []
    for number, question in enumerate(reader.encode(questions)):
        cut += len(question) > most
        question, context = question[:most], tokens[number]
        left = room - len(question)
        rest = len(context.ids) - left
        long += rest > 0
        # Windows overlap, so that an answer at the edge of one has context in the next (BERT's script: 384
        # tokens, 128 apart).
        # The last window is the first that reaches the end.
        step = min(stride, left)
        for first in range(0, max(0, rest) + step, step):
            part = context.ids[first : first + left]
            text = ""
            if len(part):
                start, stop = context.characters(contexts[number], first, first + len(part) - 1)
                text = contexts[number][start:stop]
            words = len(questions[number].split()) + len(text.split())
            framed = reader.framed(part, question) if context_first else reader.framed(question, part)
            at = marks if context_first else marks + len(question)
            windows.append(ContextWindow(number, framed, at, first, len(part), words))
    if cut:
        notify(
            f"{cut:,} of {len(questions):,} questions are longer than {most} tokens and are cut "
            "(question_length)"
        )
    if long:
        notify(
            f"{long:,} of {len(questions):,} contexts do not fit into {reader.length} tokens and are "
            f"read in parts: {len(windows):,} windows in all"
        )
    return windows, tokens


# --- spans by the scores of their beginnings and their ends


def row_log_softmax(scores_NC: Tensor, layout: Layout) -> Tensor:
    """The logarithms of probabilities over the tokens of every row, column by column."""
    row_NC = layout.row[:, None].expand_as(scores_NC)
    blank_RC = scores_NC.new_full((layout.rows, scores_NC.shape[1]), -torch.inf)
    top_RC = blank_RC.scatter_reduce(0, row_NC, scores_NC.detach(), "amax")
    # The maximum only keeps `exp` finite. It cancels, so no gradient goes through it.
    shifted_NC = scores_NC - top_RC[layout.row]
    total_RC = torch.zeros_like(blank_RC).index_add(0, layout.row, shifted_NC.exp())
    return shifted_NC - total_RC.log()[layout.row]


def best_spans(
    scores_N2: Tensor, inside_N: Tensor, layout: Layout, longest: int, best: int
) -> list[list[ScoredSpan]]:
    """The `best` spans `inside` every row, of up to `longest` tokens, by the sum of both scores, out of all
    pairs."""
    start_N, stop_N = scores_N2.masked_fill(~inside_N[:, None], -torch.inf).unbind(-1)
    # ends_NL[n, l] is the score of token n + l as an end: a view, so all N * L pairs cost one addition.
    ends_NL = F.pad(stop_N, (0, longest - 1), value=-torch.inf).unfold(0, longest, 1)
    end_NL = layout.index[:, None] + torch.arange(longest, device=layout.device)
    # Rows stand end to end: behind the last token of one, the next begins.
    beyond_NL = end_NL > (layout.last - layout.first)[layout.row, None]
    pairs_NL = (start_N[:, None] + ends_NL).masked_fill(beyond_NL, -torch.inf)
    rows = []
    for pairs_TL in pairs_NL.split(layout.lengths):
        top = pairs_TL.flatten().topk(min(best, pairs_TL.numel()))
        spans = [
            (score, *divmod(at, longest)) for score, at in zip(top.values.tolist(), top.indices.tolist())
        ]
        rows.append([(score, first, first + more) for score, first, more in spans if score > -torch.inf])
    return rows


def searched_spans(
    search: SpanCandidates, inside_N: Tensor, layout: Layout, longest: int
) -> list[list[ScoredSpan]]:
    """The spans of a beam search that are spans, `inside` their rows: the sums of both log-probabilities."""
    # The head gives the E best ends of each of the S best beginnings (XLNet's code: 5 of each).
    starts_RES = search.starts_RS[:, None].expand_as(search.ends_RES)
    scores_RES = search.start_probs_RS[:, None].float().log() + search.end_probs_RES.float().log()
    columns = (part.flatten(1).tolist() for part in (scores_RES, starts_RES, search.ends_RES))
    rows = []
    for inside_T, *spans in zip(inside_N.split(layout.lengths), *columns, strict=True):
        inside = inside_T.tolist()
        rows.append(
            [
                (score, first, last)
                for score, first, last in zip(*spans)
                if score > -torch.inf and 0 <= last - first < longest and inside[first] and inside[last]
            ]
        )
    return rows
