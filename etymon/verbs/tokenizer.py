"""`etymon tokenizer`: learn a tokenizer from your own text, or see how one fits it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from etymon.errors import EtymonError
from etymon.files import atomic_folder
from etymon.verbs.options import Column, Data, Documents, Errors, Format, MaxDocument, Progress
from etymon.verbs.terminal import print_json

if TYPE_CHECKING:
    from etymon.text.sources import TextFiles, TextSample
    from etymon.text.tokenizer import Tokenizer
    from etymon.text.tokenizer_growing import TokenizerReport

MANY_UNKNOWN = 0.01


@dataclass
class Tokenized:
    """A tokenizer, its folder, and how it fits the text (None: there was no text)."""

    folder: Path
    tokenizer: Tokenizer
    report: TokenizerReport | None
    judged_by: str
    skipped: int = 0


def tokenizer(
    *,
    kind: Annotated[
        Literal["byte-bpe", "bpe", "word-bpe", "wordpiece", "unigram", "word", "character", "char", "byte"]
        | None,
        "what tokens are (the family's own)",
    ] = None,
    data: Data = (),
    size: Annotated[
        int | None, "tokens to learn at most, special ones included (8000; of characters all)"
    ] = None,
    out: Annotated[str | Path | None, "folder to write"] = None,
    family: Annotated[
        str | None, "take the kind, special tokens and framing of a family (gpt2, bert, t5, ...)"
    ] = None,
    lowercase: Annotated[bool | None, "ignore case (as the family does)"] = None,
    strip_accents: Annotated[
        bool | None, "remove accents and all other combining marks, vowel signs too (as the family does)"
    ] = None,
    normalise: Annotated[
        Literal["nfc", "nfkc", "none"] | None,
        "Unicode form of the text (nfkc for unigram and bpe, else none)",
    ] = None,
    limit: Annotated[str, "text to learn from at most, spread evenly over all of it"] = "200MB",
    from_: Annotated[
        str | Path | None, "folder or hub id of a tokenizer or model: add tokens to it, up to --size"
    ] = None,
    show: Annotated[str | Path | None, "report on the tokenizer behind this folder or hub id instead"] = None,
    documents: Documents = None,
    column: Column = None,
    errors: Errors = None,
    max_document: MaxDocument = None,
    format: Format = None,
    progress: Progress = "auto",
) -> Tokenized:
    """Learn a tokenizer from text, and report how it fits text that it has not seen.

    The folder opens in Transformers too. Accents and case stay unless you say otherwise, or the family's published
    recipe does (bert is uncased). With --from, a tokenizer that there is learns more tokens, and no id changes.
    """
    from etymon.runs.tokenizer import training_choice
    from etymon.text.tokenizer_growing import grow_tokenizer, measure_tokenizer, require_room
    from etymon.text.tokenizer_training import train_tokenizer
    from etymon.verbs.reading import text_files

    def source() -> TextFiles:
        return text_files(
            data, boundary=documents, column=column, errors=errors, max_document=max_document, format=format
        )

    given = [data] if isinstance(data, str | Path) else list(data)
    how = any(each is not None for each in (kind, family, lowercase, strip_accents, normalise))
    if show is not None:
        if how or any((size, out, from_)):
            raise EtymonError("--show reports on a tokenizer as it is: leave out what says how to train one")
        text, found = source(), tokenizer_at(show)
        with _sampled(text, limit, progress) as samples:
            return Tokenized(
                Path(show), found, measure_tokenizer(found, chain(*samples)), "the text", text.skipped
            )
    if out is None:
        raise EtymonError("say where the tokenizer goes: --out FOLDER")
    if size is not None and size < 1:
        raise EtymonError(f"size must be at least 1, not {size}")
    old = None
    if from_ is not None:
        if how:
            raise EtymonError(
                f"{from_} has its own kind and ways: leave out what says how to train a new one"
            )
        old = tokenizer_at(from_)
        if size is None:
            raise EtymonError(f"{from_} has {old.size:,} tokens: say how many it should have with --size")
        require_room(old, size)
    kind = "character" if kind == "char" else kind
    choice = {} if old else training_choice(kind, family, size, lowercase, strip_accents, normalise)
    _check_free(Path(out))
    if choice.get("kind") == "byte" and not given:
        made = train_tokenizer(texts=(), **choice)
        _save(made, Path(out))
        return Tokenized(Path(out), made, None, "")
    text = source()
    with _sampled(text, limit, progress) as (learning, judging):
        grown = old and grow_tokenizer(old, lambda: learning, size or 0)
        made = grown or train_tokenizer(texts=learning, **choice)
        _save(made, Path(out))
        report = measure_tokenizer(made, judging if judging.size else learning)
    judged_by = (
        "held-out text" if judging.size else "the text it was trained on (too little to hold some out)"
    )
    return Tokenized(Path(out), made, report, judged_by, text.skipped)


def tokenizer_at(name: str | Path) -> Tokenizer:
    """The tokenizer behind a folder of its own, a model's, a run's or a hub id."""
    from etymon.checkpoints.hub import resolve
    from etymon.text.tokenizer import Tokenizer

    folder = resolve(name)
    own = folder / "tokenizer"
    return Tokenizer.load(own if own.is_dir() else folder)


def _save(tokenizer: Tokenizer, folder: Path) -> None:
    """All files of the tokenizer, or none."""
    with atomic_folder(Path(os.path.realpath(folder))) as aside:  # a link stays one
        tokenizer.save(aside)


def _check_free(folder: Path) -> None:
    own = {"tokenizer.json", "tokenizer_config.json", "token_counts.json"}
    if folder.is_dir() and {path.name for path in folder.iterdir()} - own:
        raise EtymonError(f"{folder} holds something that is not a tokenizer: give another --out")
    if folder.is_file():
        raise EtymonError(f"{folder} is a file, and the tokenizer needs a folder: give another --out")


@contextmanager
def _sampled(text: TextFiles, limit: str, progress: Any) -> Iterator[tuple[TextSample, TextSample]]:
    """Texts to learn from and texts to judge by, after all files were read."""
    from etymon.text.sources import sample_texts
    from etymon.verbs.reading import byte_progress, parse_size

    with ExitStack() as stack:
        with byte_progress("reading", text.size(), progress) as done:
            reading = sample_texts(
                text.documents(), parse_size(limit), progress=lambda: done(text.bytes_read)
            )
            samples = stack.enter_context(reading)
            done(text.bytes_read)
        yield samples


def present(result: Tokenized, json: Annotated[bool, "print JSON"] = False) -> None:
    report, made = result.report, result.tokenizer
    if json:
        about: dict[str, Any] = {"folder": str(result.folder), "kind": made.kind, "size": made.size}
        about |= {"judged_by": result.judged_by, "skipped": result.skipped}
        names = "bytes words tokens unknown fertility bytes_per_token unknown_rate longest".split()
        figures = {} if report is None else {name: getattr(report, name) for name in names}
        return print_json({**about, **figures}, indent=2)
    if result.skipped:
        print(f"{result.skipped:,} documents could not be read and were left out")
    print(f"{made.kind} tokenizer of {made.size:,} tokens in {result.folder}")
    if report is None:
        return
    print(f"on {result.judged_by} ({report.bytes:,} bytes):")
    print(f"  tokens a word    {report.fertility:.3f}")
    print(f"  bytes a token    {report.bytes_per_token:.3f}")
    print(f"  unknown          {report.unknown_rate:.3%} of the tokens")
    print(f"  longest token    {report.longest!r}")
    if report.unknown_rate > MANY_UNKNOWN:
        print("  many unknown: byte-bpe has none; unigram and bpe suit scripts without spaces")
