"""Scores of labels, values, tags and answers, beside the libraries and a slow bootstrap."""

from __future__ import annotations

import sys
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etymon.errors import EtymonError
from etymon.tasks.classify import Classify, ClassifyOptions, LabelPrediction
from etymon.tasks.entities import tag_scheme
from etymon.tasks.label_scores import (
    LABEL_METRICS,
    MULTI_LABEL_METRICS,
    TAG_METRICS,
    VALUE_METRICS,
    label_figures,
    label_scores,
    multi_label_scores,
    tag_metrics,
    tag_scores,
    value_scores,
)
from etymon.tasks.scores import ANSWER_METRICS, FEWEST_ROWS, answer_scores, mean_score, normalise, text_scores

sklearn_metrics = pytest.importorskip("sklearn.metrics")
pytest.importorskip("seqeval")
LABELS = ["no", "yes", "perhaps", "never"]
ROWS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=40)


def slow(rows, statistic, resamples=150):
    """Ends of the interval, a resample after the other."""
    draw, values = np.random.default_rng(7), []
    for _ in range(resamples):
        values.append(statistic([rows[n] for n in draw.integers(len(rows), size=len(rows))]))
    return np.percentile(values, [2.5, 97.5])


def close(score, ends):
    """Two bootstraps of the same rows: ends agree within a share of the width."""
    width = ends[1] - ends[0]
    assert abs(score.low - ends[0]) < 0.2 * width
    assert abs(score.high - ends[1]) < 0.2 * width
    assert score.low <= score.value <= score.high


def reference(name, actual, predicted, labels):
    f1 = sklearn_metrics.f1_score
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return (
            100
            * {
                "accuracy": lambda: sklearn_metrics.accuracy_score(actual, predicted),
                "f1": lambda: (
                    f1(actual, predicted, pos_label=labels[1], average="binary", zero_division=0)
                    if len(labels) == 2
                    else f1(actual, predicted, average="macro", zero_division=0)
                ),
                "macro_f1": lambda: f1(actual, predicted, average="macro", zero_division=0),
                "matthews": lambda: sklearn_metrics.matthews_corrcoef(actual, predicted),
            }[name]()
        )


@settings(max_examples=30, deadline=None)
@given(rows=ROWS, count=st.sampled_from([2, 4]))
def test_labels_score_as_scikit_learn_says(rows, count):
    labels = LABELS[:count]
    actual, predicted = ([labels[row[side] % count] for row in rows] for side in (0, 1))
    found = label_scores(predicted, actual, labels, LABEL_METRICS)
    for name, score in found.items():
        assert score.low is None and not score.falls
        assert score.value == pytest.approx(reference(name, actual, predicted, labels)), name


@pytest.mark.parametrize(
    ("count", "metric"), [(2, "accuracy"), (2, "f1"), (2, "matthews"), (4, "macro_f1"), (4, "matthews")]
)
def test_intervals_of_labels_are_those_of_rows_drawn_again(count, metric):
    draw, labels = np.random.default_rng(count), LABELS[:count]
    actual = [labels[n] for n in draw.integers(count, size=150)]
    predicted = [label if draw.random() < 0.7 else labels[draw.integers(count)] for label in actual]
    score = label_scores(predicted, actual, labels, [metric], 2000)[metric]
    rows = list(zip(actual, predicted))
    close(score, slow(rows, lambda drawn: reference(metric, *zip(*drawn), labels)))


def test_what_is_no_label_is_wrong_whatever_is_counted():
    actual, labels = ["yes", "no"] * 20, ["no", "yes"]
    right = label_scores(actual, actual, labels, LABEL_METRICS, 50)
    assert all(score.value == score.low == score.high == 100 for score in right.values())
    for foreign in (None, "maybe", ""):
        predicted = [foreign, *actual[1:]]
        for name, score in label_scores(predicted, actual, labels, LABEL_METRICS, 50).items():
            assert 90 < score.value < 100 and score.low < 100, name
        nothing = label_scores([foreign] * 40, actual, labels, LABEL_METRICS, 50)
        assert all(score.value == score.high == 0 for score in nothing.values())
    # F1 of the second label alone: an unreadable "no" does not touch it, a "yes" does.
    assert label_scores(["yes", None], ["yes", "no"], labels, ["f1"])["f1"].value == 100
    with pytest.raises(EtymonError, match="'maybe' is none of no, yes"):
        label_scores([None], ["maybe"], labels, ["accuracy"])


