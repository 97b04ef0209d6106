"""What a task is: an objective over the rows of a table, that can also answer and be scored.

A task is made from its options alone, so that a misfit of task, family and table is refused before any work. `bind` ties
it to a model; then it encodes tables, and trains as any objective does. Its samples are bundles of
`batch_rows` rows that are drawn at random, or of rows of similar length with about `batch_tokens` tokens, so a slice of one sample is a batch.
"""

from __future__ import annotations

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
from etymon.tasks.scores import FALLING, MetricScore, library

MOST_TOKENS, FEWEST_TOKENS, STEPS_AN_EPOCH = 4096, 512, 50
"""Of a batch: a small table is not to be a few large steps."""
Notify = Callable[[str], None]
"""Hears what was cut or left out."""


def ignore_note(text: str) -> None:
    """Tells nobody."""


@dataclass(frozen=True)
class Fit:
    """How a family does a task: with heads of its own for it, or by writing the answer as a text."""

    way: Literal["native", "text-to-text"]
    heads: frozenset[str]


class Task(Objective, ABC):
    """The name of a task's term is `loss`. What is remembered with a model is `described`."""

    Options: ClassVar[type]
    """A frozen dataclass: the columns, and how they are read. A family's recipe may set what it has of them."""
    metrics: ClassVar[tuple[str, ...]]
    """The scores it knows beside `loss`; the first is the usual one."""
    libraries: ClassVar[Mapping[str, str]] = {}
    """Metrics that another library counts."""
    record_fields: ClassVar[tuple[str, ...]] = ("prediction",)
    """The names of what an answer's `record` may hold."""
    writes_text: ClassVar[bool] = True
    """Whether an answer is a text, written token by token."""
    default_rows: ClassVar[int | None] = None
    """Rows a step where nobody says how many; None where tokens are counted."""
    requires: frozenset[str] = frozenset()
    likelihood: str | None = None

    def __init__(self, options: Any) -> None:
        self.options = options
        self.batch_tokens = MOST_TOKENS
        self.batch_rows: int | None = None
        self.limits: dict[str, int] = {}
        """Lengths in tokens that were found in the training table, by name."""

    # --- before there is a model

    @abstractmethod
    def fit(self, family: Family) -> Fit:
        """How the family does it; an error with the reason if it cannot."""

    @property
    def default_metrics(self) -> tuple[str, ...]:
        """What it is judged by unless told."""
        return self.metrics[:1]

    @property
    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """The columns that are read. Rows with the same value in the first belong together."""

    @property
    def input_columns(self) -> tuple[str, ...]:
        """Those of them that an answer needs."""
        return self.columns[:1]

    @abstractmethod
    def texts(self, table: Table) -> dict[str, list[str]]:
        """The table's texts by side, `source` and `target` or `text` alone: what a tokenizer is learnt from. Refuses rows
        that cannot be used."""

    def labels(self, table: Table) -> tuple[str, ...]:
        """The labels that a head is built for, in order; none unless the task has such."""
        return ()

    def require_free_names(self, table: Table) -> None:
        """Refuses a table with a column that answers would replace."""
        for name in self.record_fields:
            if any(name in row for row in table.rows):
                raise EtymonError(
                    f"{table.description}: the column {name!r} would be replaced by that of the answers: rename it"
                )

    # --- tied to a model

    @abstractmethod
    def bind(self, model: Model, length: int | None = None) -> None:
        """Takes over what has to be known of the model: its tokenizers and framing, and how much it reads."""

    def bind_for_training(self, model: Model, length: int | None, *, frozen: bool) -> None:
        """`bind` for training: the model is told what its heads are for, and whether its body only gives features."""
        self.bind(model, length)

    @abstractmethod
    def encode(self, table: Table, notify: Notify = ignore_note, *, learn: bool = False) -> Examples:
        """The table as tokens. `notify` hears what was cut or left out; with `learn`, its `limits` are taken from it."""

    @abstractmethod
    def predict(
        self,
        model: Model,
        table: Table,
        decoding: DecodingSettings | None = None,
        notify: Notify = ignore_note,
    ) -> list[Any]:
        """The model's answer to every row, in their order. `notify` hears what was cut."""

    def evaluate(self, model: Model, examples: Examples, table: Table) -> tuple[list[Any], float] | None:
        """`predict` of a table with its mean loss, `examples` being its encoding; None where that takes more than one look."""
        return None

    @abstractmethod
    def score(
        self, predictions: Sequence[Any], table: Table, metrics: Sequence[str], resamples: int = 0
    ) -> dict[str, MetricScore]:
        """How good the answers are; with `resamples`, each with a confidence interval by bootstrap."""

    def record(self, prediction: Any) -> dict[str, Any]:
        """An answer as values that JSON knows, `prediction` first."""
        return {"prediction": prediction}

    @abstractmethod
    def format_row(self, table: Table, number: int, prediction: Any) -> str:
        """A row and its prediction, for people."""

    # --- as an objective

    def plan(self, split: Any, seed: int, epoch: int, *, shuffle: bool = True) -> np.ndarray:
        if self.batch_rows is not None:
            return bundles_of_rows(split.sizes, self.batch_rows, seed, epoch, shuffle=shuffle)
        return bundles(split.sizes, self.batch_tokens, seed, epoch, shuffle=shuffle)

    def prepare(self, split: Any, row: np.ndarray, rng: np.random.Generator) -> list[dict[str, np.ndarray]]:
        """The examples of a bundle."""
        return [split.example(number) for number in row[row != NONE].tolist()]

    # --- what is kept with a model

    def describe(self) -> dict[str, Any]:
        return {"name": self.name, "options": asdict(self.options), "limits": self.limits}

    def check_metrics(self, metrics: Sequence[str]) -> None:
        """Refuses metrics that it does not have, or whose library is not there."""
        known = ("loss", *self.metrics)
        for metric in metrics:
            if metric not in known:
                raise EtymonError(
                    f"the task {self.name!r} has no metric {metric!r}: {did_you_mean(metric, known)}"
                )
            if metric in self.libraries:
                library(self.libraries[metric], metric)


def default_batch_tokens(examples: Examples) -> int:
    """Tokens a step where nobody says how many."""
    return int(min(MOST_TOKENS, max(FEWEST_TOKENS, examples.sizes.sum() // STEPS_AN_EPOCH)))


def value_to_minimise(metric: str) -> Callable[[Mapping[str, Any]], float | None]:
    """A metric as a criterion, which is to fall."""
    if metric.endswith("/loss"):  # of a member of a mixture
        return lambda figures: figures.get(f"{metric.removesuffix('loss')}bits")
    if metric == "loss":
        return lambda figures: figures.get("bits_per_byte", figures.get("bits_per_target"))
    if metric.rpartition("/")[2] in FALLING:
        return lambda figures: figures.get(metric)
    return lambda figures: None if figures.get(metric) is None else -figures[metric]
