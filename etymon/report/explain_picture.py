"""The picture of `etymon explain`: what every part of the model reads and is asked, and who sees whom."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import IO, Any

import numpy as np

from etymon.display import display_width
from etymon.files import atomic_write
from etymon.language import translated
from etymon.report.fonts import drawing_with
from etymon.report.page import in_language
from etymon.report.plots import LARGEST, bare_svg, printable, set_single_letters_upright

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
LETTERS = 6
"""Of a label that fits into a column with an arrow or a box; longer ones are written smaller."""


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
    titles = [_plain(f"{in_language(reader['name'])} — {in_language('reads')}") for reader in readers]
    titles += [_map_title(reader, picture) for reader, picture in pictures]
    settings = {"svg.fonttype": "none", "svg.hashsalt": "etymon", "font.size": max(1, 9 * scale)}
    with drawing_with("".join([*map(_plain, texts), *titles]), settings, warned):
        figure = Figure(figsize=(scale * width, scale * height), layout="constrained")
        FigureCanvasAgg(figure)
        parts = np.atleast_1d(figure.subplots(len(heights), height_ratios=heights))
        for axes, reader in zip(parts, readers, strict=False):
            _draw_tokens(axes, reader, columns, 9 * scale)
        for axes, (_, picture) in zip(parts[len(readers) :], pictures, strict=True):
            _draw_visibility(axes, picture, columns)
        for axes, title in zip(parts, titles, strict=True):
            axes.set_title(title, loc="left")
        figure.savefig(file, format=kind, dpi=160)


def _remembers(sample: Mapping[str, Any]) -> bool:
    """Whether some reader sees keys that it does not read itself, before its own."""
    pictures = [picture for reader in sample["readers"] for picture in reader["sees"]]
    return any(picture["keys"][0].startswith("memory ") for picture in pictures)


def _key_name(name: str) -> str:
    """The name of a column: a token, or a place of the memory, such as "memory -3"."""
    return in_language(name) if name.startswith("memory -") else name


def _plain(text: str) -> str:
    # A dollar sign would begin a formula.
    return printable(text.strip() or text).replace("$", r"\$")


# Behind a mark of direction, so that it stands before a word from right to left, too, and points at it.
ARROW = "\u200e→ "


def _draw_tokens(axes: Any, reader: Mapping[str, Any], columns: int, size: float) -> None:
    """A box for every token that is read, what stood there above it, and what is predicted below."""

    def draw(place: int, height: float, text: str, begin: str = "", **style: Any) -> None:
        # Labels side by side must not touch.
        style["size"] = size * min(1, (LETTERS + 2) / (display_width(text) + 2))
        axes.text(place, height, begin + _plain(text), ha="center", va="center", **style)

    targets = {question["place"]: question["target"] for question in reader["questions"]}
    for place, token in enumerate(reader["tokens"]):
        box = {"boxstyle": "round,pad=0.3", "facecolor": COLOURS[token["kind"]], "edgecolor": "#94a3b8"}
        draw(place, 0, token["text"], bbox=box)
        if token["original"] is not None:
            draw(place, 0.75, token["original"], color="#64748b")
        if place in targets:
            draw(place, -0.75, targets[place], ARROW, color=SEEN, weight="bold")
    axes.set(xlim=(-0.6, columns - 0.4), ylim=(-1.2, 1.2))
    axes.axis("off")


def _map_title(reader: Mapping[str, Any], picture: Mapping[str, Any]) -> str:
    layers = translated(picture["layers"], "result")
    return _plain(f"{in_language(reader['name'])}: {in_language('who sees whom')} ({layers})")


def _draw_visibility(axes: Any, picture: Mapping[str, Any], columns: int) -> None:
    names: Sequence[str] = picture["keys"]
    for row, seen in enumerate(picture["allowed"]):
        for place in range(len(names)):
            colour = SEEN if place in set(seen) else UNSEEN
            axes.add_patch(_square(place, row, colour))
    axes.set(xlim=(-0.6, columns - 0.4), ylim=(len(picture["queries"]) - 0.4, -0.6))
    axes.set_xticks(range(len(names)), [_plain(_key_name(name)) for name in names], rotation=90)
    axes.set_yticks(range(len(picture["queries"])), [_plain(name) for name in picture["queries"]])
    axes.tick_params(length=0, top=True, bottom=False, labeltop=True, labelbottom=False)
    set_single_letters_upright(axes)
    for side in axes.spines.values():
        side.set_visible(False)


def _square(place: int, row: int, colour: str) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((place - 0.45, row - 0.45), 0.9, 0.9, color=colour, linewidth=0)
