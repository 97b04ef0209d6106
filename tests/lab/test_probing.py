"""Representations, classifiers and the whole of a probe, on models so small that the answer is known."""

from __future__ import annotations

import sys
from functools import cache

import numpy as np
import pytest
import torch

from etymon.errors import EtymonError
from etymon.families import REGISTRY
from etymon.lab.probe import control_labels, probe_model, untrained_twin
from etymon.lab.probe_classifiers import Problem, predict_labels, scalar_mix, standardise
from etymon.lab.probe_tasks import Example, ProbeTask
from etymon.lab.representations import represent
from etymon.nn.batch import Batch
from etymon.nn.trace import trace
from tests.generation.conftest import SHAPES, tiny_model

TEXTS = [
    "The cat sat on the mat.",
    "Paris is the capital of France.",
    "Rome",
]


@pytest.fixture(scope="module")
def models():
    return cache(tiny_model)


def by_hand(model, text):
    ids = model.tokenizer.framing.frame(model.tokenizer.encode(text)).ids
    with torch.no_grad(), trace(model) as seen:
        model.encode(Batch.of([ids])) if model.encoder_decoder else model.hidden(Batch.of([ids]))
    return seen.hidden


@pytest.mark.parametrize("family", [name for name in REGISTRY if name in SHAPES])
def test_every_layer_of_texts_and_words(models, family):
    model = models(family)
    units = [(text, place) for text in TEXTS for place in ("mean", "last")]
    before = model.tokenizer.framing.single.index(0)
    words = [(TEXTS[1], (9, 12)), (TEXTS[1], (13, 20)), (TEXTS[0], (4, 7))]
    for pieces in ("first", "mean"):
        found = represent(model, units + words, pieces=pieces, batch_size=2)
        assert found.present.all() and not found.cut
        for number, (text, place) in enumerate(units + words):
            hidden = by_hand(model, text)
            assert len(found.states) == len(hidden) == 3
            for layer, x_ND in enumerate(hidden):
                if place in ("mean", "last"):
                    expected = x_ND.mean(0) if place == "mean" else x_ND[-1]
                else:
                    _, starts, stops = model.tokenizer.offsets(text)
                    here = np.flatnonzero((starts < place[1]) & (stops > place[0])) + before
                    assert len(here) >= 1
                    expected = x_ND[here[0]] if pieces == "first" else x_ND[here].mean(0)
                np.testing.assert_allclose(found.states[layer, number], expected, atol=1e-5)


def test_class_token_and_what_is_beyond_the_positions(models):
    model = models("bert")
    long = "The cat sat on the mat. " * 30
    end = long.rindex("mat")
    found = represent(model, [("Rome", "cls"), (long, (4, 7)), (long, (end, end + 3))])
    np.testing.assert_allclose(found.states[2, 0], by_hand(model, "Rome")[2][0], atol=1e-5)
    assert found.present.tolist() == [True, True, False]
    assert found.cut == 1
    with pytest.raises(EtymonError, match="no class token to pool by: use mean or last"):
        represent(models("gpt2"), [("Rome", "cls")])


def test_a_text_is_read_once_for_all_that_is_asked_of_it(models, monkeypatch):
    read = []
    real = Batch.of
    monkeypatch.setattr(
        Batch, "of", staticmethod(lambda rows, **more: read.extend(rows) or real(rows, **more))
    )
    represent(models("bert"), [(TEXTS[0], "mean"), (TEXTS[0], "cls"), (TEXTS[0], (0, 3)), (TEXTS[2], "mean")])
    assert len(read) == 2


def test_hidden_states_alone_leave_attention_on_its_fast_path(models):
    model = models("gpt2")
    batch = Batch.of([model.tokenizer.encode(TEXTS[0])])
    with torch.no_grad(), trace(model, attention=False) as seen:
        model.hidden(batch)
    assert not seen.attention and len(seen.hidden) == 3
    for ours, eager in zip(seen.hidden, by_hand(model, TEXTS[0])):
        torch.testing.assert_close(ours, eager, atol=1e-5, rtol=1e-5)


