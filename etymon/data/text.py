"""What a text is to this library, and how the bytes of every format become documents, in bounded memory."""

from __future__ import annotations

import codecs
import csv
import io
import json
import pickle
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import IO, Any, Literal

from etymon.data import cutting
from etymon.errors import EtymonError

Boundary = Literal["file", "blank", "line"]
Errors = Literal["strict", "replace", "skip"]
Record = tuple[str, dict[str, Any]]
"""Where it stands, and its values by the names of their columns."""

BUFFER = 1 << 20
HELD = 1 << 24  # bytes of a document that may yet be skipped; more of it waits on the disk
BATCH = 1 << 23  # bytes of a parquet file that are unpacked at once, where its rows allow it
SURROGATE = re.compile("[\ud800-\udfff]")
# To be skipped, bad bytes are first marked: they become lone surrogates, which no good text holds.
MODES: dict[Errors, str] = {"strict": "strict", "replace": "replace", "skip": "surrogateescape"}


@dataclass(frozen=True, slots=True)
class Document:
    """One text that belongs together.

    A long one comes in several, cut where no tokenizer minds: `more` says that it goes on in the next.
    """

    text: str
    more: bool = False


@dataclass(kw_only=True)
class Reading:
    """How files become documents, and how many could not.

    `boundary` says what ends a document in a plain text file: the file, a blank line or every line. Records
    (.jsonl, .csv, .tsv, .parquet) are a document each, taken from `column` and held in memory whole: one of
    more than `max_document` bytes is refused. `errors` says what becomes of bytes that are no UTF-8: an error,
    U+FFFD, or a document left out (and any other record that cannot be read with it). `format` reads every
    file as if its name ended so.
    """

    boundary: Boundary = "file"
    column: str = "text"
    errors: Errors = "strict"
    max_document: int = 32_000_000
    format: str | None = None
    skipped: int = field(default=0, compare=False)
    """Documents left out so far."""

    def __post_init__(self) -> None:
        if self.boundary not in ("file", "blank", "line"):
            raise EtymonError(f"documents must be 'file', 'blank' or 'line', not {self.boundary!r}")
        if self.errors not in MODES:
            raise EtymonError(f"errors must be 'strict', 'replace' or 'skip', not {self.errors!r}")
        if self.max_document < 1:
            raise EtymonError(f"the longest record must be at least one byte, not {self.max_document}")

    def refuse(self, reason: EtymonError) -> None:
        """Raises it, or counts one document more that is left out."""
        if self.errors != "skip":
            raise reason
        self.skipped += 1

    def too_long(self, place: str) -> EtymonError:
        return EtymonError(
            f"{place}: the record is longer than {self.max_document:,} bytes; allow more with --max-document, "
            "or leave such records out with --errors skip"
        )

    def no_column(self, place: str, present: Iterable[str]) -> EtymonError:
        there = ", ".join(map(repr, present)) or "none"
        return EtymonError(
            f"{place}: no column {self.column!r}; columns there: {there}; name the right one with --column"
        )


# ---------------------------------------------------------------- bytes to lines


def _chunks(stream: IO[bytes], name: str, reading: Reading) -> Iterator[str]:
    """The text with "\\n" for every line end; what is no UTF-8 is refused with its byte and line, or marked."""
    newlines = io.IncrementalNewlineDecoder(None, translate=True)
    rest, offset, line, final = b"", 0, 1, False
    while not final:
        data = stream.read(BUFFER)
        final = not data
        data = rest + data
        try:
            text, used = codecs.utf_8_decode(data, MODES[reading.errors], final)
        except UnicodeDecodeError as error:
            utf16 = offset == 0 and data[:2] in (b"\xff\xfe", b"\xfe\xff")
            raise EtymonError(
                f"{name} is not UTF-8 at byte {offset + error.start} (line {line + data.count(10, 0, error.start)}); "
                f"convert it, e.g. iconv -f {'UTF-16' if utf16 else 'LATIN1'} -t UTF-8, or go on with --errors "
                "replace or skip"
            ) from error
        if offset == 0:
            text = text.removeprefix("\ufeff")
        rest, offset, line = data[used:], offset + used, line + data.count(10, 0, used)
        yield newlines.decode(text, final)


def _lines(chunks: Iterator[str]) -> Iterator[tuple[str, bool]]:
    """Every line, and whether it ends here: a long one comes in several parts."""
    rest = ""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split("\n")
        for line in whole:
            yield line, True
        front, rest = cutting.parts(rest)
        for part in front:
            yield part, False
    yield rest, True


# ---------------------------------------------------------------- plain text


