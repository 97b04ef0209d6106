"""A forest plot: estimates with their intervals, one below the other."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass

from etymon.display import cut
from etymon.report.cells import as_html
from etymon.report.fonts import drawing_with
from etymon.report.page import in_language, render_template
from etymon.report.plots import _GRID, _INK, _MUTED, _SERIES, _SETTINGS, _literal, bare_svg

LABEL_CELLS = 36
"""Of the name of an estimate, in cells of a terminal: a longer one would leave no room for the picture."""


@dataclass(frozen=True)
class Estimate:
    """A line of a forest plot. Without ends of an interval it is a reference, such as a baseline."""

    name: str
    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Forest:
    """Estimates with their intervals; a dashed line at `zero`, where there is one."""

    estimates: Sequence[Estimate]
    x_label: str
    title: str = ""
    caption: str = ""
    zero: float | None = None

    def body(self) -> str:
        svg = forest_plot(self.estimates, in_language(self.x_label), self.zero)
        label = in_language(self.title) or in_language(self.x_label)
        drawing = as_html(svg.removeprefix("<svg"))
        return render_template("curve.html", drawing=drawing, label=label, caption=in_language(self.caption))


def forest_plot(estimates: Sequence[Estimate], x_label: str, zero: float | None = None) -> str:
    """An `<svg>` with a line for every estimate, the first on top."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    names = [_literal(cut(in_language(each.name), LABEL_CELLS)) for each in estimates]
    with drawing_with("".join([*names, x_label]), _SETTINGS):
        figure = Figure(figsize=(5.8, 1.0 + 0.34 * max(1, len(estimates))), layout="constrained")
        axes = figure.add_subplot()
        for place, each in enumerate(estimates):
            # By shape and colour: a page that is printed has no colours.
            is_reference = each.low is None or each.high is None
            color = _MUTED if is_reference else _SERIES[0]
            if each.low is not None and each.high is not None and math.isfinite(each.high - each.low):
                axes.plot([each.low, each.high], [place, place], color=color, linewidth=2.2)
            axes.plot([each.value], [place], color=color, marker="D" if is_reference else "o", markersize=6)
        if zero is not None:
            axes.axvline(zero, color=_MUTED, linewidth=1.2, linestyle=(0, (4, 3)))
        axes.set_yticks(range(len(names)), names)
        # The first on top, as in the table below.
        axes.set_ylim(len(estimates) - 0.4, -0.6)
        axes.set_xlabel(_literal(x_label), color=_MUTED)
        axes.grid(axis="x", color=_GRID, linewidth=0.8)
        axes.set_axisbelow(True)
        # Room beside the outermost marks, which would be cut in half.
        axes.margins(x=0.06)
        axes.tick_params(colors=_MUTED, length=0, pad=6)
        axes.tick_params(axis="y", labelcolor=_INK)
        axes.locator_params(axis="x", nbins=6)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
        for side, spine in axes.spines.items():
            spine.set_visible(side == "bottom")
            spine.set_color(_GRID)
        axes.patch.set_visible(False)
        figure.patch.set_visible(False)
        buffer = io.StringIO()
        nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
        FigureCanvasSVG(figure).print_svg(buffer, metadata=nothing)
    return bare_svg(buffer.getvalue())
