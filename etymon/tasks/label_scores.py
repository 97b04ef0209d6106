"""Scores of labels, numbers and tagged words.

All are functions of counts, so that one function gives the score and its thousand resamples
(`scores.bootstrap`): that is why F1 and correlations are computed here and not by scikit-learn, to which the
tests compare them. Spans are seqeval's.

Legend: N rows, K labels and in the last place whatever is no label, C kinds of rows, R resamples, F figures.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import Any

import numpy as np

from etymon.errors import EtymonError
from etymon.tasks.entities import OUTSIDE, says_spans, tag_scheme
from etymon.tasks.scores import FALLING, MetricScore, bootstrap, library

LABEL_METRICS = ("accuracy", "f1", "macro_f1", "matthews")
MULTI_LABEL_METRICS = ("micro_f1", "macro_f1", "accuracy")
VALUE_METRICS = ("pearson", "spearman", "mse")
TAG_METRICS = ("f1", "precision", "recall", "accuracy")
TAG_LIBRARIES = dict.fromkeys(("f1", "precision", "recall"), "seqeval")


def _ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """0 where there is nothing to divide by, that is, where everything is the same."""
    # As scikit-learn's `zero_division=0`, without its warning.
    return np.divide(above, below, out=np.zeros_like(below), where=below > 0)


# --- labels


def label_scores(
    predicted: Sequence[str | None],
    actual: Sequence[str],
    labels: Sequence[str],
    metrics: Sequence[str],
    resamples: int = 0,
) -> dict[str, MetricScore]:
    """Scores by name, of `LABEL_METRICS`, one label a row. A prediction that is none of the labels is always
    wrong.

    `f1` is that of the second label if there are two (as GLUE has it), and `macro_f1` otherwise. `macro_f1`
    is the mean over the labels that occur, in the table or among the predictions.
    """
    rows = [(label,) for label in predicted]
    return multi_label_scores(rows, [(label,) for label in actual], labels, metrics, resamples)


def multi_label_scores(
    predicted: Sequence[Collection[str | None]],
    actual: Sequence[Collection[str]],
    labels: Sequence[str],
    metrics: Sequence[str],
    resamples: int = 0,
) -> dict[str, MetricScore]:
    """Scores by name, of `LABEL_METRICS` or `MULTI_LABEL_METRICS`, any number of labels a row. `accuracy`
    counts rows with exactly the right ones."""
    # What is no label is in the last column: wrong for accuracy, and in no label's F1.
    actual_NK, predicted_NK = _label_table(actual, labels), _label_table(predicted, labels)
    if actual_NK[:, -1].any():
        foreign = next(label for row in actual for label in row if label not in labels)
        raise EtymonError(f"the label {foreign!r} is none of {', '.join(labels)}: give a table with these")
    # Rows of the same labels and predictions are of one kind. As a single value each they are compared much
    # faster.
    bytes_NB = np.packbits(np.hstack([actual_NK, predicted_NK]), axis=1)
    value_N = np.ascontiguousarray(bytes_NB).view(f"V{bytes_NB.shape[1]}")[:, 0]
    _, first_C, counts_C = np.unique(value_N, return_index=True, return_counts=True)
    kinds = actual_NK[first_C], predicted_NK[first_C]
    which = f"of {labels[1]}" if len(labels) == 2 else "macro"

    def statistic(name: str, drawn_RC: np.ndarray) -> np.ndarray:
        return 100 * _LABEL_STATISTICS[name](_tally(*kinds, drawn_RC))

    return {
        name: bootstrap(
            counts_C, partial(statistic, name), resamples, signature=which if name == "f1" else ""
        )
        for name in metrics
    }


def label_figures(
    predicted: Sequence[Collection[str | None]], actual: Sequence[Collection[str]], labels: Sequence[str]
) -> list[tuple[str, float, float, float, int]]:
    """Of every label its name, precision, recall and F1, of 100, and how many rows have it."""
    counts = _tally(_label_table(actual, labels), _label_table(predicted, labels), np.ones((1, len(actual))))
    hits_K, actual_K, predicted_K = counts.hits_RK[0], counts.actual_RK[0], counts.predicted_RK[0]
    precision_K, recall_K = _ratio(hits_K, predicted_K), _ratio(hits_K, actual_K)
    f1_K = _ratio(2 * hits_K, actual_K + predicted_K)
    columns = ((100 * share_K).tolist() for share_K in (precision_K, recall_K, f1_K))
    return list(zip(labels, *columns, actual_K.astype(int).tolist()))


@dataclass(frozen=True)
class _Tally:
    """What a score of labels depends on: rows, rows that are right, and of each label right, actual and
    predicted ones."""

    rows_R: np.ndarray
    right_R: np.ndarray
    hits_RK: np.ndarray
    actual_RK: np.ndarray
    predicted_RK: np.ndarray


def _tally(actual_NK: np.ndarray, predicted_NK: np.ndarray, counts_RN: np.ndarray) -> _Tally:
    """With every row as many times as it counts."""
    return _Tally(
        counts_RN.sum(1),
        counts_RN @ (actual_NK == predicted_NK).all(1),
        counts_RN @ (actual_NK & predicted_NK),
        counts_RN @ actual_NK,
        counts_RN @ predicted_NK,
    )


def _label_table(rows: Sequence[Collection[str | None]], labels: Sequence[str]) -> np.ndarray:
    """Which labels every row has."""
    places: dict[str | None, int] = {label: place for place, label in enumerate(labels)}
    table_NK = np.zeros((len(rows), len(labels) + 1), bool)
    for number, row in enumerate(rows):
        for label in row:
            table_NK[number, places.get(label, -1)] = True
    return table_NK


def _f1(counts: _Tally, *, macro: bool = False) -> np.ndarray:
    """The mean over the labels that occur; of two, the second's alone, unless `macro`."""
    both_RK = (counts.actual_RK + counts.predicted_RK)[:, :-1]
    f1_RK = _ratio(2 * counts.hits_RK[:, :-1], both_RK)
    # scikit-learn's `f1_score(pos_label=1)`, by which GLUE scores MRPC and QQP.
    if f1_RK.shape[1] == 2 and not macro:
        return f1_RK[:, 1]
    return f1_RK.sum(1) / np.maximum((both_RK > 0).sum(1), 1)


