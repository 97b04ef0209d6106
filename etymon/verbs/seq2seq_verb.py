"""What `etymon translate` and `etymon summarize` share: texts in, texts out, with a model that writes from
a source."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etymon.errors import EtymonError
from etymon.files import atomic_write, json_text
from etymon.settings import (
    ComputeOptions,
    JsonOptions,
    ModelLike,
    Notify,
    PathText,
    Texts,
    argument,
    group,
    option,
    settings,
)
from etymon.settings.decoding import DecodingSettings
from etymon.settings.reading import EncodingSettings

if TYPE_CHECKING:
    from etymon.families.model import Model
    from etymon.tasks.text2text import Text2Text

PUBLISHED = "task_specific_params"
"""Where a published configuration keeps the prefixes of T5's tasks."""
TABLES = (".csv", ".tsv", ".parquet")
"""Endings that promise columns; a spreadsheet would also compute a line that begins with `=`."""
WORD = re.compile(r"\s*\S+\s*")


@dataclass(frozen=True)
class Rewritten:
    """A text and what the model made of it."""

    source: str
    text: str
    parts: int = 1
    """How many parts the source was read in."""


@settings
class Seq2SeqOptions(ComputeOptions, EncodingSettings, JsonOptions):
    model: ModelLike = argument(
        "folder or hub id of a model that writes from a source: t5, bart, or fine-tuned"
    )
    texts: Texts = argument("texts to read; - reads lines from standard input", ())
    file: Path | None = option(None, "a file of texts")
    prefix: str | None = option(None, "put before every text (as in training, or as published)")
    decoding: dict[str, Any] = group(
        DecodingSettings, "beams length_penalty length_offset max_new_tokens no_repeat_ngram", beams=4
    )
    chunk: bool = option(False, "read a text that is too long in parts, sentence by sentence")
    out: PathText = option(None, "a file to write, a line a text (.jsonl: a JSON record)")
    on_note: Notify | None = option(None, "is told of texts that are read in parts", seen_by="python")


def rewrite(options: Seq2SeqOptions, *, published_task: str, lines: bool) -> list[Rewritten]:
    """The texts rewritten, in their order; blank ones stay blank. The prefix of the published task is taken
    if none is known; `lines` says whether a line of the file is a text."""
    from etymon.verbs.load_inputs import load_model, read_texts, require_writable

    out = None if options.out is None else Path(options.out)
    require_writable(out)
    if out is not None and out.suffix.lower() in TABLES:
        raise EtymonError(
            f"cannot write {out}: texts are written a line each, or as .jsonl; name it .txt or .jsonl"
        )
    # Blank lines stay, so that line 7 of the output answers line 7 of the input.
    sources = read_texts(options.texts, options.file, lines=lines, blank=True, how=options)
    model = load_model(options.model, options)
    task = _task(model, options.prefix, published_task)
    decoding = DecodingSettings(**options.decoding)
    parts = [
        _parts(task, text, f"text {number} of {len(sources)}", options)
        for number, text in enumerate(sources, 1)
    ]
    # All parts of all texts are one list: decoding sorts it by length and fills its batches.
    flat = [task.options.prefix + part for text_parts in parts for part in text_parts]
    written = iter(task.write(model, task.sources(flat), decoding))
    results = [
        Rewritten(text, " ".join(next(written) for _ in text_parts), len(text_parts))
        for text, text_parts in zip(sources, parts)
    ]
    if out is not None:
        with atomic_write(out) as stream:
            stream.writelines(_line(result, out.suffix.lower() == ".jsonl") + "\n" for result in results)
    return results


def _line(result: Rewritten, json: bool) -> str:
    # A line break inside a text would move all lines behind it.
    return json_text(result) if json else " ".join(result.text.split())


def _task(model: Model, prefix: str | None, published_task: str) -> Text2Text:
    """The task that the model was fine-tuned for, or what its published configuration says."""
    from etymon.tasks import get_task, task_of
    from etymon.tasks.text2text import Text2Text

    changes = {} if prefix is None else {"prefix": prefix}
    task = task_of(model, changes, "text2text")
    if not isinstance(task, Text2Text):
        published = (model.carried.get(PUBLISHED) or {}).get(published_task) or {}
        task = get_task("text2text", {"prefix": published.get("prefix") or "", **changes}, model.family)
        assert isinstance(task, Text2Text)
        task.fit(model.family)
        task.bind(model)
    return task


def _parts(task: Text2Text, text: str, place: str, options: Seq2SeqOptions) -> list[str]:
    """The text, or its sentences in as few parts as the model can read; of a sentence that is too long, its
    words."""
    from etymon.text.sentences import sentence_starts

    room, prefix = task.room_for_sources, task.options.prefix

    def length(piece: str) -> int:
        return len(task.sources([prefix + piece])[0])

    if not text.strip():
        return []
    if (tokens := length(text)) <= room:
        return [text]
    if not options.chunk:
        raise EtymonError(
            f"{place} has {tokens:,} tokens, and the model reads {room:,}: shorten it, "
            "or have it read in parts (--chunk)"
        )
    starts = [*sentence_starts(text), len(text)]
    pieces: list[str] = []
    for sentence in (text[start:stop] for start, stop in pairwise(starts)):
        pieces += [sentence] if length(sentence) <= room else WORD.findall(sentence)
    parts: list[str] = []
    for piece in pieces:
        if parts and length(parts[-1] + piece) <= room:
            parts[-1] += piece
        elif length(piece) <= room:
            parts.append(piece)
        else:
            raise EtymonError(f"{place} has a word of {length(piece):,} tokens, and the model reads {room:,}")
    if options.on_note is not None:
        options.on_note(f"{place} has {tokens:,} tokens and is read in {len(parts)} parts of up to {room:,}")
    return [part.strip() for part in parts]


def present(result: list[Rewritten], options: Seq2SeqOptions) -> None:
    if options.out is None:
        print(*(_line(rewritten, options.json) for rewritten in result), sep="\n")
    else:
        print(f"{len(result):,} texts in {options.out}")
