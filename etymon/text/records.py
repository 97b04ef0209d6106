"""Records: the rows of .jsonl, .csv, .tsv and .parquet files, each a document or all of its columns."""

from __future__ import annotations

import csv
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import IO, Any

from etymon.errors import EtymonError
from etymon.files import parse_json
from etymon.text.reading import BUFFER, SURROGATE, Document, Reading, Record, plain_text, record_lines

BATCH = 1 << 23  # bytes of a parquet file that are unpacked at once, where its rows allow it


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
    record = parse_json(line, place, "a .jsonl file holds one JSON object a line")
    if not isinstance(record, dict):
        raise EtymonError(f'{place}: expected an object such as {{"{reading.column}": "..."}}')
    return record


def _column(record: dict[str, Any], place: str, reading: Reading) -> str:
    if reading.column not in record:
        raise reading.no_column(place, record)
    text = record[reading.column]
    if text is None:  # no document, as in .parquet
        return ""
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
    latest, began, ended = (name, ""), "", False

    def lines() -> Iterator[str]:
        nonlocal latest, began, ended
        for latest in record_lines(stream, name, reading):
            began = began or latest[0]
            yield latest[1] + "\n"
        ended = True

    def unclosed() -> EtymonError:
        return EtymonError(
            f'{began}: a quote is opened in this row and never closed; close it, or write "" for a quote'
        )

    left = lines()
    rows = csv.reader(left, **dialect)
    try:
        header = list(reading.header) or next(rows, [])
    except csv.Error as error:
        raise reading.too_long(latest[0]) from error
    if ended and header and not reading.header:  # a row ends with a line: this one asked for more
        raise unclosed()
    if not reading.header and (twice := [cell for cell in header if cell and header.count(cell) > 1]):
        raise EtymonError(f"{name}: two columns are called {twice[0]!r}; rename one")
    yield name, header
    wanted = f" where the header has {len(header)}; mend it or leave it out"
    if reading.header:
        wanted = f", and {len(header)} were named: {', '.join(header)}"
    while True:
        began = ""
        try:
            row = next(rows, None)
        except csv.Error:  # a quoted value of many lines, which goes on up to its closing quote
            reading.refuse(reading.too_long(latest[0]))
            while latest[1].count('"') % 2 == 0 and next(left, None) is not None:
                pass
            continue
        if row is None:
            return
        if not row:
            continue  # an empty line
        if ended:
            reading.refuse(unclosed())
        elif len(row) != len(header):
            first = "" if began == latest[0] else f" from {began.rpartition(', ')[2]} on"
            reading.refuse(EtymonError(f"{latest[0]}: a row of {len(row)} columns{first}{wanted}"))
        else:
            yield latest[0], row


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
        reading.refuse(
            EtymonError(
                f"{why}; convert it, or go on with --errors replace or skip where there is that option"
            )
        )


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
    ".txt": plain_text,
    ".md": plain_text,
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