def _micro_f1(counts: _Tally) -> np.ndarray:
    # Labels that are none count as predicted, so writing nonsense costs precision.
    both_R = counts.actual_RK.sum(1) + counts.predicted_RK.sum(1)
    return 2 * counts.hits_RK.sum(1) / np.maximum(both_R, 1)


def _matthews(counts: _Tally) -> np.ndarray:
    # Gorodkin's correlation of K labels (2004), as in scikit-learn; of two it is Matthews' (GLUE: CoLA).
    rows_R, actual_RK, predicted_RK = counts.rows_R, counts.actual_RK, counts.predicted_RK
    together_R = rows_R * counts.hits_RK.sum(1) - (actual_RK * predicted_RK).sum(1)
    apart_R = (rows_R**2 - (actual_RK**2).sum(1)) * (rows_R**2 - (predicted_RK**2).sum(1))
    return _ratio(together_R, np.sqrt(apart_R))


_LABEL_STATISTICS: dict[str, Callable[[_Tally], np.ndarray]] = {
    "accuracy": lambda counts: counts.right_R / counts.rows_R,
    "f1": _f1,
    "macro_f1": partial(_f1, macro=True),
    "micro_f1": _micro_f1,
    "matthews": _matthews,
}


# --- numbers


def value_scores(
    predicted: Sequence[float], actual: Sequence[float], metrics: Sequence[str], resamples: int = 0
) -> dict[str, MetricScore]:
    """Scores by name, of `VALUE_METRICS`. Correlations are of 100; that with a constant is 0. `mse` is in the
    square of the values' unit, and `falls`."""
    pairs, counts_C = np.unique(np.stack([actual, predicted], 1).astype(float), axis=0, return_counts=True)
    x_C, y_C = pairs.T

    def statistic(name: str, drawn_RC: np.ndarray) -> np.ndarray:
        return _VALUE_STATISTICS[name](drawn_RC, x_C, y_C)

    return {
        name: bootstrap(counts_C, partial(statistic, name), resamples, falls=name in FALLING)
        for name in metrics
    }


