"""What a text is to this library, and how bytes become lines and documents, in bounded memory."""

from __future__ import annotations

import codecs
import io
import pickle
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, Any, Literal

from etymon.errors import EtymonError
from etymon.text import cutting

Boundary = Literal["file", "blank", "line"]
Errors = Literal["strict", "replace", "skip"]
Record = tuple[str, dict[str, Any]]
"""Where it stands, and its values by the names of their columns."""

BUFFER = 1 << 20
HELD = 1 << 24  # bytes of a document that may yet be skipped; more of it waits on the disk
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
    file as if its name ended so. `header` names the columns of .csv and .tsv files that do not begin with one.
    """

    boundary: Boundary = "file"
    column: str = "text"
    errors: Errors = "strict"
    max_document: int = 32_000_000
    format: str | None = None
    header: Sequence[str] = ()
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
            f"{place}: the record is longer than {self.max_document:,} bytes; divide it or leave it out "
            "(etymon prepare and tokenizer have --max-document and --errors skip)"
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
                "replace or skip where there is that option"
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


# ---------------------------------------------------------------- plain text


def plain_text(stream: IO[bytes], name: str, reading: Reading) -> Iterator[Document]:
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
    blank: list[str] = []  # a long line's beginning, as long as nobody knows whether it is an empty line
    for text, ends in _lines(chunks):
        parts, blank = [*blank, text], []
        if text.strip() or inside:
            for part in parts:
                if size > cutting.PART:
                    yield Document("".join(block), more=True)
                    block, size = [], 0
                block.append("\n" + part if begun and not inside else part)
                size += len(block[-1])
                begun = inside = True
            inside = not ends
        elif not ends:
            blank = parts
        elif begun:
            yield Document("".join(block))
            block, size, begun = [], 0, False
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
