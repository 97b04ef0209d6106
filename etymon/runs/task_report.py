"""What the report of a fine-tuning run says beside its curves: scores next to baselines and under typos, and errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from etymon.families.model import Model
from etymon.generation.settings import DecodingSettings
from etymon.lab.baselines import baselines
from etymon.report.page import Section, label_report, score_table, value_report
from etymon.tables.table import Table
from etymon.tasks.classify import Classify, LabelPrediction
from etymon.tasks.label_scores import label_figures
from etymon.tasks.regress import Regress, ValuePrediction
from etymon.tasks.scores import MetricScore
from etymon.tasks.task import Task
from etymon.tasks.typos import with_typos

MODEL, TYPOS = "this model", "this model, texts with typos in a tenth of their letters"


@dataclass
class Judged:
    """A model's answers to all validation rows, and what they are worth."""

    answers: list[Any] = field(default_factory=list)
    scores: dict[str, MetricScore] = field(default_factory=dict)
    beside: dict[str, dict[str, MetricScore]] = field(default_factory=dict)
    """The same scores of the baselines, and of the model where texts have typos."""


def compare(
    task: Task, model: Model, judged: Judged, train: Table, held: Table, metrics: Sequence[str], resamples: int,
    beams: int, tell: Callable[[str], None],
) -> None:  # fmt: skip
    """Adds the scores of baselines, learnt from the same rows, and of the model under typos."""
    inner: Any = getattr(task, "task", task)
    if not isinstance(inner, Classify | Regress):
        return
    texts = [tuple(pair for pair in rows[0] if pair is not None) for rows in inner.pairs(train)]
    others = [tuple(pair for pair in rows[0] if pair is not None) for rows in inner.pairs(held)]
    wanted: list[Any] = inner.row_values(train) if isinstance(inner, Regress) else inner.row_labels(train)
    if isinstance(inner, Classify) and not inner.options.multi_label:
        wanted = [names[0] for names in wanted]
    for name, guesses in baselines(texts, wanted, others, tell).items():
        answers: list[Any] = (
            [ValuePrediction(float(guess)) for guess in guesses]
            if isinstance(inner, Regress)
            else [LabelPrediction(guess if isinstance(guess, str) else tuple(guess), {}) for guess in guesses]
        )
        judged.beside[name] = inner.score(answers, held, metrics, resamples)
    mistyped = Table(_mistyped(held, inner.input_columns), held.places, held.description)
    found = task.predict(model, mistyped, DecodingSettings(beams=beams))
    judged.beside[TYPOS] = inner.score(found, held, metrics, resamples)


def _mistyped(table: Table, columns: Sequence[str]) -> list[Any]:
    changed = {column: with_typos(table.texts(column)) for column in columns}
    return [
        {**row, **{column: texts[number] for column, texts in changed.items()}}
        for number, row in enumerate(table.rows)
    ]


def error_sections(task: Task, judged: Judged, held: Table) -> list[Section]:
    """Scores, the confusion matrix and the worst errors, as far as the task has such."""
    inner: Any = getattr(task, "task", task)
    if not judged.scores:
        return []
    scores = {MODEL: judged.scores, **judged.beside}
    if isinstance(inner, Regress | Classify):
        texts = [" / ".join(str(row[column]) for column in inner.input_columns) for row in held.rows]
        if isinstance(inner, Regress):
            return value_report(scores, texts, inner.row_values(held), [one.value for one in judged.answers])
        several, named = inner.options.multi_label, inner.row_labels(held)
        given = [one.label if several else (one.label,) for one in judged.answers]
        actual, predicted = ([", ".join(sorted(names)) for names in rows] if several else [names[0] for names in rows]
                             for rows in (named, given))  # fmt: skip
        sure = [one.worst_error(names) for one, names in zip(judged.answers, named, strict=True)]
        return label_report(
            scores, texts, actual, predicted, () if several else inner.label_names, sure if any(sure) else None,
            label_figures(given, named, inner.label_names),
        )  # fmt: skip
    return [score_table(scores)]
