"""What verbs say on a terminal beside their results."""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

from etymon.files import json_text


def clear() -> str:
    """What takes the line of progress away, where there is one."""
    return "\r\033[K" if sys.stderr.isatty() else ""


def on_progress(what: str) -> None:
    if sys.stderr.isatty():
        print(f"{clear()}{what}", end="", file=sys.stderr, flush=True)


def on_note(note: str) -> None:
    print(f"{clear()}etymon: note: {note}", file=sys.stderr)


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
