"""Classification: one label, or several, for a text or a pair of texts."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass as checked
from torch import Tensor

from etymon.config import did_you_mean
from etymon.errors import EtymonError
from etymon.families.family import Family
from etymon.families.model import Model
from etymon.sampling.examples import Examples
from etymon.tables.table import Table, json_cell
from etymon.tasks.head_task import NUMBER, HeadOptions, HeadPrepared, HeadTask, Pair, by_number
from etymon.tasks.label_scores import (
    LABEL_LIBRARIES,
    LABEL_METRICS,
    MULTI_LABEL_METRICS,
    label_scores,
    multi_label_scores,
)
from etymon.tasks.scores import MetricScore
from etymon.tasks.task import Fit, Notify, ignore_note

MARK = "|"
"""Between several labels in one cell of a table."""
WHOLE = re.compile(r"-?[0-9]+\.0+")
MOST_DECIMALS = 20
"""Numbers with a fraction that may well be labels, such as ratings in halves."""
KINDS = ((str, "text"), (bool, "truth value"))
"""Of labels; all others are numbers."""


@checked(frozen=True, config=ConfigDict(extra="forbid"))
class TextOptions(HeadOptions):
    text: str = "text"
    """The column of the text."""
    second: str | None = None
    """The column of a second text, where what is right is about both."""
    label: str = "label"
    """The column of what is right."""
    symmetric: bool = False
    """Both orders of a pair are read, and what is read of them is added up (GPT-1)."""


@checked(frozen=True, config=ConfigDict(extra="forbid"))
class ClassifyOptions(TextOptions):
    multi_label: bool = False
    """Rows have any number of labels: a list, or names with `|` between them."""
    smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """The share of every target that all labels have in equal parts, in training."""
    class_weights: Literal["none", "balanced"] = "none"
    """`balanced`: labels count the more the rarer they are."""


@dataclass(frozen=True)
class LabelPrediction:
    """An answer: the likeliest label, or of several all above one half. What was written and is no label is None, among several
    what was written."""

    label: str | tuple[str, ...] | None
    probabilities: dict[str, float]

    def worst_error(self, actual: Sequence[str]) -> float | None:
        """How sure it was of its gravest mistake, a label that is wrong or one that is missing; None where there is none, or
        where nothing is known of that."""
        if not isinstance(self.label, tuple):
            return None if self.label is None or self.label in actual else self.probabilities.get(self.label)
        wrong = (set(self.label) ^ set(actual)) & self.probabilities.keys()
        shares = ((label, self.probabilities[label]) for label in wrong)
        return max((share if label in self.label else 1 - share for label, share in shares), default=None)


class TextTask(HeadTask):
    """What tasks about one text, or about a pair, have in common."""

    options: Any

    @property
    def columns(self) -> tuple[str, ...]:
        return self.input_columns + (self.options.label,)

    @property
    def input_columns(self) -> tuple[str, ...]:
        options = self.options
        return (options.text,) if options.second is None else (options.text, options.second)

    def pairs(self, table: Table) -> list[list[Pair]]:
        columns = [table.texts(column) for column in self.input_columns]
        if len(columns) == 1:
            return [[(text, None)] for text in columns[0]]
        both = list(zip(*columns, strict=True))
        if not self.options.symmetric:
            return [[pair] for pair in both]
        return [[(one, two), (two, one)] for one, two in both]

    def head_logits(self, model: Model, states_ND: Tensor | None, prepared: HeadPrepared) -> Tensor:
        if not (self.options.symmetric and self.options.second is not None):
            return super().head_logits(model, states_ND, prepared)
        batch = prepared.batch
        if states_ND is None:
            read = model.pick_states(self.head, batch)
        else:
            read = model.pick(self.head, states_ND, batch)
        return model.read_from(self.head, read.unflatten(0, (-1, 2)).sum(1))

    @property
    def needs_states(self) -> bool:
        return super().needs_states or self.options.symmetric

    def asked_parts(self, table: Table) -> list[list[str]]:
        """As T5 was taught: the columns by their names, in the order of the alphabet."""
        columns = sorted(self.input_columns)
        marks = [f"{' ' if n else self.options.prefix}{column}: " for n, column in enumerate(columns)]
        rows = zip(*(table.texts(column) for column in columns), strict=True)
        return [[part for pair in zip(marks, row) for part in pair] for row in rows]


class Classify(TextTask):
    name = "classify"
    head = "classification"
    Options = ClassifyOptions
    libraries = LABEL_LIBRARIES
    teachable = True
    record_fields = ("prediction", "probabilities")
    metrics = tuple(dict.fromkeys([*LABEL_METRICS, *MULTI_LABEL_METRICS]))
    options: ClassifyOptions
    weights: Sequence[float] | None = None
    """Of the labels: of one a row, as multiples of the commonest one's; of several, with a mean of 1 over the training rows."""

    def fit(self, family: Family) -> Fit:
        if self.options.multi_label and self.options.r_drop:
            raise EtymonError(
                "R-Drop compares distributions over one label: leave --multi-label or --r-drop out"
            )
        if self.options.multi_label and self.options.smoothing:
            raise EtymonError(
                "label smoothing is for one label a row: leave --multi-label or --smoothing out"
            )
        return super().fit(family)

    @property
    def default_metrics(self) -> tuple[str, ...]:
        return (MULTI_LABEL_METRICS if self.options.multi_label else LABEL_METRICS)[:1]

    def row_labels(self, table: Table) -> list[tuple[str, ...]]:
        """The labels of every row."""
        values = table.values(self.options.label)
        rows = (
            _names(value, table.places[n], self.options, self.label_names) for n, value in enumerate(values)
        )
        return [tuple(map(self.model_label, names)) for names in rows]

    def found(self, table: Table) -> tuple[str, ...]:
        """The labels of a table, in order."""
        return tuple(sorted({name for names in self.row_labels(table) for name in names}, key=by_number))

    def labels(self, table: Table) -> tuple[str, ...]:
        found = self.found(table)
        _require_one_kind(table, self.options)
        decimals = [name for name in found if NUMBER.fullmatch(name) and "." in name]
        if len(decimals) > MOST_DECIMALS:
            raise EtymonError(
                f"{table.description}: column {self.options.label!r} holds {len(decimals):,} different numbers such as {decimals[0]}, "
                "not labels: for numbers, take --task regress"
            )
        if len(found) < (1 if self.options.multi_label else 2):
            told = f"one label only, {found[0]!r}" if found else "no label"
            raise EtymonError(
                f"{table.description}: column {self.options.label!r} holds {told}: there is nothing to learn"
            )
        self.label_names = found
        return found

    def targets(self, table: Table) -> np.ndarray:
        named = self.row_labels(table)
        if not self.label_names:
            return np.zeros((len(named), 0))
        places = self.numbers(named, table)
        if not self.options.multi_label:
            return np.array([[places[names[0]]] for names in named], np.int64)
        marked = np.zeros((len(named), len(places)), np.float32)
        for number, names in enumerate(named):
            marked[number, [places[name] for name in names]] = 1.0
        return marked

    def encode(self, table: Table, notify: Notify = ignore_note, *, learn: bool = False) -> Examples:
        examples = super().encode(table, notify, learn=learn)
        if learn and self.options.class_weights == "balanced":
            targets: Any = examples.columns["target"]
            several = self.options.multi_label
            counts = (
                targets.sum(0) if several else np.bincount(targets[:, 0], minlength=len(self.label_names))
            )
            weights = len(targets) / np.maximum(counts, 1) / len(self.label_names)
            # Losses are divided by what their rows weigh, but by 1 at least: no row is to weigh less.
            weights = weights if several else weights / weights.min()
            self.weights = weights.astype(np.float32).tolist()
        return examples

    def loss_count(self, targets: np.ndarray) -> float:
        if self.options.multi_label or not targets.size:
            return float(targets.size)
        if self.weights is None:
            return float(len(targets))
        return float(np.asarray(self.weights)[targets[:, 0]].sum())

    def log_shares(self, scores: Tensor) -> Tensor:
        if not self.options.multi_label:
            return super().log_shares(scores)
        return torch.stack([F.logsigmoid(scores), F.logsigmoid(-scores)], -1)  # each is there, or it is not

    def criterion(self, scores: Tensor, prepared: HeadPrepared) -> Tensor:
        weights = None if self.weights is None else scores.new_tensor(self.weights)
        if self.options.multi_label:
            return F.binary_cross_entropy_with_logits(scores, prepared.targets, weights, reduction="sum")
        smoothing = self.options.smoothing if torch.is_grad_enabled() else 0.0
        targets = prepared.targets[:, 0]
        losses = F.cross_entropy(scores, targets, reduction="none", label_smoothing=smoothing)
        # Rows are weighed, and not the share of every label that smoothing gives to all: else rare ones would win.
        return losses.sum() if weights is None else losses @ weights[targets]

    def answers(self, scores: Tensor, prepared: HeadPrepared) -> list[LabelPrediction]:
        several = self.options.multi_label
        shares = (scores.sigmoid() if several else scores.softmax(-1)).float().cpu().numpy()
        found = []
        for row in shares:
            likely = tuple(label for label, share in zip(self.label_names, row) if share > 0.5)
            label = likely if several else self.label_names[int(row.argmax())]
            found.append(
                LabelPrediction(label, {name: float(share) for name, share in zip(self.label_names, row)})
            )
        return found

    # --- where the answer is written

    def wanted_texts(self, table: Table) -> list[str]:
        return [f" {MARK} ".join(names) or MARK for names in self.row_labels(table)]

    def understood(self, texts: Sequence[str]) -> list[LabelPrediction]:
        """Labels, where what was written is one; anything else is wrong. Where none were learnt, any text may be one."""
        if self.options.multi_label:
            split = ([part.strip() for part in text.split(MARK)] for text in texts)
            # What is no label stays: without it, the rest could be right.
            return [
                LabelPrediction(
                    tuple(dict.fromkeys(self.spelled.get(part, part) for part in found if part)), {}
                )
                for found in split
            ]
        strange = (None if self.label_names else text.strip() for text in texts)
        return [
            LabelPrediction(self.spelled.get(text.strip(), other), {}) for text, other in zip(texts, strange)
        ]

    # --- judged and shown

    def score(
        self, predictions: Sequence[LabelPrediction], table: Table, metrics: Sequence[str], resamples: int = 0
    ) -> dict[str, MetricScore]:
        named, known = self.row_labels(table), self.label_names or self.found(table)
        if self.options.multi_label:
            several = [one.label if isinstance(one.label, tuple) else () for one in predictions]
            return multi_label_scores(several, named, known, metrics, resamples)
        given = [one.label if isinstance(one.label, str) else None for one in predictions]
        return label_scores(given, [names[0] for names in named], known, metrics, resamples)

    def check_metrics(self, metrics: Sequence[str]) -> None:
        super().check_metrics(metrics)
        own = MULTI_LABEL_METRICS if self.options.multi_label else LABEL_METRICS
        for metric in metrics:
            if metric not in ("loss", *own):
                kind = "several labels a row" if self.options.multi_label else "one label a row"
                raise EtymonError(
                    f"with {kind} there is no metric {metric!r}: {did_you_mean(metric, ('loss', *own))}"
                )

    def record(self, prediction: LabelPrediction) -> dict[str, Any]:
        label = list(prediction.label) if isinstance(prediction.label, tuple) else prediction.label
        return {
            "prediction": label,
            **({"probabilities": prediction.probabilities} if prediction.probabilities else {}),
        }

    def format_row(self, table: Table, number: int, prediction: LabelPrediction) -> str:
        actual = (
            ", ".join(self.row_labels(table)[number]) if self.options.label in table.rows[number] else "?"
        )
        label = ", ".join(prediction.label) if isinstance(prediction.label, tuple) else prediction.label
        texts = " / ".join(str(table.rows[number][column]) for column in self.input_columns)
        return f"{texts}\n-> {label}\n({actual})"

    @property
    def problem_type(self) -> str:
        """As Transformers calls it."""
        return "multi_label_classification" if self.options.multi_label else "single_label_classification"


