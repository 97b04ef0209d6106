"""Scores of texts against references, by the field's own libraries, with confidence intervals by bootstrap."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from etymon.errors import EtymonError

CONFIDENCE = 95.0
IDEOGRAPHS = (("\u3400", "\u9fff"), ("\uf900", "\ufaff"))


@dataclass(frozen=True)
class Score:
    """Of 100. `low` and `high` are the ends of the 95% interval, where it was asked for."""

    value: float
    low: float | None = None
    high: float | None = None
    signature: str = ""
    """What exactly was counted, in the words of the library."""


def text_scores(
    predictions: Sequence[str], references: Sequence[str], metrics: Sequence[str], resamples: int = 0
) -> dict[str, Score]:
    """Scores by name, of `TEXT_METRICS`."""
    return {name: TEXT_METRICS[name](predictions, references, resamples) for name in metrics}


def need_libraries(metrics: Sequence[str]) -> None:
    """Refuses metrics whose library is not there, before any work."""
    for metric in metrics:
        for library in ("sacrebleu",) * (metric in ("bleu", "chrf")) + ("rouge_score",) * metric.startswith(
            "rouge"
        ):
            _library(library, metric)


def bootstrap(values: Sequence[float], resamples: int, seed: int = 12345) -> Score:
    """The mean of values, one a row, and the interval of means of rows that are drawn again with replacement."""
    own = np.asarray(values, float)
    if not resamples:
        return Score(float(own.mean()))
    draws = np.random.default_rng(seed).integers(len(own), size=(resamples, len(own)))
    edge = (100 - CONFIDENCE) / 2
    low, high = np.percentile(own[draws].mean(1), [edge, 100 - edge])
    return Score(float(own.mean()), float(low), float(high))


def _library(name: str, metric: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise EtymonError(
            f"the metric {metric!r} needs {name.replace('_', '-')}: pip install 'etymon[evaluate]', or say --metric exact"
        ) from error


def _sacrebleu(kind: str) -> Callable[[Sequence[str], Sequence[str], int], Score]:
    def score(predictions: Sequence[str], references: Sequence[str], resamples: int) -> Score:
        library = _library("sacrebleu", kind)
        if kind == "bleu":
            metric = library.BLEU(tokenize="zh" if _ideographic(references) else "13a")
        else:
            metric = library.CHRF()
        found = metric.corpus_score(list(predictions), [list(references)], n_bootstrap=max(1, resamples))
        interval: tuple[float | None, float | None] = (None, None)
        if resamples:
            # Where the score lies among its resamples: the library gives their mean and half the width.
            mean, half = float(found._mean), float(found._ci)
            interval = (max(0.0, mean - half), min(100.0, mean + half))
        return Score(float(found.score), *interval, signature=str(metric.get_signature()))

    return score


def _rouge(kind: str) -> Callable[[Sequence[str], Sequence[str], int], Score]:
    def score(predictions: Sequence[str], references: Sequence[str], resamples: int) -> Score:
        _library("rouge_score", kind)
        scorer = import_module("rouge_score.rouge_scorer").RougeScorer([kind], use_stemmer=True)
        pairs = zip(references, predictions, strict=True)
        return bootstrap([100 * scorer.score(*pair)[kind].fmeasure for pair in pairs], resamples)

    return score


def _exact(predictions: Sequence[str], references: Sequence[str], resamples: int) -> Score:
    same = [100.0 * (one.split() == two.split()) for one, two in zip(predictions, references, strict=True)]
    return bootstrap(same, resamples)


def _ideographic(texts: Sequence[str]) -> bool:
    """Whether most letters are Chinese ones, which BLEU has to count one by one."""
    letters = [letter for text in texts[:1000] for letter in text if letter.isalpha()]
    chinese = sum(any(low <= letter <= high for low, high in IDEOGRAPHS) for letter in letters)
    return 2 * chinese > len(letters)


TEXT_METRICS: dict[str, Callable[[Sequence[str], Sequence[str], int], Score]] = {
    "bleu": _sacrebleu("bleu"),
    "chrf": _sacrebleu("chrf"),
    "rouge1": _rouge("rouge1"),
    "rouge2": _rouge("rouge2"),
    "rougeL": _rouge("rougeL"),
    "exact": _exact,
}
