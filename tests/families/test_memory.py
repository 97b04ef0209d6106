"""Memory is asked before it is taken: what a model needs is told from its shape, and what does not fit is not opened."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

import etymon
from etymon.errors import EtymonError
from etymon.families import REGISTRY, get_family
from etymon.families import memory as families_memory
from etymon.families.loading import shape_of
from etymon.families.memory import count_parameters, outline
from etymon.families.model import Model
from etymon.families.saving import save
from tests import tiny


@pytest.mark.parametrize("name", REGISTRY)
def test_weights_are_told_exactly_from_a_few_layers(name):
    family = get_family(name)
    shapes = [shape_of(family, size) for size in list(family.sizes)[-2:]]
    shapes += [replace(shapes[0], layers=9)]
    shapes += [replace(shapes[0], layers=7, groups=3, inner_groups=3)] if name == "albert" else []
    for shape in shapes:
        with torch.device("meta"):
            model = Model(family, shape, family.architectures[0].heads)
        tensors = [*model.parameters(), *model.buffers()]
        assert outline(family, shape, model.head_names).weights == sum(
            tensor.numel() * tensor.element_size() for tensor in tensors
        )
        assert count_parameters(family, shape, model.head_names) == model.parameter_count()


@pytest.mark.parametrize("name", REGISTRY)
def test_ten_million_layers_are_counted_without_building_them(name):
    family = get_family(name)
    few, many = (outline(family, shape_of(family, layers=layers)) for layers in (3, 10**7))
    assert many.total > 10**6 * 3 * (few.program + 1)


def test_sizes_beyond_what_can_be_counted_are_refused():
    with pytest.raises(EtymonError, match="more than 9 EB"):
        etymon.build("gpt2", shape={"vocabulary": 2**62})


def test_a_model_whose_weights_do_not_fit_is_not_built(monkeypatch):
    monkeypatch.setattr(families_memory, "available_memory", lambda: 2e9)
    with pytest.raises(EtymonError) as refusal:
        etymon.build("gpt2", "xl")
    assert str(refusal.value) == (
        "to build GPT-2 of this shape needs about 6.23 GB, and this machine has 2 GB free: the size medium would fit; "
        "or take a machine with more memory"
    )


@pytest.fixture
def folder(tmp_path):
    family = get_family("gpt2")
    model = Model(
        family, shape_of(family, **tiny.SHAPES["gpt2"], vocabulary=64), ("vocabulary",)
    ).initialise()
    save(model, tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize(
    "changed", [{"n_layer": 10_000_000}, {"n_embd": 200_000}, {"vocab_size": 10**12}, {"n_positions": 10**9}]
)
def test_a_configuration_of_more_than_the_weights_hold_is_refused_before_anything_is_built(
    folder, changed, monkeypatch
):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changed}))
    monkeypatch.setattr("etymon.families.loading.Model", None)
    with pytest.raises(
        EtymonError, match=r"config\.json describes a model of .* numbers .*do not belong together"
    ):
        etymon.load(folder)


def test_a_folder_that_does_not_fit_is_not_opened(folder, monkeypatch):
    monkeypatch.setattr(families_memory, "available_memory", lambda: 1000.0)
    with pytest.raises(EtymonError, match=rf"to open {folder} needs about .* this machine has 1 kB free"):
        etymon.load(folder)


def test_layers_that_must_be_equal_are_counted_together():
    """A decoder that begins with the encoder's states has as many layers."""
    shape = shape_of(
        get_family("rnn"),
        "luong",
        vocabulary=300,
        word_dim=16,
        dim=16,
        readout_dim=16,
        layers=7,
        decoder_layers=7,
    )
    model = Model(get_family("rnn"), shape, {"vocabulary"})
    assert count_parameters(get_family("rnn"), shape, model.head_names) == model.parameter_count()
