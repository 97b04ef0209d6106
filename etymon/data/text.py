"""Reading a user's text files as a stream of documents, with errors that say where and what to do."""

from __future__ import annotations

import glob
import gzip
import hashlib
import json
import logging
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from etymon.errors import EtymonError
from etymon.files import sha256

logger = logging.getLogger("etymon.data")

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
Boundary = Literal["file", "blank", "line"]

SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Document:
    """One text that belongs together, and where it came from (for messages)."""

    text: str
    source: str = ""


def read_documents(paths: Paths, *, documents: Boundary = "file", column: str = "text") -> Iterator[Document]:
    """Yield the non-empty documents of files, folders (recursive) and globs, in sorted order.

    `documents` says what ends a document in a plain text file: the file, a blank line or every line.
    A record of a .jsonl file is always one document, taken from `column`. Files may be gzipped.
    Line ends become "\\n" and a byte-order mark is dropped; otherwise the text is untouched.
    """
    if documents not in ("file", "blank", "line"):
        raise EtymonError(f"documents must be 'file', 'blank' or 'line', not {documents!r}")
    found = False
    for path in list_files(paths):
        empty = True
        for document in READERS[_kind(path)](path, documents, column):
            if document.text.strip():
                empty, found = False, True
                yield document
        if empty:
            logger.warning("%s holds no text; it is skipped", path)
    if not found:
        raise EtymonError(f"no text in {_show(paths)}: every file is empty; give files that hold text")


def list_files(paths: Paths) -> list[Path]:
    """The readable text files that `paths` (files, folders, globs) stand for: sorted, each once."""
    files: dict[Path, None] = {}
    for entry in _as_list(paths):
        path = Path(entry).expanduser()
        if path.is_dir():
            inside = sorted(item for item in path.rglob("*") if item.is_file() and _kind(item) in READERS)
            if not inside:
                raise EtymonError(f"no text files in the folder {path}: it needs {_suffixes()} files")
        elif path.is_file():
            if _kind(path) not in READERS:
                raise EtymonError(f"cannot read {path}: known text files are {_suffixes()} (also with .gz)")
            inside = [path]
        elif any(mark in str(path) for mark in "*?["):
            matches = (Path(match) for match in glob.glob(str(path), recursive=True))
            inside = sorted(item for item in matches if item.is_file() and _kind(item) in READERS)
            if not inside:
                raise EtymonError(f"no text files match {path}")
        else:
            raise EtymonError(f"no such file or folder: {path}")
        files.update(dict.fromkeys(inside))
    if not files:
        raise EtymonError("no text files were given")
    return list(files)


def source_fingerprint(paths: Paths, *, documents: Boundary = "file", column: str = "text") -> str:
    """A digest that changes when any file's name or content, or the way to read it, changes."""
    rows = [(path.name, path.stat().st_size, sha256(path)) for path in list_files(paths)]
    return hashlib.sha256(json.dumps([documents, column, rows]).encode()).hexdigest()


def documents_fingerprint(documents: Iterable[Document]) -> str:
    """The same for documents in memory: a digest of their texts in order."""
    digest = hashlib.sha256()
    for document in documents:
        if document.text:
            digest.update(hashlib.sha256(document.text.encode()).digest())
    return digest.hexdigest()


# ---------------------------------------------------------------- one reader a file format


def _read_text(path: Path, documents: str, column: str) -> Iterator[Document]:
    if documents == "file":
        with _open(path) as file:
            data = file.read()
        text = _decode(data, path, 0, 1)
        yield Document(text.replace("\r\n", "\n").replace("\r", "\n"), str(path))
        return
    block: list[str] = []
    start = 1
    for number, line in _lines(path):
        if documents == "line":
            yield Document(line, f"{path}:{number}")
        elif line.strip():
            start = start if block else number
            block.append(line)
        elif block:
            yield Document("\n".join(block), f"{path}:{start}")
            block = []
    if block:
        yield Document("\n".join(block), f"{path}:{start}")


def _read_jsonl(path: Path, documents: str, column: str) -> Iterator[Document]:
    for number, line in _lines(path):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise EtymonError(
                f"{path}, line {number}: not valid JSON ({error.msg} at column {error.colno}); "
                "a .jsonl file holds one JSON object a line"
            ) from error
        if not isinstance(record, dict):
            raise EtymonError(f'{path}, line {number}: expected an object such as {{"{column}": "..."}}')
        if column not in record:
            present = ", ".join(map(repr, record)) or "none"
            raise EtymonError(
                f"{path}, line {number}: no column {column!r}; columns there: {present}; name the right one"
            )
        if not isinstance(record[column], str):
            kind = type(record[column]).__name__
            raise EtymonError(f"{path}, line {number}: column {column!r} holds a {kind}, not a text")
        # JSON can spell half of a surrogate pair, which is no character and cannot be written as UTF-8.
        yield Document(SURROGATE.sub("\ufffd", record[column]), f"{path}:{number}")


READERS: dict[str, Callable[[Path, str, str], Iterator[Document]]] = {
    ".txt": _read_text,
    ".md": _read_text,
    ".jsonl": _read_jsonl,
}


# ---------------------------------------------------------------- bytes to text


@contextmanager
def _open(path: Path) -> Iterator[IO[bytes]]:
    """A binary file, gunzipped if need be, whose failures name the file."""
    try:
        with gzip.open(path) if path.suffix.lower() == ".gz" else open(path, "rb") as file:
            yield file  # type: ignore[misc]
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise EtymonError(f"{path} is a damaged gzip file ({error}); compress it again") from error
    except OSError as error:
        raise EtymonError(f"cannot read {path}: {error.strerror or error}") from error


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Numbered lines without their ends, decoded one by one so that memory stays bounded."""
    offset = 0
    with _open(path) as file:
        for number, raw in enumerate(file, start=1):
            yield number, _decode(raw, path, offset, number).rstrip("\r\n")
            offset += len(raw)


def _decode(data: bytes, path: Path, offset: int, line: int) -> str:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line += data.count(b"\n", 0, error.start)
        guess = "UTF-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "LATIN1"
        raise EtymonError(
            f"{path} is not UTF-8 at byte {offset + error.start} (line {line}); "
            f"convert it, e.g. iconv -f {guess} -t UTF-8 {path.name} > new.txt"
        ) from error
    return text.removeprefix("\ufeff") if offset == 0 else text


def _kind(path: Path) -> str:
    """The suffix that chooses the reader: notes.txt.gz is read like notes.txt."""
    suffix = path.suffix.lower()
    return path.with_suffix("").suffix.lower() if suffix == ".gz" else suffix


def _as_list(paths: Paths) -> list[str | os.PathLike[str]]:
    return [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)


def _show(paths: Paths) -> str:
    return ", ".join(str(path) for path in _as_list(paths))


def _suffixes() -> str:
    return ", ".join(READERS)
