"""A user's files as a stream of documents, with errors that say where and what to do."""

from __future__ import annotations

import glob
import hashlib
import io
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

from etymon.data.document import MAX_DOCUMENT, Boundary, Document, Errors, Identity, Reading, Tally
from etymon.data.inputs import STANDARD_INPUT, UNPACKERS, open_input, shown_name
from etymon.data.plain_text import read_text
from etymon.data.records import read_csv, read_jsonl, read_parquet, read_tsv
from etymon.errors import EtymonError
from etymon.files import sha256

__all__ = [
    "Boundary", "Document", "documents_fingerprint", "list_files", "read_documents", "source_fingerprint",
]  # fmt: skip

logger = logging.getLogger("etymon.data")

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
Reader = Callable[[io.BufferedReader, str, Reading, Tally], Iterator[Document]]

READERS: dict[str, Reader] = {
    ".txt": read_text,
    ".md": read_text,
    ".jsonl": read_jsonl,
    ".csv": read_csv,
    ".tsv": read_tsv,
    ".parquet": read_parquet,
}


def read_documents(
    paths: Paths,
    *,
    documents: Boundary = "file",
    column: str = "text",
    errors: Errors = "strict",
    max_document: int = MAX_DOCUMENT,
    format: str | None = None,
    tally: Tally | None = None,
) -> Iterator[Document]:
    """Yield the non-empty documents of files, folders (recursive), globs and standard input ("-"), in sorted
    order and in bounded memory: a long document comes in parts (`Document.more`).

    The options are those of `Reading`. Files may be packed (.gz, .bz2, .xz, .zst). Line ends become "\\n" and a
    byte-order mark is dropped; otherwise the text is untouched.
    """
    reading = Reading(documents, column, errors, max_document, format)
    _check(reading)
    tally = Tally() if tally is None else tally
    found = False
    for path in list_files(paths, format):
        empty = True
        with open_input(path, tally) as stream:
            begun = False
            for document in READERS[_kind(path, format)](stream, shown_name(path), reading, tally):
                if document.more or begun or document.text.strip():
                    empty, found = False, True
                    yield document
                begun = document.more
        if empty:
            logger.warning("%s holds no text; it is skipped", shown_name(path))
    if not found:
        skipped = f" (but for {tally.skipped:,} documents left out)" if tally.skipped else ""
        raise EtymonError(
            f"no text in {_show(paths)}: every file is empty{skipped}; give files that hold text"
        )


def _check(reading: Reading) -> None:
    if reading.documents not in ("file", "blank", "line"):
        raise EtymonError(f"documents must be 'file', 'blank' or 'line', not {reading.documents!r}")
    if reading.errors not in ("strict", "replace", "skip"):
        raise EtymonError(f"errors must be 'strict', 'replace' or 'skip', not {reading.errors!r}")
    if reading.max_document < 1:
        raise EtymonError(f"the longest record must be at least one byte, not {reading.max_document}")


def list_files(paths: Paths, format: str | None = None) -> list[Path]:
    """The readable text files that `paths` (files, folders, globs) stand for: sorted, each once.

    With a `format` any file can be read as such; standard input has no name and needs one.
    """
    files: dict[Path, None] = {}
    for entry in _as_list(paths):
        path = Path(entry).expanduser()
        if path == STANDARD_INPUT:
            _kind(path, format)
            inside = [path]
        elif path.is_dir():
            inside = sorted(item for item in path.rglob("*") if item.is_file() and _is_known(item))
            if not inside:
                raise EtymonError(f"no text files in the folder {path}: it needs {_suffixes()} files")
        elif path.is_file():
            if format is None and not _is_known(path):
                raise EtymonError(
                    f"cannot read {path}: known text files are {_suffixes()} (also with {', '.join(UNPACKERS)}); "
                    "name another file's kind with --format"
                )
            inside = [path]
        elif any(mark in str(path) for mark in "*?["):
            matches = (Path(match) for match in glob.glob(str(path), recursive=True))
            inside = sorted(item for item in matches if item.is_file() and (format or _is_known(item)))
            if not inside:
                raise EtymonError(f"no text files match {path}")
        else:
            raise EtymonError(f"no such file or folder: {path}")
        files.update(dict.fromkeys(inside))
    if not files:
        raise EtymonError("no text files were given")
    return list(files)


def source_fingerprint(
    paths: Paths,
    *,
    documents: Boundary = "file",
    column: str = "text",
    errors: Errors = "strict",
    max_document: int = MAX_DOCUMENT,
    format: str | None = None,
    tally: Tally | None = None,
) -> str:
    """A digest that changes when any file's name or content, or the way to read it, changes.

    A file that the tally knows is not read again as long as its size and time of change are the same.
    """
    reading = Reading(documents, column, errors, max_document, format)
    tally = Tally() if tally is None else tally
    rows = []
    for path in list_files(paths, format):
        identity = _identify(path, tally)
        rows.append((path.name, identity.bytes, identity.sha256))
    usual = asdict(Reading())
    other = {name: value for name, value in asdict(reading).items() if value != usual[name]}
    other = {name: value for name, value in other.items() if name not in ("documents", "column")}
    return hashlib.sha256(
        json.dumps([documents, column, rows, *([other] if other else [])]).encode()
    ).hexdigest()


def _identify(path: Path, tally: Tally) -> Identity:
    if path == STANDARD_INPUT:
        if str(path) not in tally.files:
            raise EtymonError("standard input can be read only once: write it to a file first")
        return tally.files[str(path)]
    key, status = str(path.resolve()), path.stat()
    known = tally.files.get(key)
    if known is None or (known.bytes, known.mtime_ns) != (status.st_size, status.st_mtime_ns):
        try:
            tally.files[key] = Identity(status.st_size, status.st_mtime_ns, sha256(path))
        except OSError as error:
            raise EtymonError(f"cannot read {path}: {error.strerror or error}") from error
    return tally.files[key]


def documents_fingerprint(documents: Iterable[Document]) -> str:
    """The same for documents in memory: a digest of their texts in order."""
    digest, text = hashlib.sha256(), hashlib.sha256()
    begun = False
    for document in documents:
        text.update(document.text.encode())
        begun = begun or bool(document.text)
        if begun and not document.more:
            digest.update(text.digest())
            text, begun = hashlib.sha256(), False
    return digest.hexdigest()


def _kind(path: Path, format: str | None) -> str:
    """What chooses the reader: notes.txt.gz is read like notes.txt."""
    if format is not None:
        kind = "." + format.removeprefix(".")
        if kind not in READERS or (path == STANDARD_INPUT and kind == ".parquet"):
            known = ", ".join(name[1:] for name in READERS)
            raise EtymonError(f"cannot read {shown_name(path)} as {format!r}; formats are {known}")
        return kind
    if path == STANDARD_INPUT:
        raise EtymonError(
            "standard input has no name that says what it is: add --format txt, jsonl, csv or tsv"
        )
    suffix = path.suffix.lower()
    return path.with_suffix("").suffix.lower() if suffix in UNPACKERS else suffix


def _is_known(path: Path) -> bool:
    return _kind(path, None) in READERS


def _as_list(paths: Paths) -> list[str | os.PathLike[str]]:
    return [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)


def _show(paths: Paths) -> str:
    return ", ".join(str(path) for path in _as_list(paths))


def _suffixes() -> str:
    return ", ".join(READERS)
