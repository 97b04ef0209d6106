"""Tasks whose answers a model writes as a text: how T5 does all of them, and how any model that writes can."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import numpy as np

from etymon.errors import EtymonError
from etymon.families.family import Family
from etymon.families.model import Model
from etymon.generation.text import tokenizer_of
from etymon.sampling.examples import Examples
from etymon.settings.decoding import DecodingSettings
from etymon.tables.table import Table
from etymon.tasks.task import Fit, Notify, Task, ignore_note
from etymon.tasks.text2text import Text2Text, Text2TextOptions

SOURCE, TARGET = "source", "target"
HEADS_ALONE = {
    "language_model": 0.0, "r_drop": 0.0, "smoothing": 0.0, "class_weights": "none", "symmetric": False,
}  # fmt: skip
"""Options that nothing would come of, and what they usually are."""


class WrittenTask(Task):
    """A task by way of text2text. Its options, columns, labels and scores are the task's own.

    The task says what the model reads of every row (`asked_parts`: what is said of a text and the text, in turns), what it is
    to write (`wanted_texts`), and what it wrote as answers (`understood`), where what makes no sense is a wrong one.
    """

    heads = frozenset({"vocabulary"})
    columns = property(attrgetter("task.columns"))
    input_columns = property(attrgetter("task.input_columns"))
    label_names = property(attrgetter("task.label_names"))
    default_metrics = property(attrgetter("task.default_metrics"))
    check_metrics = property(attrgetter("task.check_metrics"))
    score = property(attrgetter("task.score"))
    record_fields = property(attrgetter("task.record_fields"))
    record = property(attrgetter("task.record"))
    format_row = property(attrgetter("task.format_row"))
    collate = property(attrgetter("writing.collate"))
    loss = property(attrgetter("writing.loss"))

    def __init__(self, task: Any) -> None:
        super().__init__(task.options)
        self.task = task
        self.name, self.metrics, self.default_rows = task.name, task.metrics, task.default_rows  # type: ignore[misc]
        self.writing = Text2Text(Text2TextOptions())
        self.limits = self.writing.limits

    def fit(self, family: Family) -> Fit:
        try:
            self.writing.fit(family)
        except EtymonError as error:
            raise EtymonError(
                f"{family.title} writes no text, and so no answers: leave --way text out"
            ) from error
        own = family.task_options(self.name, HEADS_ALONE)  # which nobody has told
        for name, usual in HEADS_ALONE.items():
            if getattr(self.options, name, usual) not in (usual, own.get(name)):
                raise EtymonError(
                    f"{name} is for a head, and {family.title} writes its answers: leave it out, or say --way head"
                )
        return Fit("text-to-text", self.heads)

    def labels(self, table: Table) -> tuple[str, ...]:
        self.task.labels(table)
        return ()  # no head is built for them

    def texts(self, table: Table) -> dict[str, list[str]]:
        self.task.targets(table)  # refuses what cannot be
        asked = ["".join(parts) for parts in self.task.asked_parts(table)]
        return {SOURCE: asked, TARGET: self.task.wanted_texts(table)}

    def run_batches(self, table: Table, room: int, notify: Notify = ignore_note) -> list[str]:
        """What the model reads of every row, within so many tokens. `notify` hears how many rows were longer: of their texts the
        longest lose their ends, and what is said of them stays."""
        rows = self.task.asked_parts(table)
        texts = ["".join(parts) for parts in rows]
        long = [number for number, ids in enumerate(self.writing.sources(texts)) if len(ids) > room]
        for number in long:
            texts[number] = self._cut(rows[number], room)
        if long:
            notify(
                f"{len(long):,} of {len(table):,} rows are longer than {self.limits['length']} tokens, and their longest texts are cut (finetune --length)"
            )
        return texts

    def _cut(self, parts: list[str], room: int) -> str:
        marks, texts = parts[::2], parts[1::2]
        while True:
            whole = "".join(part for pair in zip(marks, texts) for part in pair)
            starts = [self.writing.reader.offsets(text)[1] for text in texts]
            lengths = np.array([len(each) for each in starts])
            left = lengths.sum() - len(self.writing.sources([whole])[0]) + room
            if left >= lengths.sum() or not lengths.any():
                return whole
            # So long may a text be for all to fit, if what it loses does not change its other tokens.
            most = max(n for n in range(max(left, 0) + 1) if not n or np.minimum(lengths, n).sum() <= left)
            texts = [
                text if len(each) <= most else text[: each[most]].rstrip()
                for text, each in zip(texts, starts)
            ]

    def bind(self, model: Model, length: int | None = None) -> None:
        self.writing.limits = self.limits
        self.writing.bind(model, length)
        # A tokenizer may write a label in another way than the table does.
        words = tokenizer_of(model)
        self.task.spelled = {
            words.decode(words.encode(label, quiet=True)).strip(): label for label in self.label_names
        }
        if len(self.task.spelled) < len(self.label_names):
            raise EtymonError(
                f"of the labels {', '.join(self.label_names)}, this model's tokenizer writes some in the same way: rename them, or say --way head"
            )

    def encode(self, table: Table, notify: Notify = ignore_note, *, learn: bool = False) -> Examples:
        self.task.targets(table)  # refuses what cannot be
        targets, length = self.task.wanted_texts(table), self.limits["length"]
        # A decoder's row holds both.
        longest = max(map(len, self.writing.writer.encode_batch(targets))) + 1
        taken = 0 if self.writing.apart else min(longest, self.writing.room_for_targets)
        sources = self.run_batches(table, length - taken, notify)
        rows: list[Any] = [{SOURCE: source, TARGET: target} for source, target in zip(sources, targets)]
        return self.writing.encode(Table(rows, table.places, table.description), notify, learn=learn)

    def predict(
        self,
        model: Model,
        table: Table,
        decoding: DecodingSettings | None = None,
        notify: Notify = ignore_note,
    ) -> list[Any]:
        texts = self.run_batches(table, self.writing.room_for_sources, notify)
        rows: list[Any] = [{SOURCE: text} for text in texts]
        return self.task.understood(
            self.writing.predict(model, Table(rows, table.places, table.description), decoding)
        )

    def describe(self) -> dict[str, Any]:
        return {**self.task.describe(), "limits": self.limits}
