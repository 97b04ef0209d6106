"""Results inside a notebook: the same tables, figures and curves as in reports, without a page around them.

A class that inherits `Inline` says in `inline_sections` what a notebook shows of it, and `print` without the
pictures. Nothing here imports anything heavy: `--help` loads the modules of the verbs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, TypeVar
from zlib import crc32

from etymon.display import align_left, display_width

if TYPE_CHECKING:
    from etymon.report.page import Cell, Section
    from etymon.report.plots import Points

Item = TypeVar("Item")
MOST_ROWS = 50
"""Of a list of results that are shown: a notebook is no place for ten thousand."""
DARKEST = 15.0
"""Bits of surprisal at which a word is as dark as can be."""
# Of a live curve, in the units of its picture.
WIDTH, HEIGHT, LEFT, BOTTOM = 560, 170, 48, 22
LIVE_POINTS = 150


class Inline:
    """A result that notebooks show as HTML, and `print` as text."""

    def inline_sections(self) -> Iterable[Section]:
        """The parts of a report that say what it is."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        return render_inline(list(self.inline_sections()))

    def __str__(self) -> str:
        return "\n".join(filter(None, map(text_of, self.inline_sections())))


class InlineRow(Inline):
    """A result that is one row of a table: several of a kind become one table."""

    def table_row(self) -> Mapping[str, Cell]:
        """Cells by the names of their columns."""
        raise NotImplementedError

    def inline_sections(self) -> Iterable[Section]:
        return [table_of_rows([self])]


class ResultList(list[Item], Inline):
    """A list of results, as verbs return them for several texts; a plain list in all but notebooks."""

    def inline_sections(self) -> Iterable[Section]:
        from etymon.report.page import Paragraph

        few = self[:MOST_ROWS]
        rows = [item for item in few if isinstance(item, InlineRow)]
        if len(rows) == len(few):
            yield table_of_rows(rows)
        else:
            for item in few:
                if isinstance(item, Inline):
                    yield from item.inline_sections()
        if len(few) < len(self):
            yield Paragraph(f"and {len(self) - len(few):,} more")


def as_shown(result: Any) -> Any:
    """A list of results as one that notebooks can show; anything else as it is."""
    if type(result) is list and result and all(isinstance(item, Inline) for item in result):
        return ResultList(result)
    return result


def render_inline(sections: Sequence[Section]) -> str:
    """The sections as HTML that brings its own style and touches nothing else on the page."""
    from etymon.report.page import render_template

    bodies = [(section.title, str(section.body())) for section in sections]
    # One page of a notebook holds many results: ids of their pictures must not be taken for each other's.
    unique = f"e{crc32(''.join(body for _, body in bodies).encode()):08x}"
    return render_template("inline.html", bodies=bodies, unique=unique)


def text_of(section: Section) -> str:
    """What a section says, as text: rows in columns; of a picture, its caption."""
    from etymon.report.cells import shown
    from etymon.report.page import Figures, ReportSamples, ReportTable

    if isinstance(section, Figures):
        rows: Sequence[Sequence[Any]] = list(section.values.items())
    elif isinstance(section, ReportTable):
        rows = [section.header, *section.rows]
    elif isinstance(section, ReportSamples):
        rows = [(f"{section.title}, {label}:", text) for label, text in section.labelled()]
    elif isinstance(section, ShadedText):
        return "".join(text for text, _, _ in section.parts)
    else:
        return str(getattr(section, "text", getattr(section, "caption", "")))
    columns = list(zip(*([" ".join(shown(cell).split()) for cell in row] for row in rows)))
    widths = [max(map(display_width, column)) for column in columns]
    return "\n".join("  ".join(map(align_left, row, widths)).rstrip() for row in zip(*columns))


def table_of_rows(results: Sequence[InlineRow]) -> Section:
    """One table of all results; a column that only some have is empty for the others."""
    from etymon.report.page import ReportTable

    rows = [result.table_row() for result in results]
    header = list(dict.fromkeys(name for row in rows for name in row))
    return ReportTable(header, [[row.get(name) for name in header] for row in rows])


