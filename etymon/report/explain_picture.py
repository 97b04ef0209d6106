"""The picture of `etymon explain`: what every part of the model reads and is asked, and who sees whom."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import IO, Any

import numpy as np

from etymon.files import atomic_write
from etymon.report.fonts import drawing_with
from etymon.report.page import in_language
from etymon.report.plots import LARGEST, bare_svg, printable

# Of a token's box, by its kind.
COLOURS = {
    "text": "#eef2f7",
    "special": "#dfe5ec",
    "mask": "#fed7aa",
    "sentinel": "#e9d5ff",
    "changed": "#fef08a",
    "asked": "#bfdbfe",
}
SEEN, UNSEEN = "#2563eb", "#eef2f7"
# In inches: a token's column and a row of a picture of who sees whom.
CELL, ROW = 0.62, 0.26


def explain_picture(path: str | PathLike[str], record: Mapping[str, Any]) -> None:
    """Writes a sample of an explanation (`explaining.explanation.as_record`) to an .svg or .png file: the
    first that remembers another one, else the first."""
    kind = Path(path).suffix[1:].lower()
    with atomic_write(path, "wb") as file:
        _draw(file, kind, record, Path(path).name if kind == "png" else "")


def explain_svg(record: Mapping[str, Any]) -> str:
    """The same as an `<svg>`."""
    buffer = io.BytesIO()
    _draw(buffer, "svg", record, "")
    return bare_svg(buffer.getvalue().decode())


def _draw(file: IO[bytes], kind: str, record: Mapping[str, Any], warned: str) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    samples = record["samples"]
    readers = next(filter(_remembers, samples), samples[0])["readers"]
    # A picture in which all see all says nothing that a title could not.
    pictures = [
        (reader, picture)
        for reader in readers
        for picture in reader["sees"]
        if any(len(row) < len(picture["keys"]) for row in picture["allowed"])
    ]
    columns = max(
        [len(reader["tokens"]) for reader in readers] + [len(picture["keys"]) for _, picture in pictures]
    )
    heights = [1.3] * len(readers) + [0.9 + ROW * len(picture["queries"]) for _, picture in pictures]
    width, height = 1.2 + CELL * columns, sum(heights)
    scale = min(1, LARGEST / max(width, height))
    texts = [token["text"] for reader in readers for token in reader["tokens"]]
    texts += [question["target"] for reader in readers for question in reader["questions"]]
    settings = {"svg.fonttype": "none", "svg.hashsalt": "etymon", "font.size": max(1, 9 * scale)}
    with drawing_with("".join(map(_plain, texts)), settings, warned):
        figure = Figure(figsize=(scale * width, scale * height), layout="constrained")
        FigureCanvasAgg(figure)
        parts = np.atleast_1d(figure.subplots(len(heights), height_ratios=heights))
        for axes, reader in zip(parts, readers, strict=False):
            _draw_tokens(axes, reader, columns)
        for axes, (reader, picture) in zip(parts[len(readers) :], pictures, strict=True):
            _draw_visibility(axes, reader, picture, columns)
        figure.savefig(file, format=kind, dpi=160)


def _remembers(sample: Mapping[str, Any]) -> bool:
    """Whether some reader sees keys that it does not read itself, before its own."""
    pictures = [picture for reader in sample["readers"] for picture in reader["sees"]]
    return any(picture["keys"][0].startswith("memory ") for picture in pictures)


def _plain(text: str) -> str:
    # A dollar sign would begin a formula.
    return printable(text.strip() or text).replace("$", r"\$")


def _draw_tokens(axes: Any, reader: Mapping[str, Any], columns: int) -> None:
    """A box for every token that is read, what stood there above it, and what is predicted below."""
    targets = {question["place"]: question["target"] for question in reader["questions"]}
    for place, token in enumerate(reader["tokens"]):
        box = {"boxstyle": "round,pad=0.3", "facecolor": COLOURS[token["kind"]], "edgecolor": "#94a3b8"}
        axes.text(place, 0, _plain(token["text"]), ha="center", va="center", bbox=box)
        if token["original"] is not None:
            axes.text(place, 0.75, _plain(token["original"]), ha="center", va="center", color="#64748b")
        if place in targets:
            label = "→ " + _plain(targets[place])
            axes.text(place, -0.75, label, ha="center", va="center", color=SEEN, weight="bold")
    axes.set(xlim=(-0.6, columns - 0.4), ylim=(-1.2, 1.2))
    axes.set_title(f"{in_language(reader['name'])} — {in_language('reads')}", loc="left")
    axes.axis("off")


def _draw_visibility(axes: Any, reader: Mapping[str, Any], picture: Mapping[str, Any], columns: int) -> None:
    names: Sequence[str] = picture["keys"]
    for row, seen in enumerate(picture["allowed"]):
        for place in range(len(names)):
            colour = SEEN if place in set(seen) else UNSEEN
            axes.add_patch(_square(place, row, colour))
    axes.set(xlim=(-0.6, columns - 0.4), ylim=(len(picture["queries"]) - 0.4, -0.6))
    axes.set_xticks(range(len(names)), [_plain(name) for name in names], rotation=90)
    axes.set_yticks(range(len(picture["queries"])), [_plain(name) for name in picture["queries"]])
    axes.tick_params(length=0, top=True, bottom=False, labeltop=True, labelbottom=False)
    for side in axes.spines.values():
        side.set_visible(False)
    title = f"{in_language(reader['name'])}: {in_language('who sees whom')} ({picture['layers']})"
    axes.set_title(title, loc="left")


def _square(place: int, row: int, colour: str) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((place - 0.45, row - 0.45), 0.9, 0.9, color=colour, linewidth=0)
