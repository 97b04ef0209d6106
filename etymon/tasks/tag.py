"""Tagging: a label for every word, such as its part of speech, or entities in a text, by way of tags.

Legend: n words of a batch, L labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass as checked
from torch import Tensor

from etymon.errors import EtymonError
from etymon.families.model import Model
from etymon.nn.batch import Batch
from etymon.sampling.examples import Examples, Ragged
from etymon.tables.table import Table, json_cell
from etymon.tasks.entities import (
    Entity,
    Scheme,
    entities_of,
    read_entities,
    scheme_tags,
    tags_of,
    unspaced,
    words_of,
)
from etymon.tasks.head_task import HeadOptions, HeadPrepared, HeadTask, Pair, by_number
from etymon.tasks.reading import framed_examples
from etymon.tasks.scores import MetricScore
from etymon.tasks.tag_scores import TAG_LIBRARIES, TAG_METRICS, require_spans, tag_metrics, tag_scores
from etymon.tasks.task import Notify, ignore_note
from etymon.text.reading import SURROGATE
from etymon.text.words import Span, WordReader, windows


@checked(frozen=True, config=ConfigDict(extra="forbid"))
class TagOptions(HeadOptions):
    tokens: str | None = None
    """The column of the words, a list or a text with spaces between them (`tokens`)."""
    tags: str | None = None
    """The column of as many tags, in the same form (`tags`)."""
    text: str | None = None
    """Instead of words, the column of a text (`text`), and"""
    entities: str | None = None
    """that of the entities in it (`entities`): start, end (behind the last character) and label of each."""
    scheme: Scheme = "IOB2"
    """How entities become tags."""
    overlapping: Literal["refuse", "longest"] = "refuse"
    """Of entities that overlap, one tag a word can say but one: the longest, if that is wanted."""


@dataclass(frozen=True)
class TagPrediction:
    """A tag for every word, and what the model gives it; `entities` where these were asked for."""

    tokens: tuple[str, ...]
    tags: tuple[str, ...]
    confidences: tuple[float, ...]
    entities: tuple[Entity, ...] | None = None


@dataclass(frozen=True)
class WordSpans:
    """A text and the characters of its words."""

    text: str
    spans: list[Span]

    @property
    def tokens(self) -> tuple[str, ...]:
        return tuple(self.text[start:stop] for start, stop in self.spans)


class Tag(HeadTask):
    name = "tag"
    head = "tagging"
    Options = TagOptions
    metrics = TAG_METRICS
    record_fields = ("prediction", "confidences")
    libraries = TAG_LIBRARIES
    written_by: ClassVar[frozenset[str]] = frozenset()
    teachable = True
    options: TagOptions

    def __init__(self, options: TagOptions) -> None:
        super().__init__(options)
        self.raw = options.text is not None or options.entities is not None
        """Whether entities of a text are asked for, and not tags of words."""
        self.widened = 0
        """Entities of the table that was read last that begin or end inside a word."""
        if options.way == "text":
            raise EtymonError(
                "tags are read off a head, word by word, and are not written: leave the way out"
            )
        if self.raw and (options.tokens is not None or options.tags is not None):
            raise EtymonError("name the columns of tokens and tags, or those of text and entities, not both")

    @property
    def columns(self) -> tuple[str, ...]:
        options = self.options
        if self.raw:
            return (options.text or "text", options.entities or "entities")
        return (options.tokens or "tokens", options.tags or "tags")

    @property
    def default_metrics(self) -> tuple[str, ...]:
        """By entities, where tags say such; by words otherwise, and as long as the tags are not known."""
        return ("f1",) if self.raw else tag_metrics(self.label_names)[:1]

    def check_metrics(self, metrics: Sequence[str]) -> None:
        super().check_metrics(metrics)
        if self.label_names and not self.raw:
            require_spans(self.label_names, metrics)

    # --- what a table says

    def words(self, table: Table) -> list[WordSpans]:
        """The words of every row."""
        column = self.columns[0]
        if self.raw:
            table.texts(column)  # refuses what is no text
            texts = (SURROGATE.sub("\ufffd", value) for value in table.values(column))
            return [WordSpans(text, words_of(text)) for text in texts]
        return [
            _joined(_list(value, table.places[n], column)) for n, value in enumerate(table.values(column))
        ]

    def tagged(self, table: Table, words: Sequence[WordSpans]) -> list[list[str]]:
        """The right tags of every row."""
        column = self.columns[1]
        values = list(zip(table.values(column), words, table.places, strict=True))
        if self.raw:
            longest = self.options.overlapping == "longest"
            found = [
                tags_of(
                    read_entities(value, one.text, place, column, longest=longest),
                    one.spans,
                    self.options.scheme,
                )
                for value, one, place in values
            ]
            self.widened = sum(widened for _, widened in found)
            return [tags for tags, _ in found]
        rows = [[*map(self.model_label, _list(value, place, column))] for value, _, place in values]
        for tags, (_, one, place) in zip(rows, values, strict=True):
            if len(tags) != len(one.spans):
                raise EtymonError(
                    f"{place}: {len(one.spans)} words in column {self.columns[0]!r}, and {len(tags)} tags in column {column!r}: "
                    "give every word one tag, or leave the row out"
                )
        return rows

    def labels(self, table: Table) -> tuple[str, ...]:
        rows = self.tagged(table, self.words(table))
        found = tuple(sorted({tag for tags in rows for tag in tags}, key=by_number))
        if self.raw:  # every tag that an entity of these labels can have, whether it was seen or not
            found = scheme_tags(sorted({tag[2:] for tag in found} - {""}), self.options.scheme)
        if len(found) < 2:
            raise EtymonError(
                f"{table.description}: column {self.columns[1]!r} says {found[0]!r} of every word: there is nothing to learn"
            )
        self.label_names = found
        return found

    def pairs(self, table: Table) -> list[list[Pair]]:
        return [[(one.text, None)] for one in self.words(table)]

    def targets(self, table: Table) -> np.ndarray:
        """The number of every word's tag, row after row."""
        rows = self.tagged(table, self.words(table))
        if not self.label_names:
            return np.zeros(0, np.int64)
        places = self.numbers(rows, table, "tag")
        return np.array([places[tag] for tags in rows for tag in tags], np.int64)

    # --- read

    def bind(self, model: Model, length: int | None = None) -> None:
        super().bind(model, length)
        self.pieces = WordReader(self.reader.words)
        # What reads from left to right has seen all of a word at its last piece.
        self.at_last = "causal" in model.capabilities

    def encode(self, table: Table, notify: Notify = ignore_note, *, learn: bool = False) -> Examples:
        examples = super().encode(table, notify, learn=learn)
        if self.widened:
            notify(f"{self.widened:,} entities begin or end inside a word: they are taken to have all of it")
        return examples

    def read(self, table: Table, notify: Notify = ignore_note) -> Examples:
        """An example for every window of a row."""
        room, before = self.reader.room(False), self.reader.framing.single.index(0)
        framed, places, long, cut = [], [], 0, 0
        for words in self.words(table):
            pieces = self.pieces.read(words.text, words.spans)
            parts = windows(pieces, room)
            long += len(parts) > 1
            cut += int((pieces.stops - pieces.firsts > room).sum())
            for part in parts:
                asked = pieces.stops - 1 if self.at_last else pieces.firsts
                inside = np.minimum(asked[part.first : part.last], part.stop - 1) - part.start
                framed.append([self.reader.framed(pieces.ids[part.start : part.stop])])
                places.append(before + inside)
        if long:
            notify(
                f"{long:,} of {len(table):,} rows are longer than {self.reader.length} tokens and are read in parts (finetune --length)"
            )
        if cut:
            notify(f"{cut:,} words alone are longer than {room} tokens and are cut")
        return framed_examples(framed, [len(inside) for inside in places], places=Ragged(places))

    def by_example(self, values: np.ndarray, examples: Examples) -> Ragged:
        places: Any = examples.columns["places"]
        return Ragged(np.split(values, places.stops[:-1]), values.dtype.type)

    def together(self, entries: Sequence[np.ndarray]) -> np.ndarray:
        return np.concatenate(entries)

    def apart(self, values: np.ndarray, prepared: HeadPrepared) -> list[np.ndarray]:
        layout = prepared.batch.layout
        counts = layout.row[prepared.at].bincount(minlength=layout.rows)
        return np.split(values, np.cumsum(counts.cpu().numpy())[:-1])

    def places(self, examples: Sequence[dict[str, np.ndarray]], batch: Batch) -> Tensor:
        return batch.layout.flat([one["places"] for one in examples])

    # --- judged and used

    def criterion(self, scores: Tensor, prepared: HeadPrepared) -> Tensor:
        return F.cross_entropy(scores, prepared.targets, reduction="sum")

    def answers(self, scores: Tensor, prepared: HeadPrepared) -> list[np.ndarray]:
        """Of every word, what the likeliest label is given, and its number."""
        best = scores.float().softmax(-1).max(-1)
        return self.apart(torch.stack([best.values, best.indices.float()], 1).cpu().numpy(), prepared)

    def merge_row_answers(self, table: Table, answers: list[Any]) -> list[TagPrediction]:
        rows, said = self.words(table), self.together(answers)
        each = np.split(said, np.cumsum([len(words.spans) for words in rows])[:-1])
        return [self._answer(words, one) for words, one in zip(rows, each, strict=True)]

    def _answer(self, words: WordSpans, said: np.ndarray) -> TagPrediction:
        tags = [self.label_names[int(number)] for number in said[:, 1]]
        sure, entities = tuple(said[:, 0].tolist()), None
        if self.raw:
            entities = tuple(entities_of(tags, words.spans, words.text, sure))
            # Exactly what was answered is judged.
            tags, _ = tags_of(entities, words.spans, self.options.scheme)
        return TagPrediction(words.tokens, tuple(tags), sure, entities)

    def score(
        self, predictions: Sequence[TagPrediction], table: Table, metrics: Sequence[str], resamples: int = 0
    ) -> dict[str, MetricScore]:
        actual = self.tagged(table, self.words(table))
        given, known = [one.tags for one in predictions], self.label_names
        if self.raw:  # a published model's labels may be of another scheme
            labels = sorted({tag[2:] for tags in [*actual, *given] for tag in tags} - {""})
            known = scheme_tags(labels or ["none"], self.options.scheme)
        return tag_scores(given, actual, known, metrics, resamples)

    def record(self, prediction: TagPrediction) -> dict[str, Any]:
        if prediction.entities is not None:
            return {"prediction": [asdict(one) for one in prediction.entities]}
        return {"prediction": list(prediction.tags), "confidences": list(prediction.confidences)}

    def format_row(self, table: Table, number: int, prediction: TagPrediction) -> str:
        row = table.at([number])
        (words,) = self.words(row)
        actual = None
        if self.columns[1] in table.rows[number]:
            (actual,) = self.tagged(row, [words])
        given = self._shown(words, prediction.tags)
        return f"{words.text}\n-> {given}\n({'?' if actual is None else self._shown(words, actual)})"

    def _shown(self, words: WordSpans, tags: Sequence[str]) -> str:
        if not self.raw:
            return " ".join(f"{token}/{tag}" for token, tag in zip(words.tokens, tags, strict=True))
        found = entities_of(tags, words.spans, words.text, [1.0] * len(tags))
        return ", ".join(f"{one.text} ({one.label})" for one in found) or "no entities"