def _pearson(counts_RC: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Of weighted pairs; x and y are the same for all resamples `[C]`, or each has its own `[R, C]`."""
    x_RC, y_RC = _centred(counts_RC, x), _centred(counts_RC, y)
    square_R = (counts_RC * x_RC**2).sum(1) * (counts_RC * y_RC**2).sum(1)
    return 100 * _ratio((counts_RC * x_RC * y_RC).sum(1), np.sqrt(square_R))


def _centred(counts_RC: np.ndarray, x: np.ndarray) -> np.ndarray:
    mean_R1 = (counts_RC * x).sum(1, keepdims=True) / counts_RC.sum(1, keepdims=True)
    x_RC = x - mean_R1
    # What rounding leaves of a constant would be correlated with anything.
    return np.where(np.abs(x_RC) > 1e-12 * np.abs(mean_R1), x_RC, 0)


def _ranks(counts_RC: np.ndarray, x_C: np.ndarray) -> np.ndarray:
    """The rank of every value in each resample; equals share the mean of theirs."""
    # Equal values are neighbours once sorted: `reduceat` counts every run U of them in all resamples at once.
    # The mean rank of a run is what scipy's `spearmanr` gives ties.
    order_C = np.argsort(x_C, kind="stable")
    _, begins, places_C = np.unique(x_C[order_C], return_index=True, return_inverse=True)
    together_RU = np.add.reduceat(counts_RC[:, order_C], begins, axis=1)
    ranks_RU = together_RU.cumsum(1) - (together_RU - 1) / 2
    ranks_RC = np.empty_like(counts_RC)
    ranks_RC[:, order_C] = ranks_RU[:, places_C]
    return ranks_RC


_VALUE_STATISTICS: dict[str, Callable[[np.ndarray, Any, Any], np.ndarray]] = {
    "pearson": _pearson,
    "spearman": lambda counts, x, y: _pearson(counts, _ranks(counts, x), _ranks(counts, y)),
    "mse": lambda counts, x, y: counts @ (x - y) ** 2 / counts.sum(1),
}


# --- tagged words


def tag_metrics(labels: Sequence[str]) -> tuple[str, ...]:
    """The scores that labels can have, the default first: spans need labels such as B-PER; parts of speech
    have accuracy."""
    return TAG_METRICS if says_spans(labels) else ("accuracy",)


def require_spans(labels: Sequence[str], metrics: Sequence[str]) -> None:
    """Refuses scores of spans where labels say nothing of such."""
    if any(name in TAG_LIBRARIES for name in metrics) and not says_spans(labels):
        raise EtymonError(
            f"the labels {', '.join(labels[:5])} say not where spans begin (as B-PER does): say "
            "--metric accuracy"
        )


def tag_scores(
    predicted: Sequence[Sequence[str | None]],
    actual: Sequence[Sequence[str]],
    labels: Sequence[str],
    metrics: Sequence[str],
    resamples: int = 0,
) -> dict[str, MetricScore]:
    """Scores by name, of `TAG_METRICS`, one tag a word. A tag that is none of the labels is wrong, and in no
    span.

    `f1`, `precision` and `recall` count whole spans of the right type, all types together; `accuracy` counts
    words. Resamples are of sentences.
    """
    require_spans(labels, metrics)
    # All scores are made of five counts a sentence: right words, words, and spans that are right, predicted
    # and actual.
    words = [
        (sum(tag == right for tag, right in zip(*tags, strict=True)), len(tags[0]))
        for tags in zip(predicted, actual)
    ]
    spans, signature = [(0, 0, 0)] * len(actual), ""
    if any(name in TAG_LIBRARIES for name in metrics):
        allowed = set(labels)
        cleaned = [[tag if tag in allowed else OUTSIDE for tag in tags] for tags in predicted]
        # Strict where the table keeps to a scheme: a predicted span that breaks it does not count. Without a
        # scheme seqeval reads spans as conlleval does, which mends such.
        scheme = tag_scheme(labels, actual)
        sides = zip(_spans(actual, scheme), _spans(cleaned, scheme), strict=True)
        spans = [(len(right & guess), len(guess), len(right)) for right, guess in sides]
        signature = f"{f'{scheme}, strict' if scheme else 'as conlleval'}, seqeval {version('seqeval')}"
    kinds_CF, counts_C = np.unique(np.hstack([words, spans]), axis=0, return_counts=True)

    def statistic(name: str, drawn_RC: np.ndarray) -> np.ndarray:
        return 100 * _TAG_STATISTICS[name](*(drawn_RC @ kinds_CF).T)

    return {
        name: bootstrap(
            counts_C,
            partial(statistic, name),
            resamples,
            signature=signature if name in TAG_LIBRARIES else "",
        )
        for name in metrics
    }


def _spans(sentences: Sequence[Sequence[Any]], scheme: str | None) -> list[set[tuple[Any, ...]]]:
    """The spans of every sentence, as seqeval reads them."""
    library("seqeval", "f1")
    from seqeval import scheme as schemes
    from seqeval.metrics.sequence_labeling import get_entities

    if scheme is None:
        return [set(get_entities(list(tags))) for tags in sentences]
    entities = schemes.Entities([list(tags) for tags in sentences], getattr(schemes, scheme)).entities
    return [{(entity.tag, entity.start, entity.end) for entity in sentence} for sentence in entities]


_TAG_STATISTICS: dict[str, Callable[..., np.ndarray]] = {
    "f1": lambda right, words, hits, predicted, actual: _ratio(2 * hits, predicted + actual),
    "precision": lambda right, words, hits, predicted, actual: _ratio(hits, predicted),
    "recall": lambda right, words, hits, predicted, actual: _ratio(hits, actual),
    "accuracy": lambda right, words, hits, predicted, actual: _ratio(right, words),
}
