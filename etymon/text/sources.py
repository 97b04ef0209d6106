"""Where text comes from: something that can be read again and recognised again without reading it twice."""

from __future__ import annotations

import glob
import hashlib
import io
import json
import logging
import lzma
import os
import pickle
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import chain, pairwise
from pathlib import Path
from typing import IO, Any, Protocol

from etymon.errors import EtymonError
from etymon.text.reading import (
    BUFFER,
    READERS,
    RECORDS,
    SURROGATE,
    Boundary,
    Document,
    Errors,
    Reading,
    Record,
    record_lines,
)
from etymon.text.sentences import cut_texts

logger = logging.getLogger("etymon.text")

STANDARD_INPUT = Path("-")
ENOUGH_BYTES = 200_000_000  # of text are enough to train a tokenizer on
MEASURED_BYTES = 4_000_000  # of text are enough to measure it with
BLOCK = 1 << 12  # characters that are sampled or left together
HELD_OUT = 20  # of so many blocks one is not trained on, but measured with
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
                f"no text in {self.description}: every file is empty{skipped}; give files that hold text"
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
        rows = [(path.name, self._checksum(path)) for path in self.list_files()]
        return hashlib.sha256(json.dumps([options, rows]).encode()).hexdigest()

    def size(self) -> int | None:
        """Bytes on the disk; None if standard input is among them."""
        paths = self.list_files()
        return None if STANDARD_INPUT in paths else sum(path.stat().st_size for path in paths)

    def list_files(self) -> list[Path]:
        """The readable files that `paths` stand for: those of a folder or glob sorted, each once."""
        files: dict[Path, None] = {}
        for path in (Path(entry).expanduser() for entry in self.paths):
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
            # With a format, all that are not hidden.
            inside = sorted(
                file
                for file in candidates
                if file.is_file()
                and (not file.name.startswith(".") if self.format else suffix_of(file) in READERS)
            )
            if not inside:
                raise EtymonError(missing)
            files.update(dict.fromkeys(inside))
        if not files:
            raise EtymonError("no text files were given")
        return list(files)

    def _kind(self, path: Path) -> str:
        """The suffix that chooses the reader."""
        if self.format is None:
            if path == STANDARD_INPUT:
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
        if kind not in READERS or (path == STANDARD_INPUT and kind == ".parquet"):
            formats = ", ".join(name[1:] for name in READERS)
            raise EtymonError(f"cannot read {_display_name(path)} as {self.format!r}; formats are {formats}")
        return kind

    @contextmanager
    def _open(self, path: Path) -> Iterator[IO[bytes]]:
        """The unpacked bytes of a file or of standard input; when all of it was read, `files` has its
        checksum."""
        packing = PACKINGS.get(path.suffix.lower())
        is_file = path != STANDARD_INPUT
        try:
            with open(path, "rb", buffering=0) if is_file else nullcontext(sys.stdin.buffer) as source:
                stamp = _stamp(source.fileno()) if is_file else {}
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
                self.files[str(path.resolve())] = {**stamp, "sha256": hashing.digest.hexdigest()}
        except (OSError, EOFError, lzma.LZMAError) as error:
            if packing and getattr(error, "errno", None) is None:
                raise EtymonError(f"{path} is damaged ({error}): compress it again with {packing}") from error
            why = getattr(error, "strerror", None) or error
            raise EtymonError(f"cannot read {_display_name(path)}: {why}") from error

    def _checksum(self, path: Path) -> str:
        key = str(path.resolve())
        if path == STANDARD_INPUT:
            if key not in self.files:
                raise EtymonError("standard input can be read only once: write it to a file first")
        elif not _stamp(path).items() <= self.files.get(key, {}).items():
            with self._open(path):
                pass  # it is read to its end
        return str(self.files[key]["sha256"])


class _HashingReader(io.RawIOBase):
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


def suffix_of(path: Path) -> str:
    """notes.txt.gz is read like notes.txt."""
    return (path.with_suffix("") if path.suffix.lower() in PACKINGS else path).suffix.lower()


def _display_name(path: Path) -> str:
    return "standard input" if path == STANDARD_INPUT else str(path)


def _stamp(file: Path | int) -> dict[str, int]:
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


# ---------------------------------------------------------------- a sample of a text of any size


class TextSample:
    """Texts, as often as they are read: every n-th block of those offered, where n doubles whenever they
    outgrow the limit. So any number of blocks can be offered without knowing it before, and those kept are
    evenly spread."""

    def __init__(self, file: IO[bytes], limit: int) -> None:
        self._file, self._limit = file, limit
        self._kept: list[tuple[int, int]] = []  # where a block is, and bytes of text in it
        self._every, self._offered = 1, 0
        self.size = 0
        """Bytes of text."""

    def offer(self, block: list[str]) -> None:
        """Keeps a block of texts, or not."""
        if self._offered % self._every == 0:
            self._kept.append((self._file.seek(0, 2), sum(len(text.encode()) for text in block)))
            pickle.dump(block, self._file)
            self.size += self._kept[-1][1]
            while self.size > self._limit and len(self._kept) > 1:
                del self._kept[1::2]
                self._every *= 2
                self.size = sum(size for _, size in self._kept)
        self._offered += 1

    def __iter__(self) -> Iterator[str]:
        for place, _ in self._kept:
            self._file.seek(place)
            yield from pickle.load(self._file)


@contextmanager
def sample_texts(
    documents: Iterable[Document],
    limit: int = ENOUGH_BYTES,
    *,
    hold_out: bool = True,
    progress: Callable[[], None] = lambda: None,
) -> Iterator[tuple[TextSample, TextSample]]:
    """Texts to train a tokenizer on, kept on the disk, and others to measure it with (none if there are
    few). Of a long text parts are taken, not just its beginning."""
    with tempfile.TemporaryFile(prefix="etymon-") as file:
        training, measuring = TextSample(file, limit), TextSample(file, MEASURED_BYTES)
        number = size = 0
        block: list[str] = []
        try:
            for piece in chain(cut_texts((document.text for document in documents), BLOCK), [None]):
                if piece:
                    block.append(piece)
                    size += len(piece)
                if block and (size >= BLOCK or piece is None):
                    is_held_out = hold_out and number % HELD_OUT == HELD_OUT // 2
                    (measuring if is_held_out else training).offer(block)
                    if number % 64 == 0:
                        progress()
                    number, block, size = number + 1, [], 0
            file.flush()
        except OSError as error:
            raise EtymonError(
                f"cannot write to the temporary folder {tempfile.gettempdir()} ({error.strerror}): set "
                "TMPDIR to one "
                "with more room, or learn from less text (etymon tokenizer --limit)"
            ) from error
        yield training, measuring
