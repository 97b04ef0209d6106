"""Progress of a long run: a live bar on a terminal or in a notebook, plain lines elsewhere, or silence.

    display = make_progress()
    display.start(total_steps=1000, title="pretrain bert")
    display.update(10, {"loss": 5.1, "bits_per_byte": 2.3, "tokens_per_second": 12_000, "mfu": 0.31})
    display.note("saved runs/bert at step 10")
    display.close()

Known names get units (`_VALUES` below); any other value is shown as it is. Displays write to stderr, so that
stdout stays free for results.
"""

from __future__ import annotations

import logging
import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TextIO

from etymon.config import did_you_mean
from etymon.display import cut, display_width, terminal_of
from etymon.errors import EtymonError, visible
from etymon.files import NEARLY
from etymon.files import format_bytes as format_bytes
from etymon.language import translated
from etymon.report.inline import live_curve, live_html

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

Clock = Callable[[], float]
Value = float | str
ProgressKind = Literal["auto", "rich", "plain", "silent"]
CURVE_VALUES = ("bits_per_byte", "bits_per_target", "loss")
"""What a curve is of: the first that there is."""
# Seconds between lines of a log.
OFTEN = 10.0


class Progress:
    """What a training loop tells: where it is (`update`), what happened (`note`), and that it is over.

    This one shows nothing: for tests, and for all but the first rank.
    """

    run: _Run | None = None
    later = 0.0
    """Seconds that other runs will take after this one, where it is one of several."""

    def start(self, total_steps: int | None, title: str) -> None:
        """Begin a display; `total_steps` is None where the end is not known."""

    def update(self, step: int, values: Mapping[str, Value]) -> None:
        """`step` steps are done, and these are the latest values (names that are absent keep their last
        one)."""
        if self.run:
            self.run.update(step, values)
            self._show(self.run)

    def expect(self, total_steps: int) -> None:
        """The run has another number of steps than it began with."""
        if self.run:
            self.run.total = total_steps

    def note(self, text: str) -> None:
        """Print a line that stays."""

    def close(self) -> None:
        """End the display; may be called twice."""

    def _show(self, run: _Run) -> None:
        """There is news of the run."""


def make_progress(kind: ProgressKind = "auto") -> Progress:
    """The display of that kind; "auto" takes the live bar wherever it can be drawn, else plain lines."""
    if kind == "auto":
        kind = "rich" if _can_draw() else "plain"
    if kind == "rich":
        return NotebookProgress() if _in_notebook() else LiveProgress()
    if kind == "plain":
        return PlainProgress()
    if kind == "silent":
        return Progress()
    raise EtymonError(f"unknown progress {kind!r}: {did_you_mean(kind, ['auto', 'rich', 'plain', 'silent'])}")


class ProgressNotes(logging.Handler):
    """Shows what the library warns of as notes of a progress, in a process without a command line."""

    def __init__(self, progress: Progress) -> None:
        super().__init__(logging.WARNING)
        self.progress = progress

    def emit(self, record: logging.LogRecord) -> None:
        self.progress.note(record.getMessage())


class PlainProgress(Progress):
    """Lines without control characters, for logs: one every ten seconds or ten percent, and the last step."""

    def __init__(self, stream: TextIO | None = None, clock: Clock = time.monotonic) -> None:
        self.stream, self.clock = stream, clock
        self.printed_step = -1
        self.printed_at = self.printed_tenth = 0.0

    def start(self, total_steps: int | None, title: str) -> None:
        self.run = _Run(total_steps, title, self.clock, self.later)
        self.printed_step = -1
        self._print(_shown(f"{title}: {total_steps:,} steps" if total_steps else title))

    def note(self, text: str) -> None:
        self._print(translated(text, "message"))

    def close(self) -> None:
        # The last step is always in a log, however recently a line was printed.
        if self.run and self.run.step > self.printed_step:
            self._print_step(self.run)
        self.run = None

    def _show(self, run: _Run) -> None:
        tenth = int(run.fraction * 10 + 1e-9)  # rounding must not cost a tenth
        waited = self.clock() - self.printed_at
        if self.printed_step < 0 or waited >= OFTEN or tenth > self.printed_tenth:
            self._print_step(run)

    def _print_step(self, run: _Run) -> None:
        self.printed_step, self.printed_at = run.step, self.clock()
        self.printed_tenth = int(run.fraction * 10 + 1e-9)
        self._print("  ".join([*run.position(), *run.values()]))

    def _print(self, text: str) -> None:
        print(text, file=self.stream or sys.stderr, flush=True)


