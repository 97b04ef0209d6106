"""What verbs that read text share: their options as a source, and a progress bar over bytes."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from etymon.config import parse_count
from etymon.data.document import Boundary, Errors
from etymon.data.sources import TextFiles
from etymon.errors import EtymonError
from etymon.training.progress import Kind, _can_draw, _in_notebook, format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.console import Console

Format = Literal["txt", "jsonl", "csv", "tsv", "parquet"]


def text_files(
    data: Sequence[str | Path] | str | Path,
    documents: Boundary,
    column: str,
    errors: Errors,
    max_document: str,
    format: Format | None,
) -> TextFiles:
    """The files that a verb's options name; refused if there are none."""
    paths = [data] if isinstance(data, str | Path) else list(data)
    if not paths:
        raise EtymonError(
            "there is no text: give --data with files, folders or globs, or - for standard input"
        )
    named = tuple(str(path) for path in paths)
    return TextFiles(named, documents, column, errors, parse_size(max_document), format)


def parse_size(text: str) -> int:
    """Bytes in a size such as "200MB", "1.5 GB" or "4096" (powers of a thousand)."""
    try:
        return parse_count(re.sub(r"\s*[bB]$", "", text.strip()))
    except EtymonError:
        raise EtymonError(f"cannot read {text!r} as a size: write e.g. 500kB, 200MB or 2GB") from None


@contextmanager
def byte_progress(
    title: str, total: int | None, kind: Kind = "auto", console: Console | None = None
) -> Iterator[Callable[[int], None]]:
    """A bar that is told the bytes done so far; plain lines where there is no terminal; or silence."""
    if kind == "auto":
        kind = "rich" if _can_draw() and not _in_notebook() else "plain"
    if kind == "silent":
        yield lambda done: None
    elif kind == "rich":
        with _bar(title, total, console) as update:
            yield update
    else:
        lines = _Lines(title, total)
        yield lines.update
        lines.close()


@contextmanager
def _bar(title: str, total: int | None, console: Console | None) -> Iterator[Callable[[int], None]]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = [TextColumn("{task.description}"), BarColumn(), DownloadColumn()]
    columns += [TransferSpeedColumn(), TimeRemainingColumn()]
    with Progress(*columns, console=console or Console(stderr=True)) as progress:
        task = progress.add_task(title, total=total)
        yield lambda done: progress.update(task, completed=done)


class _Lines:
    """A line every ten seconds and one at the end, for logs."""

    def __init__(self, title: str, total: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.title, self.total, self.clock = title, total, clock
        self.begun = self.printed = clock()
        self.done, self.told = 0, -1

    def update(self, done: int) -> None:
        self.done = done
        if self.clock() - self.printed >= 10:
            self.printed = self.clock()
            self._print()

    def close(self) -> None:
        if self.done != self.told:
            self._print()

    def _print(self) -> None:
        self.told = self.done
        seconds = max(self.clock() - self.begun, 1e-9)
        of = f" of {format_bytes(self.total)}" if self.total else ""
        left = ""
        if self.total and 0 < self.done < self.total:
            left = f", {format_seconds(seconds / self.done * (self.total - self.done))} left"
        print(
            f"{self.title}: {format_bytes(self.done)}{of}, {format_bytes(self.done / seconds)}/s{left}",
            file=sys.stderr,
            flush=True,
        )