@dataclass(frozen=True)
class ShadedText:
    """A text whose parts are the darker the larger their value is; pointing at one shows its figure.

    `parts` are (text, share from 0 to 1 or None, what is shown at pointing) in reading order.
    """

    parts: Sequence[tuple[str, float | None, str]]
    caption: str = ""
    title: str = ""

    def body(self) -> str:
        from etymon.report.page import render_template

        return render_template("shaded.html", parts=self.parts, caption=self.caption)


@dataclass(frozen=True)
class Picture:
    """An `<svg>` that was drawn elsewhere."""

    svg: str
    title: str = ""
    caption: str = ""

    def body(self) -> str:
        from etymon.report.cells import as_html
        from etymon.report.page import render_template

        drawing = as_html(self.svg.removeprefix("<svg"))
        return render_template("curve.html", drawing=drawing, label=self.title, caption=self.caption)


def shaded_spans(
    text: str, spans: Iterable[tuple[int, int, float, str]]
) -> list[tuple[str, float | None, str]]:
    """The parts of a `ShadedText`: spans (start, stop, share, tooltip) of a text, and what lies between."""
    parts: list[tuple[str, float | None, str]] = []
    at = 0
    for start, stop, share, tooltip in spans:
        if start > at:
            parts.append((text[at:start], None, ""))
        parts.append((text[start:stop], min(1.0, max(0.0, share)), tooltip))
        at = stop
    return [*parts, (text[at:], None, "")] if at < len(text) else parts


def live_curve(series: Mapping[str, Points], y_label: str, last_step: int | None) -> str:
    """A small `<svg>` of a run that goes on, cheap enough to be drawn anew twice a second."""
    # By hand: matplotlib takes 0.1 s for it, of which a run on one core would feel every one.
    from etymon.report.plots import thin_points

    kept = {name: thin_points(points, LIVE_POINTS) for name, points in series.items()}
    kept = {name: points for name, points in kept.items() if points}
    every = [point for points in kept.values() for point in points]
    if not every:
        return ""
    right = max([x for x, _ in every] + [last_step or 1])
    low, high = min(y for _, y in every), max(y for _, y in every)
    span = (high - low) or 1.0

    def place(x: float, y: float) -> str:
        across = LEFT + x / right * (WIDTH - LEFT - 8)
        return f"{across:.1f},{8 + (high - y) / span * (HEIGHT - BOTTOM - 16):.1f}"

    drawn = []
    for number, (name, points) in enumerate(kept.items(), 1):
        line = " ".join(place(x, y) for x, y in points)
        dots = "".join(
            f'<circle cx="{xy[0]}" cy="{xy[1]}" r="2.5" fill="var(--series-{number})"/>'
            for xy in (place(x, y).split(",") for x, y in points)
        )
        # A step is one of many; a validation is one of few, and each is to be seen.
        drawn.append(
            f'<polyline points="{line}" fill="none" stroke="var(--series-{number})" stroke-width="1.8"/>'
            + (dots if len(points) <= 30 else "")
        )
        drawn.append(
            f'<text x="{WIDTH - 8}" y="{4 + 15 * number}" text-anchor="end" '
            f'fill="var(--series-{number})">{escape(name)} {points[-1][1]:.3f}</text>'
        )
    bottom = HEIGHT - BOTTOM
    labels = [
        f'<text x="{LEFT - 6}" y="14" text-anchor="end">{high:.3g}</text>',
        f'<text x="{LEFT - 6}" y="{bottom - 2}" text-anchor="end">{low:.3g}</text>',
        f'<text x="{LEFT}" y="{HEIGHT - 6}">{escape(y_label)}</text>',
        f'<text x="{WIDTH - 8}" y="{HEIGHT - 6}" text-anchor="end">{right:,.0f}</text>',
        f'<path d="M{LEFT},{bottom}H{WIDTH - 8}" stroke="var(--grid)" fill="none"/>',
    ]
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(y_label)}" '
        f'font-size="11" fill="var(--muted)">{"".join(labels + drawn)}</svg>'
    )


def live_html(lines: Sequence[str], curve: str) -> str:
    """The lines of a live display above its curve."""
    from etymon.report.cells import as_html
    from etymon.report.page import render_template

    return render_template("live.html", lines=lines, curve=as_html(curve))