class LiveProgress(Progress):
    """Two lines redrawn in place: title, bar, step and time left; then the values that fit the width."""

    def __init__(self, console: Console | None = None) -> None:
        from rich.console import Console

        self.console = console or Console(file=terminal_of(sys.stderr))
        self.live: Any = None

    def start(self, total_steps: int | None, title: str) -> None:
        from rich.live import Live

        self.close()
        self.run = _Run(total_steps, title, later=self.later)
        self.live = Live(
            _Panel(self.run),
            console=self.console,
            refresh_per_second=4,
            # What a pipe reads from stdout must reach it untouched; on a terminal it goes above the bar.
            redirect_stdout=sys.stdout.isatty(),
        )
        self.live.start()

    def note(self, text: str) -> None:
        self.console.print(visible(translated(text, "message")), markup=False, highlight=False)

    def close(self) -> None:
        if self.live:
            self.live.stop()
        self.live = self.run = None


class NotebookProgress(Progress):
    """The two lines of the live display and the curve so far in one notebook output, redrawn in place.

    rich would need ipywidgets for this, which many notebooks do not have.
    """

    handle: Any = None
    drawn_at = -math.inf

    def __init__(self) -> None:
        self.curves: dict[str, list[tuple[float, float]]] = {}

    def update(self, step: int, values: Mapping[str, Value]) -> None:
        unit = next((name for name in CURVE_VALUES if isinstance(values.get(name), float | int)), None)
        for name, place in (("training", unit), ("validation", "validation")):
            value = values.get(place or "")
            # The last validation stands beside every step until there is a new one.
            points = self.curves.setdefault(name, [])
            if isinstance(value, float | int) and not (
                name == "validation" and points and points[-1][1] == value
            ):
                points.append((step, float(value)))
        super().update(step, values)

    def start(self, total_steps: int | None, title: str) -> None:
        from IPython.display import display

        # The hub's client looks for widgets that nothing here needs.
        warnings.filterwarnings("ignore", "IProgress not found")
        self.close()
        self.curves = {}
        self.run = _Run(total_steps, title, later=self.later)
        self.handle = display(self._picture(self.run), raw=True, display_id=True)

    def note(self, text: str) -> None:
        print(translated(text, "message"))

    def close(self) -> None:
        if self.run:
            self._draw(self.run)
        self.run = self.handle = None

    def _show(self, run: _Run) -> None:
        if time.monotonic() - self.drawn_at >= 0.5:
            self._draw(run)

    def _draw(self, run: _Run) -> None:
        self.drawn_at = time.monotonic()
        self.handle.update(self._picture(run), raw=True)

    def _picture(self, run: _Run) -> dict[str, str]:
        filled = round(run.fraction * 30)
        bar = ["█" * filled + "░" * (30 - filled)] if run.total else []
        lines = ["  ".join([run.title, *bar, *run.position()]), "  ".join(run.values())]
        unit = next((name for name in CURVE_VALUES if name in run.latest), "loss").replace("_", " ")
        series = {_shown(name): points for name, points in self.curves.items()}
        curve = live_curve(series, _shown(unit), run.total)
        # Text for what cannot show HTML, such as what is exported from a notebook to a terminal.
        return {"text/plain": "\n".join(lines), "text/html": live_html(lines, curve)}


class _Run:
    """What is known about the run, and how it is put into words."""

    def __init__(
        self, total_steps: int | None, title: str, clock: Clock = time.monotonic, later: float = 0.0
    ) -> None:
        self.later = later
        self.total, self.title, self.clock = total_steps or None, visible(_shown(title), breaks=""), clock
        self.step = 0
        self.latest: dict[str, Value] = {}
        self.first: tuple[int, float] | None = None
        self.last_time = clock()

    def update(self, step: int, values: Mapping[str, Value]) -> None:
        self.step, self.last_time = step, self.clock()
        self.latest = {**self.latest, **values}  # a new one: another thread may be drawing the old one
        # Speed counts from the first report on: a resumed run begins late, and the first step warms up.
        self.first = self.first or (step, self.last_time)

    @property
    def fraction(self) -> float:
        return min(self.step / self.total, 1.0) if self.total else 0.0

    def position(self) -> list[str]:
        if not self.total:
            return [_shown(f"step {self.step:,}")]
        parts = [f"{self.fraction:4.0%}", _shown(f"step {self.step:,}/{self.total:,}")]
        if self.first and self.first[0] < self.step < self.total:
            pace = (self.last_time - self.first[1]) / (self.step - self.first[0])
            left = max(0.0, pace * (self.total - self.step))
            parts.append(_shown(f"{format_seconds(left)} left"))
            if self.later:
                parts.append(_shown(f"{format_seconds(left + self.later)} left for all"))
        return parts

    def values(self) -> list[str]:
        # The usual ones in their usual places; metrics of an objective's own behind them.
        first = [name for name in _VALUES if name in self.latest]
        others = [name for name in self.latest if name not in _VALUES]
        return [format_value(name, self.latest[name]) for name in first + others]