def test_several_labels_score_as_scikit_learn_says():
    draw = np.random.default_rng(3)
    actual_NK = draw.random((120, 4)) < 0.4
    predicted_NK = actual_NK ^ (draw.random((120, 4)) < 0.2)
    sets = [
        [[label for label, there in zip(LABELS, row) if there] for row in side]
        for side in (predicted_NK, actual_NK)
    ]
    found = multi_label_scores(*sets, LABELS, MULTI_LABEL_METRICS, 2000)
    for name, average in (("micro_f1", "micro"), ("macro_f1", "macro")):
        assert found[name].value == pytest.approx(
            100 * sklearn_metrics.f1_score(actual_NK, predicted_NK, average=average)
        )
        rows = list(zip(actual_NK, predicted_NK))
        close(
            found[name],
            slow(
                rows,
                lambda drawn, average=average: (
                    100 * sklearn_metrics.f1_score(*map(np.array, zip(*drawn)), average=average)
                ),
            ),
        )
    assert found["accuracy"].value == pytest.approx(
        100 * sklearn_metrics.accuracy_score(actual_NK, predicted_NK)
    )
    foreign = multi_label_scores([["yes", "what"]], [["yes"]], LABELS, MULTI_LABEL_METRICS)
    assert foreign["accuracy"].value == 0
    assert foreign["micro_f1"].value == pytest.approx(100 * 2 / 3)


@settings(max_examples=40, deadline=None)
@given(rows=st.lists(st.tuples(st.integers(0, 4), st.floats(-3, 3)), min_size=3, max_size=30))
def test_values_score_as_scipy_says(rows):
    stats = pytest.importorskip("scipy.stats")
    actual, predicted = (list(side) for side in zip(*rows))
    found = value_scores(predicted, actual, VALUE_METRICS, 20)
    assert found["mse"].value == pytest.approx(np.mean((np.array(actual) - predicted) ** 2))
    assert found["mse"].falls and not found["pearson"].falls
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ranks = stats.spearmanr(actual, predicted).statistic
    assert found["spearman"].value == pytest.approx(0 if np.isnan(ranks) else 100 * ranks)
    if min(np.ptp(actual), np.ptp(predicted)) > 1e-3:
        assert found["pearson"].value == pytest.approx(100 * np.corrcoef(actual, predicted)[0, 1])
    many = value_scores(predicted * FEWEST_ROWS, actual * FEWEST_ROWS, VALUE_METRICS, 20)
    assert all(np.isfinite([score.low, score.high]).all() for score in many.values())


@pytest.mark.parametrize("metric", VALUE_METRICS)
def test_intervals_of_values_are_those_of_rows_drawn_again(metric):
    draw = np.random.default_rng(5)
    actual = draw.integers(6, size=80).astype(float)  # with ties
    predicted = actual + draw.normal(0, 2, 80)
    score = value_scores(predicted, actual, [metric], 2000)[metric]
    close(
        score,
        slow(list(zip(predicted, actual)), lambda rows: value_scores(*zip(*rows), [metric])[metric].value),
    )
    assert value_scores([0.1] * 30, list(range(30)), ["pearson", "spearman"], 9)["pearson"].high == 0


# --- tags


def written(scheme, draw, words):
    """A sentence of random spans, some side by side."""
    tags, before = [], None
    while len(tags) < words:
        kind = [None, "PER", "LOC"][draw.integers(3)]
        size = int(draw.integers(1, 4))
        if kind is None:
            tags += ["O"] * size
        else:
            inside = [f"I-{kind}"] * size
            if scheme == "IOB2" or (scheme == "IOB1" and before == kind):
                inside[0] = f"B-{kind}"
            if scheme == "IOE2":
                inside[-1] = f"E-{kind}"
            if scheme in ("BILOU", "IOBES"):
                first, last, only = "BLU" if scheme == "BILOU" else "BES"
                inside[0], inside[-1] = f"{first}-{kind}", f"{last}-{kind}"
                inside = [f"{only}-{kind}"] if size == 1 else inside
            tags += inside
        before = kind
    return tags


