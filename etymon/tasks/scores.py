"""Scores of texts against references, by the field's own libraries, with confidence intervals by bootstrap."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from etymon.errors import EtymonError

CONFIDENCE = 95.0
FEWEST_ROWS = 20
"""Of which an interval is told: resamples of fewer say little of other rows."""
MOST_CELLS = 4_000_000
"""Of resamples that are held at once."""
IDEOGRAPHS = (("\u3400", "\u9fff"), ("\uf900", "\ufaff"))
LATIN = (("A", "Z"), ("a", "z"))
LIBRARIES = {"bleu": "sacrebleu", "chrf": "sacrebleu"} | dict.fromkeys(
    ("rouge1", "rouge2", "rougeL"), "rouge_score"
)
_PACKAGES = {"rouge_score": "rouge-score", "sklearn": "scikit-learn"}
FALLING = frozenset({"mse", "bits_per_byte", "bits_per_character"})
"""Metrics of which less is better; they are not of 100."""


@dataclass(frozen=True)
class MetricScore:
    """Of 100, the more the better, unless it `falls`. `low` and `high` are the ends of the 95% interval, where it was asked for."""

    value: float
    low: float | None = None
    high: float | None = None
    signature: str = ""
    """What exactly was counted, in the words of the library."""
    falls: bool = False
    """Whether less is better, as of an error in the units of the data (`FALLING`)."""
    rows: int | None = None
    """How many were scored, where that is known."""

    @property
    def counted(self) -> str:
        """The number of rows, for people."""
        if self.rows is None:
            return ""
        few = f": too few for an interval, which needs {FEWEST_ROWS}" if self.rows < FEWEST_ROWS else ""
        return f"{self.rows:,} row{'s' * (self.rows != 1)}{few}"


def text_scores(
    predictions: Sequence[str], references: Sequence[str], metrics: Sequence[str], resamples: int = 0
) -> dict[str, MetricScore]:
    """Scores by name, of `TEXT_METRICS`."""
    return {name: TEXT_METRICS[name](predictions, references, resamples) for name in metrics}


def bootstrap(values: Sequence[float], resamples: int, seed: int = 12345) -> MetricScore:
    """The mean of values, one a row, and the interval of means of rows that are drawn again with replacement."""
    kinds, counts = np.unique(np.asarray(values, float), return_counts=True)
    mean = float(np.mean(values))
    ends = interval(counts, lambda drawn: drawn @ kinds / len(values), resamples, seed)
    return MetricScore(mean, *ends, rows=len(values))


def interval(
    counts: np.ndarray, statistic: Callable[[np.ndarray], np.ndarray], resamples: int, seed: int = 12345
) -> tuple[float | None, float | None]:
    """The ends of the 95% interval of a statistic by bootstrap over rows; none without resamples, or of too few rows.

    A score depends on the rows only by how many there are of each kind, a label and its prediction, say: these are the
    `counts`. Rows that are drawn again with replacement are then one draw from a multinomial distribution, and
    `statistic` gets many of them at once: `[resamples, kinds]` counts, of which it gives `[resamples]` values.
    """
    draw, rows = np.random.default_rng(seed), int(counts.sum())
    if not resamples or rows < FEWEST_ROWS:
        return None, None
    at_once = max(1, MOST_CELLS // len(counts))
    sizes = [min(at_once, resamples - start) for start in range(0, resamples, at_once)]
    drawn = (draw.multinomial(rows, counts / rows, size).astype(float) for size in sizes)
    edge = (100 - CONFIDENCE) / 2
    low, high = np.percentile(np.concatenate([statistic(each) for each in drawn]), [edge, 100 - edge])
    return float(low), float(high)


def library(name: str, metric: str) -> Any:
    """The module, or one line that says how to get it."""
    try:
        return import_module(name)
    except ImportError as error:
        without = "accuracy" if name in ("sklearn", "seqeval") else "exact"
        raise EtymonError(
            f"the metric {metric!r} needs {_PACKAGES.get(name, name)}: pip install 'etymon[evaluate]', or say --metric {without}"
        ) from error


def _sacrebleu(
    kind: str, predictions: Sequence[str], references: Sequence[str], resamples: int
) -> MetricScore:
    sacrebleu = library("sacrebleu", kind)
    if kind == "bleu":
        metric = sacrebleu.BLEU(tokenize="zh" if ideographic(references) else "13a")
    else:
        metric = sacrebleu.CHRF()
    resamples = resamples if len(predictions) >= FEWEST_ROWS else 0
    found = metric.corpus_score(list(predictions), [list(references)], n_bootstrap=max(1, resamples))
    ends: tuple[float | None, float | None] = (None, None)
    if resamples:
        # Where the score lies among its resamples: the library gives their mean and half the width.
        mean, half = float(found._mean), float(found._ci)
        ends = (max(0.0, mean - half), min(100.0, mean + half))
    return MetricScore(
        float(found.score), *ends, signature=str(metric.get_signature()), rows=len(predictions)
    )


def _rouge(kind: str, predictions: Sequence[str], references: Sequence[str], resamples: int) -> MetricScore:
    library("rouge_score", kind)
    # The library's own words are of Latin letters and digits.
    words = None if ideographic(references, LATIN) else _Words()
    scorers = import_module("rouge_score.rouge_scorer")
    scorer = scorers.RougeScorer([kind], use_stemmer=True, tokenizer=words)
    pairs = zip(references, predictions, strict=True)
    return bootstrap([100 * scorer.score(*pair)[kind].fmeasure for pair in pairs], resamples)


class _Words:
    """The words of a text in any script, and the characters of one without spaces."""

    def tokenize(self, text: str) -> list[str]:
        from etymon.tasks.entities import words_of

        found = (text[start:stop].lower() for start, stop in words_of(text))
        return [word for word in found if any(map(str.isalnum, word))]


def _exact(predictions: Sequence[str], references: Sequence[str], resamples: int) -> MetricScore:
    same = [100.0 * (one.split() == two.split()) for one, two in zip(predictions, references, strict=True)]
    return bootstrap(same, resamples)


def ideographic(texts: Sequence[str], scripts: Sequence[tuple[str, str]] = IDEOGRAPHS) -> bool:
    """Whether most letters are Chinese ones (which BLEU has to count one by one), or of these scripts."""
    letters = [letter for text in texts[:1000] for letter in text if letter.isalpha()]
    among = sum(any(low <= letter <= high for low, high in scripts) for letter in letters)
    return 2 * among > len(letters)


TEXT_METRICS: dict[str, Callable[[Sequence[str], Sequence[str], int], MetricScore]] = {
    **{kind: partial(_sacrebleu, kind) for kind in ("bleu", "chrf")},
    **{kind: partial(_rouge, kind) for kind in ("rouge1", "rouge2", "rougeL")},
    "exact": _exact,
}
