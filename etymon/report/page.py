"""A report: one HTML file that needs nothing else, for a browser on a desk or a phone, light or dark.

write_report("runs/bert/report.html", "bert on my text", [
    Figures({"bits per byte": 1.93, "parameters": "14.4M"}),
    Curve({"training": points, "validation": others}, references={"xz": 2.31}, y_label="bits per byte"),
    Samples([(100, "the the"), (1000, "the king is")]),
])
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import Protocol

from etymon.files import atomic_write
from etymon.report.plots import Points, loss_curve, printable

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
        tiles = (
            f"<div><dt>{escape(name)}</dt><dd>{escape(shown(value))}</dd></div>"
            for name, value in self.values.items()
        )
        return f'<dl class="figures">{"".join(tiles)}</dl>'


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
        caption = f"<figcaption>{escape(self.caption)}</figcaption>" if self.caption else ""
        return f'<figure class="plot">{svg}{caption}</figure>'


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
        classes = [' class="number"' if _numeric(column) else "" for column in columns]
        head = "".join(f"<th{css}>{escape(name)}</th>" for name, css in zip(self.header, classes))
        rows = "".join(
            f"<tr>{''.join(f'<td{css}>{escape(shown(cell))}</td>' for cell, css in zip(row, classes))}</tr>"
            for row in self.rows
        )
        return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


@dataclass(frozen=True)
class Samples:
    """Texts that the model wrote: (step, text), or (any label, text)."""

    samples: Sequence[tuple[int | str, str]]
    title: str = "Samples"

    def body(self) -> str:
        return "".join(
            f'<figure class="sample"><figcaption>{escape(_step(step))}</figcaption>'
            f'<blockquote dir="auto">{escape(text)}</blockquote></figure>'
            for step, text in self.samples
        )


@dataclass(frozen=True)
class Paragraph:
    """Running text; an empty line begins a new paragraph."""

    text: str
    title: str = ""

    def body(self) -> str:
        parts = re.split(r"\n\s*\n", self.text.strip())
        return "".join(f"<p>{escape(part)}</p>" for part in parts)


@dataclass(frozen=True)
class Code:
    """A command or other text in a fixed-width font, kept as it is."""

    text: str
    title: str = ""

    def body(self) -> str:
        return f"<pre><code>{escape(self.text.strip())}</code></pre>"


def write_report(
    path: str | PathLike[str], title: str, sections: Sequence[Section], subtitle: str = ""
) -> None:
    """Write the page; an older one of that name is replaced only when the new one is complete."""
    text = render(title, sections, subtitle)
    with atomic_write(path) as file:
        file.write(text)


def render(title: str, sections: Sequence[Section], subtitle: str = "") -> str:
    """The whole page as text."""
    parts = []
    for number, section in enumerate(sections, 1):
        heading = f"<h2>{escape(section.title)}</h2>" if section.title else ""
        parts.append(f"<section>{heading}{_with_own_ids(section.body(), f's{number}-')}</section>")
    lead = f'<p class="subtitle">{escape(subtitle)}</p>' if subtitle else ""
    return page(title, "\n".join(parts), lead)


def page(title: str, sections: str, lead: str = "", *, style: str = "", script: str = "") -> str:
    """A page that needs nothing else, of sections in HTML. `script` may stand behind them."""
    policy = "; script-src 'unsafe-inline'" if script else ""
    return _PAGE.format(
        title=escape(title), sections=sections, lead=lead, style=_STYLE + style, script=script, policy=policy
    )


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


def _numeric(cells: Sequence[Cell]) -> bool:
    kept = [cell for cell in cells if cell is not None]
    return bool(kept) and all(isinstance(cell, int | float) and not isinstance(cell, bool) for cell in kept)


def _step(step: int | str) -> str:
    return f"step {step:,}" if isinstance(step, int) else step


def _with_own_ids(body: str, prefix: str) -> str:
    # Several pictures share one page: their clip paths must not be taken for each other's.
    return re.sub(r'(<[a-zA-Z][^<>]* id="|url\(#|xlink:href="#)', rf"\g<1>{prefix}", body)


_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'{policy}">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<header><h1>{title}</h1>{lead}</header>
<main>
{sections}
</main>
<footer>Written by etymon.</footer>
{script}</body>
</html>
"""

_STYLE = """:root {
  --paper: #f6f7f9; --card: #ffffff; --ink: #1c2430; --muted: #5f6b7a; --grid: #e3e7ec;
  --series-1: #2563eb; --series-2: #c2410c; --series-3: #0f766e; --series-4: #9333ea; --series-5: #a16207;
  --series-6: #be185d;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #12161c; --card: #1a2028; --ink: #e6eaf0; --muted: #98a4b3; --grid: #2d3642;
    --series-1: #6ea8fe; --series-2: #fb923c; --series-3: #2dd4bf; --series-4: #c084fc; --series-5: #facc15;
    --series-6: #f472b6;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 2rem 1rem 3rem; max-width: 52rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", sans-serif; overflow-wrap: break-word;
}
h1 { margin: 0; font-size: 1.7rem; line-height: 1.25; }
h2 { margin: 0 0 .7rem; font-size: 1.05rem; }
p { margin: 0 0 .7rem; }
.subtitle, figcaption, footer, dt { color: var(--muted); }
.subtitle { margin: .3rem 0 0; }
section {
  margin-top: 1rem; padding: 1rem 1.1rem; background: var(--card); border: 1px solid var(--grid);
  border-radius: .7rem;
}
section > :last-child { margin-bottom: 0; }
.figures { display: grid; grid-template-columns: repeat(auto-fill, minmax(9rem, 1fr)); gap: 1rem; margin: 0; }
dt { font-size: .8rem; }
dd { margin: 0; font-size: 1.3rem; font-weight: 600; line-height: 1.3; font-variant-numeric: tabular-nums; }
figure { margin: 0 0 1rem; }
.plot svg { display: block; width: 100%; max-width: 44rem; height: auto; margin: 0 auto; overflow: visible; }
.plot text { paint-order: stroke; stroke: var(--card); stroke-width: 3px; stroke-linejoin: round; }
figcaption { font-size: .85rem; }
.sample blockquote {
  margin: .2rem 0 0; padding: .1rem 0 .1rem .8rem; border-left: 3px solid var(--series-1); white-space: pre-wrap;
  font-family: Georgia, "Times New Roman", serif;
}
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: .93rem; }
th, td { padding: .4rem .9rem .4rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--grid); }
th { color: var(--muted); font-weight: 500; font-size: .85rem; }
th.number, td.number { text-align: right; }
th:last-child, td:last-child { padding-right: 0; }
tbody tr:last-child td { border-bottom: 0; }
pre {
  margin: 0 0 .7rem; padding: .7rem .9rem; overflow-x: auto; background: var(--paper); border-radius: .4rem;
  font: .88rem/1.5 ui-monospace, "SFMono-Regular", Consolas, monospace;
}
@media (max-width: 32rem) {
  section { padding: .9rem; }
  .plot text { font-size: 12.5px !important; }
}
footer { margin-top: 1.2rem; font-size: .8rem; }
"""
