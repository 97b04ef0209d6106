"""Scores of labels and of values, by scikit-learn, with confidence intervals by bootstrap.

Legend: N rows, K labels and in the last place whatever is no label, C kinds of rows, R resamples.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from etymon.errors import EtymonError
from etymon.tasks.scores import FALLING, MetricScore, interval, library

LABEL_METRICS = ("accuracy", "f1", "macro_f1", "matthews")
MULTI_LABEL_METRICS = ("micro_f1", "macro_f1", "accuracy")
VALUE_METRICS = ("pearson", "spearman", "mse")
LABEL_LIBRARIES = dict.fromkeys(("f1", "micro_f1", "macro_f1", "matthews"), "sklearn")


def label_scores(
    predicted: Sequence[str | None],
    actual: Sequence[str],
    labels: Sequence[str],
    metrics: Sequence[str],
    resamples: int = 0,
) -> dict[str, MetricScore]:
    """Scores by name, of `LABEL_METRICS`, one label a row. A prediction that is none of the labels is always wrong.

    `f1` is that of the second label if there are two (as GLUE has it), and `macro_f1` otherwise. `macro_f1` is the mean over
    the labels that occur, in the table or among the predictions.
    """
    alone = [(label,) for label in predicted]
    return multi_label_scores(alone, [(label,) for label in actual], labels, metrics, resamples)


def multi_label_scores(
    predicted: Sequence[Collection[str | None]],
    actual: Sequence[Collection[str]],
    labels: Sequence[str],
    metrics: Sequence[str],
    resamples: int = 0,
) -> dict[str, MetricScore]:
    """Scores by name, of `MULTI_LABEL_METRICS`, any number of labels a row. `accuracy` counts rows with exactly the right ones."""
    rows = _Rows(_table(actual, labels), _table(predicted, labels))
    if rows.actual_NK[:, -1].any():
        foreign = next(label for row in actual for label in row if label not in labels)
        raise EtymonError(f"the label {foreign!r} is none of {', '.join(labels)}: give a table with these")
    first_C, counts_C = _kinds(np.packbits(np.hstack([rows.actual_NK, rows.predicted_NK]), axis=1))
    kinds = _Rows(rows.actual_NK[first_C], rows.predicted_NK[first_C])

    def score(name: str) -> MetricScore:
        ends = interval(counts_C, lambda drawn_RC: 100 * _STATISTICS[name](kinds.tally(drawn_RC)), resamples)
        return MetricScore(100 * _value(name, rows), *ends, _signature(name, labels), rows=len(actual))

    return {name: score(name) for name in metrics}


def label_figures(
    predicted: Sequence[Collection[str | None]], actual: Sequence[Collection[str]], labels: Sequence[str]
) -> list[tuple[str, float, float, float, int]]:
    """Of every label its name, precision, recall and F1, of 100, and how many rows have it."""
    rows = _Rows(_table(actual, labels), _table(predicted, labels))
    tally = rows.tally(np.ones((1, len(actual))))
    hits_K, actual_K, predicted_K = tally.hits_RK[0], tally.actual_RK[0], tally.predicted_RK[0]
    shares = (
        _ratio(hits_K, predicted_K),
        _ratio(hits_K, actual_K),
        _ratio(2 * hits_K, actual_K + predicted_K),
    )
    columns = ((100 * share_K).tolist() for share_K in shares)
    return list(zip(labels, *columns, actual_K.astype(int).tolist()))


def value_scores(
    predicted: Sequence[float], actual: Sequence[float], metrics: Sequence[str], resamples: int = 0
) -> dict[str, MetricScore]:
    """Scores by name, of `VALUE_METRICS`. Correlations are of 100; that with a constant is 0. `mse` is in the square of the
    values' unit, and `falls`."""
    pairs, counts_C = np.unique(np.stack([actual, predicted], 1).astype(float), axis=0, return_counts=True)

    def score(name: str) -> MetricScore:
        def statistic(drawn_RC: np.ndarray) -> np.ndarray:
            return _VALUE_STATISTICS[name](drawn_RC, *pairs.T)

        value = float(statistic(counts_C[None].astype(float))[0])
        ends = interval(counts_C, statistic, resamples)
        return MetricScore(value, *ends, falls=name in FALLING, rows=len(actual))

    return {name: score(name) for name in metrics}


# --- labels


@dataclass(frozen=True)
class _Tally:
    """What a score of labels depends on."""

    rows_R: np.ndarray
    right_R: np.ndarray
    hits_RK: np.ndarray
    actual_RK: np.ndarray
    predicted_RK: np.ndarray


@dataclass(frozen=True)
class _Rows:
    """Which labels rows have, and which were predicted."""

    actual_NK: np.ndarray
    predicted_NK: np.ndarray

    def tally(self, counts_RN: np.ndarray) -> _Tally:
        """With every row as many times as it counts."""
        return _Tally(
            counts_RN.sum(1),
            counts_RN @ (self.actual_NK == self.predicted_NK).all(1),
            counts_RN @ (self.actual_NK & self.predicted_NK),
            counts_RN @ self.actual_NK,
            counts_RN @ self.predicted_NK,
        )


def _table(rows: Sequence[Collection[str | None]], labels: Sequence[str]) -> np.ndarray:
    places: dict[str | None, int] = {label: place for place, label in enumerate(labels)}
    table_NK = np.zeros((len(rows), len(labels) + 1), bool)
    for number, row in enumerate(rows):
        for label in row:
            table_NK[number, places.get(label, -1)] = True
    return table_NK


