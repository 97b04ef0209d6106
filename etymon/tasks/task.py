"""What a task is: an objective over the rows of a table, that can also answer and be scored.

A task is made from its options alone, so that a misfit of task, family and table is refused before any work.
`bind` ties it to a model; then it encodes tables, and trains as any objective does. Its samples are whole
batches: `batch_rows` rows that are drawn at random, or rows of similar length with about `batch_tokens`
tokens.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from etymon.config import did_you_mean
from etymon.errors import EtymonError
from etymon.families.family import Family
from etymon.families.model import Model
from etymon.objectives.objective import Objective
from etymon.sampling.examples import NONE, Examples, bundles, bundles_of_rows
from etymon.settings.decoding import DecodingSettings
from etymon.tables.table import Table
from etymon.tasks.scores import MetricScore, falls, library

# A small table is not to be a few large steps: a batch has a fiftieth of its tokens, within these limits.
MOST_TOKENS, FEWEST_TOKENS, STEPS_AN_EPOCH = 4096, 512, 50
NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")
Notify = Callable[[str], None]
"""Is called with a line for people about what was cut or left out."""


def ignore_note(text: str) -> None:
    """The `Notify` of those who show no notes."""


@dataclass(frozen=True)
class Fit:
    """How a family does a task: with heads of its own for it, or by writing the answer as a text."""

    way: Literal["native", "text-to-text"]
    heads: frozenset[str]


class Task(Objective, ABC):
    """The term of its loss is called `loss`. What `describe` returns is kept in the history of a model."""

    Options: ClassVar[type]
    """A frozen dataclass: the columns, and how they are read. A family's recipe may set what it has of
    them."""
    metrics: ClassVar[tuple[str, ...]]
    """The scores it has beside `loss`; the first is the default."""
    libraries: ClassVar[Mapping[str, str]] = {}
    """The library that a metric needs, for those that need one."""
    record_fields: ClassVar[tuple[str, ...]] = ("prediction",)
    """The keys that the `record` of a prediction may have."""
    writes_text: ClassVar[bool] = True
    """Whether predictions are texts, written token by token."""
    default_rows: ClassVar[int | None] = None
    """Rows of a step, unless the user says how many; None if steps are counted in tokens."""
    requires: frozenset[str] = frozenset()
    likelihood: str | None = None

    def __init__(self, options: Any) -> None:
        self.options = options
        self.batch_tokens = MOST_TOKENS
        self.batch_rows: int | None = None
        self.limits: dict[str, int] = {}
        """Lengths in tokens, by name: the model's, and those of the training table."""

    # --- before there is a model

    @abstractmethod
    def fit(self, family: Family) -> Fit:
        """How the family does it. Raises an error with the reason if it cannot."""

    @property
    def default_metrics(self) -> tuple[str, ...]:
        """The metrics of a validation, unless the user names others."""
        return self.metrics[:1]

    @property
    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """The columns that are read. Rows with the same value in the first belong together."""

    @property
    def input_columns(self) -> tuple[str, ...]:
        """The columns that a prediction needs."""
        return self.columns[:1]

    @property
    def list_columns(self) -> tuple[str, ...]:
        """Those of them whose cells are lists of texts."""
        return ()

    @abstractmethod
    def texts(self, table: Table) -> dict[str, list[str]]:
        """The table's texts by side, `source` and `target` or `text` alone, to train a tokenizer on. Refuses
        rows that cannot be used."""

    def labels(self, table: Table) -> tuple[str, ...]:
        """The labels of a table, in the order of the head's outputs; none if the task has no labels."""
        return ()

    def require_free_names(self, table: Table) -> None:
        """Refuses a table with a column that predictions would replace."""
        # A file of predictions has the table's columns and those of the answer, side by side.
        for name in self.record_fields:
            if any(name in row for row in table.rows):
                raise EtymonError(
                    f"{table.description}: the column {name!r} would be replaced by that of the "
                    "answers: rename it"
                )

    # --- tied to a model

    @abstractmethod
    def bind(self, model: Model, length: int | None = None) -> None:
        """Takes tokenizers and framing from the model. It reads `length` tokens, if it can; None for the
        default."""

    def bind_for_training(self, model: Model, length: int | None, *, frozen: bool) -> None:
        """`bind`, and sets up the model for training; `frozen` if its body only gives features."""
        self.bind(model, length)

    @abstractmethod
    def encode(self, table: Table, notify: Notify = ignore_note, *, learn: bool = False) -> Examples:
        """The table as tokens. With `learn` it is the training table, and sets the `limits`."""

    @abstractmethod
    def predict(
        self,
        model: Model,
        table: Table,
        decoding: DecodingSettings | None = None,
        notify: Notify = ignore_note,
    ) -> list[Any]:
        """The model's answer to every row, in their order."""

    def evaluate(self, model: Model, examples: Examples, table: Table) -> tuple[list[Any], float] | None:
        """Predictions for a table and their mean loss in one pass, `examples` being its encoding; None if it
        takes two."""
        return None

    @abstractmethod
    def score(
        self, predictions: Sequence[Any], table: Table, metrics: Sequence[str], resamples: int = 0
    ) -> dict[str, MetricScore]:
        """Scores by metric; with `resamples`, each with a confidence interval by bootstrap."""

    def record(self, prediction: Any) -> dict[str, Any]:
        """A prediction as values that JSON knows, `prediction` first."""
        return {"prediction": prediction}

    @abstractmethod
    def format_row(self, table: Table, number: int, prediction: Any) -> str:
        """A row and its prediction, for people."""

    # --- as an objective

    def plan(self, split: Any, seed: int, epoch: int, *, shuffle: bool = True) -> np.ndarray:
        # Papers count rows (BERT, appendix A.3: 16 or 32) and draw them at random. Counted in tokens, a batch
        # has rows of similar length.
        if self.batch_rows is not None:
            return bundles_of_rows(split.sizes, self.batch_rows, seed, epoch, shuffle=shuffle)
        return bundles(split.sizes, self.batch_tokens, seed, epoch, shuffle=shuffle)

    def prepare(self, split: Any, row: np.ndarray, rng: np.random.Generator) -> list[dict[str, np.ndarray]]:
        """The examples of a batch."""
        return [split.example(number) for number in row[row != NONE].tolist()]

    # --- what is kept with a model

    def describe(self) -> dict[str, Any]:
        return {"name": self.name, "options": asdict(self.options), "limits": self.limits}

    def check_metrics(self, metrics: Sequence[str]) -> None:
        """Refuses metrics that it does not have, or whose library is not there."""
        available = ("loss", *self.metrics)
        for metric in metrics:
            if metric not in available:
                raise EtymonError(
                    f"the task {self.name!r} has no metric {metric!r}: {did_you_mean(metric, available)}"
                )
            if metric in self.libraries:
                library(self.libraries[metric], metric)


def number_or_name(label: str) -> tuple[int, float, str]:
    """The key that sorts labels: numbers by their size, before names by the alphabet."""
    return (0, float(label), label) if NUMBER.fullmatch(label) else (1, 0.0, label)


def default_batch_tokens(examples: Examples) -> int:
    """Tokens of a step, unless the user says how many."""
    return int(min(MOST_TOKENS, max(FEWEST_TOKENS, examples.sizes.sum() // STEPS_AN_EPOCH)))


def value_to_minimise(metric: str) -> Callable[[Mapping[str, Any]], float | None]:
    """A function from the figures of a validation to a number that is smaller the better the model is by this
    metric; None if the metric is not among them."""
    if metric.endswith("/loss"):  # of a member of a mixture
        return lambda figures: figures.get(f"{metric.removesuffix('loss')}bits")
    # The same loss by the byte, where there is a text: runs with different tokenizers can be compared.
    if metric == "loss":
        return lambda figures: figures.get("bits_per_byte", figures.get("bits_per_target"))
    if falls(metric.rpartition("/")[2]):
        return lambda figures: figures.get(metric)
    return lambda figures: None if figures.get(metric) is None else -figures[metric]
