"""What a task's answers are worth: beside the commonest one for every row and a linear model of words, both
from the same training rows; and on texts with typos, to see how much of a score hangs on clean spelling."""

from __future__ import annotations

import hashlib
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from string import ascii_lowercase
from typing import Any

import numpy as np

from etymon.errors import EtymonError
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


def with_typos(texts: Sequence[str], share: float = 0.1, seed: int = 0) -> list[str]:
    """The texts with typos in about this share of their letters; the same for the same seed and text.

    A letter changes places with the next one, is lost, is followed by another one, or is another one, as
    often each (letters of ASCII, or else those of the text). Anything but letters stays as it is, and no text
    becomes empty.
    """
    if not 0 <= share <= 1:
        raise EtymonError(f"a share of letters is between 0 and 1, not {share}")
    return [_mistyped(text, share, seed) for text in texts]


def _mistyped(text: str, share: float, seed: int) -> str:
    # A draw of the text's own: typos depend neither on the other rows nor on Python's seed for hashes.
    digest = hashlib.sha256(f"{seed}/{text}".encode(errors="surrogatepass")).digest()
    draw = np.random.default_rng(int.from_bytes(digest[:8], "little"))
    letters = [place for place, sign in enumerate(text) if sign.isalpha()]
    # Short texts have a typo now and then, so that the share is right over many.
    count = int(share * len(letters) + draw.random())
    alphabet = sorted({text[place].lower() for place in letters})
    signs = list(text)
    for place in sorted(draw.permutation(letters)[:count].tolist()):
        sign, slip = signs[place], int(draw.integers(4))
        others = [each for each in (ascii_lowercase if sign.isascii() else alphabet) if each != sign.lower()]
        other = others[int(draw.integers(len(others)))] if others else sign
        other = other.upper() if sign.isupper() else other
        if slip == 0 and place + 1 < len(text) and text[place + 1].isalpha():
            signs[place], signs[place + 1] = signs[place + 1], sign
        else:
            signs[place] = (other, "", sign + other, other)[slip]
    changed = "".join(signs)
    return changed if changed.strip() else text
