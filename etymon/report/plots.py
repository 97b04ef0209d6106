"""Pictures drawn by matplotlib: curves as SVG text, coloured by the page that shows them (light or dark), and
heat maps of attention as files.

Legend: L layers, H heads, Q queries, T keys.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from etymon.display import display_width, wrap
from etymon.files import atomic_write
from etymon.language import translated
from etymon.report.fonts import drawing_with

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Points = Sequence[tuple[float, float]]

# matplotlib draws with these stand-ins; in the SVG they become CSS variables of the page, each with the
# colour to use where there is no page around the picture.
_COLOURS = {
    "ink": "#1c2430",
    "muted": "#5f6b7a",
    "grid": "#e3e7ec",
    "series-1": "#2563eb",
    "series-2": "#c2410c",
    "series-3": "#0f766e",
    "series-4": "#9333ea",
    "series-5": "#a16207",
    "series-6": "#be185d",
}
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
    """An `<svg>` of named series of (x, y), with horizontal lines for reference values such as a
    compressor's.

    With `doubling`, x goes in powers of two. Points that are not finite are left out; a series of more than
    600 points is drawn as 600 means.
    """
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    kept = {name: thin_points(points) for name, points in series.items()}
    with drawing_with("".join([*kept, *(references or {}), x_label, y_label]), _SETTINGS):
        columns = max(
            1, min(3, 60 // (max(map(display_width, kept), default=0) + 6))
        )  # that the legend has room for
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
        finite = {name: y for name, y in (references or {}).items() if math.isfinite(y)}
        for y in finite.values():
            axes.axhline(y, color=_MUTED, linewidth=1.2, linestyle=(0, (4, 3)))
        # References are named in the right margin, where no curve runs.
        low, high = axes.get_ylim()
        height = -1.0
        for name, y in sorted(finite.items(), key=lambda pair: pair[1]):
            height = max((y - low) / (high - low), height + 0.075)  # neighbours make room for each other
            label = _literal(f"{name} {y:.3g}")
            axes.text(1.015, height, label, transform=axes.transAxes, va="center", fontsize=9, color=_MUTED)
        _style_axes(axes, x_label, y_label)
        if len(kept) > 1:
            figure.legend(
                loc="outside upper left", ncols=columns, frameon=False, labelcolor=_INK, handlelength=1.6
            )
        if doubling:
            axes.xaxis.set_major_formatter(lambda value, _: f"{2**value:,.10g}")
        if not any(kept.values()):
            axes.text(
                0.5,
                0.5,
                translated("no points yet", "report"),
                transform=axes.transAxes,
                ha="center",
                color=_MUTED,
            )
        buffer = io.StringIO()
        nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
        FigureCanvasSVG(figure).print_svg(buffer, metadata=nothing)
    return bare_svg(buffer.getvalue())


def curve_image(series: Mapping[str, Points], x_label: str, y_label: str) -> bytes:
    """A PNG of named series of (x, y) on white, for pages that show no SVG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # The colours of a light page.
    colours = [colour for name, colour in _COLOURS.items() if name.startswith("series")]
    with drawing_with("".join([*series, x_label, y_label]), _SETTINGS):
        figure = Figure(figsize=(7.2, 4.0), layout="constrained", dpi=120)
        axes = figure.add_subplot()
        for index, (name, points) in enumerate(series.items()):
            kept = thin_points(points)
            marker = "o" if len(kept) == 1 else None
            xs, ys = [x for x, _ in kept], [y for _, y in kept]
            colour = colours[index % len(colours)]
            axes.plot(xs, ys, color=colour, linewidth=1.8, marker=marker, label=_literal(name))
        _style_axes(axes, x_label, y_label, _COLOURS["muted"], _COLOURS["grid"])
        figure.patch.set_visible(True)
        if len(series) > 1:
            figure.legend(loc="outside upper left", ncols=3, frameon=False, handlelength=1.6)
        buffer = io.BytesIO()
        # Without the name of the software, the same data give the same bytes, which are then not sent twice.
        FigureCanvasAgg(figure).print_png(buffer, metadata={"Software": None})
    return buffer.getvalue()


