"""Text to text: a source is read, and its target written. Translation, summaries, and any task that a text
can ask for.

Encoder-decoders read the source and write the target. Decoders read both in one row, with a separator between
them. Either way only the target's tokens, and its end, are targets. `WrittenTask` does any other task in this
way: so T5 does all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

import numpy as np
import torch

from etymon.errors import EtymonError
from etymon.families import REGISTRY, get_family
from etymon.families.family import Family
from etymon.families.model import Model
from etymon.families.special_tokens import token_ids
from etymon.generation.decoding import decode, score_answers
from etymon.generation.text import source_tokenizer_of, tokenizer_of
from etymon.nn.batch import Batch
from etymon.nn.vocabulary import DenseVocabulary
from etymon.objectives.denoising import Seq2SeqBatch
from etymon.objectives.objective import Term, Unit, needed_id
from etymon.sampling.examples import Examples, Ragged
from etymon.settings import options_of
from etymon.settings.decoding import DecodingSettings
from etymon.settings.tasks import Text2TextOptions
from etymon.tables.table import Table
from etymon.tasks.scores import LIBRARIES, TEXT_METRICS, MetricScore, text_scores
from etymon.tasks.task import Fit, Notify, Task, ignore_note
from etymon.text.tokenizer import Tokenizer

USUAL_LENGTH = 512
"""Tokens of a source, or of a target, at most, where the model itself has no limit."""
BATCH = 64
"""Texts that are written together."""
HEAD_OPTIONS = ("language_model", "r_drop", "smoothing", "class_weights", "symmetric")
"""Options that mean nothing where an answer is written."""


class Text2Text(Task):
    name = "text2text"
    Options = Text2TextOptions
    metrics = tuple(TEXT_METRICS)
    libraries = LIBRARIES
    heads = frozenset({"vocabulary"})
    options: Text2TextOptions

    def fit(self, family: Family) -> Fit:
        if not writes_text(family):
            able = ", ".join(name for name in REGISTRY if writes_text(get_family(name)))
            raise EtymonError(
                f"{family.title} cannot write a text, which the task {self.name!r} asks for: take one "
                f"of {able}"
            )
        return Fit("native", self.heads)

    @property
    def columns(self) -> tuple[str, ...]:
        return self.options.source, self.options.target

    def texts(self, table: Table) -> dict[str, list[str]]:
        source = [self.options.prefix + text for text in table.texts(self.options.source)]
        return {"source": source, "target": table.texts(self.options.target)}

    # --- tied to a model

    def bind(self, model: Model, length: int | None = None) -> None:
        tokenizer = tokenizer_of(model)
        self.reader: Tokenizer = source_tokenizer_of(model)
        self.writer: Tokenizer = tokenizer
        self.has_encoder, self.reads_prefix = model.encoder_decoder, model.reads_prefix
        if self.has_encoder:
            rooms = [room for room in (model.positions, model.decoder_positions) if room is not None]
            room = min(rooms, default=None)
        else:
            # What a decode would not see of a source must not be seen in training.
            room = model.positions or model.body.reach
            ends = token_ids(model, "end", generating=True)  # what a decode stops at
            self.end = ends[0] if ends else needed_id(tokenizer, "end", self.name)
            # As the family frames two texts, if it puts something between them.
            framing, roles = tokenizer.framing, dict(tokenizer.framing.role_ids)
            first, second = framing.pair.index(0), framing.pair.index(1)
            marks = [roles[str(role)] for role in framing.pair[first + 1 : second]]
            self.before = np.array([roles[str(role)] for role in framing.pair[:first]], np.int32)
            self.between = np.asarray(marks or tokenizer.encode(self.options.separator, quiet=True), np.int32)
        length = length or self.limits.get("length") or USUAL_LENGTH
        self.limits["length"] = length if room is None else min(length, room)
        if self.options.smoothing and type(model.heads["vocabulary"]) is not DenseVocabulary:
            raise EtymonError("label smoothing needs an ordinary softmax: say smoothing 0")

    def encode(self, table: Table, notify: Notify = ignore_note, *, learn: bool = False) -> Examples:
        texts = self.texts(table)
        sources, targets = self.sources(texts["source"]), self.writer.encode_batch(texts["target"])
        length = self.limits["length"]
        targets = [self.end_target(ids) for ids in targets]
        if learn:
            # A little more than the longest that was seen: what is longer has most likely lost its way.
            longest = max(map(len, targets))
            self.limits["target"] = longest + longest // 4 + 8
        targets, many = _cut(targets, [self.room_for_targets] * len(targets))
        rooms = [length if self.has_encoder else length - len(target) for target in targets]
        sources, more = _cut(sources, rooms, self.tail)
        self._notify_cut(more, table, self.options.source, notify)
        self._notify_cut(many, table, self.options.target, notify)
        sizes = np.array([len(source) + len(target) for source, target in zip(sources, targets)])
        words = np.array([len(text.split()) for side in texts.values() for text in side])
        return Examples(
            {"source": Ragged(sources), "target": Ragged(targets)}, sizes, words.reshape(2, -1).sum(0)
        )

    def end_target(self, ids: np.ndarray) -> np.ndarray:
        """The tokens of a text to write, with those that end it."""
        return self.writer.framing.frame(ids).ids if self.has_encoder else np.append(ids, np.int32(self.end))

    def sources(self, texts: Sequence[str]) -> list[np.ndarray]:
        """What a model reads of texts (with their prefix) before it writes, whole."""
        encoded = self.reader.encode_batch(list(texts))
        if self.has_encoder:
            return [self.reader.framing.frame(ids).ids for ids in encoded]
        return [np.concatenate([self.before, ids, self.between]) for ids in encoded]

    # --- training

    def collate(self, examples: Sequence[list[dict[str, np.ndarray]]]) -> Seq2SeqBatch:
        pairs = [(example["source"], example["target"]) for bundle in examples for example in bundle]
        pairs.sort(key=lambda pair: (len(pair[0]), len(pair[1])))
        if self.has_encoder:
            return Seq2SeqBatch.of("loss", pairs)
        # The last token of the source predicts the first of the target, and behind its end nothing follows.
        # The source itself is no target: in use it is given.
        rows = [np.concatenate([source, target[:-1]]) for source, target in pairs]
        batch = Batch.of(rows, prefix=[len(source) for source, _ in pairs] if self.reads_prefix else None)
        at = batch.layout.flat([np.arange(len(pair[0]) - 1, len(row)) for row, pair in zip(rows, pairs)])
        targets = torch.from_numpy(np.concatenate([target for _, target in pairs]).astype(np.int64))
        return Seq2SeqBatch({"loss": len(targets)}, batch.layout.tokens, None, batch, targets, at)

    def loss(self, unit: Unit, prepared: Seq2SeqBatch) -> dict[str, Term]:
        return {"loss": Term(prepared.loss(unit.model, self.options.smoothing))}

    # --- use

    def predict(
        self,
        model: Model,
        table: Table,
        decoding: DecodingSettings | None = None,
        notify: Notify = ignore_note,
    ) -> list[str]:
        texts = [self.options.prefix + text for text in table.texts(self.options.source)]
        prompts, cut = self.prompts(texts)
        self._notify_cut(cut, table, self.options.source, notify)
        return self.write(model, prompts, decoding)

    def prompts(self, texts: Sequence[str]) -> tuple[list[np.ndarray], int]:
        """`sources` that leave room for what is to be written, and how many had to be cut."""
        return _cut(self.sources(texts), [self.room_for_sources] * len(texts), self.tail)

    def _notify_cut(self, count: int, table: Table, column: str, notify: Notify) -> None:
        if count:
            notify(
                f"{count:,} of {len(table):,} texts in {column!r} are longer than "
                f"{self.limits['length']} tokens and are cut (finetune --length)"
            )

    @property
    def tail(self) -> int:
        """Tokens at the end of a prompt that say that the source is over."""
        return 1 if self.has_encoder else len(self.between)

    @property
    def room_for_targets(self) -> int:
        return self.limits["length"] // (1 if self.has_encoder else 2)

    @property
    def room_for_sources(self) -> int:
        """How long a prompt may be."""
        return self.limits["length"] - (0 if self.has_encoder else self.new_tokens)

    @property
    def new_tokens(self) -> int:
        """As many as a target may have, unless somebody says otherwise."""
        return min(self.limits.get("target", self.room_for_targets), self.room_for_targets)

    def write(
        self, model: Model, prompts: Sequence[np.ndarray], decoding: DecodingSettings | None = None
    ) -> list[str]:
        """What follows every prompt (see `sources`), in their order. Prompts of similar length are decoded
        together, which changes nothing but the time, the longest first: a number of new tokens that there is
        no room for is refused at once."""
        settings = decoding or DecodingSettings()
        if settings.max_new_tokens is None:
            settings = replace(settings, max_new_tokens=self.new_tokens)
        order = sorted(range(len(prompts)), key=lambda number: -len(prompts[number]))
        # An end that the folder names may be an ordinary word to the tokenizer: it is no part of the text.
        ends = settings.end_ids or token_ids(model, "end", generating=True)
        written: dict[int, str] = {}
        for first in range(0, len(order), BATCH):
            numbers = order[first : first + BATCH]
            decoded = decode(model, [prompts[number].tolist() for number in numbers], settings, keys=numbers)
            for number, sequences in zip(numbers, decoded, strict=True):
                ids = [token for token in sequences[0].ids if token not in ends]
                written[number] = self.writer.decode(ids, whole=True).strip()
        return [written[number] for number in range(len(prompts))]

    def choose(self, model: Model, prompts: Sequence[np.ndarray], answers: Sequence[str]) -> np.ndarray:
        """The probability of each of the `answers` behind every prompt (see `sources`), if one of them is
        written: `[prompts, answers]`. All are scored whole, so none is lost on the way to another."""
        # With their ends, as they are learnt: otherwise "good" would count for "good one", too.
        targets = [tuple(self.end_target(ids).tolist()) for ids in self.writer.encode_batch(list(answers))]
        order = sorted(range(len(prompts)), key=lambda number: -len(prompts[number]))
        log_probs = np.empty((len(prompts), len(answers)))
        for first in range(0, len(order), BATCH):
            numbers = order[first : first + BATCH]
            log_probs[numbers] = score_answers(model, [prompts[n].tolist() for n in numbers], targets)
        shares = np.exp(log_probs - log_probs.max(1, keepdims=True))
        return shares / shares.sum(1, keepdims=True)

    def score(
        self, predictions: Sequence[str], table: Table, metrics: Sequence[str], resamples: int = 0
    ) -> dict[str, MetricScore]:
        return text_scores(predictions, table.texts(self.options.target), metrics, resamples)

    def format_row(self, table: Table, number: int, prediction: Any) -> str:
        row = table.rows[number]
        return f"{row[self.options.source]}\n-> {prediction}\n({row[self.options.target]})"


def writes_text(family: Family) -> bool:
    """Whether it is an encoder-decoder, or a decoder that can go on from a cache."""
    return "encoder-decoder" in family.capabilities or {"causal", "state"} <= family.capabilities


def _cut(rows: Sequence[np.ndarray], rooms: Sequence[int], tail: int = 1) -> tuple[list[np.ndarray], int]:
    """Rows of at most so many tokens, and how many were longer. Their last `tail` tokens stay: they say that
    the text is over."""
    cut = [
        row if len(row) <= room else np.concatenate([row[: max(0, room - tail)], row[len(row) - tail :]])
        for row, room in zip(rows, rooms, strict=True)
    ]
    return cut, sum(len(row) > room for row, room in zip(rows, rooms))


class WrittenTask(Task):
    """A task by way of text2text. Its options, columns, labels and scores are the task's own.

    The task gives what the model reads of every row (`source_parts`: a mark and a text, in turns), and what
    it is to write (`target_texts`). Where a row has but a few possible answers (`possible_texts`), each is
    scored, and the task makes a prediction of their probabilities (`choose_text`): a model that writes
    something else, as T5 writes sentinels after its pretraining, is asked which of them it would rather
    write. Otherwise, or with `free_text`, it makes predictions of what was written (`parse_texts`), and
    what makes no sense is a wrong one.
    """

    heads = frozenset({"vocabulary"})
    columns = property(attrgetter("task.columns"))
    input_columns = property(attrgetter("task.input_columns"))
    list_columns = property(attrgetter("task.list_columns"))
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
        self.task, self.default_rows = task, task.default_rows  # type: ignore[misc]
        self.name, self.metrics = task.name, task.metrics  # type: ignore[misc]
        self.writing = Text2Text(Text2TextOptions())
        self.limits = self.writing.limits

    @property
    def chooses(self) -> bool:
        """Whether the likeliest of a few possible texts is the answer, and nothing else can be."""
        return self.task.has_possible_texts and not self.options.free_text

    @property
    def writes_text(self) -> bool:  # type: ignore[override]
        return not self.chooses

    def fit(self, family: Family) -> Fit:
        try:
            self.writing.fit(family)
        except EtymonError as error:
            raise EtymonError(
                f"{family.title} writes no text, and so no answers: leave --way text out"
            ) from error
        recipe = family.task_options(self.name, HEAD_OPTIONS)  # set by the family, not by the user
        for option in options_of(type(self.options)):
            name, defaults = option.field, (option.default, recipe.get(option.field))
            if name in HEAD_OPTIONS and getattr(self.options, name) not in defaults:
                raise EtymonError(
                    f"{name} is for a head, and {family.title} writes its answers: leave it out, or say "
                    "--way head"
                )
        return Fit("text-to-text", self.heads)

    def labels(self, table: Table) -> tuple[str, ...]:
        self.task.labels(table)
        return ()  # no head is built for them

    def texts(self, table: Table) -> dict[str, list[str]]:
        self.task.targets(table)  # refuses what cannot be
        sources = ["".join(parts) for parts in self.task.source_parts(table)]
        return {"source": sources, "target": self.task.target_texts(table)}

    def source_texts(self, table: Table, room: int, notify: Notify = ignore_note) -> list[str]:
        """What the model reads of every row, within so many tokens. Of rows that are longer, the longest
        texts lose their ends, and the marks before them stay."""
        rows = self.task.source_parts(table)
        texts = ["".join(parts) for parts in rows]
        long = [number for number, ids in enumerate(self.writing.sources(texts)) if len(ids) > room]
        for number in long:
            texts[number] = self._shorten(rows[number], room)
        if long:
            notify(
                f"{len(long):,} of {len(table):,} rows are longer than {self.limits['length']} tokens, "
                "and their longest texts are cut (finetune --length)"
            )
        return texts

    def _shorten(self, parts: list[str], room: int) -> str:
        # Marks such as ` context: ` stay whole: T5 knows a task by them.
        marks, texts = parts[::2], parts[1::2]
        while True:
            whole = "".join(part for pair in zip(marks, texts) for part in pair)
            starts = [self.writing.reader.offsets(text)[1] for text in texts]
            lengths = np.array([len(text_starts) for text_starts in starts])
            left = lengths.sum() - len(self.writing.sources([whole])[0]) + room
            if left >= lengths.sum() or not lengths.any():
                return whole
            # So long may a text be for all to fit, if what it loses does not change its other tokens.
            most = max(n for n in range(max(left, 0) + 1) if not n or np.minimum(lengths, n).sum() <= left)
            texts = [
                text if len(text_starts) <= most else text[: text_starts[most]].rstrip()
                for text, text_starts in zip(texts, starts)
            ]

    def bind(self, model: Model, length: int | None = None) -> None:
        self.writing.limits = self.limits
        self.writing.bind(model, length)
        # A tokenizer may write a label in another way than the table does.
        words = tokenizer_of(model)
        self.task.label_by_text = {
            words.decode(words.encode(label, quiet=True)).strip(): label for label in self.label_names
        }
        if len(self.task.label_by_text) < len(self.label_names):
            raise EtymonError(
                f"of the labels {', '.join(self.label_names)}, this model's tokenizer writes some in "
                "the same way: rename them, or say --way head"
            )

    def encode(self, table: Table, notify: Notify = ignore_note, *, learn: bool = False) -> Examples:
        self.task.targets(table)  # refuses what cannot be
        targets, length = self.task.target_texts(table), self.limits["length"]
        # A decoder's row holds both.
        longest = max(map(len, self.writing.writer.encode_batch(targets))) + 1
        taken = 0 if self.writing.has_encoder else min(longest, self.writing.room_for_targets)
        sources = self.source_texts(table, length - taken, notify)
        return self.writing.encode(_as_table(table, source=sources, target=targets), notify, learn=learn)

    def predict(
        self,
        model: Model,
        table: Table,
        decoding: DecodingSettings | None = None,
        notify: Notify = ignore_note,
    ) -> list[Any]:
        sources = self.source_texts(table, self.writing.room_for_sources, notify)
        if not self.chooses:
            written = self.writing.predict(model, _as_table(table, source=sources), decoding)
            return self.task.parse_texts(written)
        prompts, _ = self.writing.prompts(sources)
        rows_by_answers: dict[tuple[str, ...], list[int]] = {}
        for number, answers in enumerate(self.task.possible_texts(table)):
            rows_by_answers.setdefault(answers, []).append(number)
        predictions: dict[int, Any] = {}
        for answers, numbers in rows_by_answers.items():
            shares = self.writing.choose(model, [prompts[number] for number in numbers], answers)
            predictions |= zip(numbers, map(self.task.choose_text, shares), strict=True)
        return [predictions[number] for number in range(len(table))]

    def describe(self) -> dict[str, Any]:
        return {**self.task.describe(), "limits": self.limits}


def _as_table(table: Table, **columns: list[str]) -> Table:
    """Texts as a table whose rows are called as those of another one are."""
    rows: list[Any] = [dict(zip(columns, row)) for row in zip(*columns.values(), strict=True)]
    return Table(rows, table.places, table.description)
