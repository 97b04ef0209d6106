"""What verbs that read text share: their options as a source, and a progress bar over bytes."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etymon.config import parse_count
from etymon.errors import EtymonError
from etymon.text.sources import TextFiles
from etymon.training.progress import ProgressKind, _can_draw, _in_notebook, format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.console import Console


def text_files(
    data: Sequence[str | Path] | str | Path, *, max_document: str | None, **options: Any
) -> TextFiles:
    """The files that a verb's options name (None: as usual); refused if there are none."""
    paths = [data] if isinstance(data, str | Path) else list(data)
    if not paths:
        raise EtymonError(
            "there is no text: give --data with files, folders or globs, or - for standard input"
        )
    options["max_document"] = None if max_document is None else parse_size(max_document)
    return TextFiles(paths, **{name: value for name, value in options.items() if value is not None})


def parse_size(text: str) -> int:
    """Bytes in a size such as "200MB", "1.5 GB" or "4096" (powers of a thousand)."""
    try:
        return parse_count(re.sub(r"\s*[bB]$", "", text.strip()))
    except EtymonError:
        raise EtymonError(f"cannot read {text!r} as a size: write e.g. 500kB, 200MB or 2GB") from None


@contextmanager
def byte_progress(
    title: str,
    total: int | None,
    kind: ProgressKind = "auto",
    console: Console | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Callable[[int], None]]:
    """A bar that is told the bytes done so far; where there is no terminal, a line every ten seconds and one at the
    end; or silence."""
    if kind == "auto":
        kind = "rich" if _can_draw() and not _in_notebook() else "plain"
    if kind == "silent":
        yield lambda done: None
        return
    if kind == "rich":
        from rich import progress
        from rich.console import Console

        columns = [*progress.Progress.get_default_columns(), progress.DownloadColumn()]
        with progress.Progress(*columns, console=console or Console(stderr=True)) as bar:
            task = bar.add_task(title, total=total)
            yield lambda done: bar.update(task, completed=done)
        return
    begun = printed = clock()
    latest = 0

    def update(done: int, last: bool = False) -> None:
        nonlocal latest, printed
        latest = done
        if clock() - printed < 10 and not last:
            return
        printed = clock()
        seconds = max(printed - begun, 1e-9)
        of = f" of {format_bytes(total)}" if total else ""
        left = (
            f", {format_seconds(seconds / done * (total - done))} left" if total and 0 < done < total else ""
        )
        speed = format_bytes(done / seconds)
        print(f"{title}: {format_bytes(done)}{of}, {speed}/s{left}", file=sys.stderr, flush=True)

    yield update
    update(latest, last=True)