def _style_axes(axes: Axes, x_label: str, y_label: str, muted: str = _MUTED, grid: str = _GRID) -> None:
    axes.set_xlabel(_literal(x_label), color=muted)
    axes.set_ylabel(_literal(y_label), color=muted)
    axes.grid(axis="y", color=grid, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.margins(x=0.01)
    axes.tick_params(colors=muted, length=0, pad=6)
    axes.locator_params(axis="x", integer=True)  # there is no half step, nor half a layer
    axes.locator_params(axis="x", nbins=6)  # the numbers may be long
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(grid)
    axes.patch.set_visible(False)
    axes.figure.patch.set_visible(False)


def thin_points(points: Points, most: int = 600) -> list[tuple[float, float]]:
    """At most `most` finite points: means over equal runs of neighbours, the last point kept as it is."""
    finite = [(float(x), float(y)) for x, y in points if math.isfinite(x) and math.isfinite(y)]
    if len(finite) <= most:
        return finite
    edges = [round(index * (len(finite) - 1) / (most - 1)) for index in range(most)]
    groups = [finite[start:stop] for start, stop in pairwise(edges)]
    means = [(math.fsum(x for x, _ in g) / len(g), math.fsum(y for _, y in g) / len(g)) for g in groups]
    return [*means, finite[-1]]


def printable(text: str) -> str:
    """The text with a replacement sign for each character that neither HTML nor SVG can hold."""
    return re.sub(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]", "\ufffd", text)


def _literal(text: str) -> str:
    # Two dollar signs would be set as a formula, and a leading underscore hides a series from the legend.
    return re.sub(r"^_", "\u2009_", printable(text).replace("$", r"\$"))


def bare_svg(svg: str) -> str:
    """The bare `<svg>` element: sized by its surroundings, coloured by CSS variables, without metadata."""
    svg = svg[svg.index("<svg") :].strip()
    svg = re.sub(r"\s*<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    for size in ("width", "height"):
        svg = re.sub(rf'(<svg\b[^>]*?) {size}="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r"font(-family)?: ([^;\"]*?)'DejaVu Sans'[^;\"]*", r"font\1: \2system-ui, sans-serif", svg)
    for name, stand_in in _STAND_INS.items():
        svg = svg.replace(stand_in, f"var(--{name}, {_COLOURS[name]})")
    return svg


# Inches of a picture's longer side: tokens of a long text become smaller, and no picture takes gigabytes.
LARGEST = 50.0


@dataclass(frozen=True)
class AttentionMap:
    """`weights[layer, head, query, key]` of one kind of attention; every query's weights add up to one."""

    kind: str
    """self, encoder, decoder, or cross: from what is written to what was read."""
    queries: list[str]
    keys: list[str]
    weights: np.ndarray

    def rollout(self) -> np.ndarray:
        """How much of every token's input is left in each last state: `prod((A + I) / 2)` over the layers.

        Half of a layer's output is what came in and half what was attended to, heads in equal parts (Abnar
        and Zuidema 2020).
        """
        flow_QT = np.eye(len(self.queries))
        for layer_QT in self.weights.mean(1):
            flow_QT = (layer_QT + np.eye(len(flow_QT))) / 2 @ flow_QT
        return flow_QT


TITLE_CELLS = 10
"""Cells of a title that fit into an inch of a picture."""


def set_single_letters_upright(axes: Axes) -> None:
    """Turns names of columns back that are one character, as Chinese tokens are."""
    for label in axes.get_xticklabels():
        if len(label.get_text()) == 1:
            label.set_rotation(0)


def attention_picture(
    path: str | PathLike[str], attention: AttentionMap, layer: int | None, head: int | None
) -> None:
    """Writes a heat map (None: the mean of all layers, of all heads) to an .svg or .png file."""
    kind = Path(path).suffix[1:].lower()
    with atomic_write(path, "wb") as file:
        _draw_attention(file, kind, attention, layer, head, Path(path).name if kind == "png" else "")


def attention_svg(attention: AttentionMap) -> str:
    """The mean of all layers and heads as an `<svg>`."""
    buffer = io.BytesIO()
    _draw_attention(buffer, "svg", attention, None, None, "")
    return bare_svg(buffer.getvalue().decode())


def _draw_attention(
    file: IO[bytes], kind: str, attention: AttentionMap, layer: int | None, head: int | None, picture: str
) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    weights_LHQT = attention.weights if layer is None else attention.weights[layer : layer + 1]
    weights_QT = (weights_LHQT if head is None else weights_LHQT[:, head : head + 1]).mean((0, 1))
    rows, columns = weights_QT.shape
    width, height = 2 + 0.28 * columns, 1.6 + 0.24 * rows
    scale = min(1, LARGEST / max(width, height))
    # A dollar sign would begin a formula.
    keys, queries = (
        [printable(token).replace("$", r"\$") or "·" for token in tokens]
        for tokens in (attention.keys, attention.queries)
    )
    layers = "mean of all layers" if layer is None else f"layer {layer + 1}"
    heads = "mean of all heads" if head is None else f"head {head + 1}"
    title = translated(f"{attention.kind} attention, {layers}, {heads}", "report")
    settings = {"svg.fonttype": "none", "svg.hashsalt": "etymon", "font.size": max(1, 9 * scale)}
    with drawing_with("".join([title, *keys, *queries]), settings, picture):
        figure = Figure(figsize=(scale * width, scale * height), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        image = axes.imshow(weights_QT, cmap="Blues", vmin=0, aspect="auto")
        axes.set_xticks(range(columns), keys, rotation=90)
        set_single_letters_upright(axes)
        axes.set_yticks(range(rows), queries)
        # Above the whole figure, which may be narrower than the title.
        figure.suptitle("\n".join(wrap(title, int(width * TITLE_CELLS))))
        figure.colorbar(image, ax=axes, shrink=0.8)
        figure.savefig(file, format=kind, dpi=160)
