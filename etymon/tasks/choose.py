"""Multiple choice: which of several answers follows a question or a context best."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from etymon.config import did_you_mean
from etymon.errors import EtymonError
from etymon.families.model import Model
from etymon.settings.tasks import ChooseOptions
from etymon.tables.table import Table, json_cell
from etymon.tasks.head_task import HeadTask
from etymon.tasks.label_scores import label_scores
from etymon.tasks.reading import HeadBatch, Pair
from etymon.tasks.scores import MetricScore

HIDDEN = ("", "-1")
"""What stands for a label in tables of a test whose answers are kept back."""
LETTERED = re.compile(r"\([A-Z]\)\s")


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
    keeps_end = True
    has_possible_texts = True
    options: ChooseOptions

    @property
    def input_columns(self) -> tuple[str, ...]:
        options = self.options
        before = () if options.context is None else (options.context,)
        return (options.text, *before, *options.choices)

    @property
    def list_columns(self) -> tuple[str, ...]:
        return self.options.choices if len(self.options.choices) == 1 else ()

    # --- rows

    def choices(self, table: Table) -> list[list[str]]:
        """The choices of every row, at least two."""
        names = self.options.choices
        if len(names) > 1:
            return [list(row) for row in zip(*(table.texts(name) for name in names), strict=True)]
        rows = []
        for value, place in zip(map(json_cell, table.values(names[0])), table.places, strict=True):
            # A list, or a list as JSON in a cell of .csv.
            if isinstance(value, list | tuple):
                choices = [str(part) for part in value]
            else:  # a text that calls them (A), (B) and so on
                before, *parts = LETTERED.split(str(value))
                choices = [] if before.strip() else [part.strip() for part in parts]
            if len(choices) < 2 or not all(choice.strip() for choice in choices):
                raise EtymonError(
                    f"{place}: column {names[0]!r} is no list of two choices or more: give a list, "
                    "or name the columns of the choices (--choices a b c)"
                )
            rows.append(choices)
        return rows

    def questions(self, table: Table) -> list[str]:
        texts = table.texts(self.options.text)
        if self.options.context is None:
            return texts
        return [f"{before} {text}" for before, text in zip(table.texts(self.options.context), texts)]

    def pairs(self, table: Table) -> list[list[Pair]]:
        rows = zip(self.questions(table), self.choices(table), strict=True)
        return [[(question, choice) for choice in choices] for question, choices in rows]

    # --- targets

    def right_choices(self, table: Table) -> list[int]:
        """The number of the right choice of every row, from 0 on. Refuses what is no choice, or could be
        two."""
        rows = zip(table.values(self.options.label), self.choices(table), table.places, strict=True)
        return [self._right_choice(*row) for row in rows]

    def _right_choice(self, value: Any, choices: list[str], place: str) -> int:
        whole = isinstance(value, float) and value.is_integer()
        text = str(int(value) if whole else value).strip()
        if value is None or value != value:  # nothing, or not a number
            text = ""
        # A cell can count (2), name a letter (B) or be the choice itself. A text may be read in two ways,
        # such as `4` among the choices 3, 4, 5, 6, 7: then both are kept, and refused below.
        number, names = -1, [choice.strip() for choice in choices]
        if text.removeprefix("-").isdecimal():
            number = int(text) - self.options.first
        elif len(text) == 1 and text.isascii() and text.isalpha():
            number = ord(text.upper()) - ord("A")
        matches = {number} & {*range(len(choices))}
        if isinstance(value, str) or not matches:
            matches |= {n for n, name in enumerate(names) if name == text}
        if len(matches) == 1:
            return matches.pop()
        where = f"{place}: column {self.options.label!r} holds"
        if matches:
            both = "several choices" if names.count(text) > 1 else "a choice and counts another one"
            raise EtymonError(f"{where} {text!r}, which is {both}: say it by a letter (A is the first)")
        if text in HIDDEN:
            raise EtymonError(
                f"{where} {text or 'nothing'}, so what is right is not known: fill it in, leave the row out, "
                "or answer it with etymon predict"
            )
        numbers = [str(n + self.options.first) for n in range(len(choices))]
        raise EtymonError(
            f"{where} {text!r}, which is none of its {len(choices)} choices; {did_you_mean(text, numbers)}"
        )

    def targets(self, table: Table) -> np.ndarray:
        return np.array(self.right_choices(table), np.int64)[:, None]

    # --- loss

    def head_logits(self, model: Model, prepared: HeadBatch, states_ND: Tensor | None = None) -> Tensor:
        """A row for every example, as wide as the most choices; choices that an example does not have are
        -inf."""
        # Every choice is read in a row of its own and gets one score; the softmax is over the choices of an
        # example (GPT-1, section 3.3; BERT, section 4.4).
        parts = super().head_logits(model, prepared, states_ND)[:, 0].split(prepared.rows)
        return torch.nn.utils.rnn.pad_sequence(list(parts), batch_first=True, padding_value=-torch.inf)

    def log_probabilities(self, logits: Tensor, prepared: HeadBatch) -> Tensor:
        # 0 in place of -inf: the difference between two passes would be no number.
        return super().log_probabilities(logits, prepared).masked_fill(logits == -torch.inf, 0.0)

    def criterion(self, logits: Tensor, prepared: HeadBatch) -> Tensor:
        return F.cross_entropy(logits, prepared.targets[:, 0], reduction="sum")

    # --- answers

    def answers(self, logits: Tensor, prepared: HeadBatch) -> list[ChoicePrediction]:
        rows = zip(logits.float().softmax(-1).cpu().numpy(), prepared.rows)
        return [ChoicePrediction(int(row.argmax()), tuple(row[:count].tolist())) for row, count in rows]

    def source_parts(self, table: Table) -> list[list[str]]:
        begin, context = f"{self.options.prefix}question: ", self.options.context
        before = [[]] * len(table) if context is None else [[text, " "] for text in table.texts(context)]
        rows = zip(before, table.texts(self.options.text), self.choices(table), strict=True)
        return [
            [begin, *parts, question]
            + [part for n, choice in enumerate(choices, 1) for part in (f" choice{n}: ", choice)]
            for parts, question, choices in rows
        ]

    def target_texts(self, table: Table) -> list[str]:
        return [f"choice{number + 1}" for number in self.right_choices(table)]

    def possible_texts(self, table: Table) -> list[tuple[str, ...]]:
        return [tuple(f"choice{n + 1}" for n in range(len(choices))) for choices in self.choices(table)]

    def choose_text(self, shares: np.ndarray) -> ChoicePrediction:
        return ChoicePrediction(int(shares.argmax()), tuple(shares.tolist()))

    def parse_texts(self, texts: Sequence[str]) -> list[ChoicePrediction]:
        # `choice0` would count as the last one, and is refused like any other text.
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
        right = self.right_choices(table)
        labels = [str(number) for number in range(max(right) + 1)]
        given = [str(prediction.number) for prediction in predictions]  # None is a label of no row
        return label_scores(given, [str(number) for number in right], labels, metrics, resamples)

    def record(self, prediction: ChoicePrediction) -> dict[str, Any]:
        number, probabilities = prediction.number, prediction.probabilities
        return {
            "prediction": None if number is None else number + self.options.first,
            **({"probabilities": list(probabilities)} if probabilities else {}),
        }

    def format_row(self, table: Table, number: int, prediction: ChoicePrediction) -> str:
        row = table.at([number])
        (choices,), (question,), place = self.choices(row), self.questions(row), prediction.number
        # A model that writes may name a choice that this row does not have.
        given = choices[place] if place is not None and place < len(choices) else "?"
        actual = choices[self.right_choices(row)[0]] if self.options.label in table.rows[number] else "?"
        return f"{question}\n-> {given}\n({actual})"