def _kinds(bytes_NB: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first row of each kind, and how many there are of it. Rows as one value each are compared much faster."""
    as_one_N = np.ascontiguousarray(bytes_NB).view(f"V{bytes_NB.shape[1]}")[:, 0]
    _, first_C, counts_C = np.unique(as_one_N, return_index=True, return_counts=True)
    return first_C, counts_C


def _f1s(tally: _Tally) -> np.ndarray:
    """Of every label; not a number where a label does not occur."""
    both_RK = tally.actual_RK + tally.predicted_RK
    return np.divide(2 * tally.hits_RK, both_RK, out=np.full_like(both_RK, np.nan), where=both_RK > 0)[:, :-1]


def _macro_f1(tally: _Tally) -> np.ndarray:
    f1s_RK = _f1s(tally)
    found_R = (~np.isnan(f1s_RK)).sum(1)
    return np.nansum(f1s_RK, 1) / np.maximum(found_R, 1)


def _f1(tally: _Tally) -> np.ndarray:
    f1s_RK = _f1s(tally)
    return np.nan_to_num(f1s_RK[:, 1]) if f1s_RK.shape[1] == 2 else _macro_f1(tally)


def _micro_f1(tally: _Tally) -> np.ndarray:
    both_R = tally.actual_RK.sum(1) + tally.predicted_RK.sum(1)
    return 2 * tally.hits_RK.sum(1) / np.maximum(both_R, 1)


def _matthews(tally: _Tally) -> np.ndarray:
    rows_R, actual_RK, predicted_RK = tally.rows_R, tally.actual_RK, tally.predicted_RK
    together_R = rows_R * tally.hits_RK.sum(1) - (actual_RK * predicted_RK).sum(1)
    apart_R = (rows_R**2 - (actual_RK**2).sum(1)) * (rows_R**2 - (predicted_RK**2).sum(1))
    return _ratio(together_R, np.sqrt(apart_R))


_STATISTICS: dict[str, Callable[[_Tally], np.ndarray]] = {
    "accuracy": lambda tally: tally.right_R / tally.rows_R,
    "f1": _f1,
    "macro_f1": _macro_f1,
    "micro_f1": _micro_f1,
    "matthews": _matthews,
}
"""For many resamples at once; the value itself is the library's."""


def _value(name: str, rows: _Rows) -> float:
    actual_NK, predicted_NK = rows.actual_NK, rows.predicted_NK
    if name == "accuracy":
        return float((actual_NK == predicted_NK).all(1).mean())
    library("sklearn", name)
    from sklearn.metrics import f1_score, matthews_corrcoef

    if name == "matthews":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a single label, which has nothing to correlate with
            return float(matthews_corrcoef(actual_NK.argmax(1), predicted_NK.argmax(1)))
    if name == "micro_f1":
        return float(f1_score(actual_NK, predicted_NK, average="micro", zero_division=0))
    found = np.flatnonzero((actual_NK | predicted_NK)[:, :-1].any(0))
    chosen = np.array([1]) if name == "f1" and actual_NK.shape[1] == 3 else found
    if not len(chosen):  # no row has a label, and none was predicted
        return 0.0
    return float(f1_score(actual_NK, predicted_NK, labels=chosen, average="macro", zero_division=0))


def _signature(name: str, labels: Sequence[str]) -> str:
    if name not in LABEL_LIBRARIES:
        return ""
    version = library("sklearn", name).__version__
    which = "" if name != "f1" else f"of {labels[1]}, " if len(labels) == 2 else "macro, "
    return f"{which}scikit-learn {version}"


# --- values


def _pearson(counts_RC: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Of weighted pairs; x and y are the same for all resamples, or each has its own."""
    x_RC, y_RC = _centred(counts_RC, x), _centred(counts_RC, y)
    square_R = (counts_RC * x_RC**2).sum(1) * (counts_RC * y_RC**2).sum(1)
    return 100 * _ratio((counts_RC * x_RC * y_RC).sum(1), np.sqrt(square_R))


def _centred(counts_RC: np.ndarray, x: np.ndarray) -> np.ndarray:
    mean_R1 = (counts_RC * x).sum(1, keepdims=True) / counts_RC.sum(1, keepdims=True)
    x_RC = x - mean_R1
    # What rounding leaves of a constant would be correlated with anything.
    return np.where(np.abs(x_RC) > 1e-12 * np.abs(mean_R1), x_RC, 0)


def _spearman(counts_RC: np.ndarray, x_C: np.ndarray, y_C: np.ndarray) -> np.ndarray:
    return _pearson(counts_RC, _ranks(counts_RC, x_C), _ranks(counts_RC, y_C))


def _ranks(counts_RC: np.ndarray, x_C: np.ndarray) -> np.ndarray:
    """The rank of every value in each resample; equals share the mean of theirs."""
    order_C = np.argsort(x_C, kind="stable")
    _, begins, places_C = np.unique(x_C[order_C], return_index=True, return_inverse=True)
    together_RU = np.add.reduceat(counts_RC[:, order_C], begins, axis=1)
    ranks_RU = together_RU.cumsum(1) - (together_RU - 1) / 2
    ranks_RC = np.empty_like(counts_RC)
    ranks_RC[:, order_C] = ranks_RU[:, places_C]
    return ranks_RC


_VALUE_STATISTICS: dict[str, Callable[[np.ndarray, Any, Any], np.ndarray]] = {
    "pearson": _pearson,
    "spearman": _spearman,
    "mse": lambda counts_RC, x_C, y_C: counts_RC @ (x_C - y_C) ** 2 / counts_RC.sum(1),
}


def _ratio(above_R: np.ndarray, below_R: np.ndarray) -> np.ndarray:
    """0 where there is nothing to divide by, that is, where everything is the same."""
    return np.divide(above_R, below_R, out=np.zeros_like(below_R), where=below_R > 0)
