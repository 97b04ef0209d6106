"""What verbs say on a terminal beside their results."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from etymon.errors import visible
from etymon.files import json_text


class SafeStream:
    """A terminal's stream that makes control characters visible (`visible`), but for line breaks and tabs."""

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream  # rich draws its bar there: its own control characters are meant
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(visible(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def safe_streams() -> Iterator[None]:
    """For the time of a command: what is printed to a terminal cannot steer it; what goes into a file or a pipe stays as it is."""
    out, err = sys.stdout, sys.stderr
    if hasattr(out, "reconfigure"):
        out.reconfigure(errors="backslashreplace")  # names of files may be no text at all
    if out.isatty():
        sys.stdout = SafeStream(out)
    if err.isatty():
        sys.stderr = SafeStream(err)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = out, err


def clear_line() -> None:
    """Takes the line of progress away, where there is one."""
    if sys.stderr.isatty():
        stream: Any = sys.stderr
        while hasattr(
            stream, "rich_proxied_file"
        ):  # a live display and `SafeStream` stand before the terminal itself
            stream = stream.rich_proxied_file
        stream.write("\r\033[K")
        stream.flush()


def on_progress(what: str) -> None:
    if sys.stderr.isatty():
        clear_line()
        print(visible(what, breaks=""), end="", file=sys.stderr, flush=True)


def on_note(note: str) -> None:
    clear_line()
    print(f"etymon: note: {visible(note, breaks='')}", file=sys.stderr)


class NoteHandler(logging.Handler):
    """Shows what the library warns of as notes; of several processes only the first does."""

    def emit(self, record: logging.LogRecord) -> None:
        if os.environ.get("RANK", "0") == "0":
            on_note(record.getMessage())


NOTES = NoteHandler(logging.WARNING)


def print_json(*records: Any, indent: int | None = None, ascii: bool = False) -> None:
    """What `--json` asks for, a line a record; dataclasses as they are, at any depth, and null for NaN and infinity."""
    for record in records:
        print(json_text(record, indent=indent, ascii=ascii))