def _plain_text(stream: IO[bytes], name: str, reading: Reading) -> Iterator[Document]:
    """The documents of a text file, long ones in parts. Empty ones may be among them."""
    chunks = _chunks(stream, name, reading)
    if reading.boundary == "file":
        found = _whole(chunks)
    elif reading.boundary == "line":
        found = (Document(text, more=not ends) for text, ends in _lines(chunks))
    else:
        found = _blocks(chunks)
    return _without_bad(found, reading) if reading.errors == "skip" else found


def _whole(chunks: Iterator[str]) -> Iterator[Document]:
    rest = ""
    for chunk in chunks:
        front, rest = cutting.parts(rest + chunk)
        for part in front:
            yield Document(part, more=True)
    yield Document(rest)


def _blocks(chunks: Iterator[str]) -> Iterator[Document]:
    block: list[str] = []
    size = 0
    begun = inside = False  # whether some of the document, or of the line, was there before
    for text, ends in _lines(chunks):
        if text.strip() or inside:
            if size > cutting.PART:
                yield Document("".join(block), more=True)
                block, size = [], 0
            block.append("\n" + text if begun and not inside else text)
            size += len(block[-1])
            begun = True
        elif begun:
            yield Document("".join(block))
            block, size, begun = [], 0, False
        inside = not ends
    yield Document("".join(block))


def _without_bad(documents: Iterator[Document], reading: Reading) -> Iterator[Document]:
    """Only documents without marked bytes. A document is held back until its end is known to be good."""
    bad = False
    with tempfile.SpooledTemporaryFile(max_size=HELD) as held:
        for document in documents:
            bad = bad or SURROGATE.search(document.text) is not None
            pickle.dump(document, held)
            if document.more:
                continue
            held.seek(0)
            if bad:
                reading.skipped += 1
            else:
                while (found := pickle.load(held)).more:
                    yield found
                yield found
            held.seek(0)
            held.truncate()
            bad = False


# ---------------------------------------------------------------- records


def record_lines(stream: IO[bytes], name: str, reading: Reading) -> Iterator[tuple[str, str]]:
    """Place and text of every line that is not too long."""
    line: list[str] = []
    size, number = 0, 1
    for text, ends in _lines(_chunks(stream, name, reading)):
        fitted = size <= reading.max_document
        size += len(text.encode("utf-8", "surrogatepass"))
        if size <= reading.max_document:
            line.append(text)
        elif fitted:
            line = []
            reading.refuse(reading.too_long(f"{name}, line {number}"))
        if ends:
            if size <= reading.max_document:
                yield f"{name}, line {number}", "".join(line)
            line, size, number = [], 0, number + 1


def _jsonl(stream: IO[bytes], name: str, reading: Reading) -> Iterator[Document]:
    for place, record in _json_records(stream, name, reading):
        try:
            text = _column(record, place, reading)
        except EtymonError as error:
            reading.refuse(error)
        else:
            # JSON can spell half of a surrogate pair, which is no character and cannot be written as UTF-8.
            yield _document(SURROGATE.sub("\ufffd", text))


def _json_records(stream: IO[bytes], name: str, reading: Reading) -> Iterator[Record]:
    for place, line in record_lines(stream, name, reading):
        if SURROGATE.search(line):
            reading.skipped += 1
        elif line.strip():
            try:
                record = _object(line, place, reading)
            except EtymonError as error:
                reading.refuse(error)
            else:
                yield place, record


def _object(line: str, place: str, reading: Reading) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        why = f"{error.msg} at column {error.colno}" if isinstance(error, ValueError) else "nested too deeply"
        raise EtymonError(
            f"{place}: not valid JSON ({why}); a .jsonl file holds one JSON object a line"
        ) from error
    if not isinstance(record, dict):
        raise EtymonError(f'{place}: expected an object such as {{"{reading.column}": "..."}}')
    return record


def _column(record: dict[str, Any], place: str, reading: Reading) -> str:
    if reading.column not in record:
        raise reading.no_column(place, record)
    text = record[reading.column]
    if not isinstance(text, str):
        raise EtymonError(f"{place}: column {reading.column!r} holds a {type(text).__name__}, not a text")
    return text


def _table(stream: IO[bytes], name: str, reading: Reading, **dialect: Any) -> Iterator[Document]:
    rows = _rows(stream, name, reading, **dialect)
    _, header = next(rows)
    if header and reading.column not in header:
        raise reading.no_column(name, header)
    for _, row in rows:
        if SURROGATE.search(text := row[header.index(reading.column)]):
            reading.skipped += 1
        else:
            yield _document(text)