def _list(value: Any, place: str, column: str) -> list[str]:
    """The words or tags of a row, which has some."""
    if isinstance(value, str):
        value = _from_json(value) or value.split()
    listed = isinstance(value, list | tuple)
    odd = [each for each in value if isinstance(each, list | dict | None)] if listed else [value]
    if odd:
        kind = "nothing" if odd[0] is None else f"a {type(odd[0]).__name__}"
        raise EtymonError(
            f"{place}: column {column!r} is to hold a list, or a text with spaces, and holds {kind}{' in its list' * listed}"
        )
    if not value:
        raise EtymonError(f"{place}: column {column!r} is empty; fill it in, or leave the row out")
    return [SURROGATE.sub("\ufffd", str(each)) for each in value]


def _from_json(text: str) -> list[str] | None:
    """A list of texts as a cell of a table holds it."""
    found = json_cell(text) if text.startswith('["') else None
    return found if isinstance(found, list) and all(isinstance(each, str) for each in found) else None


def _joined(tokens: Sequence[str]) -> WordSpans:
    """Words as a text, with spaces between them but for those of writing without spaces."""
    text, spans = "", []
    for token in tokens:
        if text and token and not (unspaced(text[-1]) or unspaced(token[0])):
            text += " "
        spans.append((len(text), len(text) + len(token)))
        text += token
    return WordSpans(text, spans)
