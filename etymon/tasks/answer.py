"""Extractive question answering: which words of a context answer a question, or that none do.

Legend: N tokens, R rows (windows), D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from etymon.errors import EtymonError
from etymon.families.family import Family
from etymon.families.model import Model
from etymon.nn.batch import Layout
from etymon.nn.heads import ConditionalSpan
from etymon.sampling.examples import Examples, Ragged
from etymon.settings.decoding import DecodingSettings
from etymon.settings.tasks import AnswerOptions
from etymon.tables.table import Table
from etymon.tasks.answer_spans import (
    ContextTokens,
    ContextWindow,
    ScoredSpan,
    best_spans,
    context_windows,
    places_with_ids,
    read_answers,
    row_log_softmax,
    searched_spans,
)
from etymon.tasks.head_task import HeadTask
from etymon.tasks.reading import HeadBatch, Pair, framed_examples
from etymon.tasks.scores import ANSWER_METRICS, MetricScore, answer_scores
from etymon.tasks.task import Fit, Notify, ignore_note
from etymon.text.reading import SURROGATE

SPAN, CONDITIONAL = "span", "conditional_span"
HIDDEN = -1e30
"""The score of tokens that cannot be answers, in XLNet's training."""
UNANSWERABLE = "unanswerable"
"""What is written where there is no answer, and the key of `limits` that counts such questions of the
training table."""


@dataclass(frozen=True)
class AnswerCandidate:
    """Characters [start, stop) of the context, and the sum of the scores of its beginning and its end."""

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


WindowAnswer = tuple[list[ScoredSpan], float]
"""Spans of a window, and the score of no answer there."""


