"""Tagging: a label for every word, such as its part of speech, or entities in a text, by way of tags.

Legend: n words of a batch, L labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from etymon.errors import EtymonError
from etymon.families.model import Model
from etymon.sampling.examples import Examples, Ragged
from etymon.settings.tasks import TagOptions
from etymon.tables.table import Table, json_cell
from etymon.tasks.entities import (
    Entity,
    entities_of,
    read_entities,
    scheme_tags,
    tags_of,
    unspaced,
    words_of,
)
from etymon.tasks.head_task import HeadTask
from etymon.tasks.label_scores import TAG_LIBRARIES, TAG_METRICS, require_spans, tag_metrics, tag_scores
from etymon.tasks.reading import HeadBatch, Pair, framed_examples
from etymon.tasks.scores import MetricScore
from etymon.tasks.task import Notify, ignore_note, number_or_name
from etymon.text.reading import SURROGATE
from etymon.text.words import Span, WordReader, windows


@dataclass(frozen=True)
class TagPrediction:
    """A tag for every word and its probability; `entities`, if the table asks for such."""

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
    """A window of a row is an example. `targets` and logits are of words."""

    name = "tag"
    head = "tagging"
    Options = TagOptions
    metrics = TAG_METRICS
    record_fields = ("prediction", "confidences")
    libraries = TAG_LIBRARIES
    writable = False
    teachable = True
    options: TagOptions

    def __init__(self, options: TagOptions) -> None:
        super().__init__(options)
        self.has_entities = options.text is not None or options.entities is not None
        """Whether rows are texts with entities, and not words with tags."""
        self.widened = 0
        """Entities of the table that was read last that begin or end inside a word."""
        if options.way == "text":
            raise EtymonError(
                "tags are read off a head, word by word, and are not written: leave the way out"
            )
        if self.has_entities and (options.tokens is not None or options.tags is not None):
            raise EtymonError("name the columns of tokens and tags, or those of text and entities, not both")

    @property
    def columns(self) -> tuple[str, ...]:
        options = self.options
        if self.has_entities:
            return (options.text or "text", options.entities or "entities")
        return (options.tokens or "tokens", options.tags or "tags")

    @property
    def list_columns(self) -> tuple[str, ...]:
        return () if self.has_entities else self.columns[:1]

    @property
    def default_metrics(self) -> tuple[str, ...]:
        """By entities, where tags say such; by words otherwise, and as long as the tags are not known."""
        return ("f1",) if self.has_entities else tag_metrics(self.label_names)[:1]

    def check_metrics(self, metrics: Sequence[str]) -> None:
        super().check_metrics(metrics)
        if self.label_names and not self.has_entities:
            require_spans(self.label_names, metrics)

    # --- rows

    def row_words(self, table: Table) -> list[WordSpans]:
        """The words of every row."""
        column = self.columns[0]
        if self.has_entities:
            table.texts(column)  # refuses what is no text
            texts = (SURROGATE.sub("\ufffd", value) for value in table.values(column))
            return [WordSpans(text, words_of(text)) for text in texts]
        cells = zip(table.values(column), table.places, strict=True)
        return [_join(_cell_list(value, place, column)) for value, place in cells]

    def pairs(self, table: Table) -> list[list[Pair]]:
        return [[(words.text, None)] for words in self.row_words(table)]

    def bind(self, model: Model, length: int | None = None) -> None:
        super().bind(model, length)
        self.pieces = WordReader(self.reader.words)
        # What reads from left to right has seen all of a word at its last piece.
        self.at_last = "causal" in model.capabilities

    def encode_texts(self, table: Table, notify: Notify = ignore_note) -> Examples:
        # A row that is too long is read in windows that end between words; every word is in exactly one.
        room, before = self.reader.room(False), self.reader.framing.single.index(0)
        framed, places, long, cut = [], [], 0, 0
        for words in self.row_words(table):
            pieces = self.pieces.read(words.text, words.spans)
            parts = windows(pieces, room)
            long += len(parts) > 1
            cut += int((pieces.stops - pieces.firsts > room).sum())
            at_N = pieces.stops - 1 if self.at_last else pieces.firsts
            for part in parts:
                # BERT reads a word's label off its first piece (section 5.3). A word longer than a window is
                # cut, and the last piece that was read stands for it.
                inside = np.minimum(at_N[part.first : part.last], part.stop - 1) - part.start
                framed.append([self.reader.framed(pieces.ids[part.start : part.stop])])
                places.append(before + inside)
        if long:
            notify(
                f"{long:,} of {len(table):,} rows are longer than {self.reader.length} tokens "
                "and are read in parts (finetune --length)"
            )
        if cut:
            notify(f"cut {cut:,} words of more than {room} tokens each")
        return framed_examples(framed, [len(inside) for inside in places], places=Ragged(places))

    def encode(self, table: Table, notify: Notify = ignore_note, *, learn: bool = False) -> Examples:
        examples = super().encode(table, notify, learn=learn)
        if self.widened:
            notify(f"{self.widened:,} entities begin or end inside a word: they are taken to have all of it")
        return examples

    # --- targets

    def row_tags(self, table: Table, rows: Sequence[WordSpans]) -> list[list[str]]:
        """The right tags of every row."""
        column, all_tags = self.columns[1], []
        self.widened = 0
        for value, words, place in zip(table.values(column), rows, table.places, strict=True):
            if self.has_entities:
                longest = self.options.overlapping == "longest"
                entities = read_entities(value, words.text, place, column, longest=longest)
                tags, widened = tags_of(entities, words.spans, self.options.scheme)
                self.widened += widened
            else:
                tags = [self.model_label(tag) for tag in _cell_list(value, place, column)]
            if len(tags) != len(words.spans):
                raise EtymonError(
                    f"{place}: {len(words.spans)} words in column {self.columns[0]!r}, and {len(tags)} tags "
                    f"in column {column!r}: give every word one tag, or leave the row out"
                )
            all_tags.append(tags)
        return all_tags

    def labels(self, table: Table) -> tuple[str, ...]:
        rows = self.row_tags(table, self.row_words(table))
        labels = tuple(sorted({tag for tags in rows for tag in tags}, key=number_or_name))
        if self.has_entities:  # every tag that an entity of these labels can have, whether it was seen or not
            labels = scheme_tags(_entity_labels(rows), self.options.scheme)
        if len(labels) < 2:
            raise EtymonError(
                f"{table.description}: column {self.columns[1]!r} says {labels[0]!r} of every word: "
                "there is nothing to learn"
            )
        self.label_names = labels
        return labels

    def targets(self, table: Table) -> np.ndarray:
        rows = self.row_tags(table, self.row_words(table))
        if not self.label_names:
            return np.zeros(0, np.int64)
        ids = self.label_ids(rows, table, "tag")
        return np.array([ids[tag] for tags in rows for tag in tags], np.int64)

    # --- loss and answers

    def criterion(self, logits: Tensor, prepared: HeadBatch) -> Tensor:
        # Pieces behind the first have no target at all, so nothing has to be ignored (no -100).
        return F.cross_entropy(logits, prepared.targets, reduction="sum")

    def answers(self, logits: Tensor, prepared: HeadBatch) -> list[np.ndarray]:
        """Of every word, the probability of the likeliest label, and its number."""
        # Both in one array, `[n, 2]`: numbers of labels are exact in float32 up to 2**24.
        best = logits.float().softmax(-1).max(-1)
        return prepared.by_example(torch.stack([best.values, best.indices.float()], 1).cpu().numpy())

    def merge_row_answers(self, table: Table, answers: list[Any]) -> list[TagPrediction]:
        rows = self.row_words(table)
        # Windows are in the order of the rows: their words end to end are the words of the table.
        by_row = np.split(np.concatenate(answers), np.cumsum([len(words.spans) for words in rows])[:-1])
        predictions = []
        for words, best in zip(rows, by_row, strict=True):
            tags = [self.label_names[int(number)] for number in best[:, 1]]
            confidences, entities = tuple(best[:, 0].tolist()), None
            if self.has_entities:
                entities = tuple(entities_of(tags, words.spans, words.text, confidences))
                # The tags of exactly these entities: what was answered is what is scored.
                tags, _ = tags_of(entities, words.spans, self.options.scheme)
            predictions.append(TagPrediction(words.tokens, tuple(tags), confidences, entities))
        return predictions

    def score(
        self, predictions: Sequence[TagPrediction], table: Table, metrics: Sequence[str], resamples: int = 0
    ) -> dict[str, MetricScore]:
        actual = self.row_tags(table, self.row_words(table))
        given, labels = [prediction.tags for prediction in predictions], self.label_names
        if self.has_entities:  # a published model's labels may be of another scheme
            labels = scheme_tags(_entity_labels([*actual, *given]) or ["none"], self.options.scheme)
        return tag_scores(given, actual, labels, metrics, resamples)

    def record(self, prediction: TagPrediction) -> dict[str, Any]:
        if prediction.entities is not None:
            return {"prediction": [asdict(entity) for entity in prediction.entities]}
        return {"prediction": list(prediction.tags), "confidences": list(prediction.confidences)}

    def format_row(self, table: Table, number: int, prediction: TagPrediction) -> str:
        row = table.at([number])
        (words,) = self.row_words(row)
        actual = "?"
        if self.columns[1] in table.rows[number]:
            actual = self._format_tags(words, self.row_tags(row, [words])[0])
        return f"{words.text}\n-> {self._format_tags(words, prediction.tags)}\n({actual})"

    def _format_tags(self, words: WordSpans, tags: Sequence[str]) -> str:
        if not self.has_entities:
            return " ".join(f"{token}/{tag}" for token, tag in zip(words.tokens, tags, strict=True))
        entities = entities_of(tags, words.spans, words.text, [1.0] * len(tags))
        return ", ".join(f"{entity.text} ({entity.label})" for entity in entities) or "no entities"


def _entity_labels(rows: Sequence[Sequence[str]]) -> list[str]:
    """What tags say behind their prefix, such as `B-`."""
    return sorted({tag[2:] for tags in rows for tag in tags} - {""})


def _cell_list(value: Any, place: str, column: str) -> list[str]:
    """The words or tags of a row, which has some: a list, a list as JSON, or a text with spaces."""
    if isinstance(value, str):
        # A sentence may begin with a bracket of its own: only what begins as a list of texts is JSON.
        parts = json_cell(value) if value.startswith('["') else None
        is_list = isinstance(parts, list) and parts and all(isinstance(part, str) for part in parts)
        value = parts if is_list else value.split()
    listed = isinstance(value, list | tuple)
    odd = [part for part in value if isinstance(part, list | dict | None)] if listed else [value]
    if odd:
        kind = "nothing" if odd[0] is None else f"a {type(odd[0]).__name__}"
        raise EtymonError(
            f"{place}: column {column!r} is to hold a list, or a text with spaces, "
            f"and holds {kind}{' in its list' * listed}"
        )
    if not value:
        raise EtymonError(f"{place}: column {column!r} is empty; fill it in, or leave the row out")
    return [SURROGATE.sub("\ufffd", str(part)) for part in value]


def _join(tokens: Sequence[str]) -> WordSpans:
    """Words as a text, with spaces between them but for those of writing without spaces."""
    text, spans = "", []
    for token in tokens:
        # Models were pretrained on text, so words are joined as a text has them; `spans` keep them apart.
        if text and token and not (unspaced(text[-1]) or unspaced(token[0])):
            text += " "
        spans.append((len(text), len(text) + len(token)))
        text += token
    return WordSpans(text, spans)
