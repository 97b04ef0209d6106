"""Tasks whose answers a model writes as a text: how T5 does all of them, and how any model that writes can."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from etymon.data.examples import Examples
from etymon.data.tables import Table
from etymon.errors import EtymonError
from etymon.families.family import Family
from etymon.families.model import Model
from etymon.generation.settings import DecodingSettings
from etymon.generation.text import tokenizer_of
from etymon.objectives.objective import Term, Unit
from etymon.tasks.scores import Score
from etymon.tasks.task import Fit, Task
from etymon.tasks.text2text import PairPrepared, Text2Text, Text2TextOptions

SOURCE, TARGET = "source", "target"
HEADS_ALONE = {"language_model": 0.0, "r_drop": 0.0, "smoothing": 0.0, "class_weights": "none"}
"""Options that nothing would come of, and what they usually are."""


class Written(Task):
    """A task by way of text2text. Its options, columns, labels and scores are the task's own.

    The task says what the model reads of every row (`asked_texts`), what it is to write (`wanted_texts`), and what it wrote as
    answers (`understood`), where what makes no sense is a wrong one.
    """

    heads = frozenset({"vocabulary"})

    def __init__(self, task: Any) -> None:
        super().__init__(task.options)
        self.task = task
        self.name, self.metrics, self.usual_rows = task.name, task.metrics, task.usual_rows  # type: ignore[misc]
        self.writing = Text2Text(Text2TextOptions())
        self.limits = self.writing.limits

    def fit(self, family: Family) -> Fit:
        self.writing.fit(family)
        for name, usual in HEADS_ALONE.items():
            if getattr(self.options, name, usual) != usual:
                raise EtymonError(
                    f"{name} is for a head, and {family.title} writes its answers: leave it out, or say --way head"
                )
        return Fit("text-to-text", self.heads)

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self.task.columns)

    @property
    def reads(self) -> tuple[str, ...]:
        return tuple(self.task.reads)

    @property
    def usual_metrics(self) -> tuple[str, ...]:
        return tuple(self.task.usual_metrics)

    @property
    def known(self) -> tuple[str, ...]:
        return tuple(self.task.known)

    def labels(self, table: Table) -> tuple[str, ...]:
        self.task.labels(table)
        return ()  # no head is built for them

    def texts(self, table: Table) -> dict[str, list[str]]:
        self.task.targets(table)  # refuses what cannot be
        return {SOURCE: self.task.asked_texts(table), TARGET: self.task.wanted_texts(table)}

    def bind(self, model: Model, length: int | None = None) -> None:
        self.writing.limits = self.limits
        self.writing.bind(model, length)
        # A tokenizer may write a label in another way than the table does.
        words = tokenizer_of(model)
        self.task.spelled = {words.decode(words.encode(label)).strip(): label for label in self.known}
        if len(self.task.spelled) < len(self.known):
            raise EtymonError(
                f"of the labels {', '.join(self.known)}, this model's tokenizer writes some in the same way: rename them, or say --way head"
            )

    def encode(
        self, table: Table, tell: Callable[[str], None] = lambda text: None, *, learn: bool = False
    ) -> Examples:
        found = self.texts(table)
        rows: list[Any] = [
            dict(zip((SOURCE, TARGET), pair)) for pair in zip(found[SOURCE], found[TARGET], strict=True)
        ]
        return self.writing.encode(Table(rows, table.places, table.description), tell, learn=learn)

    def collate(self, examples: Sequence[list[dict[str, np.ndarray]]]) -> PairPrepared:
        return self.writing.collate(examples)

    def loss(self, unit: Unit, prepared: PairPrepared) -> dict[str, Term]:
        return self.writing.loss(unit, prepared)

    def predict(self, model: Model, table: Table, decoding: DecodingSettings | None = None) -> list[Any]:
        rows: list[Any] = [{SOURCE: text} for text in self.task.asked_texts(table)]
        return self.task.understood(
            self.writing.predict(model, Table(rows, table.places, table.description), decoding)
        )

    def score(
        self, predictions: Sequence[Any], table: Table, metrics: Sequence[str], resamples: int = 0
    ) -> dict[str, Score]:
        return self.task.score(predictions, table, metrics, resamples)

    def shown(self, table: Table, number: int, prediction: Any) -> str:
        return self.task.shown(table, number, prediction)

    def record(self, prediction: Any) -> dict[str, Any]:
        return self.task.record(prediction)

    def check_metrics(self, metrics: Sequence[str]) -> None:
        self.task.check_metrics(metrics)

    def described(self) -> dict[str, Any]:
        return {**self.task.described(), "limits": self.limits}
