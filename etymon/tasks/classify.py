"""Classification: one label, or several, for a text or a pair of texts."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from etymon.config import did_you_mean
from etymon.errors import EtymonError
from etymon.families.family import Family
from etymon.families.model import Model
from etymon.sampling.examples import Examples
from etymon.settings.tasks import ClassifyOptions
from etymon.tables.table import Table, json_cell
from etymon.tasks.head_task import HeadTask
from etymon.tasks.label_scores import LABEL_METRICS, MULTI_LABEL_METRICS, multi_label_scores
from etymon.tasks.reading import HeadBatch, Pair
from etymon.tasks.scores import MetricScore
from etymon.tasks.task import NUMBER, Fit, Notify, ignore_note, number_or_name

MARK = "|"
"""Between several labels in one cell of a table."""
WHOLE = re.compile(r"-?[0-9]+\.0+")
MOST_DECIMALS = 20
"""Numbers with a fraction that may well be labels, such as ratings in halves."""


@dataclass(frozen=True)
class LabelPrediction:
    """The likeliest label, or of several all above one half. What was written and is no label is None, among
    several what was written."""

    label: str | tuple[str, ...] | None
    probabilities: dict[str, float]

    def worst_error(self, actual: Sequence[str]) -> float | None:
        """How sure it was of its gravest mistake, a label that is wrong or one that is missing; None where
        there is none, or where there are no probabilities."""
        if not isinstance(self.label, tuple):
            return None if self.label is None or self.label in actual else self.probabilities.get(self.label)
        wrong = (set(self.label) ^ set(actual)) & self.probabilities.keys()
        shares = ((label, self.probabilities[label]) for label in wrong)
        return max((share if label in self.label else 1 - share for label, share in shares), default=None)


class TextTask(HeadTask):
    """What tasks about one text, or about a pair, have in common."""

    options: Any

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        if options.label in self.input_columns:
            raise EtymonError(
                f"the column {options.label!r} is both read and asked for: give another --label"
            )

    @property
    def input_columns(self) -> tuple[str, ...]:
        options = self.options
        return (options.text,) if options.second is None else (options.text, options.second)

    def pairs(self, table: Table) -> list[list[Pair]]:
        columns = [table.texts(column) for column in self.input_columns]
        if len(columns) == 1:
            return [[(text, None)] for text in columns[0]]
        orders = (1, -1) if self.options.symmetric else (1,)
        return [[pair[::order] for order in orders] for pair in zip(*columns, strict=True)]

    def head_logits(self, model: Model, prepared: HeadBatch, states_ND: Tensor | None = None) -> Tensor:
        if not (self.options.symmetric and self.options.second is not None):
            return super().head_logits(model, prepared, states_ND)
        if states_ND is None:
            picked = model.pick_states(self.head, prepared.batch)
        else:
            picked = model.pick(self.head, states_ND, prepared.batch)
        # Both orders of a pair are rows side by side; the head reads the sum of what it picks of each (GPT-1,
        # section 3.3).
        return model.read_from(self.head, picked.unflatten(0, (-1, 2)).sum(1))

    def source_parts(self, table: Table) -> list[list[str]]:
        """As T5 was taught: the columns by their names, in the order of the alphabet."""
        columns = sorted(self.input_columns)
        marks = [f"{' ' if n else self.options.prefix}{column}: " for n, column in enumerate(columns)]
        rows = zip(*(table.texts(column) for column in columns), strict=True)
        return [[part for pair in zip(marks, row) for part in pair] for row in rows]

    def format_texts(self, row: Mapping[str, Any]) -> str:
        """The texts of a row, for people."""
        return " / ".join(str(row[column]) for column in self.input_columns)


class Classify(TextTask):
    name = "classify"
    head = "classification"
    Options = ClassifyOptions
    teachable = True
    record_fields = ("prediction", "probabilities")
    metrics = tuple(dict.fromkeys([*LABEL_METRICS, *MULTI_LABEL_METRICS]))
    options: ClassifyOptions
    weights: Sequence[float] | None = None
    """Of the labels: of one a row, as multiples of the commonest one's; of several, with a mean of 1 over
    the training rows."""

    def __init__(self, options: ClassifyOptions) -> None:
        super().__init__(options)
        self.kind_metrics = MULTI_LABEL_METRICS if options.multi_label else LABEL_METRICS
        self.problem_type = f"{'multi' if options.multi_label else 'single'}_label_classification"

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
        return self.kind_metrics[:1]

    def check_metrics(self, metrics: Sequence[str]) -> None:
        super().check_metrics(metrics)
        available = ("loss", *self.kind_metrics)
        for metric in metrics:
            if metric not in available:
                kind = "several labels a row" if self.options.multi_label else "one label a row"
                raise EtymonError(
                    f"with {kind} there is no metric {metric!r}: {did_you_mean(metric, available)}"
                )

    # --- targets

    def row_labels(self, table: Table) -> list[tuple[str, ...]]:
        """The labels of every row."""
        values = zip(table.values(self.options.label), table.places, strict=True)
        return [tuple(map(self.model_label, self._cell_labels(value, place))) for value, place in values]

    def _cell_labels(self, value: Any, place: str) -> tuple[str, ...]:
        column = self.options.label
        if self.options.multi_label:
            parts = json_cell(value)
            if not isinstance(parts, list | tuple):
                parts = str("" if _missing(value) else value).split(MARK)
            names = (self._label(part) for part in parts if not _missing(part))
            return tuple(dict.fromkeys(filter(None, names)))
        if isinstance(value, list | tuple):
            raise EtymonError(
                f"{place}: column {column!r} holds several labels: say --multi-label", code="labels"
            )
        if _missing(value) or not str(value).strip():
            raise EtymonError(
                f"{place}: column {column!r} has no label; fill it in, or leave the row out",
                code="empty-cell",
            )
        return (self._label(value),)

    def _label(self, value: Any) -> str:
        """A label as it is called, in every kind of file alike: 1.0, which is what tables of numbers make of
        1, is `1`."""
        text = str(value).strip()
        whole = WHOLE.fullmatch(text) and text not in self.label_names
        return text.partition(".")[0] if whole else text

    def table_labels(self, table: Table) -> tuple[str, ...]:
        """The labels of a table, in order."""
        return tuple(sorted({name for names in self.row_labels(table) for name in names}, key=number_or_name))

    def labels(self, table: Table) -> tuple[str, ...]:
        labels, column = self.table_labels(table), self.options.label
        _require_one_kind(table, column)
        decimals = [name for name in labels if NUMBER.fullmatch(name) and "." in name]
        if len(decimals) > MOST_DECIMALS:
            raise EtymonError(
                f"{table.description}: column {column!r} holds {len(decimals):,} different numbers such as "
                f"{decimals[0]}, not labels: for numbers, take --task regress",
                code="labels",
            )
        if not self.options.multi_label and MOST_DECIMALS < len(labels) == len(self.row_labels(table)):
            raise EtymonError(
                f"{table.description}: column {column!r} holds another label in every row, such as "
                f"{labels[0]!r} and {labels[1]!r}: name the column of labels with --label",
                code="labels",
            )
        if len(labels) < (1 if self.options.multi_label else 2):
            few = f"one label only, {labels[0]!r}" if labels else "no label"
            raise EtymonError(
                f"{table.description}: column {column!r} holds {few}: there is nothing to learn",
                code="labels",
            )
        self.label_names = labels
        return labels

    def targets(self, table: Table) -> np.ndarray:
        rows = self.row_labels(table)
        if not self.label_names:
            return np.zeros((len(rows), 0))
        ids = self.label_ids(rows, table)
        if not self.options.multi_label:
            return np.array([[ids[names[0]]] for names in rows], np.int64)
        # Floats, as binary cross-entropy wants them: a 1 for every label that a row has, `[E, L]`.
        marked = np.zeros((len(rows), len(ids)), np.float32)
        for number, names in enumerate(rows):
            marked[number, [ids[name] for name in names]] = 1.0
        return marked

    def encode(self, table: Table, notify: Notify = ignore_note, *, learn: bool = False) -> Examples:
        examples = super().encode(table, notify, learn=learn)
        if learn and self.options.class_weights == "balanced":
            column: Any = examples.columns["target"]
            targets, several = column[:, 0], self.options.multi_label
            size = len(self.label_names)
            counts = targets.sum(0) if several else np.bincount(targets[:, 0], minlength=size)
            # scikit-learn's `class_weight="balanced"`: rows / (labels * rows of the label).
            weights = len(targets) / np.maximum(counts, 1) / size
            # Losses are divided by what their rows weigh, but by 1 at least: no row is to weigh less.
            weights = weights if several else weights / weights.min()
            self.weights = weights.astype(np.float32).tolist()
        return examples

    # --- loss

    def loss_count(self, targets: np.ndarray) -> float:
        # The mean over all E * L entries, as Transformers' heads of this problem type have it.
        if self.options.multi_label or not targets.size:
            return float(targets.size)
        if self.weights is None:
            return float(len(targets))
        # As torch divides a weighted cross-entropy: by the weights of the targets, not by their number.
        return float(np.asarray(self.weights)[targets[:, 0]].sum())

    def log_probabilities(self, logits: Tensor, prepared: HeadBatch) -> Tensor:
        if not self.options.multi_label:
            return super().log_probabilities(logits, prepared)
        return torch.stack([F.logsigmoid(logits), F.logsigmoid(-logits)], -1)  # each is there, or it is not

    def criterion(self, logits: Tensor, prepared: HeadBatch) -> Tensor:
        weights = None if self.weights is None else logits.new_tensor(self.weights)
        if self.options.multi_label:
            return F.binary_cross_entropy_with_logits(logits, prepared.targets, weights, reduction="sum")
        # In training only: a validation loss with smoothing could not reach that of a run without.
        smoothing = self.options.smoothing if torch.is_grad_enabled() else 0.0
        targets = prepared.targets[:, 0]
        losses = F.cross_entropy(logits, targets, reduction="none", label_smoothing=smoothing)
        # Rows are weighed, and not the share of every label that smoothing gives to all: else rare labels
        # would win.
        return losses.sum() if weights is None else losses @ weights[targets]

    # --- answers

    def answers(self, logits: Tensor, prepared: HeadBatch) -> list[LabelPrediction]:
        several, names = self.options.multi_label, self.label_names
        predictions = []
        for row in (logits.sigmoid() if several else logits.softmax(-1)).float().cpu().numpy():
            # Above one half: where the logit is positive. Of no label at all there is an empty tuple.
            likely = tuple(label for label, share in zip(names, row) if share > 0.5)
            label = likely if several else names[int(row.argmax())]
            predictions.append(LabelPrediction(label, dict(zip(names, row.tolist()))))
        return predictions

    def target_texts(self, table: Table) -> list[str]:
        # A row without labels: an empty target would leave the model nothing to write but its end.
        return [f" {MARK} ".join(names) or MARK for names in self.row_labels(table)]

    @property
    def has_possible_texts(self) -> bool:  # type: ignore[override]
        # Any number of labels make too many texts, and of a published model nobody knows the labels.
        return bool(self.label_names) and not self.options.multi_label

    def possible_texts(self, table: Table) -> list[tuple[str, ...]]:
        return [self.label_names] * len(table)

    def choose_text(self, shares: np.ndarray) -> LabelPrediction:
        label = self.label_names[int(shares.argmax())]
        return LabelPrediction(label, dict(zip(self.label_names, shares.tolist())))

    def parse_texts(self, texts: Sequence[str]) -> list[LabelPrediction]:
        """Labels, where what was written is one; anything else is wrong. Where none were learnt, any text
        may be one."""
        if self.options.multi_label:
            rows = ([part.strip() for part in text.split(MARK)] for text in texts)
            # What is no label stays: without it, the rest could be right.
            return [
                LabelPrediction(
                    tuple(dict.fromkeys(self.label_by_text.get(part, part) for part in parts if part)), {}
                )
                for parts in rows
            ]
        # Only what is exactly a label counts, as T5's evaluation has it (section 2.4).
        stripped = [text.strip() for text in texts]
        return [
            LabelPrediction(self.label_by_text.get(text, None if self.label_names else text), {})
            for text in stripped
        ]

    def score(
        self, predictions: Sequence[LabelPrediction], table: Table, metrics: Sequence[str], resamples: int = 0
    ) -> dict[str, MetricScore]:
        actual, labels = self.row_labels(table), self.label_names or self.table_labels(table)
        given = (prediction.label for prediction in predictions)
        # One label a row is a set of one; what was written and is none, (None,), is always wrong.
        rows = [label if isinstance(label, tuple) else (label,) for label in given]
        return multi_label_scores(rows, actual, labels, metrics, resamples)

    def record(self, prediction: LabelPrediction) -> dict[str, Any]:
        label = list(prediction.label) if isinstance(prediction.label, tuple) else prediction.label
        probabilities = prediction.probabilities
        return {"prediction": label, **({"probabilities": probabilities} if probabilities else {})}

    def format_row(self, table: Table, number: int, prediction: LabelPrediction) -> str:
        row, label = table.rows[number], prediction.label
        actual = ", ".join(self.row_labels(table)[number]) if self.options.label in row else "?"
        given = ", ".join(label) if isinstance(label, tuple) else label
        return f"{self.format_texts(row)}\n-> {given}\n({actual})"


def _missing(value: Any) -> bool:
    """Nothing, or what stands for it in tables of numbers."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def _require_one_kind(table: Table, column: str) -> None:
    """Refuses a column of which some labels are numbers, some texts, some true or false: `1` and `"1"` would
    become one."""
    # JSON and parquet keep the kind of a value, .csv does not: what is mixed here would be merged silently.
    kinds: dict[str, str] = {}  # and where each is first
    for value, place in zip(table.values(column), table.places, strict=True):
        for part in value if isinstance(value, list | tuple) else [value]:
            if not _missing(part):
                kind = (
                    "truth value" if isinstance(part, bool) else "text" if isinstance(part, str) else "number"
                )
                kinds.setdefault(kind, place)
    if len(kinds) > 1:
        (first, there), (second, here) = list(kinds.items())[:2]
        raise EtymonError(
            f"{here}: column {column!r} holds a {second}, and {there} a {first}: "
            "make all labels texts, or all numbers"
        )
