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
from etymon.settings.tasks import TextOptions
from etymon.tables.table import Table
from etymon.tasks.classify import TextTask
from etymon.tasks.label_scores import VALUE_METRICS, value_scores
from etymon.tasks.reading import HeadBatch
from etymon.tasks.scores import MetricScore
from etymon.tasks.task import Fit

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
    problem_type = "regression"
    options: TextOptions

    def fit(self, family: Family) -> Fit:
        if self.options.r_drop:
            raise EtymonError("R-Drop compares probabilities, and a number has none: set r_drop to 0")
        return super().fit(family)

    def bind(self, model: Model, length: int | None = None) -> None:
        super().bind(model, length)
        if self.outputs is None and len(model.labels) > 1:
            raise EtymonError(
                f"this model tells {len(model.labels)} labels apart and says no number: use it with "
                "--task classify"
            )

    def labels(self, table: Table) -> tuple[str, ...]:
        return (self.options.label,)

    def row_values(self, table: Table) -> list[float]:
        """The number of every row. Refuses what is none."""
        column, numbers = self.options.label, []
        for value, place in zip(table.values(column), table.places, strict=True):
            try:
                # float(True) is 1.0, but a truth value among numbers is a mistake of the table.
                number = float("" if isinstance(value, bool) else value)
            except (TypeError, ValueError) as error:
                raise EtymonError(f"{place}: column {column!r} holds {value!r}, not a number") from error
            if not math.isfinite(number):
                raise EtymonError(f"{place}: column {column!r} holds {value!r}, not a finite number")
            numbers.append(number)
        return numbers

    def targets(self, table: Table) -> np.ndarray:
        return np.array(self.row_values(table), np.float32)[:, None]

    def criterion(self, logits: Tensor, prepared: HeadBatch) -> Tensor:
        # Of the values as they are (0 to 5 in STS-B), as Transformers' heads learn them: nothing is scaled.
        return F.mse_loss(logits, prepared.targets, reduction="sum")

    def answers(self, logits: Tensor, prepared: HeadBatch) -> list[ValuePrediction]:
        return [ValuePrediction(value) for value in logits[:, 0].float().tolist()]

    def target_texts(self, table: Table) -> list[str]:
        # In steps of 0.2 (T5, section 2.4), of halves the even one, in float32: as T5's own preprocessing.
        fifths = (round(float(np.float32(value) * np.float32(5))) for value in self.row_values(table))
        return [f"{count / 5:.1f}" for count in fifths]

    def parse_texts(self, texts: Sequence[str]) -> list[ValuePrediction]:
        return [ValuePrediction(_parse_number(text)) for text in texts]

    def score(
        self, predictions: Sequence[ValuePrediction], table: Table, metrics: Sequence[str], resamples: int = 0
    ) -> dict[str, MetricScore]:
        values = [prediction.value for prediction in predictions]
        return value_scores(values, self.row_values(table), metrics, resamples)

    def record(self, prediction: ValuePrediction) -> dict[str, Any]:
        return {"prediction": prediction.value}

    def format_row(self, table: Table, number: int, prediction: ValuePrediction) -> str:
        row = table.rows[number]
        actual = row.get(self.options.label, "?")
        return f"{self.format_texts(row)}\n-> {prediction.value:.2f}\n({actual})"


def _parse_number(text: str) -> float:
    try:
        value = float(text.strip())
    except ValueError:
        return NO_NUMBER
    # `float` also reads `nan` and `inf`, which would spoil the score of all rows.
    return value if math.isfinite(value) else NO_NUMBER
