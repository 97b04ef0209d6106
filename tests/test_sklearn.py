"""Etymon in scikit-learn: what its users do with every estimator works with ours."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline

import etymon
from etymon.errors import EtymonError
from etymon.families.saving import save
from etymon.sklearn import TextClassifier, TextEmbedder
from tests.generation.conftest import tiny_model

TEXTS = [f"a {word} film number {number}" for number in range(20) for word in ("good", "bad")]
LABELS = np.array([True, False] * 20)
SMALL = {
    "set": ["shape.dim=32", "shape.layers=1", "shape.heads=2"],
    "vocabulary": 300,
    "hold_out": 0.2,
}


def small(budget="3steps", **options):
    return TextClassifier("gpt2", epochs=None, budget=budget, batch=16, length=16, settings=SMALL, **options)


@pytest.fixture(scope="module")
def fitted():
    return small("40steps").fit(TEXTS, LABELS)


@pytest.fixture(scope="module")
def body(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "bert"
    save(tiny_model("bert"), folder)
    return folder


def test_a_classifier_answers_with_the_labels_it_was_given(fitted):
    shares = fitted.predict_proba(np.array(TEXTS[:3]))
    assert shares.shape == (3, 2) and shares.sum(1) == pytest.approx(1)
    assert fitted.predict(TEXTS).dtype == bool and fitted.classes_.tolist() == [False, True]
    assert fitted.score(TEXTS, LABELS) > 0.7


def test_the_same_seed_gives_the_same_classifier(fitted):
    assert not hasattr(clone(fitted), "model_")
    first, second = (small().fit(TEXTS, LABELS).predict_proba(TEXTS) for _ in range(2))
    assert np.array_equal(first, second)


def test_a_pickle_holds_the_weights(fitted):
    again = pickle.loads(pickle.dumps(fitted))
    assert np.array_equal(again.predict_proba(TEXTS), fitted.predict_proba(TEXTS))
    assert again.get_params() == fitted.get_params()


def test_a_search_tries_its_settings():
    search = GridSearchCV(small(), {"seed": [0, 1]}, cv=2).fit(TEXTS, LABELS)
    assert len(search.cv_results_["params"]) == 2 and search.predict(TEXTS[:2]).dtype == bool


def test_vectors_go_into_a_pipeline(body):
    pipeline = make_pipeline(TextEmbedder(body), LogisticRegression(max_iter=200))
    assert cross_val_score(pipeline, TEXTS, LABELS, cv=2).shape == (2,)
    embedder = TextEmbedder(body).fit(TEXTS)
    assert np.array_equal(embedder.transform(TEXTS), etymon.embed(str(body), TEXTS))
    again = pickle.loads(pickle.dumps(embedder))
    assert np.array_equal(again.transform(TEXTS), embedder.transform(TEXTS))


def test_a_model_is_gone_on_from(body):
    classifier = TextClassifier(body, epochs=None, budget="2steps", settings={"hold_out": 0.2}).fit(
        TEXTS, LABELS
    )
    assert classifier.predict(TEXTS).shape == (40,)


@pytest.mark.parametrize(
    "texts, labels, message",
    [
        (["a", "b"], [1, 1], "two or more"),
        (["a", "b"], [1], "2 texts and 1 labels"),
        (["a", "b"], ["good", "good"], "all labels are 'good': a classifier needs two or more"),
        (["a", 3], [1, 0], "text 2 is a int"),
        ("a text", [1], "list or a column"),
        ([], [], "no texts"),
    ],
)
def test_bad_input_is_one_line(texts, labels, message):
    with pytest.raises(EtymonError, match=message):
        small().fit(texts, labels)


def test_predicting_needs_fitting_first():
    from sklearn.exceptions import NotFittedError

    with pytest.raises(NotFittedError):
        small().predict(TEXTS)
