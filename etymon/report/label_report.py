"""What a fine-tuned model's labels are worth, as parts of a report, from plain data: nothing here knows tasks or models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from etymon.report.confusion import NO_LABEL, Confusion
from etymon.report.page import Cell, Section, Table

WORST = 20
LETTERS = 240
"""Of a text that is shown."""


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
    """Scores beside those of the baselines, the `figures` of every label, which labels are taken for which (without `labels`,
    that is left out), and the errors that the model was surest of. `probabilities` are those of its mistakes."""
    sections: list[Section] = [score_table(scores)]
    if figures:
        cells = [[name, *(f"{share:.2f}" for share in shares), rows] for name, *shares, rows in figures]
        sections.append(Table(["label", "precision", "recall", "F1", "rows"], cells, "Label by label"))
    if labels:
        sections.append(Confusion(actual, predicted, labels))
    sure = probabilities or [None] * len(texts)
    wrong = [row for row in zip(texts, actual, predicted, sure, strict=True) if row[1] != row[2]]
    wrong.sort(key=lambda row: -(row[3] or 0.0))
    rows: list[list[Cell]] = [
        [_cut(text), label, NO_LABEL if guess is None else guess, chance and round(chance, 3)]
        for text, label, guess, chance in wrong[:WORST]
    ]
    if rows:
        width = 4 if probabilities else 3
        header = ["text", "label", "prediction", "probability"][:width]
        title = f"{'Worst errors' if probabilities else 'Errors'}: {len(rows)} of {len(wrong):,}"
        sections.append(Table(header, [row[:width] for row in rows], title))
    return sections


def value_report(
    scores: Scores, texts: Sequence[str], actual: Sequence[float], predicted: Sequence[float]
) -> list[Section]:
    """The same for numbers: scores, and the rows that are farthest off."""
    rows = sorted(zip(texts, actual, predicted, strict=True), key=lambda row: -abs(row[1] - row[2]))[:WORST]
    cells: list[list[Cell]] = [[_cut(text), value, guess, guess - value] for text, value, guess in rows]
    header = ["text", "value", "prediction", "difference"]
    return [score_table(scores), Table(header, cells, "Farthest off")]


def score_table(scores: Scores) -> Table:
    """A row for everyone who was scored, a column a metric."""
    metrics = list(dict.fromkeys(metric for own in scores.values() for metric in own))
    rows: list[list[Cell]] = [
        [who, *(_told(own[metric]) if metric in own else None for metric in metrics)]
        for who, own in scores.items()
    ]
    every = [score for own in scores.values() for score in own.values()]
    title = " of ".join(["Scores", *{score.counted: None for score in every if score.counted}])
    with_ends = any(score.low is not None for score in every)
    return Table(["", *metrics], rows, title + ", with 95% intervals" * with_ends)


def _told(score: Scored) -> str:
    # An interval stays on one line.
    ends = "" if score.low is None else f" ({score.low:.2f}\u00a0to\u00a0{score.high:.2f})"
    return f"{score.value:.2f}{ends}"


def _cut(text: str) -> str:
    return text if len(text) <= LETTERS else text[: LETTERS - 1].rstrip() + "…"
