"""Scores of short answers out of a text, as SQuAD counts them, with confidence intervals by bootstrap over questions."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

from etymon.tasks.entities import unspaced
from etymon.tasks.scores import MetricScore, bootstrap

ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def answer_scores(
    predicted: Sequence[str], actual: Sequence[Sequence[str]], metrics: Sequence[str], resamples: int = 0
) -> dict[str, MetricScore]:
    """Scores by name, of `ANSWER_METRICS`: of each question's right answers the one that fits best counts.

    A question without an answer has none (or an empty one), and the right prediction is empty, as in SQuAD 2.0.
    """
    own = [normalised(answer) for answer in predicted]
    # An answer that is nothing but an article is left out, unless it is the only one.
    right = [[text for text in map(normalised, answers) if text] or [""] for answers in actual]
    return {
        name: bootstrap(
            [
                100.0 * max(ANSWER_METRICS[name](one, two) for two in several)
                for one, several in zip(own, right, strict=True)
            ],
            resamples,
        )
        for name in metrics
    }


def normalised(answer: str) -> str:
    """What is compared: small letters, no punctuation (of ASCII), no English articles, single spaces."""
    return " ".join(ARTICLES.sub(" ", answer.lower().translate(_NO_PUNCTUATION)).split())


def _f1(predicted: str, actual: str) -> float:
    """Of the words that both have, and of the characters in writing without spaces; where one is empty, both must be."""
    own, right = (
        "".join(f" {each} " if unspaced(each) else each for each in text).split()
        for text in (predicted, actual)
    )
    if not own or not right:
        return float(own == right)
    return 2 * (Counter(own) & Counter(right)).total() / (len(own) + len(right))


ANSWER_METRICS: dict[str, Callable[[str, str], float]] = {
    "f1": _f1,
    "exact": lambda predicted, actual: float(predicted == actual),
}