def _table_records(stream: IO[bytes], name: str, reading: Reading, **dialect: Any) -> Iterator[Record]:
    rows = _rows(stream, name, reading, **dialect)
    _, header = next(rows)
    for place, row in rows:
        if any(map(SURROGATE.search, row)):
            reading.skipped += 1
        else:
            yield place, dict(zip(header, row))


def _rows(stream: IO[bytes], name: str, reading: Reading, **dialect: Any) -> Iterator[tuple[str, list[str]]]:
    """Place and cells of every row: the header, and rows of as many cells."""
    csv.field_size_limit(reading.max_document)
    rows = csv.reader((line + "\n" for _, line in record_lines(stream, name, reading)), **dialect)
    header = next(rows, [])
    yield name, header
    while True:
        try:
            row = next(rows, None)
        except csv.Error:  # a quoted value of many lines
            reading.refuse(reading.too_long(f"{name}, line {rows.line_num}"))
            continue
        if row is None:
            return
        if not row:
            continue  # an empty line
        if len(row) != len(header):
            reading.refuse(
                EtymonError(
                    f"{name}, line {rows.line_num}: a row of {len(row)} columns where the header has {len(header)}; "
                    "mend it, or leave such rows out with --errors skip"
                )
            )
        else:
            yield f"{name}, line {rows.line_num}", row


def _parquet(stream: IO[bytes], name: str, reading: Reading) -> Iterator[Document]:
    """Row group after row group, page after page, of one column alone."""
    import pyarrow
    import pyarrow.parquet

    with _seekable(stream) as file:
        try:
            table = pyarrow.parquet.ParquetFile(file, pre_buffer=False)
        except pyarrow.ArrowInvalid as error:
            raise EtymonError(f"{name} is not a parquet file, or damaged ({error})") from error
        names = table.schema_arrow.names
        if reading.column not in names:
            raise reading.no_column(name, names)
        kind = table.schema_arrow.field(reading.column).type
        kind = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
        if str(kind).removeprefix("large_").removesuffix("_view") not in ("string", "binary"):
            raise EtymonError(f"{name}: column {reading.column!r} holds {kind}, not text")
        row = 0
        for group in range(table.num_row_groups):
            described = table.metadata.row_group(group)
            each = max(1, described.total_byte_size // max(1, described.num_rows))
            try:
                for batch in table.iter_batches(
                    max(1, BATCH // each), row_groups=[group], columns=[reading.column], use_threads=False
                ):
                    column = batch.column(0)
                    if pyarrow.types.is_dictionary(column.type):
                        column = column.dictionary_decode()
                    for value in column.cast(pyarrow.large_binary()).to_pylist():
                        row += 1
                        if value:
                            yield from _from_bytes(value, f"{name}, row {row}", reading)
            except (pyarrow.ArrowInvalid, OSError) as error:
                raise EtymonError(f"{name} is damaged near row {row + 1} ({error})") from error


def _from_bytes(value: bytes, place: str, reading: Reading) -> Iterator[Document]:
    if len(value) > reading.max_document:
        return reading.refuse(reading.too_long(place))
    try:
        yield _document(value.decode("utf-8", "replace" if reading.errors == "replace" else "strict"))
    except UnicodeDecodeError as error:
        why = f"{place} is not UTF-8 at byte {error.start} of its text"
        reading.refuse(EtymonError(f"{why}; convert it, or go on with --errors replace or skip"))


@contextmanager
def _seekable(stream: IO[bytes]) -> Iterator[str | IO[bytes]]:
    """A parquet file is read from its end: what can only be read forwards is copied first."""
    if path := getattr(getattr(stream, "raw", None), "path", None):
        yield str(path)
        return
    with tempfile.TemporaryFile(prefix="etymon-") as copy:
        shutil.copyfileobj(stream, copy, BUFFER)
        copy.seek(0)
        yield copy


def _document(text: str) -> Document:
    return Document(text.replace("\r\n", "\n").replace("\r", "\n"))


COMMAS: dict[str, Any] = {"delimiter": ","}
TABS: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE}  # it knows no quotes
READERS: dict[str, Callable[[IO[bytes], str, Reading], Iterator[Document]]] = {
    ".txt": _plain_text,
    ".md": _plain_text,
    ".jsonl": _jsonl,
    ".csv": partial(_table, **COMMAS),
    ".tsv": partial(_table, **TABS),
    ".parquet": _parquet,
}
RECORDS: dict[str, Callable[[IO[bytes], str, Reading], Iterator[Record]]] = {
    ".jsonl": _json_records,
    ".csv": partial(_table_records, **COMMAS),
    ".tsv": partial(_table_records, **TABS),
}
"""The same files with all their columns."""
