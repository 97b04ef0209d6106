"""Records: one document a row of a .jsonl, .csv, .tsv or .parquet file, in bounded memory."""

from __future__ import annotations

import csv
import io
import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

from etymon.data.document import Document, Reading, Tally
from etymon.data.inputs import Checked, Decoder, Watched, bounded_lines, too_long
from etymon.data.plain_text import SURROGATE
from etymon.errors import EtymonError

BATCH = 1 << 23  # bytes of a parquet file that are unpacked at once, where its rows allow it


def read_jsonl(stream: io.BufferedReader, name: str, reading: Reading, tally: Tally) -> Iterator[Document]:
    for number, offset, raw in bounded_lines(stream, name, reading, tally):
        try:
            line = raw.decode() if offset else raw.decode("utf-8-sig")
        except UnicodeDecodeError:
            line = Decoder(name, reading.errors, number, offset).feed(raw, final=True)
        if not line.strip():
            continue
        try:
            text = _from_json(line, f"{name}, line {number}", reading.column)
        except EtymonError:
            if reading.errors != "skip":
                raise
            tally.skipped += 1
            continue
        if reading.errors == "skip" and SURROGATE.search(line):
            tally.skipped += 1
            continue
        # JSON can spell half of a surrogate pair, which is no character and cannot be written as UTF-8.
        yield Document(SURROGATE.sub("\ufffd", text), f"{name}:{number}")


def _from_json(line: str, place: str, column: str) -> str:
    try:
        record = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        reason = (
            f"{error.msg} at column {error.colno}" if isinstance(error, ValueError) else "nested too deeply"
        )
        raise EtymonError(
            f"{place}: not valid JSON ({reason}); a .jsonl file holds one JSON object a line"
        ) from error
    if not isinstance(record, dict):
        raise EtymonError(f'{place}: expected an object such as {{"{column}": "..."}}')
    if column not in record:
        raise EtymonError(_no_column(place, column, record))
    if not isinstance(record[column], str):
        kind = type(record[column]).__name__
        raise EtymonError(f"{place}: column {column!r} holds a {kind}, not a text")
    text: str = record[column]
    return text


def _no_column(place: str, column: str, present: Any) -> str:
    there = ", ".join(map(repr, present)) or "none"
    return f"{place}: no column {column!r}; columns there: {there}; name the right one with --column"


def read_csv(stream: io.BufferedReader, name: str, reading: Reading, tally: Tally) -> Iterator[Document]:
    yield from _read_table(stream, name, reading, tally, ",", '"')


def read_tsv(stream: io.BufferedReader, name: str, reading: Reading, tally: Tally) -> Iterator[Document]:
    """Tab-separated values know no quotes: a quotation mark is a character like any other."""
    yield from _read_table(stream, name, reading, tally, "\t", None)


def _read_table(
    stream: io.BufferedReader, name: str, reading: Reading, tally: Tally, delimiter: str, quote: str | None
) -> Iterator[Document]:
    import pyarrow
    import pyarrow.csv

    if not stream.peek(1):
        return
    _check_header(stream, name, reading, delimiter, quote)

    def short_row(row: Any) -> str:
        if reading.errors != "skip":
            return "error"
        tally.skipped += 1
        return "skip"

    checked: Any = stream
    if reading.errors != "skip":
        checked = io.BufferedReader(Checked(stream, Decoder(name, reading.errors)))
    try:
        batches = pyarrow.csv.open_csv(
            pyarrow.PythonFile(checked, mode="r"),
            # A row must fit into a block.
            pyarrow.csv.ReadOptions(block_size=min(reading.max_document, 2**31 - 1), use_threads=False),
            pyarrow.csv.ParseOptions(
                delimiter=delimiter,
                quote_char=quote or False,
                newlines_in_values=quote is not None,
                invalid_row_handler=short_row,
            ),
            pyarrow.csv.ConvertOptions(
                include_columns=[reading.column], column_types={reading.column: pyarrow.binary()}
            ),
        )
        number = 2
        for batch in batches:
            yield from _texts(batch.column(0).to_pylist(), number, name, reading, tally)
            number += batch.num_rows
    except pyarrow.ArrowInvalid as error:
        if "straddling" in str(error):
            raise EtymonError(too_long(name, reading)) from error
        if "Empty CSV" not in str(error):
            raise EtymonError(
                f"{name} is not a table ({' '.join(str(error).split())[:200]}); mend it, or leave such rows out "
                "with --errors skip"
            ) from error


def _check_header(
    stream: io.BufferedReader, name: str, reading: Reading, delimiter: str, quote: str | None
) -> None:
    head = stream.peek(1 << 16).decode("utf-8", "replace").removeprefix("\ufeff")
    lines = io.StringIO(head, newline="")
    quoted = csv.reader(lines, delimiter=delimiter)
    plain = csv.reader(lines, delimiter=delimiter, quoting=csv.QUOTE_NONE)
    names = next(quoted if quote else plain, [])
    if reading.column not in names:
        raise EtymonError(_no_column(name, reading.column, names))


def _texts(
    values: list[bytes | None], number: int, name: str, reading: Reading, tally: Tally
) -> Iterator[Document]:
    for row, value in enumerate(values, start=number):
        if not value:
            continue
        if reading.errors != "skip" and len(value) > reading.max_document:
            raise EtymonError(too_long(f"{name}, row {row}", reading))
        try:
            text = value.decode("utf-8", "replace" if reading.errors == "replace" else "strict")
        except UnicodeDecodeError as error:
            if reading.errors != "skip":
                raise EtymonError(
                    f"{name}, row {row} is not UTF-8 at byte {error.start} of its text; convert it, or go on with "
                    "--errors replace or skip"
                ) from error
            tally.skipped += 1
            continue
        if len(value) > reading.max_document:
            tally.skipped += 1
            continue
        yield Document(text.replace("\r\n", "\n").replace("\r", "\n"), f"{name}:{row}")


def read_parquet(stream: io.BufferedReader, name: str, reading: Reading, tally: Tally) -> Iterator[Document]:
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
            raise EtymonError(_no_column(name, reading.column, names))
        kind = table.schema_arrow.field(reading.column).type
        kind = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
        if str(kind).removeprefix("large_").removesuffix("_view") not in ("string", "binary"):
            raise EtymonError(f"{name}: column {reading.column!r} holds {kind}, not text")
        number = 1
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
                    values = column.cast(pyarrow.large_binary()).to_pylist()
                    yield from _texts(values, number, name, reading, tally)
                    number += len(values)
            except (pyarrow.ArrowInvalid, OSError) as error:
                raise EtymonError(f"{name} is damaged near row {number} ({error})") from error


@contextmanager
def _seekable(stream: io.BufferedReader) -> Iterator[str | IO[bytes]]:
    """A parquet file is read from its end: what can only be read forwards is copied first."""
    if isinstance(stream.raw, Watched):
        yield stream.raw.source.name
        return
    with tempfile.TemporaryFile(prefix="etymon-") as copy:
        shutil.copyfileobj(stream, copy, 1 << 20)
        copy.seek(0)
        yield copy
