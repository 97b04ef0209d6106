"""Regression: a number for a text or a pair of texts, such as how alike they are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from etymon.errors import EtymonError
from etymon.families.family import Family
from etymon.families.model import Model
from etymon.tables.table import Table
from etymon.tasks.classify import TextOptions, TextTask
from etymon.tasks.head_task import HeadPrepared
from etymon.tasks.label_scores import VALUE_METRICS, value_scores
from etymon.tasks.scores import MetricScore
from etymon.tasks.task import Fit

"""Written numbers are rounded to multiples of it (T5, section 2.4)."""
NO_NUMBER = -1.0
"""What is taken for an answer that is no number, as in T5's own evaluation."""


@dataclass(frozen=True)
class ValuePrediction:
    value: float


class Regress(TextTask):
    name = "regress"
    head = "classification"
    Options = TextOptions
    metrics = tuple(VALUE_METRICS)
    options: TextOptions

    def fit(self, family: Family) -> Fit:
        if self.options.r_drop:
            raise EtymonError("R-Drop compares probabilities, and a number has none: set r_drop to 0")
        return super().fit(family)

    def bind(self, model: Model, length: int | None = None) -> None:
        super().bind(model, length)
        if self.outputs is None and len(model.labels) > 1:
            raise EtymonError(
                f"this model tells {len(model.labels)} labels apart and says no number: use it with --task classify"
            )

    def labels(self, table: Table) -> tuple[str, ...]:
        return (self.options.label,)

    def row_values(self, table: Table) -> list[float]:
        return [
            _number(value, table.places[n], self.options.label)
            for n, value in enumerate(table.values(self.options.label))
        ]

    def targets(self, table: Table) -> np.ndarray:
        return np.array(self.row_values(table), np.float32)[:, None]

    def criterion(self, scores: Tensor, prepared: HeadPrepared) -> Tensor:
        return F.mse_loss(scores, prepared.targets, reduction="sum")

    def answers(self, scores: Tensor, prepared: HeadPrepared) -> list[ValuePrediction]:
        return [ValuePrediction(value) for value in scores[:, 0].float().tolist()]

    def wanted_texts(self, table: Table) -> list[str]:
        # In steps of 0.2, of halves the even one, in float32: as T5's own preprocessing.
        return [
            f"{round(float(np.float32(value) * np.float32(5))) / 5:.1f}" for value in self.row_values(table)
        ]

    def understood(self, texts: Sequence[str]) -> list[ValuePrediction]:
        return [ValuePrediction(_read(text)) for text in texts]

    def score(
        self, predictions: Sequence[ValuePrediction], table: Table, metrics: Sequence[str], resamples: int = 0
    ) -> dict[str, MetricScore]:
        return value_scores([one.value for one in predictions], self.row_values(table), metrics, resamples)

    def record(self, prediction: ValuePrediction) -> dict[str, Any]:
        return {"prediction": prediction.value}

    def format_row(self, table: Table, number: int, prediction: ValuePrediction) -> str:
        row = table.rows[number]
        texts = " / ".join(str(row[column]) for column in self.input_columns)
        return f"{texts}\n-> {prediction.value:.2f}\n({row.get(self.options.label, '?')})"

    @property
    def problem_type(self) -> str:
        return "regression"


def _number(value: Any, place: str, column: str) -> float:
    try:
        if isinstance(value, bool):
            raise TypeError("a truth value")
        number = float(value)
    except (TypeError, ValueError) as error:
        raise EtymonError(f"{place}: column {column!r} holds {value!r}, not a number") from error
    if not math.isfinite(number):
        raise EtymonError(f"{place}: column {column!r} holds {value!r}, not a finite number")
    return number


def _read(text: str) -> float:
    try:
        value = float(text.strip())
    except ValueError:
        return NO_NUMBER
    return value if math.isfinite(value) else NO_NUMBER