def test_the_twin_has_the_shape_and_none_of_the_weights(models):
    model = models("bert")
    twin = untrained_twin(model, 3)
    assert {name: part.shape for name, part in twin.named_parameters()} == {
        name: part.shape for name, part in model.named_parameters()
    }
    expected = type(model)(model.family, model.shape, model.head_names, model.labels).initialise(3)
    for mine, other in zip(twin.parameters(), expected.parameters()):
        assert torch.equal(mine, other)
    assert not torch.equal(next(twin.parameters()), next(model.parameters()))


def test_control_labels_hang_on_the_type_alone():
    draw = np.random.default_rng(0)
    types = [f"w{number}" for number in draw.zipf(1.3, 4000) % 500]
    labels = draw.choice(["a", "b", "c"], 4000, p=[0.6, 0.3, 0.1])
    splits = draw.choice(["train", "test"], 4000, p=[0.9, 0.1])
    examples = [Example("", *each) for each in zip(labels, types, splits)]  # type: ignore[arg-type]
    control = control_labels(examples, seed=1)
    assert len(set(zip(types, control))) == len(set(types))
    trained = [label for label, split in zip(control, splits) if split == "train"]
    shares = [trained.count(label) / len(trained) for label in "abc"]
    assert np.abs(np.array(shares) - [0.6, 0.3, 0.1]).max() < 0.02
    assert control == control_labels(examples, seed=1)
    assert control != control_labels(examples, seed=2)


def test_control_labels_of_groups_and_of_types_that_training_has_not():
    both = [
        Example("", label, word, "train", None, group)
        for group, names in (("g", "ab"), ("h", "cd"))
        for label in names
        for word in "xy"
    ]  # type: ignore[arg-type]
    new = [Example("", "a", f"new {number}", "test", None, "g") for number in range(200)]  # type: ignore[arg-type]
    control = control_labels(both + new, seed=0)
    assert set(control[:4]) <= {"a", "b"} and set(control[4:8]) <= {"c", "d"}
    assert 60 < control[8:].count("a") < 140


def problem(labels, groups=None, test=20):
    count = len(labels)
    splits = np.zeros(count, int)
    splits[-2 * test : -test], splits[-test:] = 1, 2
    groups = np.zeros(count, int) if groups is None else groups
    return Problem(ProbeTask("t", "sentence", []), "mean", np.arange(count), labels, labels, groups, splits)


