"""A report: one HTML file that needs nothing else, for a browser on a desk or a phone, light or dark.

write_report("runs/bert/report.html", "bert on my text", [
    Figures({"bits per byte": 1.93, "parameters": "14.4M"}),
    Curve({"training": points, "validation": others}, references={"xz": 2.31}, y_label="bits per byte"),
    ReportSamples([(100, "the the"), (1000, "the king is")]),
])

How it looks is in `templates/`: one HTML template a section, the page around them, and its style.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from os import PathLike
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from etymon.display import cut, display_width
from etymon.files import atomic_write
from etymon.language import language, translated
from etymon.report.cells import Cell, as_html, is_short, shown
from etymon.report.plots import AttentionMap, Points, loss_curve, printable

if TYPE_CHECKING:
    from jinja2 import Environment

NO_LABEL = "(no label)"
MOST_ERRORS = 20
# Width of what is shown of a text in a table, and of a label's name beside the confusion matrix, in cells.
TEXT_CELLS, LABEL_CELLS = 240, 18
MOST_LABELS = 30
# With more labels a cell of the confusion matrix has no room for its share: only the tooltip shows it.
LABELS_WITH_SHARES = 12


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
        values = {in_language(name): value for name, value in self.values.items()}
        return render_template("figures.html", values=values)


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
        series = {in_language(name): points for name, points in self.series.items()}
        references = {in_language(name): value for name, value in self.references.items()}
        x_label, y_label = in_language(self.x_label), in_language(self.y_label)
        svg = loss_curve(series, references, x_label, y_label, self.doubling)
        label = in_language(self.title) or f"{y_label} by {x_label}"
        # The template opens the element itself, to add the label that a screen reader reads out.
        drawing = as_html(svg.removeprefix("<svg"))
        return render_template("curve.html", drawing=drawing, label=label, caption=in_language(self.caption))


@dataclass(frozen=True)
class ReportTable:
    """Rows under a header; columns of numbers are set to the right."""

    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    title: str = ""
    has_own_words: bool = False
    """Whether words in its cells are the library's, to be shown in the user's language."""

    def body(self) -> str:
        columns = list(zip(*self.rows, strict=True)) or [()] * len(self.header)
        if len(columns) != len(self.header):
            raise ValueError(f"a table with {len(self.header)} headings has rows of {len(columns)} cells")
        numeric = []
        for column in columns:
            cells = [cell for cell in column if cell is not None]
            # True is an int to Python and a word to a reader.
            numbers = [isinstance(cell, int | float) and not isinstance(cell, bool) for cell in cells]
            numeric.append(bool(cells) and all(numbers))
        header = [in_language(name) for name in self.header]
        rows = self.rows
        if self.has_own_words:
            rows = [[in_language(cell) if isinstance(cell, str) else cell for cell in row] for row in rows]
        return render_template("table.html", header=header, rows=rows, numeric=numeric)


@dataclass(frozen=True)
class ReportSamples:
    """Texts that the model wrote: (step, text), or (any label, text)."""

    samples: Sequence[tuple[int | str, str]]
    title: str = "Samples"
    has_own_labels: bool = False
    """Whether labels are the library's, to be shown in the user's language."""

    def labelled(self) -> list[tuple[str, str]]:
        """Returns (label, text): steps are labelled as such."""
        return [(self._label(label), text) for label, text in self.samples]

    def body(self) -> str:
        return render_template("samples.html", samples=self.labelled())

    def _label(self, label: int | str) -> str:
        if isinstance(label, int):
            return in_language(f"step {label:,}")
        return in_language(label) if self.has_own_labels else label


@dataclass(frozen=True)
class Paragraph:
    """Running text; an empty line begins a new paragraph."""

    text: str
    title: str = ""

    def body(self) -> str:
        paragraphs = [in_language(part) for part in re.split(r"\n\s*\n", self.text.strip())]
        return render_template("paragraph.html", paragraphs=paragraphs)


@dataclass(frozen=True)
class Code:
    """A command or other text in a fixed-width font, kept as it is."""

    text: str
    title: str = ""

    def body(self) -> str:
        return render_template("code.html", text=self.text.strip())


@dataclass(frozen=True)
class Confusion:
    """The confusion matrix as a heat map: a row is a label, a column a prediction, the colour the share of
    the row.

    Of more than 30 labels, those with most errors. Predictions that are none of the labels, None among them,
    have a column of their own.
    """

    actual: Sequence[str]
    predicted: Sequence[str | None]
    labels: Sequence[str]
    title: str = "Which labels are taken for which"

    def body(self) -> str:
        # Legend: K labels; the last column of K + 1 counts predictions that are no label.
        places: dict[str | None, int] = {label: place for place, label in enumerate(self.labels)}
        counts = np.zeros((len(places), len(places) + 1), int)
        for label, guess in zip(self.actual, self.predicted, strict=True):
            counts[places[label], places.get(guess, -1)] += 1
        errors_K = counts.sum(1) + counts[:, :-1].sum(0) - 2 * counts.diagonal()
        kept = sorted(np.argsort(-errors_K, kind="stable")[:MOST_LABELS].tolist())
        names = [self.labels[place] for place in kept]
        caption = in_language("Rows are labels, columns predictions; the colour is the share of the row.")
        if len(kept) < len(self.labels):
            most = f"These are the {len(kept)} of {len(self.labels)} labels with most errors."
            caption += f" {in_language(most)}"
        columns = dict(zip(names, kept)) | ({in_language(NO_LABEL): -1} if counts[:, -1].any() else {})
        has_shares = len(columns) <= LABELS_WITH_SHARES
        rows = []
        for name, place in zip(names, kept):
            total, cells = int(counts[place].sum()), []
            for column, number in columns.items():
                count = int(counts[place, number])
                share = count / max(1, total)
                brief = f"{count}" if count < 10_000 else f"{count // 1000}k"
                texts = [f"{count:,}", f"{share:.0%}"] if has_shares else [brief]
                tooltip = f"{name} taken for {column}: {count:,} of {total:,}, {share:.1%}"
                cells.append({"title": in_language(tooltip), "share": share, "texts": texts if count else []})
            rows.append({"name": cut(name, LABEL_CELLS), "cells": cells})
        short = [cut(column, LABEL_CELLS) for column in columns]
        widest = max(8 * display_width(name) for name in short)  # about eight pixels a cell
        width, height = (58, 40) if has_shares else (max(30, 480 // len(short)), 24)
        return render_template(
            "confusion.html",
            title=in_language(self.title),
            caption=caption,
            rows=rows,
            columns=short,
            width=width,
            height=height,
            margin=16 + widest,
            upright=widest <= width,
            has_shares=has_shares,
        )


def write_report(
    path: str | PathLike[str], title: str, sections: Sequence[Section], subtitle: str = ""
) -> None:
    """Writes the page; an older one of that name is replaced only when the new one is complete."""
    text = render(title, sections, subtitle)
    with atomic_write(path) as file:
        file.write(text)


def render(title: str, sections: Sequence[Section], subtitle: str = "") -> str:
    """The whole page as text."""
    return render_template(
        "page.html", title=in_language(title), sections=sections, subtitle=in_language(subtitle)
    )


def attention_page(title: str, subtitle: str, maps: Sequence[AttentionMap]) -> str:
    """One HTML file that needs nothing else: kinds, layers and heads to choose, every weight to point at."""

    def pack(weights: np.ndarray) -> str:
        # Sixteen bits a weight: what is shown has three digits.
        return base64.b64encode((weights.clip(0, 1) * 65535).round().astype("<u2").tobytes()).decode("ascii")

    records = [
        {
            "kind": in_language(each.kind),
            "queries": each.queries,
            "keys": each.keys,
            "shape": list(each.weights.shape),
            "weights": pack(each.weights),
            # The keys of cross-attention are another text: layers cannot be multiplied.
            "rollout": None if each.kind == "cross" else pack(each.rollout()),
        }
        for each in maps
    ]
    # In a script element only "</" could end the data early.
    data = as_html(json.dumps(records, ensure_ascii=True).replace("</", "<\\/"))
    return render_template("attention.html", title=in_language(title), subtitle=subtitle, data=data)


class Scored(Protocol):
    """A value with the ends of its interval, where there is one."""

    @property
    def value(self) -> float: ...
    @property
    def low(self) -> float | None: ...
    @property
    def high(self) -> float | None: ...
    @property
    def counted(self) -> str: ...


Scores = Mapping[str, Mapping[str, Scored]]
"""Who (`this model`, the same with typos, each baseline) -> metric -> score; not all need have all."""


def label_report(
    scores: Scores,
    texts: Sequence[str],
    actual: Sequence[str],
    predicted: Sequence[str | None],
    labels: Sequence[str] = (),
    probabilities: Sequence[float | None] | None = None,
    figures: Sequence[Sequence[Cell]] = (),
) -> list[Section]:
    """Scores beside the baselines', precision and recall by label (`figures`), confusions and the worst
    errors.

    Without `labels` there is no confusion matrix. `probabilities` are those of the model's mistakes: with
    them the errors that it was surest of come first.
    """
    sections: list[Section] = [score_table(scores)]
    if figures:
        cells = [[name, *(f"{share:.2f}" for share in shares), rows] for name, *shares, rows in figures]
        sections.append(ReportTable(["label", "precision", "recall", "F1", "rows"], cells, "Label by label"))
    if labels:
        sections.append(Confusion(actual, predicted, labels))
    sure = probabilities or [None] * len(texts)
    wrong = [row for row in zip(texts, actual, predicted, sure, strict=True) if row[1] != row[2]]
    wrong.sort(key=lambda row: -(row[3] or 0.0))
    rows: list[list[Cell]] = [
        [
            cut(text, TEXT_CELLS),
            label,
            in_language(NO_LABEL) if guess is None else guess,
            chance and round(chance, 3),
        ]
        for text, label, guess, chance in wrong[:MOST_ERRORS]
    ]
    if rows:
        width = 4 if probabilities else 3
        header = ["text", "label", "prediction", "probability"][:width]
        title = f"{'Worst errors' if probabilities else 'Errors'}: {len(rows)} of {len(wrong):,}"
        sections.append(ReportTable(header, [row[:width] for row in rows], title))
    return sections


def value_report(
    scores: Scores, texts: Sequence[str], actual: Sequence[float], predicted: Sequence[float]
) -> list[Section]:
    """The same for numbers: scores, and the rows that are farthest off."""
    rows = sorted(zip(texts, actual, predicted, strict=True), key=lambda row: -abs(row[1] - row[2]))
    cells: list[list[Cell]] = [
        [cut(text, TEXT_CELLS), value, guess, guess - value] for text, value, guess in rows[:MOST_ERRORS]
    ]
    header = ["text", "value", "prediction", "difference"]
    return [score_table(scores), ReportTable(header, cells, "Farthest off")]


def score_table(scores: Scores) -> ReportTable:
    """A row for everyone who was scored, a column a metric."""
    metrics = list(dict.fromkeys(metric for by_metric in scores.values() for metric in by_metric))
    rows: list[list[Cell]] = []
    for who, by_metric in scores.items():
        cells: list[Cell] = [in_language(who)]
        for score in map(by_metric.get, metrics):
            # Hard spaces: an interval stays on one line.
            ends = (
                f" ({score.low:.2f}\u00a0to\u00a0{score.high:.2f})" if score and score.low is not None else ""
            )
            cells.append(None if score is None else in_language(f"{score.value:.2f}{ends}"))
        rows.append(cells)
    every = [score for by_metric in scores.values() for score in by_metric.values()]
    title = " of ".join(["Scores", *{score.counted: None for score in every if score.counted}])
    has_intervals = any(score.low is not None for score in every)
    return ReportTable(["", *metrics], rows, title + ", with 95% intervals" * has_intervals)


def in_language(text: str) -> str:
    """A text of a report (not of the user's data) in the user's language."""
    return translated(text, "report")


def render_template(name: str, **values: Any) -> str:
    """A template of this package with its values, all of which are escaped unless they are `as_html`."""
    return _environment().get_template(name).render(values, language=language())


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, pass_context
    from markupsafe import Markup

    def finalize(value: Any) -> Any:
        # Whatever is shown: characters that HTML cannot hold become a replacement sign.
        return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    def own_ids(body: str, prefix: str) -> Any:
        # Several pictures share one page: their clip paths must not be taken for each other's.
        return as_html(re.sub(r'(<[a-zA-Z][^<>]* id="|url\(#|xlink:href="#)', rf"\g<1>{prefix}", body))

    @pass_context  # without it, a template would keep the language of its first use
    def in_language_filter(context: Any, text: str) -> str:
        return in_language(text)

    environment = Environment(
        loader=PackageLoader("etymon.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=finalize,
    )
    environment.filters |= {
        "shown": shown,
        "is_short": is_short,
        "own_ids": own_ids,
        "in_language": in_language_filter,
    }
    return environment
