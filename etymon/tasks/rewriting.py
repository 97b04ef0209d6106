"""Texts in, texts out, with a model that writes from a source: translations and summaries."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from etymon.errors import EtymonError
from etymon.families.model import Model
from etymon.report.inline import InlineRow
from etymon.settings.decoding import DecodingSettings
from etymon.tasks import get_task, task_of
from etymon.tasks.task import Notify, ignore_note
from etymon.tasks.text2text import Text2Text
from etymon.text.sentences import sentence_starts

if TYPE_CHECKING:
    from etymon.report.cells import Cell

PUBLISHED = "task_specific_params"
"""Where a published configuration keeps the prefixes of T5's tasks."""
WORD = re.compile(r"\s*\S+\s*")


@dataclass(frozen=True)
class Rewritten(InlineRow):
    """A text and what the model made of it."""

    source: str
    text: str
    parts: int = 1
    """How many parts the source was read in."""

    def table_row(self) -> dict[str, Cell]:
        return {"source": self.source, "text": self.text}


def rewrite_texts(
    model: Model,
    sources: Sequence[str],
    decoding: DecodingSettings,
    *,
    published_task: str,
    prefix: str | None = None,
    chunk: bool = False,
    notify: Notify = ignore_note,
) -> list[Rewritten]:
    """The texts rewritten, in their order; blank ones stay blank. The prefix of the published task is taken
    if none is known. With `chunk`, a text that is too long is read in parts; `notify` is told of it."""
    # Of a model that came from elsewhere nobody knows what it was trained for.
    if model.history and not isinstance(task_of(model, None, "text2text"), Text2Text):
        notify(
            f"this {model.family.title} was never trained on pairs of texts, and writes what its pretraining "
            "taught it: fine-tune it first (etymon finetune MODEL --train pairs.tsv --source A --target B)"
        )
    task = _task(model, prefix, published_task)
    parts = [
        _parts(task, text, f"text {number} of {len(sources)}", chunk, notify)
        for number, text in enumerate(sources, 1)
    ]
    # All parts of all texts are one list: decoding sorts it by length and fills its batches.
    flat = [task.options.prefix + part for text_parts in parts for part in text_parts]
    written = iter(task.write(model, task.sources(flat), decoding))
    return [
        Rewritten(text, " ".join(next(written) for _ in text_parts), len(text_parts))
        for text, text_parts in zip(sources, parts)
    ]


def _task(model: Model, prefix: str | None, published_task: str) -> Text2Text:
    """The task that the model was fine-tuned for, or what its published configuration says."""
    changes = {} if prefix is None else {"prefix": prefix}
    task = task_of(model, changes, "text2text")
    if not isinstance(task, Text2Text):
        # T5's folders say what to put before a text; without it, the model does not know what it is to do.
        published = (model.carried.get(PUBLISHED) or {}).get(published_task) or {}
        task = get_task("text2text", {"prefix": published.get("prefix") or "", **changes}, model.family)
        assert isinstance(task, Text2Text)
        task.fit(model.family)
        task.bind(model)
    return task


def _parts(task: Text2Text, text: str, place: str, chunk: bool, notify: Notify) -> list[str]:
    """The text, or its sentences in as few parts as the model can read; of a sentence that is too long, its
    words."""
    room, prefix = task.room_for_sources, task.options.prefix

    def length(piece: str) -> int:
        return len(task.sources([prefix + piece])[0])

    if not text.strip():
        return []
    if (tokens := length(text)) <= room:
        return [text]
    if not chunk:
        raise EtymonError(
            f"{place} has {tokens:,} tokens, and the model reads {room:,}: shorten it, "
            "or have it read in parts (--chunk)"
        )
    # Whole sentences: half of one would be translated as something else.
    starts = [*sentence_starts(text), len(text)]
    pieces: list[str] = []
    for sentence in (text[start:stop] for start, stop in pairwise(starts)):
        pieces += [sentence] if length(sentence) <= room else WORD.findall(sentence)
    parts: list[str] = []
    for piece in pieces:
        # Measured anew, not added up: pieces that meet may be encoded in fewer or more tokens.
        if parts and length(parts[-1] + piece) <= room:
            parts[-1] += piece
        elif length(piece) <= room:
            parts.append(piece)
        else:
            raise EtymonError(f"{place} has a word of {length(piece):,} tokens, and the model reads {room:,}")
    notify(f"{place} has {tokens:,} tokens and is read in {len(parts)} parts of up to {room:,}")
    return [part.strip() for part in parts]
