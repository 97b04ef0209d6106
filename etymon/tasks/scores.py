"""Scores of answers that are texts, and confidence intervals of any score by bootstrap over rows."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from etymon.errors import EtymonError
from etymon.registry import METRICS
from etymon.tasks.entities import unspaced, words_of

CONFIDENCE = 95.0
FEWEST_ROWS = 20
"""For an interval: resamples of fewer say little about other rows."""
MOST_CELLS = 4_000_000
"""Of resamples that are held at once."""
IDEOGRAPHS = (("\u3400", "\u9fff"), ("\uf900", "\ufaff"))
LATIN = (("A", "Z"), ("a", "z"))
LIBRARIES = {
    "bleu": "sacrebleu",
    "chrf": "sacrebleu",
    **dict.fromkeys(("rouge1", "rouge2", "rougeL"), "rouge_score"),
}
FALLING = frozenset({"mse", "bits_per_byte", "bits_per_character"})
"""Metrics of which less is better; they are not of 100."""
ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)


def is_plugin(metric: str) -> bool:
    """Whether a metric is a plugin's; those of tasks are built in."""
    return metric not in METRICS.places and metric in METRICS


def falls(metric: str) -> bool:
    """Whether less of a metric is better."""
    return metric in FALLING or (is_plugin(metric) and bool(getattr(METRICS[metric], "falls", False)))


@dataclass(frozen=True)
class MetricScore:
    """Of 100, the more the better, unless it `falls`. `low` and `high` are the ends of the 95% interval, if
    it was computed."""

    value: float
    low: float | None = None
    high: float | None = None
    signature: str = ""
    """What exactly was counted, in the words of the library."""
    falls: bool = False
    """Whether less is better, as of an error in the units of the data (`FALLING`)."""
    rows: int | None = None
    """How many were scored; None if that is not known."""

    @property
    def standard_error(self) -> float:
        """Of the value, by the width of its interval; 0 where there is none."""
        return 0.0 if self.low is None or self.high is None else (self.high - self.low) / (2 * 1.96)

    @property
    def counted(self) -> str:
        """The number of rows, for people."""
        if self.rows is None:
            return ""
        few = f": too few for an interval, which needs {FEWEST_ROWS}" if self.rows < FEWEST_ROWS else ""
        return f"{self.rows:,} row{'s' * (self.rows != 1)}{few}"


