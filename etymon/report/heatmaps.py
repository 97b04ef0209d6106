"""Pictures of attention: a page to look around in, or one picture as SVG or PNG.

Legend: Q queries, T keys.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np

from etymon.files import atomic_write
from etymon.report.page import as_html, render_template
from etymon.report.plots import printable

LARGEST = 50.0
"""Inches of a picture's longer side: tokens of a long text become smaller, and no picture takes gigabytes."""


@dataclass(frozen=True)
class Attended:
    """`weights[layer, head, query, key]` of one kind of attention; every query's weights add up to one."""

    kind: str
    """self, encoder, decoder, or cross: from what is written to what was read."""
    queries: list[str]
    keys: list[str]
    weights: np.ndarray

    @property
    def square(self) -> bool:
        return self.kind != "cross"

    def rolled_out(self) -> np.ndarray:
        """How much of every token's input is left in each last state, if half of a layer's output is what came in and half
        what was attended to, heads in equal parts: `prod((A + I) / 2)` (Abnar and Zuidema 2020)."""
        flow = np.eye(len(self.queries))
        for layer_QT in self.weights.mean(1):
            flow = (layer_QT + np.eye(len(flow))) / 2 @ flow
        return flow


def attention_page(title: str, subtitle: str, maps: Sequence[Attended]) -> str:
    """One HTML file that needs nothing else: kinds, layers and heads to choose, every weight to point at."""
    records = [
        {
            "kind": each.kind, "queries": each.queries, "keys": each.keys, "shape": list(each.weights.shape),
            # Sixteen bits a weight: what is shown has three digits.
            "weights": _packed(each.weights), "rollout": _packed(each.rolled_out()) if each.square else None,
        }
        for each in maps
    ]  # fmt: skip
    # In a script element only "</" could end the data early.
    data = as_html(json.dumps(records, ensure_ascii=True).replace("</", "<\\/"))
    return render_template("attention.html", title=title, subtitle=subtitle, data=data)


def _packed(weights: np.ndarray) -> str:
    return base64.b64encode((weights.clip(0, 1) * 65535).round().astype("<u2").tobytes()).decode("ascii")


def attention_picture(path: str | PathLike[str], one: Attended, layer: int | None, head: int | None) -> None:
    """One heat map (None: the mean of all layers, of all heads) to an .svg or .png file."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    chosen = one.weights if layer is None else one.weights[layer : layer + 1]
    weights_QT = (chosen if head is None else chosen[:, head : head + 1]).mean((0, 1))
    rows, columns = weights_QT.shape
    width, height = 2 + 0.28 * columns, 1.6 + 0.24 * rows
    scale = min(1, LARGEST / max(width, height))
    with matplotlib.rc_context(
        {"svg.fonttype": "none", "svg.hashsalt": "etymon", "font.size": max(1, 9 * scale)}
    ):
        figure = Figure(figsize=(scale * width, scale * height), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        image = axes.imshow(weights_QT, cmap="Blues", vmin=0, aspect="auto")
        axes.set_xticks(range(columns), [_plain(token) for token in one.keys], rotation=90)
        axes.set_yticks(range(rows), [_plain(token) for token in one.queries])
        where = "mean of all layers" if layer is None else f"layer {layer + 1}"
        axes.set_title(
            f"{one.kind} attention, {where}, {'mean of all heads' if head is None else f'head {head + 1}'}"
        )
        figure.colorbar(image, ax=axes, shrink=0.8)
        with atomic_write(path, "wb") as file:
            figure.savefig(file, format=Path(path).suffix[1:].lower(), dpi=160)


def _plain(token: str) -> str:
    # A dollar sign would begin a formula.
    return printable(token).replace("$", r"\$") or "·"
