"""What `etymon translate` and `etymon summarize` share: texts in, texts out, with a model that writes from
a source."""

from __future__ import annotations

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
from etymon.verbs.terminal import say

if TYPE_CHECKING:
    from etymon.tasks.rewriting import Rewritten

TABLES = (".csv", ".tsv", ".parquet")
"""Endings that promise columns; a spreadsheet would also compute a line that begins with `=`."""


@settings
class Seq2SeqOptions(ComputeOptions, EncodingSettings, JsonOptions):
    model: ModelLike = argument(
        "folder or hub id of a model that writes from a source: t5, bart, or fine-tuned"
    )
    texts: Texts = argument("texts to read; - reads lines from standard input", ())
    file: Path | None = option(None, "a file of texts")
    prefix: str | None = option(None, "what to put before every text (as in training, or as published)")
    decoding: dict[str, Any] = group(
        DecodingSettings, "beams length_penalty length_offset max_new_tokens no_repeat_ngram", beams=4
    )
    chunk: bool = option(False, "read a text that is too long in parts, sentence by sentence")
    out: PathText = option(None, "file to write, one line per text (.jsonl: one JSON record)")
    on_note: Notify | None = option(None, "is told of texts that are read in parts", seen_by="python")


def rewrite(options: Seq2SeqOptions, *, published_task: str, lines: bool) -> list[Rewritten]:
    """The texts rewritten, in their order; blank ones stay blank. The prefix of the published task is taken
    if none is known; `lines` says whether a line of the file is a text."""
    from etymon.tasks.rewriting import rewrite_texts
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
    results = rewrite_texts(
        model,
        sources,
        DecodingSettings(**options.decoding),
        published_task=published_task,
        prefix=options.prefix,
        chunk=options.chunk,
        notify=options.on_note or (lambda note: None),
    )
    if out is not None:
        with atomic_write(out) as stream:
            stream.writelines(_line(result, out.suffix.lower() == ".jsonl") + "\n" for result in results)
    return results


def _line(result: Rewritten, json: bool) -> str:
    # A line break inside a text would move all lines behind it.
    return json_text(result) if json else " ".join(result.text.split())


def present(result: list[Rewritten], options: Seq2SeqOptions) -> None:
    if options.out is None:
        print(*(_line(rewritten, options.json) for rewritten in result), sep="\n")
    else:
        say(f"{len(result):,} texts in {options.out}")
