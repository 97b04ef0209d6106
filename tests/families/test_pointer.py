"""Decoders with a pointer: as whole models, in folders, and with more words."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import etymon
from etymon.errors import EtymonError
from etymon.families import get_family
from etymon.families.loading import shape_of
from etymon.families.model import Model
from etymon.families.surgery import grow
from etymon.nn.batch import Batch
from etymon.nn.vocabulary import Context
from tests.decoders import DECODERS, rows_of, tiny_decoder


def log_probs(model: Model, rows: list[list[int]]) -> Tensor:
    batch = Batch.of(rows)
    hidden, _ = model.hidden(batch)
    return model.heads["vocabulary"].log_probs(hidden, None, Context(batch))  # type: ignore[operator, no-any-return]


@pytest.mark.parametrize("family", DECODERS)
def test_a_folder_keeps_the_pointer(family: str, tmp_path: Path) -> None:
    model, rows = tiny_decoder(family, pointer=4), rows_of([9, 3, 6])
    etymon.save(model, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert config["etymon_pointer"] == 4
    assert config["model_type"].startswith("etymon-")
    stored = load_file(tmp_path / "model.safetensors")
    own = {name for name in stored if name.startswith("etymon_heads.")}
    assert own == {
        f"etymon_heads.vocabulary.pointer.{part}" for part in ("query.weight", "query.bias", "sentinel")
    }
    assert "Transformers has no class" in (tmp_path / "README.md").read_text(encoding="utf-8")
    read = etymon.load(tmp_path)
    assert read.shape == model.shape and not read.new_heads
    assert torch.equal(log_probs(read, rows), log_probs(model, rows))
    with pytest.raises(ValueError, match="trust_remote_code"):
        pytest.importorskip("transformers").AutoConfig.from_pretrained(tmp_path, trust_remote_code=False)


@pytest.mark.parametrize("family", DECODERS)
def test_without_one_a_folder_says_nothing_of_it(family: str, tmp_path: Path) -> None:
    etymon.save(tiny_decoder(family), tmp_path)
    assert "pointer" not in (tmp_path / "config.json").read_text(encoding="utf-8")
    assert not any("pointer" in name for name in load_file(tmp_path / "model.safetensors"))


@pytest.mark.parametrize("family", DECODERS)
def test_it_begins_nearly_closed(family: str) -> None:
    shape = {**asdict(tiny_decoder(family).shape), "dim": 64, "heads": 2, "pointer": 100}
    model = etymon.build(family, shape=shape, heads=("vocabulary",))
    batch = Batch.of(rows_of([20, 12]))
    with torch.no_grad():
        log_gate, _, _ = model.heads["vocabulary"].pointer(model.hidden(batch)[0], None, Context(batch))  # type: ignore[operator, union-attr]
    assert log_gate.exp().min() > 0.9 and log_gate.exp().max() < 1


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(EtymonError, match="pointer"):
        etymon.build("gpt2", shape={"pointer": -1})
    with pytest.raises(EtymonError, match="pointer"):
        etymon.build("bert", shape={"pointer": 100})


def test_a_vocabulary_grows_under_a_pointer() -> None:
    model, rows = tiny_decoder("gpt2", pointer=4), rows_of([6])
    larger = grow(model, model.shape.vocabulary, [[1, 2], [3]])
    assert larger.shape.vocabulary == model.shape.vocabulary + 2
    batch = Batch.of(rows)
    shares = [
        one.heads["vocabulary"].pointer(one.hidden(batch)[0], None, Context(batch))  # type: ignore[operator, union-attr]
        for one in (model, larger)
    ]
    for before, after in zip(*shares, strict=True):
        torch.testing.assert_close(before, after, atol=1e-6, rtol=1e-5)


def test_a_head_for_another_task_has_none() -> None:
    family = get_family("gpt2")
    shape = replace(tiny_decoder("gpt2").shape, pointer=5)
    model = Model(family, shape, {"classification"}).initialise()
    assert not any("pointer" in name for name, _ in model.named_parameters())
    state = model.start(1)
    model.hidden(Batch.of([[1, 2]]), state)
    assert state.window is None and state.lengths == (2,)


def test_a_state_shows_and_selects_its_window() -> None:
    model = tiny_decoder("gpt2", pointer=3)
    state = model.start(2)
    assert state.select(torch.tensor([1])).window is not None  # also before there is anything in it
    model.hidden(Batch.of([[1, 2, 3], [4]]), state)
    assert state.window.ids_RM.tolist() == [[-1, -1, 1, 2, 3], [-1, -1, 4, -1, -1]]
    moved = state.select(torch.tensor([1, 0, 1]))
    model.hidden(Batch.of([[5], [6], [7]], starts=[1, 3, 1]), moved)
    assert moved.window.ids_RM.tolist() == [[-1, 4, 5], [2, 3, 6], [-1, 4, 7]]
    assert state.window.ids_RM.shape == (2, 5)


def test_wide_heads_leave_the_other_checks_alone() -> None:
    with pytest.raises(EtymonError, match="a pointer stands beside a plain softmax"):
        shape_of(get_family("gpt3"), "pocket", head_dim=64, pointer=5, cutoffs=[100])