def bootstrap(
    counts: np.ndarray,
    statistic: Callable[[np.ndarray], np.ndarray],
    resamples: int,
    value: float | None = None,
    **about: Any,
) -> MetricScore:
    """A statistic of rows and the ends of its 95% interval by bootstrap; no ends without resamples, or of
    too few rows.

    A score depends on the rows only by how many there are of each kind, a label and its prediction, say:
    these are the `counts`. Rows that are drawn again with replacement are then one draw from a multinomial
    distribution, and `statistic` gets many of them at once: `[resamples, kinds]` counts, of which it gives
    `[resamples]` values. `value` is that of the rows themselves, if it is known; `about` are other fields of
    the score.
    """
    rows = int(counts.sum())
    if value is None:
        value = float(statistic(counts[None].astype(float))[0])
    if not resamples or rows < FEWEST_ROWS:
        return MetricScore(value, rows=rows, **about)
    # sacreBLEU's seed, too. Fixed: the same answers have the same interval every time.
    draw = np.random.default_rng(12345)
    at_once = max(1, MOST_CELLS // len(counts))
    sizes = [min(at_once, resamples - start) for start in range(0, resamples, at_once)]
    drawn = (draw.multinomial(rows, counts / rows, size).astype(float) for size in sizes)
    edge = (100 - CONFIDENCE) / 2
    low, high = np.percentile(np.concatenate([statistic(each) for each in drawn]), [edge, 100 - edge])
    return MetricScore(value, float(low), float(high), rows=rows, **about)


def mean_score(values: Sequence[float], resamples: int) -> MetricScore:
    """The mean of values, one a row."""
    kinds, counts = np.unique(np.asarray(values, float), return_counts=True)
    return bootstrap(counts, lambda drawn: drawn @ kinds / len(values), resamples, float(np.mean(values)))


def library(name: str, metric: str) -> Any:
    """The module of a library that computes a metric, or one line that says how to install it."""
    try:
        return import_module(name)
    except ImportError as error:
        without = "accuracy" if name == "seqeval" else "exact"
        raise EtymonError(
            f"the metric {metric!r} needs {name.replace('_', '-')}: pip install 'etymon[evaluate]', "
            f"or say --metric {without}",
            code="missing-package",
        ) from error


# --- texts against references


def text_scores(
    predictions: Sequence[str], references: Sequence[str], metrics: Sequence[str], resamples: int = 0
) -> dict[str, MetricScore]:
    """Scores by name, of `TEXT_METRICS`."""
    return {name: TEXT_METRICS[name](predictions, references, resamples) for name in metrics}


def _sacrebleu(
    kind: str, predictions: Sequence[str], references: Sequence[str], resamples: int
) -> MetricScore:
    sacrebleu = library("sacrebleu", kind)
    if kind == "bleu":
        # 13a is WMT's tokenization, by which published scores compare; Chinese has no spaces to split at.
        metric = sacrebleu.BLEU(tokenize="zh" if ideographic(references) else "13a")
    else:
        metric = sacrebleu.CHRF()
    texts = list(predictions), [list(references)]
    corpus = metric.corpus_score(*texts)
    ends: tuple[float | None, float | None] = (None, None)
    if resamples and len(predictions) >= FEWEST_ROWS:
        # As `corpus_score` would draw them. It cannot add scores of which some are exactly 0: those are
        # Python's numbers among NumPy's.
        draw = import_module("sacrebleu.significance")._bootstrap_resample
        metric.n_bootstrap = resamples
        metric.seed, drawn = draw(metric._extract_corpus_statistics(*texts), metric, resamples)
        values = sorted(float(each.score) for each in drawn)
        cut = resamples // 40
        # Where the score lies among its resamples: their mean, and half the width of 95% of them.
        mean, half = sum(values) / resamples, (values[resamples - cut - 1] - values[cut]) / 2
        ends = (max(0.0, mean - half), min(100.0, mean + half))
    return MetricScore(float(corpus.score), *ends, str(metric.get_signature()), rows=len(predictions))


def _rouge(kind: str, predictions: Sequence[str], references: Sequence[str], resamples: int) -> MetricScore:
    library("rouge_score", kind)
    # The library's own words are of Latin letters and digits.
    words = None if ideographic(references, LATIN) else _AnyScript()
    scorers = import_module("rouge_score.rouge_scorer")
    # With stems, as Transformers' example of summarization counts.
    scorer = scorers.RougeScorer([kind], use_stemmer=True, tokenizer=words)
    pairs = zip(references, predictions, strict=True)
    return mean_score([100 * scorer.score(*pair)[kind].fmeasure for pair in pairs], resamples)


class _AnyScript:
    """Splits a text of any script into words, and writing without spaces into characters."""

    def tokenize(self, text: str) -> list[str]:
        words = (text[start:stop].lower() for start, stop in words_of(text))
        return [word for word in words if any(map(str.isalnum, word))]


def _exact(predictions: Sequence[str], references: Sequence[str], resamples: int) -> MetricScore:
    pairs = zip(predictions, references, strict=True)
    return mean_score([100.0 * (text.split() == right.split()) for text, right in pairs], resamples)


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


# --- short answers out of a text, as SQuAD counts them


def answer_scores(
    predicted: Sequence[str], actual: Sequence[Sequence[str]], metrics: Sequence[str], resamples: int = 0
) -> dict[str, MetricScore]:
    """Scores by name, of `ANSWER_METRICS`: of each question's right answers the one that fits best counts.

    A question without an answer has none (or an empty one), and the right prediction is empty, as in SQuAD
    2.0.
    """
    predicted = [normalise(answer) for answer in predicted]
    # SQuAD's script, version 2.0, drops right answers that normalise to nothing.
    # An answer that is nothing but an article is left out, unless it is the only one.
    right = [[text for text in map(normalise, answers) if text] or [""] for answers in actual]
    rows = list(zip(predicted, right, strict=True))
    return {
        name: mean_score(
            [100.0 * max(ANSWER_METRICS[name](text, answer) for answer in answers) for text, answers in rows],
            resamples,
        )
        for name in metrics
    }


def normalise(answer: str) -> str:
    """What is compared: small letters, no punctuation (of ASCII), no English articles, single spaces."""
    # The order is that of SQuAD's script: `a.` loses its point, and is an article only then.
    return " ".join(ARTICLES.sub(" ", answer.lower().translate(PUNCTUATION)).split())


def _f1(predicted: str, actual: str) -> float:
    """Of the words that both have, and of the characters in writing without spaces; where one is empty, both
    must be."""
    words, right = (
        "".join(f" {sign} " if unspaced(sign) else sign for sign in text).split()
        for text in (predicted, actual)
    )
    # SQuAD 2.0: where either says that there is no answer, it is all or nothing.
    if not words or not right:
        return float(words == right)
    return 2 * (Counter(words) & Counter(right)).total() / (len(words) + len(right))


ANSWER_METRICS: dict[str, Callable[[str, str], float]] = {
    "f1": _f1,
    "exact": lambda predicted, actual: float(predicted == actual),
}