def _names(value: Any, place: str, options: ClassifyOptions, known: Sequence[str]) -> tuple[str, ...]:
    column = options.label
    if options.multi_label:
        listed = json_cell(value)
        parts = (
            listed if isinstance(listed, list | tuple) else str("" if _missing(value) else value).split(MARK)
        )
        named = (_name(part, known) for part in parts if not _missing(part))
        return tuple(dict.fromkeys(name for name in named if name))
    if isinstance(value, list | tuple):
        raise EtymonError(f"{place}: column {column!r} holds several labels: say --multi-label")
    if _missing(value) or not str(value).strip():
        raise EtymonError(f"{place}: column {column!r} has no label; fill it in, or leave the row out")
    return (_name(value, known),)


def _name(value: Any, known: Sequence[str]) -> str:
    """A label as it is called, in every kind of file alike: 1.0, which is what tables of numbers make of 1, is `1`."""
    text = str(value).strip()
    return text.partition(".")[0] if WHOLE.fullmatch(text) and text not in known else text


def _missing(value: Any) -> bool:
    """Nothing, or what stands for it in tables of numbers."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def _require_one_kind(table: Table, options: ClassifyOptions) -> None:
    """Refuses a column of which some labels are numbers, some texts, some true or false: `1` and `"1"` would become one."""
    kinds: dict[str, int] = {}
    for number, value in enumerate(table.values(options.label)):
        parts = value if isinstance(value, list | tuple) else [value]
        for part in parts:
            if not _missing(part):
                kinds.setdefault(
                    next((name for kind, name in KINDS if isinstance(part, kind)), "number"), number
                )
    if len(kinds) > 1:
        (first, there), (second, here) = sorted(kinds.items(), key=lambda found: found[1])[:2]
        raise EtymonError(
            f"{table.places[here]}: column {options.label!r} holds a {second}, and {table.places[there]} a {first}: "
            "make all labels texts, or all numbers"
        )
