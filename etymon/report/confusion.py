"""Which labels are taken for which: a matrix as a heat map, drawn as SVG in the colours of the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from etymon.report.page import escape

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
        svg = _svg(shown, totals, rows, columns, self.title)
        return f'<figure><div class="wide">{svg}</div><figcaption>{caption}</figcaption></figure>'

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


def _svg(
    counts: np.ndarray, totals: np.ndarray, rows: Sequence[str], columns: Sequence[str], title: str
) -> str:
    roomy = len(columns) <= WITH_SHARES
    width, height = (58, 40) if roomy else (max(30, 480 // len(columns)), 24)
    margin = 16 + max(_length(name) for name in columns)
    upright = all(_length(name) <= width for name in columns)
    top = 22 if upright else margin
    parts = []
    for i, row in enumerate(rows):
        middle = top + (i + 0.5) * height
        parts.append(_text(row, margin - 8, middle, 'text-anchor="end" fill="var(--ink)"'))
        for j, column in enumerate(columns):
            share = counts[i, j] / max(1, totals[i])
            x, y = margin + j * width, top + i * height
            parts.append(
                f"<g><title>{escape(f'{row} taken for {column}: {counts[i, j]:,} of {totals[i]:,}, {share:.1%}')}</title>"
                f'<rect x="{x}" y="{y}" width="{width - 2}" height="{height - 2}" rx="3" fill="var(--grid)" fill-opacity=".4"/>'
                f'<rect x="{x}" y="{y}" width="{width - 2}" height="{height - 2}" rx="3" fill="var(--series-1)" '
                f'fill-opacity="{0.9 * share:.3f}"/>'
            )
            if counts[i, j]:
                ink = f'text-anchor="middle" fill="var({"--card" if share > 0.55 else "--ink"})"'
                lines = [f"{counts[i, j]:,}", f"{share:.0%}"] if roomy else [_brief(int(counts[i, j]))]
                for number, line in enumerate(lines):
                    at = middle - 1 + 14 * (number - (len(lines) - 1) / 2)
                    parts.append(_text(line, x + width / 2 - 1, at, ink, 11 if number or not roomy else 13))
            parts.append("</g>")
    for j, column in enumerate(columns):
        centre = margin + (j + 0.5) * width - 1
        where = (
            'text-anchor="middle"'
            if upright
            else f'text-anchor="start" transform="rotate(-90 {centre} {top - 8})"'
        )
        parts.append(_text(column, centre, top - 8, f'{where} fill="var(--ink)"'))
    wide, high = margin + len(columns) * width, top + len(rows) * height
    return (
        f'<svg role="img" aria-label="{escape(title)}" viewBox="0 0 {wide} {high}" width="{wide}" height="{high}" '
        f'font-family="system-ui, sans-serif">{"".join(parts)}</svg>'
    )


def _text(text: str, x: float, y: float, attributes: str, size: int = 13) -> str:
    return f'<text x="{x:g}" y="{y:g}" dominant-baseline="central" font-size="{size}" {attributes}>{escape(_cut(text))}</text>'


def _cut(name: str) -> str:
    return name if len(name) <= LETTERS else name[: LETTERS - 1] + "…"


def _length(name: str) -> int:
    """About as many pixels as a name takes up; Chinese letters are twice as wide."""
    return sum(15 if sign > "\u2e80" else 8 for sign in _cut(name))


def _brief(count: int) -> str:
    """A count in four letters at most."""
    return f"{count}" if count < 10_000 else f"{count // 1000}k"
