"""How files become documents, records and lines, in bounded memory."""

from __future__ import annotations

import csv
import io
import pickle
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from typing import IO, Any, Literal, get_args

from etymon.errors import EtymonError
from etymon.files import parse_json
from etymon.text import sentences
from etymon.text.charsets import BUFFER, Errors, decode_stream
from etymon.text.sentences import cut_front

Boundary = Literal["file", "blank", "line"]
Record = tuple[str, dict[str, Any]]
"""Where it stands, and its values by the names of their columns."""

HELD = 1 << 24  # bytes of a document that may yet be skipped; more of it waits on the disk
BATCH = 1 << 23  # bytes of a parquet file that are unpacked at once, where its rows allow it
SEPARATORS = {",": "commas", "\t": "tabs", ";": "semicolons", "|": "bars"}
SEPARATORS |= {"，": "full-width commas", "；": "full-width semicolons"}
SNIFFED = 20
"""Lines of a table by which it is seen what parts its cells."""
SURROGATE = re.compile("[\ud800-\udfff]")


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
    more than `max_document` bytes is refused. `encoding` is one of Python's, or "auto". `errors` says what
    becomes of bytes that are no text in it: an error, U+FFFD (of at most the share `max_replaced` of a file),
    or a document left out (and any other record that cannot be read with it). `format` reads
    every file as if its name ended so. `header` names the columns of .csv and .tsv files that do not begin
    with one.
    """

    boundary: Boundary = "file"
    column: str = "text"
    encoding: str = "utf-8"
    errors: Errors = "strict"
    max_replaced: float = 0.01
    max_document: int = 32_000_000
    format: str | None = None
    header: Sequence[str] = ()
    skipped: int = field(default=0, compare=False)
    """Documents left out so far."""
    noted: set[str] = field(default_factory=set, compare=False, repr=False)
    """Files of which it was said how much of them was replaced."""

    def __post_init__(self) -> None:
        if self.boundary not in ("file", "blank", "line"):
            raise EtymonError(f"documents must be 'file', 'blank' or 'line', not {self.boundary!r}")
        if self.errors not in get_args(Errors):
            raise EtymonError(f"errors must be 'strict', 'replace' or 'skip', not {self.errors!r}")
        if self.max_document < 1:
            raise EtymonError(f"the longest record must be at least one byte, not {self.max_document}")

    def refuse(self, message: str) -> None:
        """Raises an error, or counts one document more that is left out."""
        if self.errors != "skip":
            raise EtymonError(message, code="broken-table")
        self.skipped += 1

    def too_long(self, place: str) -> str:
        return (
            f"{place}: the record is longer than {self.max_document:,} bytes; divide it or leave it out "
            "(etymon prepare and tokenizer have --max-document and --errors skip)"
        )

    def no_column(self, place: str, present: Iterable[str], parted: str = "") -> str:
        there = (", ".join(map(repr, present)) or "none") + parted
        return f"{place}: no column {self.column!r}; columns there: {there}; name the right one with --column"


# ---------------------------------------------------------------- bytes to lines


def _chunks(stream: IO[bytes], name: str, reading: Reading) -> Iterator[str]:
    """The text with "\\n" for every line end; see `charsets.decode_stream`."""
    newlines = io.IncrementalNewlineDecoder(None, translate=True)
    for text in decode_stream(stream.read, name, reading):
        yield newlines.decode(text)
    yield newlines.decode("", final=True)


def _lines(chunks: Iterator[str]) -> Iterator[tuple[str, bool]]:
    """Every line, and whether it ends here: a long one comes in several parts."""
    rest = ""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split("\n")
        for line in whole:
            yield line, True
        front, rest = cut_front(rest)
        for part in front:
            yield part, False
    yield rest, True


def record_lines(stream: IO[bytes], name: str, reading: Reading) -> Iterator[tuple[str, str]]:
    """Place and text of every line that is not too long."""
    line: list[str] = []
    size, number = 0, 1
    for text, ends in _lines(_chunks(stream, name, reading)):
        was_short = size <= reading.max_document
        size += len(text.encode("utf-8", "surrogatepass"))
        if size <= reading.max_document:
            line.append(text)
        elif was_short:
            line = []
            reading.refuse(reading.too_long(f"{name}, line {number}"))
        if ends:
            if size <= reading.max_document:
                yield f"{name}, line {number}", "".join(line)
            line, size, number = [], 0, number + 1


# ---------------------------------------------------------------- plain text


def _plain_text(stream: IO[bytes], name: str, reading: Reading) -> Iterator[Document]:
    """The documents of a text file, long ones in parts. Empty ones may be among them."""
    chunks = _chunks(stream, name, reading)
    if reading.boundary == "file":
        documents = _whole(chunks)
    elif reading.boundary == "line":
        documents = (Document(text, more=not ends) for text, ends in _lines(chunks))
    else:
        documents = _blocks(chunks)
    return _without_bad(documents, reading) if reading.errors == "skip" else documents


def _whole(chunks: Iterator[str]) -> Iterator[Document]:
    rest = ""
    for chunk in chunks:
        front, rest = cut_front(rest + chunk)
        for part in front:
            yield Document(part, more=True)
    yield Document(rest)


def _blocks(chunks: Iterator[str]) -> Iterator[Document]:
    """Documents between blank lines."""
    block: list[str] = []
    size = 0
    in_document = in_line = False  # whether some of the document, or of the line, was there before
    blank: list[str] = []  # a long line's beginning, as long as it may be an empty line
    for text, ends in _lines(chunks):
        parts, blank = [*blank, text], []
        if text.strip() or in_line:
            for part in parts:
                if size > sentences.PART:
                    yield Document("".join(block), more=True)
                    block, size = [], 0
                block.append("\n" + part if in_document and not in_line else part)
                size += len(block[-1])
                in_document = in_line = True
            in_line = not ends
        elif not ends:
            blank = parts
        elif in_document:
            yield Document("".join(block))
            block, size, in_document = [], 0, False
    yield Document("".join(block))


def _without_bad(documents: Iterator[Document], reading: Reading) -> Iterator[Document]:
    """Only documents without marked bytes. A document is held back until its end is known to be good."""
    is_bad = False
    with tempfile.SpooledTemporaryFile(max_size=HELD) as held:
        for document in documents:
            is_bad = is_bad or SURROGATE.search(document.text) is not None
            pickle.dump(document, held)
            if document.more:
                continue
            held.seek(0)
            if is_bad:
                reading.skipped += 1
            else:
                while (part := pickle.load(held)).more:
                    yield part
                yield part
            held.seek(0)
            held.truncate()
            is_bad = False


# ---------------------------------------------------------------- records


def _json_records(
    stream: IO[bytes], name: str, reading: Reading, column: str | None = None
) -> Iterator[Record]:
    """The objects of a .jsonl file."""
    for place, line in record_lines(stream, name, reading):
        if SURROGATE.search(line):
            reading.skipped += 1
        elif line.strip():
            try:
                record = parse_json(line, place, "a .jsonl file holds one JSON object a line")
            except EtymonError as error:
                reading.refuse(str(error))
                continue
            if isinstance(record, dict):
                yield place, record
            else:
                reading.refuse(f'{place}: expected an object such as {{"{reading.column}": "..."}}')


def find_separator(lines: Sequence[str], usual: str, columns: int) -> str:
    """What parts the cells of a table, by its first lines: the usual one, unless that gives one column and
    another one gives as many, more than one, in every row (or so many `columns`, where they were named)."""
    for separator in (usual, *SEPARATORS):
        try:
            rows = [row for row in csv.reader((line + "\n" for line in lines), delimiter=separator) if row]
        except csv.Error:
            continue
        # The last row may go on in lines that are not seen.
        widths = {len(row) for row in (rows[:-1] if len(lines) == SNIFFED else rows)}
        if separator == usual and (not rows or len(rows[0]) > 1):
            return usual
        if len(widths) == 1 and max(widths) > 1 and columns in (0, max(widths)):
            return separator
    return usual


def _table_records(
    stream: IO[bytes], name: str, reading: Reading, column: str | None = None, **dialect: Any
) -> Iterator[Record]:
    """The rows of a .csv or .tsv file, of as many cells as the header; with `column`, that one alone."""
    csv.field_size_limit(reading.max_document)
    latest, began, has_ended = (name, ""), "", False
    numbered = record_lines(stream, name, reading)
    head = list(islice(numbered, SNIFFED))
    usual = dialect["delimiter"]
    separator = find_separator([line for _, line in head], usual, len(reading.header))
    if separator != usual:
        dialect = {"delimiter": separator}  # with quotes, as a spreadsheet writes them
    parted = f"(separated by {SEPARATORS[separator]})"

    def lines() -> Iterator[str]:
        nonlocal latest, began, has_ended
        for latest in chain(head, numbered):
            began = began or latest[0]
            yield latest[1] + "\n"
        has_ended = True

    left = lines()
    rows = csv.reader(left, **dialect)
    unclosed = ': a quote is opened in this row and never closed; close it, or write "" for a quote'
    try:
        header = list(reading.header) or next(rows, [])
    except csv.Error as error:
        raise EtymonError(reading.too_long(latest[0])) from error
    wanted = f", and {len(header)} were named: {', '.join(header)}"
    if not reading.header:
        wanted = f" where the header has {len(header)}; mend it or leave it out"
        if has_ended and header:  # a row ends with a line: this one asked for more
            raise EtymonError(began + unclosed, code="broken-table")
        if twice := [cell for cell in header if cell and header.count(cell) > 1]:
            raise EtymonError(f"{name}: two columns are called {twice[0]!r}; rename one")
    if column is not None and header and column not in header:
        raise EtymonError(reading.no_column(name, header, f" {parted}"), code="no-column")
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
        if has_ended:
            reading.refuse(began + unclosed)
        elif len(row) != len(header):
            first = "" if began == latest[0] else f" from {began.rpartition(', ')[2]} on"
            reading.refuse(f"{latest[0]}: a row of {len(row)} columns{first} {parted}{wanted}")
        else:
            record = dict(zip(header, row)) if column is None else {column: row[header.index(column)]}
            if any(map(SURROGATE.search, record.values())):
                reading.skipped += 1
            else:
                yield latest[0], record


def _record_documents(
    records: Callable[..., Iterator[Record]], stream: IO[bytes], name: str, reading: Reading
) -> Iterator[Document]:
    """The texts in the column of records; None is an empty one, as in .parquet."""
    for place, record in records(stream, name, reading, column=reading.column):
        text = record.get(reading.column)
        if reading.column not in record:
            reading.refuse(reading.no_column(place, record))
        elif not isinstance(text, str | None):
            kind = type(text).__name__
            reading.refuse(f"{place}: column {reading.column!r} holds a {kind}, not a text")
        else:
            # JSON can spell half of a surrogate pair, which is no character and cannot be written as UTF-8.
            yield _document(SURROGATE.sub("\ufffd", text or ""))


def _document(text: str) -> Document:
    return Document(text.replace("\r\n", "\n").replace("\r", "\n"))


def _parquet(stream: IO[bytes], name: str, reading: Reading) -> Iterator[Document]:
    """Row group after row group, page after page, of one column alone."""
    import pyarrow
    import pyarrow.parquet

    # A parquet file is read from its end: what can only be read forwards is copied first.
    path = getattr(getattr(stream, "raw", None), "path", None)
    source: Any = nullcontext(str(path)) if path else tempfile.TemporaryFile(prefix="etymon-")  # noqa: SIM115
    with source as file:
        if path is None:
            shutil.copyfileobj(stream, file, BUFFER)
            file.seek(0)
        try:
            table = pyarrow.parquet.ParquetFile(file, pre_buffer=False)
        except pyarrow.ArrowInvalid as error:
            raise EtymonError(f"{name} is not a parquet file, or damaged ({error})") from error
        if reading.column not in table.schema_arrow.names:
            raise EtymonError(reading.no_column(name, table.schema_arrow.names), code="no-column")
        kind = table.schema_arrow.field(reading.column).type
        kind = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
        if str(kind).removeprefix("large_").removesuffix("_view") not in ("string", "binary"):
            raise EtymonError(f"{name}: column {reading.column!r} holds {kind}, not text")
        mode, row = "replace" if reading.errors == "replace" else "strict", 0
        for group in range(table.num_row_groups):
            metadata = table.metadata.row_group(group)
            row_bytes = max(1, metadata.total_byte_size // max(1, metadata.num_rows))
            options = {"row_groups": [group], "columns": [reading.column], "use_threads": False}
            try:
                for batch in table.iter_batches(max(1, BATCH // row_bytes), **options):
                    column = batch.column(0)
                    if pyarrow.types.is_dictionary(column.type):
                        column = column.dictionary_decode()
                    for value in column.cast(pyarrow.large_binary()).to_pylist():
                        row += 1
                        place = f"{name}, row {row}"
                        if value and len(value) > reading.max_document:
                            reading.refuse(reading.too_long(place))
                        elif value:
                            try:
                                document = _document(value.decode("utf-8", mode))
                            except UnicodeDecodeError as error:
                                reading.refuse(
                                    f"{place} is not UTF-8 at byte {error.start} of its text; convert it, "
                                    "or go on "
                                    "with --errors replace or skip where there is that option"
                                )
                            else:
                                yield document
            except (pyarrow.ArrowInvalid, OSError) as error:
                raise EtymonError(f"{name} is damaged near row {row + 1} ({error})") from error


RECORDS: dict[str, Callable[..., Iterator[Record]]] = {
    ".jsonl": _json_records,
    ".csv": partial(_table_records, delimiter=","),
    ".tsv": partial(_table_records, delimiter="\t", quoting=csv.QUOTE_NONE),  # it knows no quotes
}
"""Readers of records, with all their columns or one."""
READERS: dict[str, Callable[[IO[bytes], str, Reading], Iterator[Document]]] = {
    ".txt": _plain_text,
    ".md": _plain_text,
    **{suffix: partial(_record_documents, records) for suffix, records in RECORDS.items()},
    ".parquet": _parquet,
}
"""Readers of documents."""