SCHEMES = ["IOB1", "IOB2", "IOE2", "BILOU", "IOBES"]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_tags_score_as_seqeval_says(scheme):
    from seqeval import metrics as seqeval_metrics
    from seqeval import scheme as schemes

    draw = np.random.default_rng(len(scheme))
    actual = [written(scheme, draw, 8) for _ in range(60)]
    labels = sorted({tag for tags in actual for tag in tags})
    predicted = [
        [tag if draw.random() < 0.85 else labels[draw.integers(len(labels))] for tag in tags]
        for tags in actual
    ]
    assert tag_scheme(labels, actual) == scheme
    found = tag_scores(predicted, actual, labels, TAG_METRICS, 2000)
    strict = {"mode": "strict", "scheme": getattr(schemes, scheme)}
    for name in ("f1", "precision", "recall"):
        function = getattr(seqeval_metrics, f"{name}_score")
        assert found[name].value == pytest.approx(100 * function(actual, predicted, **strict))
        assert f"{scheme}, strict" in found[name].signature
    assert found["accuracy"].value == pytest.approx(100 * seqeval_metrics.accuracy_score(actual, predicted))
    pairs = list(zip(actual, predicted))
    close(
        found["f1"],
        slow(
            pairs,
            lambda rows: 100 * seqeval_metrics.f1_score(*map(list, zip(*rows)), **strict),
            60,
        ),
    )


def test_tags_of_no_scheme_are_read_as_conlleval_does():
    from seqeval.metrics import f1_score

    actual = [["B-PER", "I-PER", "O", "I-LOC"], ["O", "B-LOC", "I-LOC"]]  # IOB2 with a slip
    predicted = [["B-PER", "I-PER", "O", "O"], ["O", "B-LOC", "I-PER"]]
    labels = ["B-LOC", "B-PER", "I-LOC", "I-PER", "O"]
    assert tag_scheme(labels, actual) is None
    found = tag_scores(predicted, actual, labels, ["f1"])["f1"]
    assert found.value == pytest.approx(100 * f1_score(actual, predicted))
    assert "conlleval" in found.signature
    assert tag_scheme(["O", "I-X", "E-X"], [["I-X", "I-X", "O"]]) is None  # IOE1
    assert tag_scheme(["O", "B", "I"], [["O", "B", "I", "B"]]) == "IOB2"


def test_words_without_spans_have_accuracy_alone():
    labels = ["NOUN", "VERB", "I"]
    assert tag_metrics(labels) == ("accuracy",) == tag_metrics(["O"])
    assert tag_metrics(["O", "B-PER", "I-PER"])[0] == "f1"
    found = tag_scores([["NOUN", None], ["what"]], [["NOUN", "VERB"], ["VERB"]], labels, ["accuracy"], 100)
    assert found["accuracy"].value == pytest.approx(100 / 3)
    with pytest.raises(EtymonError, match="--metric accuracy"):
        tag_scores([["NOUN"]], [["NOUN"]], labels, ["f1"])
    # What is no label is in no span, and never right.
    cut = tag_scores([["B-X", None]], [["B-X", "O"]], ["O", "B-X"], ["f1", "accuracy"])
    assert (cut["f1"].value, cut["accuracy"].value) == (100, 50)
    assert tag_scores([["O"]] * 20, [["O"]] * 20, ["O", "B-X"], ["f1"], 10)["f1"].high == 0


# --- answers


@pytest.mark.parametrize(
    ("predicted", "actual", "exact", "f1"),
    [
        ("The Eiffel Tower!", ["eiffel tower"], 100, 100),
        ("in Paris , France", ["Lyon", "Paris France"], 0, 80),
        ("a cat and a cat", ["cat"], 0, 50),
        ("", [], 100, 100),
        ("", ["", "the"], 100, 100),
        ("something", [], 0, 0),
        ("", ["Paris"], 0, 0),
        ("anthem", ["them"], 0, 0),
    ],
)
def test_answers_count_as_in_squad(predicted, actual, exact, f1):
    found = answer_scores([predicted], [actual], tuple(ANSWER_METRICS))
    assert found["exact"].value == exact
    assert found["f1"].value == pytest.approx(f1)


def test_answers_have_intervals():
    assert normalise(" The  U.S.A.'s\tan apple ") == "usas apple"
    predicted = ["one", "two", "three four", "five"] * 30
    actual = [["one"], ["three"], ["four"], ["six", "five"]] * 30
    found = answer_scores(predicted, actual, ["exact", "f1"], 2000)
    each = [100.0, 0.0, 200 / 3, 100.0] * 30
    assert found["f1"].value == pytest.approx(np.mean(each))
    close(found["f1"], slow(each, np.mean))
    assert found["exact"].value == 50 and found["exact"].low < 50 < found["exact"].high


