"""`etymon prepare`: text of any size into a token store, once, for many runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from etymon.errors import EtymonError
from etymon.verbs.options import Column, Data, Documents, Errors, Format, MaxDocument, Progress

if TYPE_CHECKING:
    from etymon.text.store import StoreSummary


@dataclass
class Prepared:
    """What was stored, where, and how many documents could not be read."""

    folder: Path
    summary: StoreSummary
    skipped: int


def prepare(
    *,
    data: Data = (),
    tokenizer: Annotated[str | Path | None, "folder or hub id of a tokenizer, a model or a run"] = None,
    out: Annotated[str | Path | None, "folder of the store"] = None,
    validation: Annotated[float, "share of the documents held out to judge by"] = 0.05,
    seed: Annotated[int, "chooses the documents held out"] = 0,
    workers: Annotated[int | None, "processes that encode (one a core); the result is the same"] = None,
    documents: Documents = None,
    column: Column = None,
    errors: Errors = None,
    max_document: MaxDocument = None,
    format: Format = None,
    progress: Progress = "auto",
) -> Prepared:
    """Turn text into a token store that `etymon pretrain --data STORE` uses.

    Reads any amount of text in constant memory and encodes it on all cores. A store whose text and tokenizer have
    not changed is left as it is.
    """
    from etymon.text.store import is_store
    from etymon.text.store_building import ensure_store
    from etymon.verbs.reading import byte_progress, text_files
    from etymon.verbs.tokenizer import tokenizer_at

    if tokenizer is None or out is None:
        missing = "--tokenizer FOLDER" if tokenizer is None else "--out FOLDER"
        raise EtymonError(f"{missing} is missing: preparing needs a tokenizer and a place for the store")
    if workers is not None and workers < 1:
        raise EtymonError(f"workers must be at least 1, not {workers}")
    folder = Path(out)
    if folder.is_dir() and any(folder.iterdir()) and not is_store(folder):
        raise EtymonError(f"{folder} holds something that is not a token store: give another --out")
    loaded = tokenizer_at(tokenizer)
    source = text_files(
        data, boundary=documents, column=column, errors=errors, max_document=max_document, format=format
    )
    with byte_progress("preparing", source.size(), progress) as done:
        summary = ensure_store(
            source, loaded, folder, validation=validation, seed=seed, workers=workers,
            progress=lambda _: done(source.bytes_read),
        )  # fmt: skip
        done(source.bytes_read)
    return Prepared(folder, summary, source.skipped)


def present(result: Prepared) -> None:
    summary = result.summary
    if result.skipped:
        print(f"{result.skipped:,} documents could not be read and were left out")
    if summary.reused:
        print("nothing has changed: the store is used as it is")
    for name, counts in (("train", summary.train), ("validation", summary.validation)):
        print(
            f"{name:<11}{counts.documents:,} documents, {counts.sentences:,} sentences, {counts.words:,} words, "
            f"{counts.tokens:,} tokens, {counts.bytes:,} bytes"
        )
    if summary.held_out == "tail":
        print("           too few documents to hold some out: validation is the end of the text")
    if summary.warning:
        print(f"warning: {summary.warning}")
    print(f"store      {result.folder}")
