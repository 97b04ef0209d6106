"""A report: one HTML file that needs nothing else, for a browser on a desk or a phone, light or dark.

write_report("runs/bert/report.html", "bert on my text", [
    Figures({"bits per byte": 1.93, "parameters": "14.4M"}),
    Curve({"training": points, "validation": others}, references={"xz": 2.31}, y_label="bits per byte"),
    Samples([(100, "the the"), (1000, "the king is")]),
])

How it looks is in `templates/`: one HTML template a section, the page around them, and its style.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from os import PathLike
from typing import TYPE_CHECKING, Any, Protocol

from etymon.files import atomic_write
from etymon.report.plots import Points, loss_curve, printable

if TYPE_CHECKING:
    from jinja2 import Environment

Cell = str | float | None


class Section(Protocol):
    """A part of a report: anything with a title and an HTML body."""

    @property
    def title(self) -> str: ...

    def body(self) -> str: ...


@dataclass(frozen=True)
class Figures:
    """Key figures as tiles: what it is -> its value."""

    values: Mapping[str, Cell]
    title: str = ""

    def body(self) -> str:
        return render_template("figures.html", values=self.values)


@dataclass(frozen=True)
class Curve:
    """Series of (x, y) in one picture, with horizontal lines for `references`."""

    series: Mapping[str, Points]
    references: Mapping[str, float] = field(default_factory=dict)
    x_label: str = "step"
    y_label: str = "loss"
    title: str = ""
    caption: str = ""
    doubling: bool = False
    """Whether x goes in powers of two."""

    def body(self) -> str:
        svg = loss_curve(self.series, self.references, self.x_label, self.y_label, self.doubling)
        label = self.title or f"{self.y_label} by {self.x_label}"
        svg = svg.replace("<svg", f'<svg role="img" aria-label="{escape(label)}"', 1)
        return render_template("curve.html", svg=as_html(svg), caption=self.caption)


@dataclass(frozen=True)
class Table:
    """Rows under a header; columns of numbers are set to the right."""

    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    title: str = ""

    def body(self) -> str:
        columns = list(zip(*self.rows, strict=True)) or [()] * len(self.header)
        if len(columns) != len(self.header):
            raise ValueError(f"a table with {len(self.header)} headings has rows of {len(columns)} cells")
        classes = [as_html(' class="number"' if _is_numeric(column) else "") for column in columns]
        return render_template("table.html", header=self.header, rows=self.rows, classes=classes)


@dataclass(frozen=True)
class Samples:
    """Texts that the model wrote: (step, text), or (any label, text)."""

    samples: Sequence[tuple[int | str, str]]
    title: str = "Samples"

    def body(self) -> str:
        labelled = [
            (f"step {step:,}" if isinstance(step, int) else step, text) for step, text in self.samples
        ]
        return render_template("samples.html", samples=labelled)


@dataclass(frozen=True)
class Paragraph:
    """Running text; an empty line begins a new paragraph."""

    text: str
    title: str = ""

    def body(self) -> str:
        return render_template("paragraph.html", paragraphs=re.split(r"\n\s*\n", self.text.strip()))


@dataclass(frozen=True)
class Code:
    """A command or other text in a fixed-width font, kept as it is."""

    text: str
    title: str = ""

    def body(self) -> str:
        return render_template("code.html", text=self.text.strip())


def write_report(
    path: str | PathLike[str], title: str, sections: Sequence[Section], subtitle: str = ""
) -> None:
    """Writes the page; an older one of that name is replaced only when the new one is complete."""
    text = render(title, sections, subtitle)
    with atomic_write(path) as file:
        file.write(text)


def render(title: str, sections: Sequence[Section], subtitle: str = "") -> str:
    """The whole page as text."""
    return render_template("page.html", title=title, sections=sections, subtitle=subtitle)


def render_template(name: str, **values: Any) -> str:
    """A template of this package with its values, all of which are escaped unless they are `as_html`."""
    return _environment().get_template(name).render(values)


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("etymon.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        # Whatever is shown: characters that HTML cannot hold become a replacement sign.
        finalize=lambda value: (
            printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value
        ),
    )
    environment.filters |= {"shown": shown, "own_ids": _with_own_ids}
    return environment


def as_html(text: str) -> Any:
    """Text that a template takes over as it is."""
    from markupsafe import Markup

    return Markup(text)


def escape(text: str) -> str:
    """Text that is safe anywhere in the page; characters that HTML cannot hold become a replacement sign."""
    return html.escape(printable(text))


def shown(value: Cell) -> str:
    """A number with four digits (or all those before the point); text as it is; nothing as a dash."""
    if value is None:
        return "–"
    if isinstance(value, str | bool):
        return str(value)
    if isinstance(value, int) or value == 0 or 1000 <= abs(value) < 1e15:
        return f"{value:,.0f}"
    return f"{value:.4g}" if 1e-4 <= abs(value) < 1000 else f"{value:.3e}"


def _is_numeric(cells: Sequence[Cell]) -> bool:
    kept = [cell for cell in cells if cell is not None]
    return bool(kept) and all(isinstance(cell, int | float) and not isinstance(cell, bool) for cell in kept)


def _with_own_ids(body: str, prefix: str) -> Any:
    # Several pictures share one page: their clip paths must not be taken for each other's.
    return as_html(re.sub(r'(<[a-zA-Z][^<>]* id="|url\(#|xlink:href="#)', rf"\g<1>{prefix}", body))
