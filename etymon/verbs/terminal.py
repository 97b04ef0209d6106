"""What verbs say on a terminal beside their results."""

from __future__ import annotations

import sys


def clear() -> str:
    """What takes the line of progress away, where there is one."""
    return "\r\033[K" if sys.stderr.isatty() else ""


def on_progress(what: str) -> None:
    if sys.stderr.isatty():
        print(f"{clear()}{what}", end="", file=sys.stderr, flush=True)


def on_note(note: str) -> None:
    print(f"{clear()}etymon: note: {note}", file=sys.stderr)
