"""Where text comes from: something that can be read again and recognised again without reading it twice."""

from __future__ import annotations

import glob
import hashlib
import io
import json
import logging
import lzma
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, pairwise
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

from etymon.errors import EtymonError
from etymon.settings.reading import TextSettings
from etymon.text.reading import (
    BUFFER,
    READERS,
    RECORDS,
    SURROGATE,
    Document,
    Reading,
    Record,
    record_lines,
)
from etymon.text.remote import RemoteFile, is_remote

if TYPE_CHECKING:
    from etymon.text.languages import LanguageText

logger = logging.getLogger("etymon.text")

SPREADSHEETS = (".xlsx", ".xls", ".ods", ".et", ".numbers")
OFFICE_DOCUMENTS = (".docx", ".doc", ".wps", ".odt", ".rtf", ".pdf", ".epub", ".pptx", ".ppt")
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
    """Files, folders and globs, also behind URLs; "-" is standard input, which can be read once. Options as
    in `Reading`.

    Line ends become "\\n" and a byte-order mark is dropped; otherwise the text is untouched.
    """

    paths: Sequence[str | os.PathLike[str]]
    bytes_read: int = field(default=0, init=False)
    """What was read so far, as it is on the disk."""
    files: dict[str, dict[str, Any]] = field(default_factory=dict, init=False)
    """Files as they were when they were read: size, time of change and checksum by path."""
    _remote_lists: dict[str, list[RemoteFile]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def description(self) -> str:
        return ", ".join(str(RemoteFile(str(path)) if is_remote(path) else path) for path in self.paths)

    def documents(self) -> Iterator[Document]:
        """The documents that are not empty, file by file; long ones in parts (`Document.more`)."""
        self.bytes_read = self.skipped = 0
        has_text = False
        for path in self.list_files():
            is_empty, in_document = True, False
            blank: list[Document] = []  # the parts of a document that has shown nothing but white space yet
            with self._open(path) as stream:
                for document in READERS[self._kind(path)](stream, _display_name(path), self):
                    blank.append(document)
                    if in_document or document.text.strip():
                        is_empty, in_document = False, document.more
                        yield from blank
                    if in_document or not document.more:
                        blank = []
            has_text |= not is_empty
            if is_empty:
                logger.warning("%s holds no text; it is skipped", _display_name(path))
        if not has_text:
            skipped = f" (but for {self.skipped:,} documents left out)" if self.skipped else ""
            raise EtymonError(
                f"no text in {self.description}: every file is empty{skipped}; give files that hold text",
                code="too-little-text",
            )

    def records(self) -> Iterator[Record]:
        """Every record of .jsonl, .csv and .tsv files, with all its columns."""
        self.bytes_read = self.skipped = 0
        for path in self.list_files():
            if (kind := self._kind(path)) not in RECORDS:
                raise EtymonError(
                    f"{_display_name(path)} has no named columns: give a {', '.join(RECORDS)} file"
                )
            with self._open(path) as stream:
                yield from RECORDS[kind](stream, _display_name(path), self)

    def lines(self) -> Iterator[tuple[str, str]]:
        """Place and text of every line, whatever the files are; what follows the last line end is one if it
        is not empty."""
        for path in self.list_files():
            with self._open(path) as stream:
                lines = chain(record_lines(stream, _display_name(path), self), [None])
                for line, following in pairwise(lines):
                    if line and (following or line[1]):
                        yield line

    def fingerprint(self) -> str:
        """Changes when any file's name or content, or the way to read it, changes.

        A file that is known is not read again as long as its size and time of change are the same.
        """
        options = [self.boundary, self.column, self.errors, self.max_document, self.format]
        if self.encoding != "utf-8":  # stores of earlier releases do not say it
            options.append(self.encoding)
        rows = [(path.name, self._checksum(path)) for path in self.list_files()]
        return hashlib.sha256(json.dumps([options, rows]).encode()).hexdigest()

    def size(self) -> int | None:
        """Bytes on the disk; None if standard input is among them, or a file of unknown size."""
        paths = self.list_files()
        if STANDARD_INPUT in paths:
            return None
        sizes = [path.size() if isinstance(path, RemoteFile) else path.stat().st_size for path in paths]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    def list_files(self) -> list[Path | RemoteFile]:
        """The readable files that `paths` stand for: those of a folder or glob sorted, each once."""
        files: dict[Path | RemoteFile, None] = {}
        for entry in self.paths:
            if is_remote(entry):
                files.update(dict.fromkeys(self._list_remote(str(entry))))
                continue
            path = Path(entry).expanduser()
            if path == STANDARD_INPUT or path.is_file():
                self._kind(path)  # refuses what cannot be read
                files[path] = None
                continue
            candidates: Iterable[Path] = ()
            missing = f"no such file or folder: {path}"
            if path.is_dir():
                candidates = path.rglob("*")
                missing = f"no text files in the folder {path}: it needs {', '.join(READERS)} files"
            elif any(mark in str(path) for mark in "*?["):
                candidates = map(Path, glob.glob(str(path), recursive=True))
                missing = f"no text files match {path}"
            inside = sorted(file for file in candidates if file.is_file() and self._is_text(file))
            if not inside:
                raise EtymonError(missing, code="no-file")
            files.update(dict.fromkeys(inside))
        if not files:
            raise EtymonError("no text files were given")
        return list(files)

    def _list_remote(self, url: str) -> list[RemoteFile]:
        if url not in self._remote_lists:  # once: every list is a request
            files = RemoteFile(url).list_files()
            if files is None:
                self._kind(RemoteFile(url))  # refuses what cannot be read
                files = [RemoteFile(url)]
            else:
                files = [file for file in files if self._is_text(file)]
            if not files:
                raise EtymonError(f"no text files at {RemoteFile(url)}: it needs {', '.join(READERS)} files")
            self._remote_lists[url] = files
        return self._remote_lists[url]

    def _is_text(self, file: Path | RemoteFile) -> bool:
        """Whether a file in a folder is read: with a format, all that are not hidden."""
        return not file.name.startswith(".") if self.format else suffix_of(file) in READERS

    def _kind(self, path: Path | RemoteFile) -> str:
        """The suffix that chooses the reader."""
        if self.format is None:
            if path == STANDARD_INPUT:
                raise EtymonError(
                    "standard input has no name: say that it is txt, jsonl, csv or tsv (--format)"
                )
            refuse_office_files(path)
            if suffix_of(path) not in READERS:
                raise EtymonError(
                    f"cannot read {path}: known text files are {', '.join(READERS)} (also with "
                    f"{', '.join(PACKINGS)}); rename it (etymon prepare and tokenizer also take --format)"
                )
            return suffix_of(path)
        kind = "." + self.format.removeprefix(".")
        if kind not in READERS or (path == STANDARD_INPUT and kind == ".parquet"):
            formats = ", ".join(name[1:] for name in READERS)
            raise EtymonError(f"cannot read {_display_name(path)} as {self.format!r}; formats are {formats}")
        return kind

    @contextmanager
    def _open(self, path: Path | RemoteFile) -> Iterator[IO[bytes]]:
        """The unpacked bytes of a file or of standard input; when all of it was read, `files` has its
        checksum."""
        packing = PACKINGS.get(path.suffix.lower())
        try:
            with _open_bytes(path) as (source, stamp):
                hashing = _HashingReader(source, path, self)
                raw: Any = io.BufferedReader(hashing, BUFFER)
                if packing == "xz":  # which Arrow does not know, as Python does not know .zst
                    with lzma.open(raw) as stream:
                        yield io.BufferedReader(stream, BUFFER)
                elif packing:
                    import pyarrow

                    unpacked: Any = pyarrow.CompressedInputStream(pyarrow.PythonFile(raw, mode="r"), packing)
                    yield io.BufferedReader(unpacked, BUFFER)
                else:
                    yield raw
                while raw.read(BUFFER):  # what follows the last record belongs to the file too
                    pass
                self.files[_key(path)] = {**stamp, "sha256": hashing.digest.hexdigest()}
        except (OSError, EOFError, lzma.LZMAError) as error:
            if packing and getattr(error, "errno", None) is None:
                raise EtymonError(f"{path} is damaged ({error}): compress it again with {packing}") from error
            why = getattr(error, "strerror", None) or error
            raise EtymonError(f"cannot read {_display_name(path)}: {why}") from error

    def _checksum(self, path: Path | RemoteFile) -> str:
        key = _key(path)
        if path == STANDARD_INPUT:
            if key not in self.files:
                raise EtymonError("standard input can be read only once: write it to a file first")
        elif key not in self.files or not _stamp(path).items() <= self.files[key].items():
            with self._open(path):
                pass  # it is read to its end
        return str(self.files[key]["sha256"])


@contextmanager
def _open_bytes(path: Path | RemoteFile) -> Iterator[tuple[Any, dict[str, Any]]]:
    """The packed bytes, and size and version of what is opened."""
    if isinstance(path, RemoteFile):
        stamp = path.stamp()
        with path.open() as reader:
            yield reader, stamp
    elif path == STANDARD_INPUT:
        yield sys.stdin.buffer, {}
    else:
        with open(path, "rb", buffering=0) as source:
            yield source, _stamp(source.fileno())


class _HashingReader(io.RawIOBase):
    """Counts and hashes the bytes that pass."""

    def __init__(self, source: Any, path: Path | RemoteFile, files: TextFiles) -> None:
        self.source, self.files, self.digest = source, files, hashlib.sha256()
        self.path = path if isinstance(path, Path) and path.is_file() else None
        """Of a file that can also be opened elsewhere."""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self.source.readinto(buffer) or 0
        self.digest.update(memoryview(buffer)[:count])
        self.files.bytes_read += count
        return count


def refuse_office_files(path: Path | RemoteFile) -> None:
    """Refuses what a spreadsheet or a word processor keeps for itself, with the way out."""
    if suffix_of(path) in SPREADSHEETS:
        raise EtymonError(
            f"{path} is a spreadsheet's own file: open it there, save it as CSV (UTF-8), and give that",
            code="broken-table",
        )
    if suffix_of(path) in OFFICE_DOCUMENTS:
        raise EtymonError(
            f"{path} is a document with its layout: save it as plain text (.txt, UTF-8), and give that"
        )


def suffix_of(path: Path | RemoteFile) -> str:
    """notes.txt.gz is read like notes.txt."""
    if path.suffix.lower() not in PACKINGS:
        return path.suffix.lower()
    return (path.stem_suffix if isinstance(path, RemoteFile) else path.with_suffix("").suffix).lower()


def _display_name(path: Path | RemoteFile) -> str:
    return "standard input" if path == STANDARD_INPUT else str(path)


def _key(path: Path | RemoteFile) -> str:
    return path.key if isinstance(path, RemoteFile) else str(path.resolve())


def _stamp(file: Path | RemoteFile | int) -> dict[str, Any]:
    if isinstance(file, RemoteFile):
        return file.stamp()
    status = os.stat(file)
    return {"bytes": status.st_size, "mtime_ns": status.st_mtime_ns}


@dataclass(frozen=True)
class PreparedText:
    """A token store that `etymon prepare` made: there is no text in it, only tokens."""

    folder: Path
    text: str = ""
    """What it was made of, where a run makes it for another run: the settings are then those it was made
    with."""

    @property
    def description(self) -> str:
        return self.text or f"the prepared text in {self.folder}"

    def documents(self) -> Iterable[Document]:
        raise TypeError("a prepared text holds tokens, not documents")

    def fingerprint(self) -> str:
        from etymon.text.store import TokenStore

        return str(TokenStore.open(self.folder).description["source"])


def text_source(
    paths: Sequence[str], settings: TextSettings | None = None
) -> TextFiles | PreparedText | LanguageText:
    """Files to be read as the settings say, by language if they are named so, or the prepared text if that is
    what the path names."""
    from etymon.text.languages import LanguageText, split_languages

    if (groups := split_languages(paths)) is not None:
        temperature = getattr(settings, "language_temperature", None)
        sources: dict[str, Any] = {code: text_source(group, settings) for code, group in groups.items()}
        return LanguageText(sources, 1.0 if temperature is None else temperature)
    if str(STANDARD_INPUT) in paths:
        raise EtymonError(
            "standard input can be read only once: write it to a file, or make a store of it with "
            "etymon prepare --data - --format txt"
        )
    stores = [path for path in paths if (Path(path) / "store.json").is_file()]
    if not stores:
        settings = settings or TextSettings()
        return TextFiles(
            paths, boundary=settings.documents, column=settings.column, **settings.reader_options
        )
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
