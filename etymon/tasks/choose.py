"""Multiple choice: which of several answers follows a question or a context best."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass as checked
from torch import Tensor

from etymon.config import did_you_mean
from etymon.errors import EtymonError
from etymon.families.model import Model
from etymon.tables.table import Table, json_cell
from etymon.tasks.head_task import HeadOptions, HeadPrepared, HeadTask, Pair
from etymon.tasks.label_scores import label_scores
from etymon.tasks.scores import MetricScore

HIDDEN = ("", "-1")
"""What stands for a label in tables of a test whose answers are kept back."""
LETTERED = re.compile(r"\([A-Z]\)\s")


@checked(frozen=True, config=ConfigDict(extra="forbid"))
class ChooseOptions(HeadOptions):
    text: str = "text"
    """The column of the question or of the beginning."""
    context: str | None = None
    """A column that is read before it."""
    choices: tuple[str, ...] = ("choices",)
    """The columns of the choices, or one column that holds a list of them, or a text `(A) one (B) another`."""
    label: str = "label"
    """The column of the right one: the number of it (as `first` says), a letter (A is the first), or the choice itself."""
    first: int = 0
    """The number of the first choice."""


@dataclass(frozen=True)
class ChoicePrediction:
    """The number of a choice, from 0 on; None if what was written is none."""

    number: int | None
    probabilities: tuple[float, ...] = ()


class Choose(HeadTask):
    name = "choose"
    head = "choice"
    Options = ChooseOptions
    metrics = ("accuracy",)
    record_fields = ("prediction", "probabilities")
    ending = True
    options: ChooseOptions

    @property
    def columns(self) -> tuple[str, ...]:
        options = self.options
        before = () if options.context is None else (options.context,)
        return (options.text, *before, *options.choices, options.label)

    @property
    def input_columns(self) -> tuple[str, ...]:
        return self.columns[:-1]

    def choices(self, table: Table) -> list[list[str]]:
        """The choices of every row, at least two."""
        names = self.options.choices
        if len(names) > 1:
            return [list(row) for row in zip(*(table.texts(name) for name in names), strict=True)]
        found = []
        for number, value in enumerate(map(json_cell, table.values(names[0]))):
            parts = (
                [str(part) for part in value] if isinstance(value, list | tuple) else _lettered(str(value))
            )
            if len(parts) < 2 or not all(part.strip() for part in parts):
                raise EtymonError(
                    f"{table.places[number]}: column {names[0]!r} is no list of two choices or more: give a list, or name the columns "
                    "of the choices (--choices a b c)"
                )
            found.append(parts)
        return found

    def questions(self, table: Table) -> list[str]:
        texts = table.texts(self.options.text)
        if self.options.context is None:
            return texts
        return [f"{before} {text}" for before, text in zip(table.texts(self.options.context), texts)]

    def pairs(self, table: Table) -> list[list[Pair]]:
        rows = zip(self.questions(table), self.choices(table), strict=True)
        return [[(question, choice) for choice in choices] for question, choices in rows]

    def right(self, table: Table) -> list[int]:
        values, choices = table.values(self.options.label), self.choices(table)
        return [self._right(value, choices[n], table.places[n]) for n, value in enumerate(values)]

    def targets(self, table: Table) -> np.ndarray:
        return np.array(self.right(table), np.int64)[:, None]

    def _right(self, value: Any, choices: list[str], place: str) -> int:
        whole = isinstance(value, float) and value.is_integer()
        text = str(int(value) if whole else value).strip()
        if value is None or value != value:  # nothing, or not a number
            text = ""
        counted, named = -1, [choice.strip() for choice in choices]
        if text.removeprefix("-").isdecimal():
            counted = int(text) - self.options.first
        elif len(text) == 1 and text.isascii() and text.isalpha():
            counted = ord(text.upper()) - ord("A")
        found = {counted} & {*range(len(choices))}
        if isinstance(value, str) or not found:
            found |= {number for number, choice in enumerate(named) if choice == text}
        if not found and text in HIDDEN:
            raise EtymonError(
                f"{place}: column {self.options.label!r} holds {text or 'nothing'}, so what is right is not known: fill it in, leave the "
                "row out, or answer it with etymon predict"
            )
        if not found:
            raise EtymonError(
                f"{place}: column {self.options.label!r} holds {text!r}, which is none of its {len(choices)} choices; "
                f"{did_you_mean(text, [str(n + self.options.first) for n in range(len(choices))])}"
            )
        if len(found) > 1:
            both = "several choices" if named.count(text) > 1 else "a choice and counts another one"
            raise EtymonError(
                f"{place}: column {self.options.label!r} holds {text!r}, which is {both}: say it by a letter (A is the first)"
            )
        return found.pop()

    def head_logits(self, model: Model, states_ND: Tensor | None, prepared: HeadPrepared) -> Tensor:
        """A row for every example, as wide as the most choices."""
        scores = super().head_logits(model, states_ND, prepared)[:, 0]
        parts = scores.split(prepared.rows)
        return torch.nn.utils.rnn.pad_sequence(list(parts), batch_first=True, padding_value=-torch.inf)

    def criterion(self, scores: Tensor, prepared: HeadPrepared) -> Tensor:
        return F.cross_entropy(scores, prepared.targets[:, 0], reduction="sum")

    def answers(self, scores: Tensor, prepared: HeadPrepared) -> list[ChoicePrediction]:
        shares = scores.float().softmax(-1).cpu().numpy()
        found = [tuple(row[:count].tolist()) for row, count in zip(shares, prepared.rows)]
        return [ChoicePrediction(int(np.argmax(row)), row) for row in found]

    def asked_parts(self, table: Table) -> list[list[str]]:
        begins = f"{self.options.prefix}question: "
        before = self.options.context
        contexts = [[]] * len(table) if before is None else [[text, " "] for text in table.texts(before)]
        rows = zip(contexts, table.texts(self.options.text), self.choices(table), strict=True)
        return [
            [begins, *context, question]
            + [part for number, one in enumerate(choices, 1) for part in (f" choice{number}: ", one)]
            for context, question, choices in rows
        ]

    def wanted_texts(self, table: Table) -> list[str]:
        return [f"choice{number + 1}" for number in self.right(table)]

    def understood(self, texts: Sequence[str]) -> list[ChoicePrediction]:
        numbers = (text.strip().removeprefix("choice") for text in texts)
        return [
            ChoicePrediction(int(number) - 1 if number.isdecimal() and number != "0" else None)
            for number in numbers
        ]

    def score(
        self,
        predictions: Sequence[ChoicePrediction],
        table: Table,
        metrics: Sequence[str],
        resamples: int = 0,
    ) -> dict[str, MetricScore]:
        right = self.right(table)
        labels = [str(number) for number in range(max(right) + 1)]
        given = [None if one.number is None else str(one.number) for one in predictions]
        return label_scores(given, [str(number) for number in right], labels, metrics, resamples)

    def record(self, prediction: ChoicePrediction) -> dict[str, Any]:
        number = None if prediction.number is None else prediction.number + self.options.first
        return {
            "prediction": number,
            **({"probabilities": list(prediction.probabilities)} if prediction.probabilities else {}),
        }

    def format_row(self, table: Table, number: int, prediction: ChoicePrediction) -> str:
        row = table.at([number])
        choices = self.choices(row)[0]
        place = prediction.number
        given = choices[place] if place is not None and place < len(choices) else "?"
        actual = choices[self.right(row)[0]] if self.options.label in table.rows[number] else "?"
        return f"{self.questions(row)[0]}\n-> {given}\n({actual})"


def _lettered(text: str) -> list[str]:
    """The choices of a text that calls them (A), (B) and so on."""
    found = LETTERED.split(text)
    return [part.strip() for part in found[1:]] if not found[0].strip() else []
