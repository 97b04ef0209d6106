"""What verbs say on a terminal beside their results."""

from __future__ import annotations

import logging
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from etymon.display import cut, half_width, terminal_of
from etymon.errors import visible
from etymon.files import json_text
from etymon.language import translated

if TYPE_CHECKING:
    from rich.console import Console

    from etymon.training.progress import ProgressKind

LONGEST_MESSAGE = 1000
SENTENCE = re.compile("[\u4e00-\u9fff].*[，。！？；：、]|[，。！？；：、].*[\u4e00-\u9fff]")
"""Chinese text, in which full-width marks are right."""


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
    """For the time of a command: what is printed to a terminal cannot steer it; what goes into a file or a
    pipe stays as it is."""
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
        stream = terminal_of(sys.stderr)
        stream.write("\r\033[K")
        stream.flush()


def on_progress(what: str) -> None:
    if sys.stderr.isatty():
        clear_line()
        # A longer line would wrap, and only its end could be taken away.
        room = shutil.get_terminal_size().columns - 1
        print(
            cut(translated(visible(what, breaks=""), "progress"), room), end="", file=sys.stderr, flush=True
        )


def on_note(note: str) -> None:
    clear_line()
    print(translated(f"etymon: note: {visible(note, breaks='')}", "message"), file=sys.stderr)


def fail(message: str, arguments: Sequence[str] = ()) -> NoReturn:
    """Says what is wrong in one line, and leaves with exit code 2. What the line names of the `arguments` may
    have been typed with a Chinese keyboard: that is noted before it."""
    for word in dict.fromkeys(part for argument in arguments for part in (argument, *argument.split("="))):
        # A sentence has its own commas.
        if word in message and not SENTENCE.search(word) and (plain := half_width(word)) != word:
            on_note(f"{word!r} has full-width characters: with ASCII ones it is {plain!r}")
    line = translated(f"etymon: error: {message}", "message")
    if len(message) > LONGEST_MESSAGE:  # that of a name of 3,000 characters
        line = f"{line[: LONGEST_MESSAGE // 2]} ... {line[-LONGEST_MESSAGE // 2 :]}"
    print(visible(line, breaks=""), file=sys.stderr)
    sys.exit(2)


class NoteHandler(logging.Handler):
    """Shows what the library warns of as notes; of several processes only the first does."""

    def emit(self, record: logging.LogRecord) -> None:
        if os.environ.get("RANK", "0") == "0":
            on_note(record.getMessage())


NOTES = NoteHandler(logging.WARNING)


def say(text: str) -> None:
    """Prints a line of a result in the user's language."""
    print(translated(text, "result"))


def result_text(text: str) -> str:
    """A text of a result, such as the heading of a column, in the user's language; reports have the same
    headings."""
    shown = translated(text, "result")
    return shown if shown != text else report_text(text)


def report_text(text: str) -> str:
    """A text that a report has as well, in the user's language."""
    return translated(text, "report")


def message_text(text: str) -> str:
    """What was refused inside of a result, in the user's language."""
    return translated(text, "message")


def print_json(*records: Any, indent: int | None = None, ascii: bool = False) -> None:
    """What `--json` asks for, a line a record; dataclasses as they are, at any depth, and null for NaN and
    infinity."""
    for record in records:
        print(json_text(record, indent=indent, ascii=ascii))


@contextmanager
def byte_progress(
    title: str,
    total: int | None,
    kind: ProgressKind = "auto",
    console: Console | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Callable[[int], None]]:
    """A function to call with the bytes done so far, which draws a bar; where there is no terminal, prints
    a line every ten seconds and one at the end; or is silent."""
    from etymon.training.progress import _can_draw, _in_notebook, format_bytes, format_seconds

    if kind == "auto":
        kind = "rich" if _can_draw() and not _in_notebook() else "plain"
    if kind == "silent":
        yield lambda done: None
        return
    if kind == "rich":
        from rich import progress
        from rich.console import Console

        columns = [*progress.Progress.get_default_columns(), progress.DownloadColumn()]
        with progress.Progress(*columns, console=console or Console(file=terminal_of(sys.stderr))) as bar:
            task = bar.add_task(translated(title, "progress"), total=total)
            yield lambda done: bar.update(task, completed=done)
        return
    started = printed = clock()
    latest = 0

    def update(done: int, last: bool = False) -> None:
        nonlocal latest, printed
        latest = done
        # Logs of jobs in the background should not be full of it.
        if clock() - printed < 10 and not last:
            return
        printed = clock()
        seconds = max(printed - started, 1e-9)
        of = f" of {format_bytes(total)}" if total else ""
        left = ""
        if total and 0 < done < total:
            left = f", {format_seconds(seconds / done * (total - done))} left"
        speed = format_bytes(done / seconds)
        line = f"{title}: {format_bytes(done)}{of}, {speed}/s{left}"
        print(translated(line, "progress"), file=sys.stderr, flush=True)

    yield update
    # Not in a `finally`: work that failed has no last line.
    update(latest, last=True)
