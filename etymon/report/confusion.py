"""Which labels are taken for which: a matrix as a heat map, drawn as SVG in the colours of the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from etymon.report.page import render_template

MOST_LABELS = 30
WITH_SHARES = 12
"""Up to so many labels there is room for shares in the cells; beyond, they are what one points at."""
NO_LABEL = "(no label)"
LETTERS = 18
"""Of a label's name, in the margin."""


@dataclass(frozen=True)
class Confusion:
    """A row is a label, a column a prediction; the colour is the share of the row. Of more than 30 labels, those with most errors.

    Predictions that are none of the labels, None among them, have a column of their own.
    """

    actual: Sequence[str]
    predicted: Sequence[str | None]
    labels: Sequence[str]
    title: str = "Which labels are taken for which"

    def body(self) -> str:
        counts, kept = self._counts()
        rows = [self.labels[place] for place in kept]
        columns = rows + [NO_LABEL] * bool(counts[:, -1].any())
        shown = counts[kept][:, [*kept, *([-1] if len(columns) > len(rows) else [])]]
        totals = counts[kept].sum(1)
        caption = "Rows are labels, columns predictions; the colour is the share of the row."
        if len(rows) < len(self.labels):
            caption += f" These are the {len(rows)} of {len(self.labels)} labels with most errors."
        return render_template(
            "confusion.html", title=self.title, caption=caption, **_layout(shown, totals, rows, columns)
        )

    def _counts(self) -> tuple[np.ndarray, list[int]]:
        """How often each label was taken for each, in the last column for none, and the labels to show."""
        places: dict[str | None, int] = {label: place for place, label in enumerate(self.labels)}
        counts = np.zeros((len(places), len(places) + 1), int)
        for label, guess in zip(self.actual, self.predicted, strict=True):
            counts[places[label], places.get(guess, -1)] += 1
        right = counts.diagonal()
        errors = counts.sum(1) + counts[:, :-1].sum(0) - 2 * right
        kept = np.argsort(-errors, kind="stable")[:MOST_LABELS]
        return counts, sorted(kept.tolist())


def _layout(
    counts: np.ndarray, totals: np.ndarray, rows: Sequence[str], columns: Sequence[str]
) -> dict[str, Any]:
    """Where everything stands in the picture, in pixels."""
    roomy = len(columns) <= WITH_SHARES
    width, height = (58, 40) if roomy else (max(30, 480 // len(columns)), 24)
    margin = 16 + max(_pixels(name) for name in columns)
    upright = all(_pixels(name) <= width for name in columns)
    top = 22 if upright else margin
    cells = []
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            count, share = int(counts[i, j]), counts[i, j] / max(1, totals[i])
            x, y = margin + j * width, top + i * height
            texts = [f"{count:,}", f"{share:.0%}"] if roomy else [_brief(count)]
            lines = [
                {
                    "text": text,
                    "x": f"{x + width / 2 - 1:g}",
                    "y": f"{y + height / 2 - 1 + 14 * (number - (len(texts) - 1) / 2):g}",
                    "size": 11 if number or not roomy else 13,
                }
                for number, text in enumerate(texts)
            ]
            cells.append(
                {
                    "title": f"{row} taken for {column}: {count:,} of {totals[i]:,}, {share:.1%}",
                    "x": x,
                    "y": y,
                    "opacity": f"{0.9 * share:.3f}",
                    "ink": "--card" if share > 0.55 else "--ink",
                    "lines": lines if count else [],
                }
            )
    names = [
        {
            "text": _cut(row),
            "x": margin - 8,
            "y": f"{top + (i + 0.5) * height:g}",
            "anchor": "end",
            "turned": False,
        }
        for i, row in enumerate(rows)
    ]
    anchor = "middle" if upright else "start"
    names += [
        {"text": _cut(column), "x": f"{margin + (j + 0.5) * width - 1:g}", "y": top - 8, "anchor": anchor, "turned": not upright}
        for j, column in enumerate(columns)
    ]  # fmt: skip
    return {
        "width": margin + len(columns) * width,
        "height": top + len(rows) * height,
        "cell_width": width - 2,
        "cell_height": height - 2,
        "cells": cells,
        "names": names,
    }


def _cut(name: str) -> str:
    return name if len(name) <= LETTERS else name[: LETTERS - 1] + "…"


def _pixels(name: str) -> int:
    """About as many pixels as a name takes up; Chinese letters are twice as wide."""
    return sum(15 if sign > "\u2e80" else 8 for sign in _cut(name))


def _brief(count: int) -> str:
    """A count in four letters at most."""
    return f"{count}" if count < 10_000 else f"{count // 1000}k"
