"""Encoders with relative positions: folders for Transformers 4, which computes the same, and not for 5, which would not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import etymon
from etymon.families import get_family
from tests.families.folders import SHAPES, assert_same, tiny
from tests.oracle.forward import run
from tests.oracle.inputs import Arguments
from tests.oracle.runner import gradients
from tests.peers.environment import run_peer

CLASSES = {
    "bert": "BertForMaskedLM",
    "roberta": "RobertaForMaskedLM",
    "albert": "AlbertForMaskedLM",
    "electra": "ElectraForMaskedLM",
}
KINDS = ("relative_key", "relative_key_query")
CASES = [(family, kind) for family in CLASSES for kind in KINDS]


def arguments(family: str) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(4, 31, (3, 9), generator=generator)
    mask = torch.arange(9) < torch.tensor([9, 5, 7])[:, None]
    ids = ids.masked_fill(~mask, 1 if family == "roberta" else 0)
    return {
        "input_ids": ids,
        "attention_mask": mask.long(),
        "labels": ids.masked_fill(~mask | (ids % 3 == 0), -100),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models of ours with what Transformers 4 makes of them."""
    whole = tmp_path_factory.mktemp("relative")
    for family, kind in CASES:
        here = whole / f"{family}-{kind}"
        etymon.save(tiny(family, {"vocabulary"}, position_kind=kind), here)
        save_file(arguments(family), here / "inputs.safetensors")
        (here / "class.txt").write_text(CLASSES[family])
    run_peer("relative_positions.py", whole)
    return whole


@pytest.mark.parametrize(("family", "kind"), CASES)
def test_values_and_gradients_are_those_of_transformers_4(folder: Path, family: str, kind: str) -> None:
    here = folder / f"{family}-{kind}"
    expected = load_file(here / "outputs.safetensors")
    model = etymon.load(here)
    reading = run(model, Arguments(arguments(family)))
    for name in ("logits", "loss"):
        close(reading.outputs[name], expected[name], name)
    close(reading.outputs["last_hidden_state"], expected["hidden"], "hidden states")
    for layer in range(2):
        close(reading.outputs[f"attentions.{layer}"], expected[f"attention.{layer}"], "attention")
    for name, ragged, rectangle in reading.pairs:
        close(ragged, rectangle, f"ragged {name}")
    reading.outputs["loss"].backward()
    found = gradients(model)
    theirs = {
        name.removeprefix("grad."): value for name, value in expected.items() if name.startswith("grad.")
    }
    assert any("distance_embedding" in name for name in theirs)
    assert set(found) == set(theirs)
    for name, value in theirs.items():
        close(found[name], value, name)


@pytest.mark.parametrize(("family", "kind"), CASES)
def test_folders_of_transformers_4_are_opened(folder: Path, family: str, kind: str) -> None:
    """Published ones also hold the table of absolute positions, which nobody uses."""
    here = folder / f"{family}-{kind}"
    config = json.loads((here / "again" / "config.json").read_text())
    assert config["position_embedding_type"] == kind
    assert config["model_type"] == family
    assert any("position_embeddings" in name for name in load_file(here / "again" / "model.safetensors"))
    assert_same(etymon.load(here / "again"), etymon.load(here))


@pytest.mark.parametrize("family", CLASSES)
def test_transformers_5_does_not_open_what_it_would_compute_otherwise(family: str, tmp_path: Path) -> None:
    transformers: Any = pytest.importorskip("transformers")
    etymon.save(tiny(family, {"vocabulary"}, position_kind="relative_key"), tmp_path / "relative")
    config = json.loads((tmp_path / "relative" / "config.json").read_text())
    assert config["model_type"] == f"etymon-{family}"
    with pytest.raises(ValueError, match="custom code"):
        transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "relative")
    etymon.save(tiny(family, {"vocabulary"}), tmp_path / "learned")
    assert "position_embedding_type" not in json.loads((tmp_path / "learned" / "config.json").read_text())
    transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "learned")


@pytest.mark.parametrize("family", CLASSES)
@pytest.mark.parametrize("kind", KINDS)
def test_kind_of_positions_survives_saving(family: str, kind: str, tmp_path: Path) -> None:
    model = tiny(family, {"vocabulary"}, position_kind=kind)
    etymon.save(model, tmp_path)
    again = etymon.load(tmp_path)
    assert again.shape == model.shape
    assert_same(again, model)


def test_unknown_kind_of_positions_is_refused() -> None:
    settings = get_family("bert").settings
    assert settings.read({"position_embedding_type": "absolute"}, "x")[0] == {"position_kind": "learned"}
    with pytest.raises(etymon.EtymonError, match="position_embedding_type = 'rotary' is not supported"):
        settings.read({"position_embedding_type": "rotary"}, "config.json")
    assert "position_kind" not in SHAPES["bert"]


def close(got: Tensor, expected: Tensor, name: str) -> None:
    got = got.reshape(expected.shape)
    torch.testing.assert_close(got, expected, atol=2e-5, rtol=1e-4, msg=lambda why: f"{name}: {why}")
