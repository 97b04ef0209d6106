"""Extractive question answering: which words of a context answer a question, or that none do.

Legend: N tokens, R rows (windows), D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import ConfigDict, PositiveInt
from pydantic.dataclasses import dataclass as checked
from torch import Tensor

from etymon.errors import EtymonError
from etymon.families.family import Family
from etymon.families.model import Model
from etymon.nn.batch import Batch, Layout
from etymon.nn.heads import ConditionalSpan
from etymon.sampling.examples import Examples
from etymon.settings.decoding import DecodingSettings
from etymon.tables.table import Table
from etymon.tasks.answer_scores import ANSWER_METRICS, answer_scores
from etymon.tasks.answer_windows import ContextTokens, ContextWindow, windows
from etymon.tasks.answers_given import given_answers, told_apart
from etymon.tasks.head_task import HeadOptions, HeadPrepared, HeadTask, Pair
from etymon.tasks.reading import framed_examples
from etymon.tasks.scores import MetricScore
from etymon.tasks.spans import Found, best_spans, followed_spans, row_log_softmax
from etymon.tasks.task import Fit, Notify, ignore_note
from etymon.text.reading import SURROGATE

SPAN, CONDITIONAL = "span", "conditional_span"
HIDDEN = -1e30
"""The score of tokens that cannot be answers, in XLNet's training."""
UNANSWERABLE = "unanswerable"
"""What is written where there is no answer, and what counts such questions of the training table."""


@checked(frozen=True, config=ConfigDict(extra="forbid"))
class AnswerOptions(HeadOptions):
    question: str = "question"
    """The column of the question."""
    context: str = "context"
    """The column of the text that holds the answer."""
    answers: str = "answers"
    """The column of the answers: SQuAD's texts with where they begin, or a text that is looked for. The first is learnt."""
    id: str = "id"
    """The column that tells questions apart, if there is one."""
    stride: PositiveInt = 128
    """Tokens from the beginning of a window of a long context to the next one's."""
    question_length: PositiveInt = 64
    """Tokens of a question at most."""
    longest: PositiveInt = 30
    """Tokens of an answer at most, where it is looked for."""
    best: PositiveInt = 20
    """Answers that are kept of a question."""
    null_threshold: float = 0.0
    """By how much no answer has to be better than the best one to be taken."""
    unanswerable: bool | None = None
    """Whether questions may have no answer; none: if the training table had such."""
    head: Literal["auto", "span", "conditional"] = "auto"
    """`conditional`: the end is looked for in the light of the beginning (XLNet); `auto`: as the family was published."""


@dataclass(frozen=True)
class AnswerCandidate:
    """Characters [start, stop) of the context, and the sum of what its beginning and its end score."""

    text: str
    start: int
    stop: int
    score: float


@dataclass(frozen=True)
class AnswerPrediction:
    """The best answer: characters of the context, or nothing. What was written has no place and no score."""

    text: str
    start: int | None = None
    stop: int | None = None
    score: float | None = None
    best: tuple[AnswerCandidate, ...] = ()
    """The best candidates, whether one of them was taken or none."""
    null_score: float | None = None
    """By how much no answer is better than the best one, where questions may have none."""


Spans = tuple[list[Found], float]
"""Spans of a window, and what no answer scores there."""


