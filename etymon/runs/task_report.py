"""What the report of a task says beside its training curve: scores, baselines and errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from etymon.families.model import Model
from etymon.report.page import Curve, Section, in_language, label_report, score_table, value_report
from etymon.runs.report import Records
from etymon.settings.decoding import DecodingSettings
from etymon.tables.table import Table
from etymon.tasks.baselines import baselines, with_typos
from etymon.tasks.classify import Classify, LabelPrediction
from etymon.tasks.label_scores import label_figures
from etymon.tasks.metrics import score_answers
from etymon.tasks.regress import Regress, ValuePrediction
from etymon.tasks.scores import MetricScore
from etymon.tasks.task import Task
from etymon.training.state import VALIDATION_PREFIX

MODEL, TYPOS = "this model", "this model, texts with typos in a tenth of their letters"


def score_figures(scores: Mapping[str, MetricScore], metrics: Mapping[str, float]) -> dict[str, str]:
    """Returns the validation figures of a report: scores with their intervals, and the loss."""
    figures = {}
    for name, score in scores.items():
        interval = "" if score.low is None else f" ({score.low:.2f} to {score.high:.2f})"
        figures[f"validation {name}"] = in_language(f"{score.value:.2f}{interval}")
    # Losses have no interval: they are means over targets, not scores of rows.
    losses = {name: bits for name, bits in metrics.items() if name.startswith("bits_per_")}
    return figures | {f"validation {name.replace('_', ' ')}": f"{bits:.3f}" for name, bits in losses.items()}


def validation_curve(records: Records, name: str, y_label: str, title: str) -> list[Section]:
    """Returns the curve of a validation figure by step; nothing if there is no such figure."""
    points = [
        (record["step"], record[VALIDATION_PREFIX + name])
        for record in records
        if VALIDATION_PREFIX + name in record
    ]
    return [Curve({"validation": points}, y_label=y_label, title=title)] if points else []


def describe_rows(name: str, train: Table, held_out: Table | None) -> str:
    """Returns a line with the task's name, its table, and the numbers of rows."""
    count, place = (0, train.description) if held_out is None else (len(held_out), held_out.description)
    other = "" if place == train.description else f" of {place}"
    return f"{name} on {train.description}: {len(train):,} rows to train on, {count:,}{other} to validate on"


def compare_with_baselines(
    task: Task,
    model: Model,
    train: Table,
    held_out: Table,
    metrics: Sequence[str],
    resamples: int,
    beams: int,
    note: Callable[[str], None],
) -> dict[str, dict[str, MetricScore]]:
    """Returns scores of baselines that learn from the same rows, and of the model on texts with typos, by
    name.

    Only tasks that classify or regress have them.
    """
    inner: Any = getattr(task, "task", task)
    if not isinstance(inner, Classify | Regress):
        return {}
    train_texts, texts = (
        [tuple(pair for pair in rows[0] if pair is not None) for rows in inner.pairs(table)]
        for table in (train, held_out)
    )
    targets: list[Any] = inner.row_values(train) if isinstance(inner, Regress) else inner.row_labels(train)
    if isinstance(inner, Classify) and not inner.options.multi_label:
        targets = [names[0] for names in targets]
    beside = {}
    for name, guesses in baselines(train_texts, targets, texts, note).items():
        answers: list[Any] = (
            [ValuePrediction(float(guess)) for guess in guesses]
            if isinstance(inner, Regress)
            else [LabelPrediction(guess if isinstance(guess, str) else tuple(guess), {}) for guess in guesses]
        )
        beside[name] = score_answers(inner, answers, held_out, metrics, resamples)
    # Only the texts are changed: the labels of the same rows are what the answers are scored by.
    changed = {column: with_typos(held_out.texts(column)) for column in inner.input_columns}
    rows: list[Any] = [
        {**row, **{column: column_texts[number] for column, column_texts in changed.items()}}
        for number, row in enumerate(held_out.rows)
    ]
    mistyped = Table(rows, held_out.places, held_out.description)
    answers = task.predict(model, mistyped, DecodingSettings(beams=beams))
    return beside | {TYPOS: score_answers(inner, answers, held_out, metrics, resamples)}


def error_sections(
    task: Task,
    answers: Sequence[Any],
    scores: Mapping[str, MetricScore],
    beside: Mapping[str, dict[str, MetricScore]],
    held_out: Table,
) -> list[Section]:
    """Returns scores beside those of baselines; of labels and values also the worst errors."""
    inner: Any = getattr(task, "task", task)
    if not scores:
        return []
    all_scores = {MODEL: dict(scores), **beside}
    if not isinstance(inner, Regress | Classify):
        return [score_table(all_scores)]
    texts = [" / ".join(str(row[column]) for column in inner.input_columns) for row in held_out.rows]
    if isinstance(inner, Regress):
        return value_report(
            all_scores, texts, inner.row_values(held_out), [answer.value for answer in answers]
        )
    is_multi, targets = inner.options.multi_label, inner.row_labels(held_out)
    given = [answer.label if is_multi else (answer.label,) for answer in answers]
    actual, predicted = (
        [", ".join(sorted(names)) if is_multi else names[0] for names in rows] for rows in (targets, given)
    )
    confidences = [answer.worst_error(names) for answer, names in zip(answers, targets, strict=True)]
    return label_report(
        all_scores,
        texts,
        actual,
        predicted,
        () if is_multi else inner.label_names,
        confidences if any(confidences) else None,
        label_figures(given, targets, inner.label_names),
    )
