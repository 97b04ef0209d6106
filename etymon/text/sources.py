"""Where text comes from: something that can be read again and recognised again without reading it twice."""

from __future__ import annotations

import glob
import hashlib
import io
import json
import logging
import lzma
import os
import platform
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import IO, Any, Protocol

from etymon.errors import EtymonError
from etymon.text.prose import stdlib_documents
from etymon.text.reading import BUFFER, SURROGATE, Boundary, Document, Errors, Reading, Record, record_lines
from etymon.text.records import READERS, RECORDS

logger = logging.getLogger("etymon.text")

STANDARD_INPUT = Path("-")
PACKINGS = {".gz": "gzip", ".bz2": "bz2", ".xz": "xz", ".zst": "zstd"}


class TextSource(Protocol):
    @property
    def description(self) -> str:
        """What the text is, in words."""

    def documents(self) -> Iterable[Document]:
        """The documents, from the beginning; may be asked for more than once."""

    def fingerprint(self) -> str:
        """Changes when the text does."""


@dataclass
class TextFiles(Reading):
    """Files, folders and globs; "-" is standard input, which can be read once. Options as in `Reading`.

    Line ends become "\\n" and a byte-order mark is dropped; otherwise the text is untouched.
    """

    paths: Sequence[str | os.PathLike[str]]
    bytes_read: int = field(default=0, init=False)
    """What was read so far, as it is on the disk."""
    files: dict[str, dict[str, Any]] = field(default_factory=dict, init=False)
    """Files as they were when they were read: size, time of change and checksum by path."""

    @property
    def description(self) -> str:
        return ", ".join(map(str, self.paths))

    def documents(self) -> Iterator[Document]:
        """The documents that are not empty, file by file; long ones in parts (`Document.more`)."""
        self.bytes_read = self.skipped = 0
        found = False
        for path in self.listed():
            name, empty, begun = _shown(path), True, False
            blank: list[Document] = []  # the parts of a document that has shown nothing but white space yet
            with self._open(path) as stream:
                for document in READERS[self._kind(path)](stream, name, self):
                    blank.append(document)
                    if begun or document.text.strip():
                        empty, found = False, True
                        yield from blank
                        begun = document.more
                    if begun or not document.more:
                        blank = []
            if empty:
                logger.warning("%s holds no text; it is skipped", name)
        if not found:
            skipped = f" (but for {self.skipped:,} documents left out)" if self.skipped else ""
            raise EtymonError(
                f"no text in {self.description}: every file is empty{skipped}; give files that hold text"
            )

    def records(self) -> Iterator[Record]:
        """Every record of .jsonl, .csv and .tsv files, with all its columns."""
        self.bytes_read = self.skipped = 0
        for path in self.listed():
            kind, name = self._kind(path), _shown(path)
            if kind not in RECORDS:
                raise EtymonError(f"{name} has no named columns: give a {', '.join(RECORDS)} file")
            with self._open(path) as stream:
                yield from RECORDS[kind](stream, name, self)

    def lines(self) -> Iterator[tuple[str, str]]:
        """Place and text of every line, whatever the files are; what follows the last line end is one if it is not empty."""
        for path in self.listed():
            with self._open(path) as stream:
                place, text = "", None
                for after in record_lines(stream, _shown(path), self):
                    if text is not None:
                        yield place, text
                    place, text = after
                if text:
                    yield place, text

    def fingerprint(self) -> str:
        """Changes when any file's name or content, or the way to read it, changes.

        A file that is known is not read again as long as its size and time of change are the same.
        """
        options = [self.boundary, self.column, self.errors, self.max_document, self.format]
        rows = [(path.name, self._checksum(path)) for path in self.listed()]
        return hashlib.sha256(json.dumps([options, rows]).encode()).hexdigest()

    def size(self) -> int | None:
        """Bytes on the disk; None if standard input is among them."""
        paths = self.listed()
        return None if STANDARD_INPUT in paths else sum(path.stat().st_size for path in paths)

    def listed(self) -> list[Path]:
        """The readable files that `paths` stand for: those of a folder or glob sorted, each once."""
        found: dict[Path, None] = {}
        for path in (Path(entry).expanduser() for entry in self.paths):
            if path.is_dir():
                inside = _known(path.rglob("*"), self.format)
                missing = f"no text files in the folder {path}: it needs {', '.join(READERS)} files"
            elif path == STANDARD_INPUT or path.is_file():
                self._kind(path)  # refuses what cannot be read
                inside, missing = [path], ""
            elif any(mark in str(path) for mark in "*?["):
                inside = _known(map(Path, glob.glob(str(path), recursive=True)), self.format)
                missing = f"no text files match {path}"
            else:
                inside, missing = [], f"no such file or folder: {path}"
            if not inside:
                raise EtymonError(missing)
            found.update(dict.fromkeys(inside))
        if not found:
            raise EtymonError("no text files were given")
        return list(found)

    def _kind(self, path: Path) -> str:
        """What chooses the reader."""
        standard = path == STANDARD_INPUT
        if self.format is None:
            if standard:
                raise EtymonError(
                    "standard input has no name: say that it is txt, jsonl, csv or tsv (--format)"
                )
            if suffix_of(path) not in READERS:
                raise EtymonError(
                    f"cannot read {path}: known text files are {', '.join(READERS)} (also with "
                    f"{', '.join(PACKINGS)}); rename it (etymon prepare and tokenizer also take --format)"
                )
            return suffix_of(path)
        kind = "." + self.format.removeprefix(".")
        if kind not in READERS or (standard and kind == ".parquet"):
            known = ", ".join(name[1:] for name in READERS)
            raise EtymonError(f"cannot read {_shown(path)} as {self.format!r}; formats are {known}")
        return kind

    @contextmanager
    def _open(self, path: Path) -> Iterator[IO[bytes]]:
        """The unpacked bytes of a file or of standard input; when all of it was read, the file is known."""
        packing = PACKINGS.get(path.suffix.lower())
        standard = path == STANDARD_INPUT
        try:
            with nullcontext(sys.stdin.buffer) if standard else open(path, "rb", buffering=0) as source:
                stamp = {} if standard else _stamp(source.fileno())
                watched = _Watched(source, path, self)
                raw: Any = io.BufferedReader(watched, BUFFER)
                yield io.BufferedReader(_unpacked(raw, packing), BUFFER) if packing else raw
                while raw.read(BUFFER):  # what follows the last record belongs to the file too
                    pass
                self.files[str(path.resolve())] = {**stamp, "sha256": watched.digest.hexdigest()}
        except (OSError, EOFError, lzma.LZMAError) as error:
            if packing and getattr(error, "errno", None) is None:
                raise EtymonError(f"{path} is damaged ({error}): compress it again with {packing}") from error
            why = getattr(error, "strerror", None) or error
            raise EtymonError(f"cannot read {_shown(path)}: {why}") from error

    def _checksum(self, path: Path) -> str:
        key = str(path.resolve())
        if path == STANDARD_INPUT:
            if key not in self.files:
                raise EtymonError("standard input can be read only once: write it to a file first")
        elif not _stamp(path).items() <= self.files.get(key, {}).items():
            with self._open(path):
                pass  # it is read to its end
        return str(self.files[key]["sha256"])


