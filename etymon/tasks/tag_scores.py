"""Scores of tagged words: spans by seqeval, with confidence intervals by bootstrap over sentences.

Legend: S sentences, C kinds of sentences, R resamples.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np

from etymon.errors import EtymonError
from etymon.tasks.scores import MetricScore, interval, library

TAG_METRICS = ("f1", "precision", "recall", "accuracy")
TAG_LIBRARIES = dict.fromkeys(("f1", "precision", "recall"), "seqeval")
OUTSIDE = "O"
_PREFIXED = re.compile(r"[BIESLU](-.+)?")

Sentences = Sequence[Sequence[str]]


def tag_metrics(labels: Sequence[str]) -> tuple[str, ...]:
    """The scores that labels can have, the usual one first: spans need labels such as B-PER; parts of speech have accuracy."""
    return TAG_METRICS if spans(labels) else ("accuracy",)


def spans(labels: Sequence[str]) -> bool:
    """Whether labels say where spans begin, go on or end."""
    prefixed = [_PREFIXED.fullmatch(label) for label in labels if label != OUTSIDE]
    return bool(prefixed) and all(prefixed)


def require_spans(labels: Sequence[str], metrics: Sequence[str]) -> None:
    """Refuses scores of spans where labels say nothing of such."""
    if any(name in TAG_LIBRARIES for name in metrics) and not spans(labels):
        raise EtymonError(
            f"the labels {', '.join(labels[:5])} say not where spans begin (as B-PER does): say --metric accuracy"
        )


def tag_scheme(labels: Sequence[str], sentences: Sentences) -> str | None:
    """How labels write spans, in seqeval's names; None if the sentences keep to no scheme, or to one that it cannot read strictly.

    Some schemes have the same labels: in IOB2 every span begins with B, in IOB1 only one right behind another of its type.
    """
    prefixes = {label[0] for label in labels} - {OUTSIDE}
    if prefixes & {"L", "U"}:
        return "BILOU" if prefixes <= set("BILU") else None
    if "S" in prefixes or {"B", "E"} <= prefixes:
        return "IOBES"
    if "E" in prefixes:
        # seqeval's IOE1 misses spans of one word.
        return "IOE2" if all(_same(tag, after) for tag, after in _steps(sentences) if tag[0] == "I") else None
    if "B" in prefixes and all(_same(before, tag) for before, tag in _steps(sentences) if tag[0] == "I"):
        return "IOB2"
    return "IOB1" if all(_same(before, tag) for before, tag in _steps(sentences) if tag[0] == "B") else None


def tag_scores(
    predicted: Sequence[Sequence[str | None]],
    actual: Sentences,
    labels: Sequence[str],
    metrics: Sequence[str],
    resamples: int = 0,
) -> dict[str, MetricScore]:
    """Scores by name, of `TAG_METRICS`, one tag a word. A tag that is none of the labels is wrong, and in no span.

    `f1`, `precision` and `recall` count whole spans of the right type, all types together; `accuracy` counts words.
    """
    require_spans(labels, metrics)
    right_SF = np.array(
        [
            (sum(one == two for one, two in zip(*pair, strict=True)), len(pair[0]))
            for pair in zip(predicted, actual)
        ]
    )
    spans_SF, signature = np.zeros((len(actual), 3), int), ""
    if any(name in TAG_LIBRARIES for name in metrics):
        known = set(labels)
        cleaned = [[tag if tag in known else OUTSIDE for tag in tags] for tags in predicted]
        scheme = tag_scheme(labels, actual)
        found = zip(_entities(actual, scheme), _entities(cleaned, scheme), strict=True)
        spans_SF = np.array([(len(gold & own), len(own), len(gold)) for gold, own in found])
        signature = f"{f'{scheme}, strict' if scheme else 'as conlleval'}, seqeval {version('seqeval')}"
    kinds_CF, counts_C = np.unique(np.hstack([right_SF, spans_SF]), axis=0, return_counts=True)

    def score(name: str) -> MetricScore:
        def statistic(drawn_RC: np.ndarray) -> np.ndarray:
            return 100 * _STATISTICS[name](*(drawn_RC @ kinds_CF).T)

        value = float(statistic(counts_C[None])[0])
        ends = interval(counts_C, statistic, resamples)
        return MetricScore(value, *ends, signature if name in TAG_LIBRARIES else "", rows=len(actual))

    return {name: score(name) for name in metrics}


def _steps(sentences: Sentences) -> Iterator[tuple[str, str]]:
    """Every two neighbours, a sentence's edges being outside."""
    for tags in sentences:
        yield from zip([OUTSIDE, *tags], [*tags, OUTSIDE])


def _same(before: str, after: str) -> bool:
    """Whether both are in spans of one type."""
    return OUTSIDE not in (before, after) and before[1:] == after[1:]


def _entities(sentences: Sentences, scheme: str | None) -> list[set[tuple[Any, ...]]]:
    """The spans of every sentence, as seqeval reads them."""
    library("seqeval", "f1")
    from seqeval import scheme as schemes
    from seqeval.metrics.sequence_labeling import get_entities

    if scheme is None:
        return [set(get_entities(list(tags))) for tags in sentences]
    found = schemes.Entities([list(tags) for tags in sentences], getattr(schemes, scheme)).entities
    return [{(one.tag, one.start, one.end) for one in each} for each in found]


def _share(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    return part / np.maximum(whole, 1)


_STATISTICS: dict[str, Callable[..., np.ndarray]] = {
    "f1": lambda right, words, hits, predicted, actual: _share(2 * hits, predicted + actual),
    "precision": lambda right, words, hits, predicted, actual: _share(hits, predicted),
    "recall": lambda right, words, hits, predicted, actual: _share(hits, actual),
    "accuracy": lambda right, words, hits, predicted, actual: _share(right, words),
}
