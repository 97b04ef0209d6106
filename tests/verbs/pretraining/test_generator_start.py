"""ELECTRA begun by a masked model: what discriminator and generator take over from where `--from` points."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import etymon
from etymon.errors import EtymonError
from etymon.families.model import Model
from etymon.runs.result import Pretrained
from tests.verbs.small_runs import metrics, pretrain, resume, with_test_sizes

STILL: dict[str, Any] = {"size": None, "steps": 1, "learning_rate": 1e-30, "progress": "plain"}
"""A step that moves nothing: the weights are those that the run began with."""
SAME = ["generator.dim=32", "generator.heads=2", "generator.inner_dim=64"]
"""A generator of the discriminator's own shape."""


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> Pretrained:
    with with_test_sizes():
        return pretrain("electra", tmp_path_factory.mktemp("masked") / "run", objective="masked", steps=3)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with with_test_sizes():
        return pretrain("electra", tmp_path_factory.mktemp("pair") / "run", steps=3).folder


def body(model: Model) -> dict[str, Tensor]:
    return {name: value for name, value in model.state_dict().items() if name.startswith("body.")}


def same(one: dict[str, Tensor], two: dict[str, Tensor]) -> bool:
    # A bias of zero is moved by even such a step.
    return one.keys() == two.keys() and all(
        torch.allclose(one[name], two[name], rtol=0, atol=1e-30) for name in one
    )


def both(done: Pretrained) -> tuple[Model, Model]:
    return etymon.load(done.folder / "discriminator"), etymon.load(done.folder / "generator")


def test_a_discriminator_begins_as_a_masked_model_beside_a_new_generator(
    masked: Pretrained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = pretrain("electra", tmp_path / "run", from_=masked.folder, **STILL)
    discriminator, generator = both(done)
    assert same(body(discriminator), body(masked.model)) and generator.shape.dim == 8
    assert "the generator is new but for its word vectors, and 8 wide" in capsys.readouterr().err
    words = masked.model.state_dict()["body.embeddings.words.weight"]
    assert torch.equal(generator.state_dict()["body.embeddings.words.weight"], words)


def test_a_generator_of_the_same_shape_begins_as_the_masked_model_too(
    masked: Pretrained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = pretrain("electra", tmp_path / "run", from_=masked.folder, set=SAME, **STILL)
    discriminator, generator = both(done)
    assert same(body(discriminator), body(masked.model))
    # With its head: it guesses from the first step on what the masked model would.
    assert same(generator.state_dict(), masked.model.state_dict())
    assert f"the generator begins with the weights of {masked.model_folder}" in capsys.readouterr().err
    first = next(record for record in metrics(done.folder) if "validation_generator" in record)
    untrained = pretrain("electra", tmp_path / "new", set=SAME, **{**STILL, "size": "test"})
    begun_anew = next(record for record in metrics(untrained.folder) if "validation_generator" in record)
    assert first["validation_generator"] < begun_anew["validation_generator"] - 0.05
    # What it was begun from is not asked for again.
    assert resume("electra", done.folder).steps == 1


def test_a_generators_folder_begins_both_and_a_runs_folder_each(pair: Path, tmp_path: Path) -> None:
    old_discriminator, old_generator = etymon.load(pair / "discriminator"), etymon.load(pair / "generator")
    small = pretrain("electra", tmp_path / "small", from_=pair / "generator", **STILL)
    discriminator, generator = both(small)
    assert same(body(discriminator), body(old_generator)) and discriminator.shape == old_generator.shape
    assert same(generator.state_dict(), old_generator.state_dict())
    for name, start in (("run", pair), ("discriminator", pair / "discriminator")):
        discriminator, generator = both(pretrain("electra", tmp_path / name, from_=start, **STILL))
        assert same(discriminator.state_dict(), old_discriminator.state_dict())
        assert same(generator.state_dict(), old_generator.state_dict())


def test_shapes_and_families_that_differ_are_refused_with_what_to_do(pair: Path, tmp_path: Path) -> None:
    bert = pretrain("bert", tmp_path / "bert", objective="masked", steps=1)
    for start, changes, reason in (
        (pair, {"set": ["generator.dim=24"]}, r"has a dim of 8, not 24: leave generator\.dim out"),
        (bert.folder, {}, "is BERT, not ELECTRA: go on with the family bert"),
        (pair, {"set": ["shape.dim=64"]}, "has its shape: leave that out"),
    ):
        with pytest.raises(EtymonError, match=reason):
            pretrain("electra", tmp_path / "run", from_=start, **(STILL | changes))
    # BERT's own body learns to detect, as the refusal says.
    done = pretrain("bert", tmp_path / "detector", from_=bert.folder, objective="replaced", **STILL)
    assert same(body(both(done)[0]), body(bert.model))