class _Watched(io.RawIOBase):
    """Counts and hashes the bytes that pass."""

    def __init__(self, source: Any, path: Path, files: TextFiles) -> None:
        self.source, self.path, self.files, self.digest = source, path, files, hashlib.sha256()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self.source.readinto(buffer) or 0
        self.digest.update(memoryview(buffer)[:count])
        self.files.bytes_read += count
        return count


def _unpacked(raw: Any, packing: str) -> Any:
    if packing == "xz":
        return lzma.LZMAFile(raw)
    import pyarrow

    return pyarrow.CompressedInputStream(pyarrow.PythonFile(raw, mode="r"), packing)


def _known(paths: Iterable[Path], format: str | None = None) -> list[Path]:
    """With a format, all that are not hidden."""
    return sorted(
        path
        for path in paths
        if path.is_file() and (not path.name.startswith(".") if format else suffix_of(path) in READERS)
    )


def suffix_of(path: Path) -> str:
    """notes.txt.gz is read like notes.txt."""
    return (path.with_suffix("") if path.suffix.lower() in PACKINGS else path).suffix.lower()


def _shown(path: Path) -> str:
    return "standard input" if path == STANDARD_INPUT else str(path)


def _stamp(file: Path | int) -> dict[str, int]:
    status = os.stat(file)
    return {"bytes": status.st_size, "mtime_ns": status.st_mtime_ns}


@dataclass(frozen=True)
class PreparedText:
    """A token store that `etymon prepare` made: there is no text in it, only tokens."""

    folder: Path
    text: str = ""
    """What it was made of, if one run makes it for another: that one's settings are then those it was made with."""

    @property
    def description(self) -> str:
        return self.text or f"the prepared text in {self.folder}"

    def documents(self) -> Iterable[Document]:
        raise TypeError("a prepared text holds tokens, not documents")

    def fingerprint(self) -> str:
        from etymon.text.store import TokenStore

        return str(TokenStore.open(self.folder).description["source"])


def text_source(
    paths: Sequence[str], boundary: Boundary = "file", column: str = "text", errors: Errors = "strict"
) -> TextFiles | PreparedText:
    """Files to be read, or the prepared text if that is what the path names."""
    if str(STANDARD_INPUT) in paths:
        raise EtymonError(
            "standard input can be read only once: write it to a file, or make a store of it with "
            "etymon prepare --data - --format txt"
        )
    stores = [path for path in paths if (Path(path) / "store.json").is_file()]
    if not stores:
        return TextFiles(paths, boundary=boundary, column=column, errors=errors)
    if len(paths) > 1:
        raise EtymonError(
            f"{stores[0]} is a prepared text: it cannot be mixed with other data; give it alone"
        )
    return PreparedText(Path(stores[0]))


@dataclass(frozen=True)
class Texts:
    """Texts that the program already holds, one document each."""

    texts: Sequence[str]
    description: str = "texts given by the program"

    def documents(self) -> Iterable[Document]:
        return (Document(SURROGATE.sub("\ufffd", text)) for text in self.texts)

    def fingerprint(self) -> str:
        return hashlib.sha256(json.dumps(list(self.texts)).encode()).hexdigest()


class StandardLibrary:
    """The English prose that ships inside CPython."""

    description = "the prose of the Python standard library (topics and docstrings)"

    @cached_property
    def _documents(self) -> list[Document]:
        # About a megabyte, and parsing the library takes seconds: once is enough.
        return list(stdlib_documents())

    def documents(self) -> Iterable[Document]:
        yield from self._documents  # only when somebody reads

    def fingerprint(self) -> str:
        # The text is a function of the interpreter: no need to read it to know it.
        return f"standard library 1, {platform.python_implementation()} {platform.python_version()}"
