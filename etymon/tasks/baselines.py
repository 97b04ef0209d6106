"""What a task's answers are worth: the commonest one for every row, and a linear model of words, from the
same training rows."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from etymon.tasks.entities import UNSPACED
from etymon.tasks.scores import ideographic

MOST_LETTERS = 20_000_000
"""Of the training texts: of more, rows at even distances are read."""
WORD = 5
"""Letters of a word: where letters are counted, so many fewer are read."""
MOST_FEATURES = 50_000
MOST_WEIGHTS = 500_000
"""Features times labels."""
ITERATIONS = 100

Text = str | Sequence[str]
"""One text, or a pair, which is read as one."""


def baselines(
    train_texts: Sequence[Text],
    train_labels: Sequence[Any],
    texts: Sequence[Text],
    notify: Callable[[str], None] = lambda text: None,
) -> dict[str, list[Any]]:
    """Predictions for the texts, by the name of the baseline.

    Labels are texts (`majority` and `tf-idf + logistic regression`), collections of texts, of which a row may
    have several (the same, a classifier a label), or numbers (`mean` and `tf-idf + ridge regression`). TF-IDF
    counts words and pairs of words, in scripts without spaces letters and pairs of letters; at most 50,000 of
    them, and fewer with many labels. It reads at most 20 million letters (of such scripts 4 million).
    `notify` hears why a baseline is missing.
    """
    answer: Any
    if isinstance(train_labels[0], float | int):
        simple, linear, answer = "mean", "tf-idf + ridge regression", float(np.mean(train_labels))
    else:
        simple, linear = "majority", "tf-idf + logistic regression"
        sets = (each if isinstance(each, str) else tuple(sorted(each)) for each in train_labels)
        answer = Counter(sets).most_common(1)[0][0]
    predictions: dict[str, list[Any]] = {simple: [answer] * len(texts)}
    try:
        predictions[linear] = _linear(_joined(train_texts), train_labels, _joined(texts))
    except ImportError:
        notify(f"no baseline by {linear}: it needs scikit-learn (pip install 'etymon[evaluate]')")
    except ValueError as error:  # no words, or a single label
        notify(f"no baseline by {linear}: {str(error).splitlines()[0]}")
    return predictions


def _linear(train_texts: list[str], train_labels: Sequence[Any], texts: list[str]) -> list[Any]:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.preprocessing import MultiLabelBinarizer

    unspaced = ideographic(train_texts, UNSPACED)
    stride = 1 + sum(map(len, train_texts)) * (WORD if unspaced else 1) // MOST_LETTERS
    train_texts, train_labels = train_texts[::stride], train_labels[::stride]
    first = train_labels[0]
    targets: Any = train_labels
    names = None
    if isinstance(first, float | int):
        model, outputs = Ridge(), 1
    elif isinstance(first, str):
        model, outputs = LogisticRegression(max_iter=ITERATIONS), len(set(train_labels))
    else:
        names = MultiLabelBinarizer()
        targets = names.fit_transform(train_labels)
        model, outputs = OneVsRestClassifier(LogisticRegression(max_iter=ITERATIONS)), targets.shape[1]
    features = TfidfVectorizer(
        analyzer="char" if unspaced else "word",
        token_pattern=r"\b\w+\b",
        ngram_range=(1, 2),
        sublinear_tf=True,
        min_df=1 if len(train_texts) < 1000 else 2,
        max_features=min(MOST_FEATURES, max(1000, MOST_WEIGHTS // outputs)),
        dtype=np.float32,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of iterations that ran out, and labels that no row has
        model.fit(features.fit_transform(train_texts), targets)
        answers = model.predict(features.transform(texts))
    if names is None:
        return list(answers.tolist())
    return names.inverse_transform(answers.reshape(len(texts), -1))  # of a single label it is flat


def _joined(texts: Sequence[Text]) -> list[str]:
    return [text if isinstance(text, str) else "\n".join(text) for text in texts]