class AnswerQuestion(HeadTask):
    """A window is an example: steps hold so many of them, however long the contexts are. Answers are of all windows."""

    name = "answer"
    head = SPAN
    Options = AnswerOptions
    metrics = tuple(ANSWER_METRICS)
    record_fields = ("prediction", "start", "stop", "score", "best", "null_score")
    options: AnswerOptions

    def fit(self, family: Family) -> Fit:
        known = CONDITIONAL in family.heads and family.features is None
        if self.options.head == "conditional" and not known:
            raise EtymonError(
                f"{family.title} has no head that looks for an end in the light of a beginning: say head span"
            )
        self._take(CONDITIONAL if known and self.options.head != SPAN else SPAN)
        return super().fit(family)

    def _take(self, head: str) -> None:
        self.head = head  # type: ignore[misc]

    @property
    def default_metrics(self) -> tuple[str, ...]:
        return self.metrics

    @property
    def columns(self) -> tuple[str, ...]:
        """The context first: what is judged by is about texts that were not seen."""
        return self.options.context, self.options.question, self.options.answers

    @property
    def input_columns(self) -> tuple[str, ...]:
        return self.options.question, self.options.context

    @property
    def unanswerable(self) -> bool:
        """Whether questions may have no answer."""
        told = self.options.unanswerable
        return bool(self.limits.get(UNANSWERABLE)) if told is None else told

    # --- what the table says

    def contexts(self, table: Table) -> list[str]:
        """As they are, but for what is no character: answers are places in them."""
        table.texts(self.options.context)
        return [SURROGATE.sub("\ufffd", text) for text in table.values(self.options.context)]

    def pairs(self, table: Table) -> list[list[Pair]]:
        return [[pair] for pair in zip(table.texts(self.options.question), self.contexts(table), strict=True)]

    def texts(self, table: Table) -> dict[str, list[str]]:
        """Each once: many questions share a context."""
        return {"text": list(dict.fromkeys(super().texts(table)["text"]))}

    def given(self, table: Table) -> list[list[tuple[str, int]]]:
        """The answers of every row and where they begin. Refuses what cannot be."""
        column, name = self.options.answers, self.options.id
        named = name in table.rows[0] or name != AnswerOptions.id
        places = told_apart(table, name) if named else table.places
        rows = zip(table.values(column), self.contexts(table), places, strict=True)
        return [given_answers(value, context, place, column) for value, context, place in rows]

    def targets(self, table: Table) -> np.ndarray:
        """The characters of the first answer of every row, -1 where there is none."""
        table.texts(self.options.question)
        first = [answers[0] if answers else ("", -1) for answers in self.given(table)]
        return np.array([(start, start + len(text)) for text, start in first], np.int64)

    # --- tied to a model

    def bind(self, model: Model, length: int | None = None) -> None:
        super().bind(model, length)
        self.label_names = ()
        self._take(CONDITIONAL if CONDITIONAL in model.heads else SPAN)
        self.trailing = self.reader.framing.pair[-1] == "class"

    def windows(
        self, table: Table, notify: Notify = ignore_note
    ) -> tuple[list[ContextWindow], list[ContextTokens]]:
        questions, contexts = zip(*(rows[0] for rows in self.pairs(table)), strict=True)
        return windows(
            self.reader, questions, contexts, self.options.stride, self.options.question_length, notify
        )

    def encode(self, table: Table, notify: Notify = ignore_note, *, learn: bool = False) -> Examples:
        characters = self.targets(table)
        found, tokens = self.windows(table, notify)
        answers: list[tuple[int, int] | None] = []
        for number, (start, stop) in enumerate(characters.tolist()):
            answers.append(None if start < 0 else tokens[number].of(start, stop))
            if start >= 0 and answers[-1] is None:
                raise EtymonError(
                    f"{table.places[number]}: the tokenizer drops every character of the answer: leave the row out"
                )
        if learn:
            self.limits[UNANSWERABLE] = answers.count(None)
        targets = [window.target(answers[window.number], self.nothing(window)) for window in found]
        return self.examples(found, target=np.array(targets, np.int64))

    def read(self, table: Table, notify: Notify = ignore_note) -> Examples:
        return self.examples(self.windows(table, notify)[0])

    def examples(self, found: Sequence[ContextWindow], **columns: np.ndarray) -> Examples:
        """Windows as examples."""
        columns["part"] = np.array([(window.at, window.count) for window in found])
        rows, words = [[window.framed] for window in found], [window.words for window in found]
        return framed_examples(rows, words, **columns)

    def nothing(self, window: ContextWindow) -> int:
        """Where a window says that it has no answer: the class token, or the first where there is none."""
        return len(window.framed.ids) - 1 if self.trailing else 0

    def nothings(self, layout: Layout) -> Tensor:
        """The same of all rows, in the flat order."""
        return layout.last if self.trailing else layout.first

    def places(self, examples: Sequence[dict[str, np.ndarray]], batch: Batch) -> Tensor:
        """The tokens of the contexts: no other can be an answer."""
        parts = (one["part"] for one in examples)
        return batch.layout.flat([np.arange(at, at + count) for at, count in parts])

    # --- training

    def head_logits(self, model: Model, states_ND: Tensor | None, prepared: HeadPrepared) -> Tensor:
        """What every token scores as a beginning and as an end; of XLNet, as the end of the right beginning, and in a third
        column whether its row has no answer."""
        batch, layout = prepared.batch, prepared.batch.layout
        if self.head == SPAN:  # which is asked everywhere
            return super().head_logits(model, states_ND, replace(prepared, at=None))
        x_ND = model.states(batch) if states_ND is None else states_ND
        head = _conditional(model)
        right_RD = x_ND.index_select(0, layout.first + prepared.targets[:, 0])
        scores_N2 = torch.stack([head(x_ND), head.end(x_ND, right_RD.index_select(0, layout.row))], -1)
        shown_N = self.inside(prepared).index_fill(0, self.nothings(layout), True)
        scores_N2 = scores_N2.float().masked_fill(~shown_N[:, None], HIDDEN)
        if not self.unanswerable:
            return scores_N2
        # As published: by where an answer seems to begin. By where it does begin, the label would be seen.
        share_N1 = row_log_softmax(scores_N2[:, :1], layout).exp().to(x_ND.dtype)
        mean_RD = x_ND.new_zeros(layout.rows, x_ND.shape[1]).index_add(0, layout.row, share_N1 * x_ND)
        none_R = head.unanswerable(mean_RD, x_ND.index_select(0, self.nothings(layout))).float()
        return torch.cat([scores_N2, none_R[layout.row, None]], -1)

    def inside(self, prepared: HeadPrepared) -> Tensor:
        """The tokens of contexts: no other can be an answer."""
        assert prepared.at is not None
        layout = prepared.batch.layout
        nowhere_N = torch.zeros(layout.tokens, dtype=torch.bool, device=layout.device)
        return nowhere_N.index_fill(0, prepared.at, True)

    def criterion(self, scores: Tensor, prepared: HeadPrepared) -> Tensor:
        layout, targets_R2 = prepared.batch.layout, prepared.targets
        at_R2 = layout.first[:, None] + targets_R2
        loss = -row_log_softmax(scores[:, :2].float(), layout).gather(0, at_R2).sum() / 2
        if scores.shape[1] > 2:
            wanted_R = (at_R2[:, 0] == self.nothings(layout)).float()
            loss = (
                loss
                + F.binary_cross_entropy_with_logits(scores[layout.first, 2], wanted_R, reduction="sum") / 2
            )
        return loss

    def divergence(self, one: Tensor, two: Tensor, prepared: HeadPrepared) -> Tensor:
        layout = prepared.batch.layout
        first, second = (row_log_softmax(scores[:, :2].float(), layout) for scores in (one, two))
        return ((first.exp() - second.exp()) * (first - second)).sum() / 4

    # --- use

    def predict(
        self,
        model: Model,
        table: Table,
        decoding: DecodingSettings | None = None,
        notify: Notify = ignore_note,
    ) -> list[AnswerPrediction]:
        parts, tokens = self.windows(table, notify)
        looked = self.run_batches(model, self.examples(parts), partial(self.answer_batch, model))
        return self._together(table, parts, tokens, looked)

    def evaluate(self, model: Model, examples: Examples, table: Table) -> tuple[list[Any], float] | None:
        if self.head == CONDITIONAL:  # whose loss is that of the end behind the right beginning
            return None
        return super().evaluate(model, examples, table)

    def answer_batch(self, model: Model, prepared: HeadPrepared) -> list[Any]:
        return (
            self.followed(model, prepared)
            if self.head == CONDITIONAL
            else super().answer_batch(model, prepared)
        )

    def merge_row_answers(self, table: Table, answers: list[Any]) -> list[AnswerPrediction]:
        return self._together(table, *self.windows(table), answers)

    def _together(
        self,
        table: Table,
        parts: Sequence[ContextWindow],
        tokens: Sequence[ContextTokens],
        looked: Sequence[Spans],
    ) -> list[AnswerPrediction]:
        """The answers of contexts by those of their windows."""
        found: list[list[Found]] = [[] for _ in tokens]
        nothing = [float("inf")] * len(tokens)
        for window, (spans, none) in zip(parts, looked, strict=True):
            shift = window.first - window.at
            found[window.number] += [(score, first + shift, last + shift) for score, first, last in spans]
            nothing[window.number] = min(none, nothing[window.number])
        rows = zip(self.contexts(table), tokens, found, nothing, strict=True)
        return [self.answered(*row) for row in rows]

    def answers(self, scores: Tensor, prepared: HeadPrepared) -> list[Spans]:
        """The best spans of every window, and what no answer scores there."""
        layout = prepared.batch.layout
        none_R = scores.float().sum(-1)[self.nothings(layout)].tolist()
        limits = (self.options.longest, self.options.best)
        spans = best_spans(scores.float(), self.inside(prepared), layout, *limits)
        return list(zip(spans, none_R, strict=True))

    def followed(self, model: Model, prepared: HeadPrepared) -> list[Spans]:
        """The same where ends are looked for in the light of the likeliest beginnings."""
        layout = prepared.batch.layout
        inside_N = self.inside(prepared)
        x_ND = model.states(prepared.batch)
        shown_N = inside_N.index_fill(0, self.nothings(layout), True)
        seen = _conditional(model).search(
            layout.lift(x_ND),
            x_ND.index_select(0, self.nothings(layout)),
            ~(layout.lift(shown_N) & layout.real),
        )
        spans = followed_spans(seen, inside_N, layout, self.options.longest)
        return list(zip(spans, seen.unanswerable_R.tolist(), strict=True))

    def answered(
        self, context: str, tokens: ContextTokens, found: Sequence[Found], nothing: float
    ) -> AnswerPrediction:
        """What all windows of a question come to."""
        best: dict[tuple[int, int], AnswerCandidate] = {}
        for score, first, last in sorted(found, key=lambda one: -one[0]):
            start, stop = tokens.characters(context, first, last)
            if start < stop and len(best) < self.options.best:
                best.setdefault((start, stop), AnswerCandidate(context[start:stop], start, stop, score))
        candidates = tuple(best.values())
        if not candidates:
            return AnswerPrediction(
                "", null_score=nothing if self.unanswerable and self.head == CONDITIONAL else None
            )
        top = candidates[0]
        none = nothing if self.head == CONDITIONAL else nothing - top.score
        if not self.unanswerable:
            return AnswerPrediction(top.text, top.start, top.stop, top.score, candidates)
        if none > self.options.null_threshold:
            return AnswerPrediction("", best=candidates, null_score=none)
        return AnswerPrediction(top.text, top.start, top.stop, top.score, candidates, none)

    # --- where the answer is written

    def asked_parts(self, table: Table) -> list[list[str]]:
        begins = f"{self.options.prefix}question: "
        rows = zip(table.texts(self.options.question), self.contexts(table), strict=True)
        return [[begins, question, " context: ", context] for question, context in rows]

    def wanted_texts(self, table: Table) -> list[str]:
        return [answers[0][0] if answers else UNANSWERABLE for answers in self.given(table)]

    def understood(self, texts: Sequence[str]) -> list[AnswerPrediction]:
        return [AnswerPrediction("" if text.strip() == UNANSWERABLE else text.strip()) for text in texts]

    # --- judged and shown

    def score(
        self,
        predictions: Sequence[AnswerPrediction],
        table: Table,
        metrics: Sequence[str],
        resamples: int = 0,
    ) -> dict[str, MetricScore]:
        right = [[text for text, _ in answers] for answers in self.given(table)]
        return answer_scores([one.text for one in predictions], right, metrics, resamples)

    def record(self, prediction: AnswerPrediction) -> dict[str, Any]:
        parts = {
            name: value for name, value in asdict(prediction).items() if value is not None and value != ()
        }
        return {"prediction": parts.pop("text"), **parts}

    def format_row(self, table: Table, number: int, prediction: AnswerPrediction) -> str:
        row = table.at([number])
        known = self.given(row)[0] if self.options.answers in row.rows[0] else [("?", 0)]
        right = " / ".join(dict.fromkeys(text for text, _ in known)) or "no answer"
        return f"{row.rows[0][self.options.question]}\n-> {prediction.text or 'no answer'}\n({right})"


def _conditional(model: Model) -> ConditionalSpan:
    head = model.heads[CONDITIONAL]
    assert isinstance(head, ConditionalSpan)
    return head
