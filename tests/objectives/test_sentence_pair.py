"""Sentence order and next sentences: provenance, labels, loss, and which models can learn them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from etymon.errors import EtymonError
from etymon.families import get_family
from etymon.objectives import get_objective, objective_class
from etymon.objectives.objective import check_fit, weighted_loss
from etymon.sampling.plans import key
from etymon.text import framing
from etymon.text.store import Split
from etymon.training.unit import TrainingUnit
from tests import reconstruct, tiny

PAIRS = ["masked-next-sentence", "masked-sentence-order"]


@pytest.fixture(scope="module", params=["albert", "roberta"])
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def split(family: str, tmp_path_factory: pytest.TempPathFactory) -> Split:
    return tiny.store(family, tmp_path_factory.mktemp("pairs") / family).train


def test_order_is_asked_about_consecutive_texts(family: str, split: Split) -> None:
    objective, tokenizer = tiny.objective(family, "masked-sentence-order", 32), tiny.tokenizer(family)
    first, separator = tokenizer.id("class"), tokenizer.id("separator")
    middle = [separator] * (2 if family == "roberta" else 1)
    labels = []
    for epoch in range(6):
        for number, row in enumerate(objective.plan(split, 0, epoch)):
            example = objective.prepare(split, row, key(0, epoch, number))
            original = reconstruct.from_at(example.ids, example.places, example.targets)
            a, b = (split.tokens[start:stop].tolist() for start, stop in (row[:2], row[2:4]))
            assert original.tolist() == [first, *a, *middle, *b, separator] and len(original) <= 32
            assert bool(example.segments.any()) == (family == "albert"), "RoBERTa has no second segment"
            assert (row[2] >= row[1]) != example.label, (
                "label 1: what comes first here comes last in the text"
            )
            labels.append(example.label)
    assert len(labels) > 300 and abs(np.mean(labels) - 0.5) < 0.08


@pytest.mark.parametrize("name", PAIRS)
def test_terms_are_two_means(name: str, family: str, split: Split) -> None:
    objective = tiny.objective(family, name, 32)
    model = tiny.model(family, objective).eval()
    plan = objective.plan(split, 0, 0)[:9]
    prepared = objective.collate(
        [objective.prepare(split, row, key(0, number)) for number, row in enumerate(plan)]
    )
    head = {"masked-next-sentence": "next_sentence", "masked-sentence-order": "sentence_order"}[name]
    with torch.no_grad():
        terms = TrainingUnit(model, objective)(prepared)
        hidden, _ = model.hidden(prepared.batch)
        logits = model.read(head, hidden, prepared.batch)
        words = F.cross_entropy(model.heads["vocabulary"].logits(hidden, prepared.at), prepared.targets)
    expected = words + F.cross_entropy(logits, prepared.labels)
    torch.testing.assert_close(weighted_loss(terms, prepared.counts), expected, rtol=1e-5, atol=1e-6)
    assert terms[f"{head}_accuracy"].sum == (logits.argmax(-1) == prepared.labels).sum()
    # Every row's label stays with its text when rows are sorted by length.
    rows = prepared.batch.ids.split(list(prepared.batch.layout.lengths))
    examples = [objective.prepare(split, row, key(0, number)) for number, row in enumerate(plan)]
    labelled = {example.ids.tobytes(): example.label for example in examples}
    assert [labelled[row.numpy().tobytes()] for row in rows] == prepared.labels.tolist()


def test_maskings_unless_told() -> None:
    tokenizer = tiny.tokenizer("bert")
    names = {name: get_objective(name, tokenizer, 24).masking.name for name in ("masked", *PAIRS)}  # type: ignore[attr-defined]
    assert names == {"masked": "bert", PAIRS[0]: "bert", PAIRS[1]: "ngram"}
    with pytest.raises(EtymonError, match="unknown key 'packing'"):
        get_objective(PAIRS[1], tokenizer, 24, packing="stream")


@pytest.mark.parametrize("name", PAIRS)
def test_pairs_need_a_form_for_two_texts(name: str) -> None:
    for family in ("bert", "roberta", "albert", "electra", "distilbert"):
        known = get_family(family)
        if objective_class(name).heads <= set(known.heads):
            check_fit(objective_class(name), known)
    with pytest.raises(EtymonError, match=f"{name}.*able to tell two texts apart.*is not"):
        check_fit(objective_class(name), replace(get_family("bert"), framing=framing.PLAIN))
    with pytest.raises(EtymonError, match="bidirectional, able to tell two texts apart"):
        check_fit(objective_class(name), get_family("gpt2"))


def test_nothing_asked_for_is_no_loss(tmp_path: Path) -> None:
    # RoBERTa's masking may ask for nothing in a short sample, even in all of a slice.
    split = tiny.store("bert", tmp_path / "store").train
    objective = get_objective("masked", tiny.tokenizer("bert"), 24, masking="roberta", density=0.0)
    prepared = objective.collate([objective.prepare(split, objective.plan(split, 0, 0)[0], key(0))])
    model = tiny.model("bert", objective)
    for unit in (TrainingUnit(model, objective), TrainingUnit(model, objective).eval()):
        terms = unit(prepared)
        loss = weighted_loss(terms, prepared.counts)
        assert prepared.counts["masked"] == 0 and loss.item() == 0
    loss.backward()
    assert all(parameter.grad is None or not parameter.grad.any() for parameter in model.parameters())
