"""Distillation: its terms against plain formulas, and a student that begins as a part of its teacher."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import etymon
from etymon.families.model import Model
from etymon.families.surgery import copy_layers, spread_layers
from etymon.nn.batch import Batch
from etymon.nn.trace import trace
from etymon.objectives import get_objective
from etymon.objectives.objective import weighted_loss
from etymon.sampling.plans import key
from etymon.training.unit import TrainingUnit
from tests import tiny

CASES = [("bert", "distilled-masked"), ("gpt2", "distilled-causal")]


def models(family: str, name: str, **changed: Any) -> tuple[Model, Model]:
    objective = tiny.objective(family, name)
    teacher = tiny.model(family, objective, seed=1)
    shape = {**asdict(teacher.shape), "layers": 1, **changed}
    student = Model(teacher.family, teacher.family.shape(**shape), objective.heads).initialise(0)
    with torch.no_grad():
        for number, parameter in enumerate([*teacher.parameters(), *student.parameters()]):
            parameter += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))
    return student, teacher.eval().requires_grad_(False)


def batch_of(family: str, objective: Any, folder: Path) -> Any:
    split = tiny.store(family, folder).train
    plan = objective.plan(split, 0, 0)
    plan = [*plan[:4], *sorted(plan, key=lambda row: row[1] - row[0])[:2]]
    return objective.collate([objective.prepare(split, row, key(0, n)) for n, row in enumerate(plan)])


@pytest.mark.parametrize(
    "family, name, everywhere", [(*CASES[0], True), (*CASES[0], False), (*CASES[1], True)]
)
def test_terms_are_the_published_ones(family: str, name: str, everywhere: bool, tmp_path: Path) -> None:
    options = {"everywhere": everywhere} if family == "bert" else {}
    objective = get_objective(name, tiny.tokenizer(family), 24, **options)
    student, teacher = models(family, name)
    batch = batch_of(family, objective, tmp_path)
    terms = TrainingUnit(student, objective, teacher=teacher)(batch)
    loss = weighted_loss(terms, batch.counts)
    got = torch.autograd.grad(loss, list(student.parameters()))

    hidden, taught = student.hidden(batch.batch)[0], teacher.hidden(batch.batch)[0]
    at = batch.at if family == "bert" else torch.arange(len(hidden))
    places = torch.arange(len(hidden)) if everywhere else at
    logits, wanted = (m.heads["vocabulary"].logits(h) for m, h in ((student, hidden), (teacher, taught)))
    soft = F.kl_div(
        (logits[places] / 2).log_softmax(-1), (wanted[places] / 2).softmax(-1), reduction="batchmean"
    )
    hard = F.cross_entropy(logits[at], batch.targets)
    cosine = F.cosine_embedding_loss(hidden, taught, torch.ones(len(hidden)))
    plain = 5 * 4 * soft + 2 * hard + cosine
    torch.testing.assert_close(loss, plain, rtol=1e-5, atol=1e-5)
    for one, other in zip(got, torch.autograd.grad(plain, list(student.parameters())), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("family, name", CASES)
def test_attention_transfer_is_the_divergence_of_the_last_layers(
    family: str, name: str, tmp_path: Path
) -> None:
    options = {"attention": 1.0, "soft": 0.0, "hard": 0.0, "cosine": 0.0}
    objective = get_objective(name, tiny.tokenizer(family), 24, **options)
    student, teacher = models(family, name)
    batch = batch_of(family, objective, tmp_path)
    terms = TrainingUnit(student, objective, teacher=teacher)(batch)
    expected = 0.0
    with torch.no_grad(), trace(student) as own, trace(teacher) as taught:
        student.hidden(batch.batch)
        teacher.hidden(batch.batch)
    for row, length in enumerate(batch.batch.layout.lengths):
        p, q = (seen.attention[-1][row, :, :length, :length] for seen in (taught, own))
        if family == "gpt2":
            p, q = (x + 1e-30 for x in (p, q))
        expected += float((p * (p.log() - q.log())).sum()) / p.shape[0]
    relation = float(terms["attention"].sum.detach()) - expected
    assert relation > 0, "the relations among values come on top"
    loss = weighted_loss(terms, batch.counts)
    values = student.body.stack.layers[0].attention.value.weight
    assert torch.autograd.grad(loss, values)[0].abs().sum() > 0
    same = TrainingUnit(deepcopy(teacher), objective, teacher=teacher)(batch)["attention"].sum
    assert abs(float(same)) < 1e-4


def test_six_of_twelve_layers_are_the_published_ones() -> None:
    assert spread_layers(6, 12) == [0, 2, 4, 7, 9, 11]
    assert spread_layers(1, 12) == [0] and spread_layers(12, 12) == list(range(12))


def test_a_student_begins_as_a_part_of_its_teacher() -> None:
    student, teacher = models("bert", "distilled-masked")
    assert copy_layers(student, teacher, [1]) == []
    for name, parameter in student.named_parameters():
        assert torch.equal(parameter, teacher.get_parameter(name.replace("layers.0.", "layers.1."))), name
    with pytest.raises(etymon.EtymonError, match="name one for each, from 0 to 1"):
        copy_layers(student, teacher, [2])
    wider, _ = models("bert", "distilled-masked", dim=48)
    with pytest.raises(etymon.EtymonError, match=r"teacher_layers: \[\]"):
        copy_layers(wider, teacher, [0])


def test_a_distilbert_begins_as_a_part_of_a_bert() -> None:
    _, teacher = models("bert", "distilled-masked")
    student = etymon.build(
        "distilbert",
        heads=["vocabulary"],
        shape={**tiny.SHAPES["distilbert"], "vocabulary": teacher.shape.vocabulary, "layers": 2},
    )
    assert copy_layers(student, teacher, [0, 1]) == []
    with torch.no_grad():  # without its segment vectors, the teacher computes the same
        teacher.body.embeddings.segments.weight.zero_()
    batch = Batch.of([[1, 2, 3, 4], [5, 6]])
    torch.testing.assert_close(student.eval().hidden(batch)[0], teacher.hidden(batch)[0])