def test_predictions_are_those_of_the_penalised_likelihood():
    """The gradient of mean loss and penalty is zero where scikit-learn stops, in our convention of its strength."""
    sklearn = pytest.importorskip("sklearn.linear_model")
    draw = np.random.default_rng(0)
    x = draw.normal(size=(200, 6)).astype(np.float32) * 3 + 1
    labels = (x[:, 0] - x[:, 1] + draw.normal(size=200) > 0).astype(int) + (x[:, 2] > 3)
    made = problem(labels)
    features = standardise(x, made)
    np.testing.assert_allclose(features[:160].mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(features[:160].std(0), 1, atol=1e-5)
    (found,) = predict_labels(features, labels, made, (0.1,))
    alone = sklearn.LogisticRegression(C=1 / 16, max_iter=1000).fit(features[:160], labels[:160])
    assert (found == alone.predict(features)).all()
    weight, bias = torch.tensor(alone.coef_).double(), torch.tensor(alone.intercept_).double()
    weight.requires_grad_()
    inputs, targets = torch.tensor(features[:160]).double(), torch.tensor(labels[:160])
    loss = torch.nn.functional.cross_entropy(inputs @ weight.T + bias, targets) + 0.05 * weight.square().sum()
    assert torch.autograd.grad(loss, weight)[0].abs().max() < 1e-3


def test_groups_are_classified_apart():
    """The same feature means the opposite in the other group: one classifier for both could not be right."""
    draw = np.random.default_rng(0)
    groups = np.arange(400) % 2
    side = draw.integers(0, 2, 400)
    x = np.stack([(side ^ groups) + 0.1 * draw.normal(size=400), draw.normal(size=400)], 1).astype(np.float32)
    made = problem(side + 2 * groups, groups)
    (found,) = predict_labels(standardise(x, made), made.labels, made, (0.01,))
    assert made.accuracy(found) == 1
    _, mixed = scalar_mix(x[None], made, 0.01)
    assert made.accuracy(mixed) == 1


def test_the_mix_finds_the_layer_that_knows():
    draw = np.random.default_rng(0)
    labels = draw.integers(0, 2, 300)
    states = draw.normal(size=(4, 300, 8)).astype(np.float32)
    states[2, :, 3] += 4 * labels
    made = problem(labels)
    weights, predicted = scalar_mix(states, made, 0.01)
    assert weights.argmax() == 2 and weights[2] > 0.7
    assert weights.sum() == pytest.approx(1)
    assert made.accuracy(predicted) > 0.9
    again, _ = scalar_mix(states, made, 0.01)
    np.testing.assert_array_equal(weights, again)
    even, _ = scalar_mix(np.stack([states[2]] * 4), made, 0.01)
    np.testing.assert_allclose(even, 0.25, atol=0.02)


def first_letters() -> ProbeTask:
    """Which word stands first: known to every layer; the sentences are new in the test."""
    draw = np.random.default_rng(0)
    words = "cat mat dog soup".split()
    examples = []
    for number in range(120):
        first = ("Paris", "Rome")[number % 2]
        text = f"{first} {' '.join(draw.choice(words, 6))}."
        split = "train" if number < 80 else "validation" if number < 100 else "test"
        examples.append(Example(text, first, text.split()[1], split))  # type: ignore[arg-type]
    return ProbeTask("first word", "sentence", examples)


def test_a_whole_probe(models):
    probes = probe_model(models("bert"), [first_letters()], poolings=["mean", "cls"], seed=1)
    mean, cls = probes.tasks
    assert (mean.reading, cls.reading) == ("mean", "cls")
    assert (mean.train, mean.validation, mean.test, mean.labels) == (80, 20, 20, 2)
    assert (mean.majority, mean.control_seen) == (0.5, 1)
    assert [layer.layer for layer in mean.layers] == [0, 1, 2]
    assert mean.best.accuracy == 1
    assert sum(layer.mix for layer in mean.layers) == pytest.approx(1)
    for layer in mean.layers:
        assert layer.selectivity == layer.accuracy - layer.control
        assert layer.random is not None and 0 <= layer.control <= 1
    # What goes into the first layer at the class token is the same for every text.
    assert cls.layers[0].accuracy == cls.majority
    assert probes == probe_model(models("bert"), [first_letters()], poolings=["mean", "cls"], seed=1)


def test_words_that_are_lost_are_told(models):
    text = "The cat sat on the mat. " * 8
    spans = [(match, match + 3) for match in range(0, 24 * 8, 24)]
    examples = [
        Example(f"{text}{'!' * number}", "ab"[number % 2], "the", split, span)  # type: ignore[arg-type]
        for number, split in enumerate(["train", "validation", "test"] * 4)
        for span in spans
    ]
    for number, example in enumerate(examples):
        examples[number] = example._replace(label="ab"[number % 2])
    probes = probe_model(models("bert"), [ProbeTask("t", "token", examples)], twin=False)
    assert any("words are left out" in note for note in probes.notes)
    assert any("cut at the model's 48 tokens" in note for note in probes.notes)
    assert probes.tasks[0].layers[0].random is None
    assert probes.tasks[0].train < 32


def test_scikit_learn_is_asked_for_before_any_work(models, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.linear_model", None)
    with pytest.raises(EtymonError, match=r"pip install 'etymon\[evaluate\]'"):
        probe_model(models("bert"), [first_letters()])
    with pytest.raises(EtymonError, match="there is no pooling 'clas'"):
        monkeypatch.undo()
        probe_model(models("bert"), [first_letters()], poolings=["clas"])
