"""Curves as SVG text, drawn by matplotlib, coloured by the page that shows them (light or dark)."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Points = Sequence[tuple[float, float]]

# matplotlib draws with these stand-ins; in the SVG they become CSS variables of the page, each with the
# colour to use where there is no page around the picture.
_COLOURS = {
    "ink": "#1c2430", "muted": "#5f6b7a", "grid": "#e3e7ec", "series-1": "#2563eb", "series-2": "#c2410c",
    "series-3": "#0f766e", "series-4": "#9333ea", "series-5": "#a16207", "series-6": "#be185d",
}  # fmt: skip
_STAND_INS = {name: f"#0a0b{number:02d}" for number, name in enumerate(_COLOURS, 1)}
_INK, _MUTED, _GRID, *_SERIES = _STAND_INS.values()
_STYLES = ["-", (0, (5, 2)), (0, (1.5, 1.5))]  # the seventh series takes the first colour again, dashed

_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: searchable, and in the font of the page
    "svg.hashsalt": "etymon",  # the same data give the same bytes
    "font.size": 10,
    "path.simplify": True,
    "axes.unicode_minus": True,
}


def loss_curve(
    series: Mapping[str, Points],
    references: Mapping[str, float] | None = None,
    x_label: str = "step",
    y_label: str = "loss",
    doubling: bool = False,
) -> str:
    """An `<svg>` of named series of (x, y), with horizontal lines for reference values such as a compressor's.

    With `doubling`, x goes in powers of two. Points that are not finite are left out; a series of more than 600 points is drawn as 600 means.
    """
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    kept = {name: thinned(points) for name, points in series.items()}
    with matplotlib.rc_context(_SETTINGS):
        columns = max(1, min(3, 60 // (max(map(len, kept), default=0) + 6)))  # that the legend has room for
        rows = -(-len(kept) // columns)
        figure = Figure(figsize=(5.8, 3.4 + 0.2 * max(0, rows - 2)), layout="constrained")
        axes = figure.add_subplot()
        for index, (name, points) in enumerate(kept.items()):
            style = _STYLES[index // len(_SERIES) % len(_STYLES)]
            marker = "o" if len(points) == 1 else None
            color = _SERIES[index % len(_SERIES)]
            xs, ys = [math.log2(x) if doubling else x for x, _ in points], [y for _, y in points]
            axes.plot(
                xs, ys, color=color, linestyle=style, linewidth=1.8, marker=marker, label=_literal(name)
            )
        _draw_references(axes, {name: y for name, y in (references or {}).items() if math.isfinite(y)})
        _dress(axes, x_label, y_label, columns if len(kept) > 1 else 0)
        if doubling:
            axes.xaxis.set_major_formatter(lambda value, _: f"{2**value:,.10g}")
        if not any(kept.values()):
            axes.text(0.5, 0.5, "no points yet", transform=axes.transAxes, ha="center", color=_MUTED)
        buffer = io.StringIO()
        nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
        FigureCanvasSVG(figure).print_svg(buffer, metadata=nothing)
    return _inline(buffer.getvalue())


def thinned(points: Points, most: int = 600) -> list[tuple[float, float]]:
    """At most `most` finite points: means over equal runs of neighbours, the last point kept as it is."""
    finite = [(float(x), float(y)) for x, y in points if math.isfinite(x) and math.isfinite(y)]
    if len(finite) <= most:
        return finite
    edges = [round(index * (len(finite) - 1) / (most - 1)) for index in range(most)]
    groups = [finite[start:stop] for start, stop in pairwise(edges)]
    means = [(math.fsum(x for x, _ in g) / len(g), math.fsum(y for _, y in g) / len(g)) for g in groups]
    return [*means, finite[-1]]


def _draw_references(axes: Axes, references: Mapping[str, float]) -> None:
    """Dashed lines, named in the right margin, where no curve runs."""
    for y in references.values():
        axes.axhline(y, color=_MUTED, linewidth=1.2, linestyle=(0, (4, 3)))
    low, high = axes.get_ylim()
    previous = -1.0
    for name, y in sorted(references.items(), key=lambda pair: pair[1]):
        height = max((y - low) / (high - low), previous + 0.075)  # neighbours make room for each other
        previous = height
        told = _literal(f"{name} {y:.3g}")
        axes.text(1.015, height, told, transform=axes.transAxes, va="center", fontsize=9, color=_MUTED)


def _dress(axes: Axes, x_label: str, y_label: str, columns: int) -> None:
    axes.set_xlabel(_literal(x_label), color=_MUTED)
    axes.set_ylabel(_literal(y_label), color=_MUTED)
    axes.grid(axis="y", color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.margins(x=0.01)
    axes.tick_params(colors=_MUTED, length=0, pad=6)
    axes.locator_params(axis="x", integer=True)  # there is no half step, nor half a layer
    axes.locator_params(axis="x", nbins=6)  # the numbers may be long
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(_GRID)
    axes.patch.set_visible(False)
    axes.figure.patch.set_visible(False)
    if columns:
        axes.figure.legend(
            loc="outside upper left", ncols=columns, frameon=False, labelcolor=_INK, handlelength=1.6
        )


def printable(text: str) -> str:
    """The text with a replacement sign for each character that neither HTML nor SVG can hold."""
    return re.sub(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]", "\ufffd", text)


def _literal(text: str) -> str:
    # Two dollar signs would be set as a formula, and a leading underscore hides a series from the legend.
    return re.sub(r"^_", "\u2009_", printable(text).replace("$", r"\$"))


def _inline(svg: str) -> str:
    """The bare `<svg>` element: sized by its surroundings, coloured by CSS variables, without metadata."""
    svg = svg[svg.index("<svg") :].strip()
    svg = re.sub(r"\s*<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(<svg\b[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg\b[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r"font(-family)?: ([^;\"]*?)'DejaVu Sans'[^;\"]*", r"font\1: \2system-ui, sans-serif", svg)
    for name, stand_in in _STAND_INS.items():
        svg = svg.replace(stand_in, f"var(--{name}, {_COLOURS[name]})")
    return svg