class AnswerQuestion(HeadTask):
    """A window is an example: steps hold so many of them, however long the contexts are. Predictions are of
    all windows."""

    name = "answer"
    head = SPAN
    Options = AnswerOptions
    metrics = tuple(ANSWER_METRICS)
    record_fields = ("prediction", "start", "stop", "score", "best", "null_score")
    distributions = 2
    options: AnswerOptions

    def fit(self, family: Family) -> Fit:
        conditional = CONDITIONAL in family.heads and family.features is None
        if self.options.head == "conditional" and not conditional:
            raise EtymonError(
                f"{family.title} has no head that looks for an end in the light of a beginning: say head span"
            )
        self.head = CONDITIONAL if conditional and self.options.head != SPAN else SPAN
        return super().fit(family)

    @property
    def default_metrics(self) -> tuple[str, ...]:
        return self.metrics

    @property
    def columns(self) -> tuple[str, ...]:
        """The context first: validation is on texts that were not seen."""
        return self.options.context, self.options.question, self.options.answers

    @property
    def input_columns(self) -> tuple[str, ...]:
        return self.options.question, self.options.context

    @property
    def unanswerable(self) -> bool:
        """Whether questions may have no answer."""
        given = self.options.unanswerable
        return bool(self.limits.get(UNANSWERABLE)) if given is None else given

    def bind(self, model: Model, length: int | None = None) -> None:
        super().bind(model, length)
        self.label_names = ()
        # By the model's heads, not by the family's: a folder may have either.
        self.head = CONDITIONAL if CONDITIONAL in model.heads else SPAN
        # XLNet's class token stands at the end of a row. Where there is none, the first token stands for it.
        self.class_last = self.reader.framing.pair[-1] == "class"

    # --- rows

    def contexts(self, table: Table) -> list[str]:
        """As they are, but for what is no character: answers are places in them."""
        table.texts(self.options.context)
        return [SURROGATE.sub("\ufffd", text) for text in table.values(self.options.context)]

    def pairs(self, table: Table) -> list[list[Pair]]:
        return [[pair] for pair in zip(table.texts(self.options.question), self.contexts(table), strict=True)]

    def texts(self, table: Table) -> dict[str, list[str]]:
        """Each once: many questions share a context."""
        return {"text": list(dict.fromkeys(super().texts(table)["text"]))}

    def windows(
        self, table: Table, notify: Notify = ignore_note
    ) -> tuple[list[ContextWindow], list[ContextTokens]]:
        questions, contexts, options = table.texts(self.options.question), self.contexts(table), self.options
        return context_windows(
            self.reader, questions, contexts, options.stride, options.question_length, notify
        )

    def encode_texts(self, table: Table, notify: Notify = ignore_note) -> Examples:
        return self.examples(self.windows(table, notify)[0])

    def examples(self, windows: Sequence[ContextWindow], **columns: np.ndarray) -> Examples:
        """Windows as examples. Their `places` are the tokens of the context: no other can be an answer."""
        rows, words = [[window.framed] for window in windows], [window.words for window in windows]
        places = Ragged([np.arange(window.at, window.at + window.count) for window in windows])
        return framed_examples(rows, words, places=places, **columns)

    def encode(self, table: Table, notify: Notify = ignore_note, *, learn: bool = False) -> Examples:
        characters = self.targets(table)
        windows, tokens = self.windows(table, notify)
        answers: list[tuple[int, int] | None] = []
        for number, (start, stop) in enumerate(characters.tolist()):
            answers.append(None if start < 0 else tokens[number].of(start, stop))
            if start >= 0 and answers[-1] is None:
                raise EtymonError(
                    f"{table.places[number]}: the tokenizer drops every character of the answer: leave "
                    "the row out"
                )
        # A model that never saw a question without an answer has not learnt to score that.
        if learn:
            self.limits[UNANSWERABLE] = answers.count(None)
        # No answer is a span from the class token to itself (BERT, section 4.3), and so is an answer in
        # another window.
        targets = [
            window.target(answers[window.number], len(window.framed.ids) - 1 if self.class_last else 0)
            for window in windows
        ]
        return self.examples(windows, target=np.array(targets, np.int64)[:, None])

    # --- targets

    def right_answers(self, table: Table) -> list[list[tuple[str, int]]]:
        """The answers of every row and where they begin. Refuses what cannot be."""
        column, name = self.options.answers, self.options.id
        has_ids = name in table.rows[0] or name != AnswerOptions().id
        places = places_with_ids(table, name) if has_ids else table.places
        rows = zip(table.values(column), self.contexts(table), places, strict=True)
        return [read_answers(value, context, place, column) for value, context, place in rows]

    def targets(self, table: Table) -> np.ndarray:
        """The characters of the first answer of every row, -1 where there is none."""
        table.texts(self.options.question)
        first = [answers[0] if answers else ("", -1) for answers in self.right_answers(table)]
        return np.array([(start, start + len(text)) for text, start in first], np.int64)

    # --- loss

    def no_answer_at(self, layout: Layout) -> Tensor:
        """Where every row says that it has no answer: the flat place of its class token, or of its first
        token."""
        return layout.last if self.class_last else layout.first

    def in_context(self, prepared: HeadBatch) -> Tensor:
        """Which tokens can be answers."""
        assert prepared.at is not None
        layout = prepared.batch.layout
        nowhere_N = torch.zeros(layout.tokens, dtype=torch.bool, device=layout.device)
        return nowhere_N.index_fill(0, prepared.at, True)

    def head_logits(self, model: Model, prepared: HeadBatch, states_ND: Tensor | None = None) -> Tensor:
        """Of every token as a beginning and as an end; of XLNet, as the end of the right beginning, and in a
        third column whether its row has no answer."""
        batch, layout = prepared.batch, prepared.batch.layout
        if self.head == SPAN:  # which reads every place
            return super().head_logits(model, replace(prepared, at=None), states_ND)
        x_ND = model.states(batch) if states_ND is None else states_ND
        head: Any = model.heads[CONDITIONAL]
        right_RD = x_ND.index_select(0, layout.first + prepared.targets[:, 0])
        scores_N2 = torch.stack([head(x_ND), head.end(x_ND, right_RD.index_select(0, layout.row))], -1)
        shown_N = self.in_context(prepared).index_fill(0, self.no_answer_at(layout), True)
        scores_N2 = scores_N2.float().masked_fill(~shown_N[:, None], HIDDEN)
        if not self.unanswerable:
            return scores_N2
        # As published: by where an answer seems to begin. By where it does begin, the label would be seen.
        share_N1 = row_log_softmax(scores_N2[:, :1], layout).exp().to(x_ND.dtype)
        mean_RD = x_ND.new_zeros(layout.rows, x_ND.shape[1]).index_add(0, layout.row, share_N1 * x_ND)
        none_R = head.unanswerable(mean_RD, x_ND.index_select(0, self.no_answer_at(layout))).float()
        return torch.cat([scores_N2, none_R[layout.row, None]], -1)

    def log_probabilities(self, logits: Tensor, prepared: HeadBatch) -> Tensor:
        """Of beginnings and of ends, over the tokens of every row."""
        return row_log_softmax(logits[:, :2].float(), prepared.batch.layout)

    def criterion(self, logits: Tensor, prepared: HeadBatch) -> Tensor:
        layout = prepared.batch.layout
        at_R2 = layout.first[:, None] + prepared.targets
        # The mean of beginning and end, as in BERT's script for SQuAD.
        loss = -self.log_probabilities(logits, prepared).gather(0, at_R2).sum() / 2
        if logits.shape[1] > 2:
            # Half as much as the span, as in XLNet's code.
            none_R, given_R = logits[layout.first, 2], (at_R2[:, 0] == self.no_answer_at(layout)).float()
            loss = loss + F.binary_cross_entropy_with_logits(none_R, given_R, reduction="sum") / 2
        return loss

    # --- answers

    def answers(self, logits: Tensor, prepared: HeadBatch) -> list[WindowAnswer]:
        layout, options = prepared.batch.layout, self.options
        # Both scores of the class token: S.C + E.C in BERT's section 4.3.
        none_R = logits.float().sum(-1)[self.no_answer_at(layout)].tolist()
        spans = best_spans(logits.float(), self.in_context(prepared), layout, options.longest, options.best)
        return list(zip(spans, none_R, strict=True))

    def answer_batch(self, model: Model, prepared: HeadBatch) -> list[WindowAnswer]:
        if self.head == SPAN:
            return super().answer_batch(model, prepared)
        # XLNet looks for ends in the light of the likeliest beginnings.
        layout, head = prepared.batch.layout, model.heads[CONDITIONAL]
        assert isinstance(head, ConditionalSpan)
        inside_N, none_at_R = self.in_context(prepared), self.no_answer_at(layout)
        x_ND = model.states(prepared.batch)
        shown_RT = layout.pad(inside_N.index_fill(0, none_at_R, True)) & layout.real
        search = head.search(layout.pad(x_ND), x_ND.index_select(0, none_at_R), ~shown_RT)
        spans = searched_spans(search, inside_N, layout, self.options.longest)
        return list(zip(spans, search.unanswerable_R.tolist(), strict=True))

    def predict(
        self,
        model: Model,
        table: Table,
        decoding: DecodingSettings | None = None,
        notify: Notify = ignore_note,
    ) -> list[AnswerPrediction]:
        windows, tokens = self.windows(table, notify)
        answers = self.run_batches(model, self.examples(windows), partial(self.answer_batch, model))
        return self._merge_windows(table, windows, tokens, answers)

    def evaluate(self, model: Model, examples: Examples, table: Table) -> tuple[list[Any], float] | None:
        if self.head == CONDITIONAL:  # whose loss is that of the end behind the right beginning
            return None
        return super().evaluate(model, examples, table)

    def merge_row_answers(self, table: Table, answers: list[Any]) -> list[AnswerPrediction]:
        return self._merge_windows(table, *self.windows(table), answers)

    def _merge_windows(
        self,
        table: Table,
        windows: Sequence[ContextWindow],
        tokens: Sequence[ContextTokens],
        answers: Sequence[WindowAnswer],
    ) -> list[AnswerPrediction]:
        """The predictions of questions by the answers of their windows. No answer scores as in its worst
        window."""
        spans: list[list[ScoredSpan]] = [[] for _ in tokens]
        none = [float("inf")] * len(tokens)
        for window, (window_spans, window_none) in zip(windows, answers, strict=True):
            shift, number = window.first - window.at, window.number
            spans[number] += [(score, first + shift, last + shift) for score, first, last in window_spans]
            # As in BERT's script: one window that is sure to hold the answer is enough.
            none[number] = min(window_none, none[number])
        return [self._best(*row) for row in zip(self.contexts(table), tokens, spans, none, strict=True)]

    def _best(
        self, context: str, tokens: ContextTokens, spans: Sequence[ScoredSpan], none: float
    ) -> AnswerPrediction:
        # Windows overlap: a span that several of them hold counts by its best score.
        best: dict[tuple[int, int], AnswerCandidate] = {}
        for score, first, last in sorted(spans, key=lambda span: -span[0]):
            start, stop = tokens.characters(context, first, last)
            if start < stop and len(best) < self.options.best:
                best.setdefault((start, stop), AnswerCandidate(context[start:stop], start, stop, score))
        candidates = tuple(best.values())
        # XLNet's head scores the question itself; of other heads, the class token's score is compared with
        # the best span's.
        absolute = self.head == CONDITIONAL
        if not candidates:
            return AnswerPrediction("", null_score=none if self.unanswerable and absolute else None)
        top = candidates[0]
        null_score = (none if absolute else none - top.score) if self.unanswerable else None
        # `null_score_diff_threshold` of BERT's script: the paper's tau (section 4.3) with the other sign.
        if null_score is not None and null_score > self.options.null_threshold:
            return AnswerPrediction("", best=candidates, null_score=null_score)
        return AnswerPrediction(top.text, top.start, top.stop, top.score, candidates, null_score)

    # --- where the answer is written

    def source_parts(self, table: Table) -> list[list[str]]:
        begins = f"{self.options.prefix}question: "
        rows = zip(table.texts(self.options.question), self.contexts(table), strict=True)
        return [[begins, question, " context: ", context] for question, context in rows]

    def target_texts(self, table: Table) -> list[str]:
        return [answers[0][0] if answers else UNANSWERABLE for answers in self.right_answers(table)]

    def parse_texts(self, texts: Sequence[str]) -> list[AnswerPrediction]:
        return [AnswerPrediction("" if text.strip() == UNANSWERABLE else text.strip()) for text in texts]

    # --- scores and rows for people

    def score(
        self,
        predictions: Sequence[AnswerPrediction],
        table: Table,
        metrics: Sequence[str],
        resamples: int = 0,
    ) -> dict[str, MetricScore]:
        right = [[text for text, _ in answers] for answers in self.right_answers(table)]
        return answer_scores([prediction.text for prediction in predictions], right, metrics, resamples)

    def record(self, prediction: AnswerPrediction) -> dict[str, Any]:
        parts = {
            name: value for name, value in asdict(prediction).items() if value is not None and value != ()
        }
        return {"prediction": parts.pop("text"), **parts}

    def format_row(self, table: Table, number: int, prediction: AnswerPrediction) -> str:
        row = table.at([number])
        answers = self.right_answers(row)[0] if self.options.answers in row.rows[0] else [("?", 0)]
        right = " / ".join(dict.fromkeys(text for text, _ in answers)) or "no answer"
        return f"{row.rows[0][self.options.question]}\n-> {prediction.text or 'no answer'}\n({right})"
