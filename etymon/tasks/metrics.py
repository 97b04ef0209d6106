"""Scores of a task: its own metrics, and those of plugins, which are functions of predictions and references.

A plugin's metric gets a prediction and the cell of the target's column for every row. It gives a number a
row, whose mean is the score and has a confidence interval, or one number for all rows. With an attribute
`falls` that is true, less is better.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from etymon.errors import EtymonError
from etymon.files import first_line
from etymon.registry import METRICS
from etymon.tables.table import Table
from etymon.tasks.scores import MetricScore, falls, is_plugin, mean_score
from etymon.tasks.task import Task


def check_metrics(task: Task, metrics: Sequence[str]) -> None:
    """Refuses metrics that neither the task nor a plugin has."""
    task.check_metrics([metric for metric in metrics if not is_plugin(metric)])
    for metric in filter(is_plugin, metrics):
        METRICS.find(metric)
        if len(task.columns) < 2:
            raise EtymonError(
                f"the task {task.name!r} has no column of what is right, which the metric {metric!r} needs"
            )


def score_answers(
    task: Task, predictions: Sequence[Any], table: Table, metrics: Sequence[str], resamples: int = 0
) -> dict[str, MetricScore]:
    """Scores by metric; with `resamples`, each with a confidence interval by bootstrap."""
    scores = task.score(predictions, table, [each for each in metrics if not is_plugin(each)], resamples)
    for metric in filter(is_plugin, metrics):
        # As `predict` shows them, so that a metric can be written from a file of predictions.
        values = [task.record(prediction)["prediction"] for prediction in predictions]
        scores[metric] = _plugin_score(metric, values, table.values(task.columns[-1]), resamples)
    return {metric: scores[metric] for metric in metrics if metric in scores}


def _plugin_score(
    metric: str, predictions: Sequence[Any], references: Sequence[Any], resamples: int
) -> MetricScore:
    try:
        result = METRICS.find(metric)(predictions, references)
        if isinstance(result, int | float):
            return MetricScore(float(result), falls=falls(metric), rows=len(predictions))
        values = [float(value) for value in result]
    except EtymonError:
        raise
    except Exception as error:
        raise EtymonError(
            f"the metric {metric!r} failed on {len(predictions)} rows: {type(error).__name__}, "
            f"{first_line(error)}"
        ) from error
    if len(values) != len(predictions):
        raise EtymonError(
            f"the metric {metric!r} gives {len(values)} numbers for {len(predictions)} rows: give one a row, "
            "or one for all"
        )
    mean = mean_score(values, resamples)
    return MetricScore(mean.value, mean.low, mean.high, falls=falls(metric), rows=mean.rows)