# --- label by label


@settings(max_examples=40, deadline=None)
@given(rows=ROWS)
def test_every_label_has_the_figures_of_scikit_learn(rows):
    actual, predicted = (
        [[LABELS[n] for n in {first, second}] for first, second in zip(side, side[::-1])]
        for side in zip(*rows)
    )
    found = label_figures(predicted, actual, LABELS)
    tables = [[[label in row for label in LABELS] for row in side] for side in (actual, predicted)]
    expected = zip(*sklearn_metrics.precision_recall_fscore_support(*tables, zero_division=0))
    for label, own, (*shares, count) in zip(LABELS, found, expected, strict=True):
        assert (
            own[0] == label and own[4] == count and own[1:4] == pytest.approx([100 * one for one in shares])
        )
    assert label_figures([[None]], [["yes"]], ["no", "yes"])[1] == ("yes", 0, 0, 0, 1)


def test_a_mistake_is_as_grave_as_the_model_was_sure_of_it():
    shares = {"a": 0.9, "b": 0.3, "c": 0.6}
    assert (
        LabelPrediction("a", shares).worst_error(["b"]) == 0.9
        and LabelPrediction("a", shares).worst_error(["a"]) is None
    )
    assert LabelPrediction(None, {}).worst_error(["b"]) is None
    several = LabelPrediction(("a", "c"), shares)
    assert several.worst_error(["a", "b"]) == pytest.approx(0.7), "which was left out, and c was but 0.6"
    assert several.worst_error(["c"]) == 0.9 and several.worst_error(["c", "a"]) is None
    assert LabelPrediction(("a", "c"), {}).worst_error(["b"]) is None


# --- what they share


def test_intervals_are_the_same_each_time_and_in_any_size_of_piece(monkeypatch):
    values = np.random.default_rng(0).random(100).tolist()
    whole = mean_score(values, 300)
    assert whole == mean_score(values, 300)
    monkeypatch.setattr("etymon.tasks.scores.MOST_CELLS", 1000)
    assert mean_score(values, 300) == whole
    close(mean_score(values, 2000), slow(values, np.mean))


@pytest.mark.parametrize("rows", [1, FEWEST_ROWS - 1, FEWEST_ROWS])
def test_few_rows_have_no_interval(rows):
    labels, values = ["a", "b"] * rows, [float(n % 3) for n in range(rows)]
    found = [
        label_scores(labels[:rows], labels[1 : rows + 1], ["a", "b"], ["accuracy"], 50)["accuracy"],
        value_scores(values, values, ["mse"], 50)["mse"],
        tag_scores([["O"]] * rows, [["O"]] * rows, ["O", "B-X"], ["accuracy"], 50)["accuracy"],
        answer_scores(labels[:rows], [["a"]] * rows, ["f1"], 50)["f1"],
        text_scores(labels[:rows], labels[:rows], ["exact"], 50)["exact"],
    ]
    few = rows < FEWEST_ROWS
    assert all(score.rows == rows and (score.low is None) == (score.high is None) == few for score in found)
    told = f"{rows} row{'s' * (rows > 1)}"
    assert found[0].counted == told + f": too few for an interval, which needs {FEWEST_ROWS}" * few


def test_missing_libraries_are_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setitem(sys.modules, "seqeval", None)
    with pytest.raises(
        EtymonError, match=r"'f1' needs seqeval: pip install 'etymon\[evaluate\]'.*--metric accuracy"
    ):
        tag_scores([["O"]], [["O"]], ["O", "B-X"], ["f1"])
    Classify(ClassifyOptions()).check_metrics(["accuracy", "f1"])
    scores = label_scores(["a", "b"], ["a", "b"], ["a", "b"], ["accuracy", "f1", "matthews"], 10)
    assert [score.value for score in scores.values()] == [100] * 3, "scores of labels need no library"
    assert tag_scores([["O"]], [["O"]], ["O", "B-X"], ["accuracy"])["accuracy"].value == 100


def test_nothing_right_and_nothing_predicted_has_scores():
    scores = multi_label_scores([(), ()], [(), ()], LABELS, MULTI_LABEL_METRICS, 20)
    assert {name: score.value for name, score in scores.items()} == {
        "micro_f1": 0.0, "macro_f1": 0.0, "accuracy": 100.0,
    }  # fmt: skip
