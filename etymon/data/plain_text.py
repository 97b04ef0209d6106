"""Plain text files of any size as documents, never more than a part of one in memory."""

from __future__ import annotations

import io
import pickle
import re
import tempfile
from collections.abc import Iterator

from etymon.data import cutting
from etymon.data.document import Document, Reading, Tally
from etymon.data.inputs import BUFFER, Decoder

SURROGATE = re.compile("[\ud800-\udfff]")
HELD = 1 << 24  # bytes of a document that may yet be skipped; more of it waits on the disk


def read_text(stream: io.BufferedReader, name: str, reading: Reading, tally: Tally) -> Iterator[Document]:
    """The documents of a text file, long ones in parts."""
    chunks = _chunks(stream, Decoder(name, reading.errors))
    read = {"file": _whole, "blank": _blocks, "line": _lines}[reading.documents]
    found = read(chunks, name)
    return without_bad(found, tally) if reading.errors == "skip" else found


def _chunks(stream: io.BufferedReader, decoder: Decoder) -> Iterator[str]:
    """The text with "\\n" for every line end."""
    newlines = io.IncrementalNewlineDecoder(None, translate=True)
    while data := stream.read(BUFFER):
        yield newlines.decode(decoder.feed(data))
    yield newlines.decode(decoder.feed(b"", final=True), final=True)


def _whole(chunks: Iterator[str], name: str) -> Iterator[Document]:
    rest = ""
    for chunk in chunks:
        front, rest = cutting.parts(rest + chunk)
        for part in front:
            yield Document(part, name, more=True)
    yield Document(rest, name)


def _split(chunks: Iterator[str]) -> Iterator[tuple[str, bool]]:
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


def _lines(chunks: Iterator[str], name: str) -> Iterator[Document]:
    number = 1
    begun = False
    for text, ends in _split(chunks):
        if text or begun:
            yield Document(text, f"{name}:{number}", more=not ends)
        begun = not ends
        number += ends


def _blocks(chunks: Iterator[str], name: str) -> Iterator[Document]:
    block: list[str] = []
    source = ""
    size, number = 0, 1
    begun = inside = False  # whether parts of the document, or of the line, are gone already
    for text, ends in _split(chunks):
        if text.strip() or inside:
            if not block and not begun:
                source = f"{name}:{number}"
            elif not inside:
                text = "\n" + text
            if size > cutting.PART:
                yield Document("".join(block), source, more=True)
                block, size, begun = [], 0, True
            block.append(text)
            size += len(text)
        elif block or begun:
            yield Document("".join(block), source)
            block, size, begun = [], 0, False
        inside = not ends
        number += ends
    if block or begun:
        yield Document("".join(block), source)


def without_bad(documents: Iterator[Document], tally: Tally) -> Iterator[Document]:
    """Only documents without marked bytes. A document is held back until its end is known to be good."""
    with tempfile.SpooledTemporaryFile(max_size=HELD) as held:
        bad = begun = False
        for document in documents:
            bad = bad or SURROGATE.search(document.text) is not None
            if (document.more or begun) and not bad:
                pickle.dump(document, held)
            if document.more:
                begun = True
                continue
            if bad:
                tally.skipped += 1
            elif begun:
                end = held.tell()
                held.seek(0)
                while held.tell() < end:
                    yield pickle.load(held)
            else:
                yield document
            held.seek(0)
            held.truncate()
            bad = begun = False