class _Panel:
    """Draws a run in the console's width, whatever it is: what does not fit is left out, never wrapped."""

    def __init__(self, run: _Run) -> None:
        self.run = run

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.progress_bar import ProgressBar
        from rich.segment import Segment
        from rich.text import Text

        width = options.max_width
        position = _fitting(self.run.position(), width)
        # The title gives way first: it stays the same, the position does not.
        title = cut(self.run.title, max(width // 3, 8))
        bar = width - display_width(title) - display_width(position) - 2
        line = Text(no_wrap=True, overflow="crop", end="")
        if bar >= 8 and self.run.total:
            yield Text(f"{title} ", style="bold", end="")
            yield from console.render(
                ProgressBar(self.run.total, min(self.run.step, self.run.total), width=bar),
                options.update(width=bar),
            )
            line.append(f" {position}")
        elif display_width(title) + display_width(position) + 1 <= width:
            line.append(title, style="bold").append(f" {position}")
        else:
            line.append(position)
        yield line
        values = _fitting(self.run.values(), width - 2)
        if values:
            yield Segment.line()
            yield Text(f"  {values}", style="cyan", no_wrap=True, overflow="crop", end="")


def _fitting(parts: list[str], width: int, gap: str = "  ") -> str:
    """As many of the parts as fit, the first ones first."""
    text = parts[0] if parts else ""
    for part in parts[1:]:
        if display_width(text + gap + part) > width:
            break
        text += gap + part
    return text


def format_seconds(seconds: float) -> str:
    """A short duration: 9s, 4m05s, 2h30m, 3d04h."""
    whole = round(seconds)
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if days:
        return f"{days}d{hours % 24:02}h"
    if hours:
        return f"{hours}h{minutes % 60:02}m"
    return f"{minutes}m{whole % 60:02}s" if minutes else f"{whole}s"


def format_count(number: float) -> str:
    """A short number: 512, 12.3k, 1.5M."""
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= NEARLY * size:
            return f"{number / size:.3g}{letter}"
    return f"{number:.3g}"


# Name -> (what is printed before, how the number is printed), in the order of display.
_VALUES: dict[str, tuple[str, Callable[[float], str]]] = {
    "loss": ("loss ", "{:.3f}".format),
    "bits_per_byte": ("", "{:.3f} bits/byte".format),
    "bits_per_character": ("", "{:.3f} bits/character".format),
    "bits_per_target": ("", "{:.3f} bits/target".format),
    "tokens_per_second": ("", lambda number: f"{format_count(number)} tokens/s"),
    "mfu": ("MFU ", "{:.1%}".format),
    "memory": ("", format_bytes),
    "learning_rate": ("rate ", "{:.2e}".format),
}


def format_value(name: str, value: Value) -> str:
    """A value with its name or unit, e.g. `bits_per_byte` 1.25 -> "1.250 bits/byte"."""
    label, formatted = _VALUES.get(name, (f"{name.replace('_', ' ')} ", "{:.4g}".format))
    return _shown(f"{label}{value if isinstance(value, str) else formatted(value)}")


def _shown(text: str) -> str:
    return translated(text, "progress")


def _can_draw() -> bool:
    # Editors' shells and CI call themselves dumb, and print control characters as they are.
    dumb = os.environ.get("TERM", "").lower() in ("dumb", "unknown")
    return _in_notebook() or (sys.stderr.isatty() and not dumb)


def _in_notebook() -> bool:
    # A kernel has IPython loaded already; outside of one there is nothing to import.
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return shell is not None and getattr(shell, "kernel", None) is not None
