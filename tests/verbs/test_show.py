"""`etymon show`: what a folder holds, for people and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import etymon
from etymon import cli
from etymon.errors import EtymonError
from etymon.verbs.show import Shown
from tests import tiny


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run's folder, as far as `show` looks."""
    model = tiny.model("gpt2", tiny.objective("gpt2", "causal"))
    model.history = [
        {
            "objective": "causal",
            "data": "my letters",
            "training": {"steps": 7, "revisions": [], "optimiser": {"betas": [0.9, 0.95], "name": "muon"}},
            "metrics": {"loss": 3.25},
        }
    ]
    etymon.save(model, tmp_path / "run" / "model")
    return tmp_path / "run"


def test_everything_is_told(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = etymon.show(run)
    assert result.folder == run / "model"
    assert (result.family, result.architecture, result.heads) == ("GPT-2", "GPT2LMHeadModel", ("vocabulary",))
    assert result.parameters == sum(parameter.numel() for parameter in etymon.load(run).parameters())
    assert result.shape["dim"] == 32 and result.tokenizer["kind"] == "byte-bpe"
    assert result.weights["files"] == ["model.safetensors"]
    assert result.weights["bytes"] == (run / "model" / "model.safetensors").stat().st_size
    with pytest.raises(SystemExit) as exit_info:
        cli.main(["show", str(run)])
    assert exit_info.value.code == 0
    out = capsys.readouterr().out
    for part in (
        f"GPT-2 (GPT2LMHeadModel), {result.parameters:,} parameters", str(run / "model"), "dim 32", "layers 2",
        "kind byte-bpe", f"tokens {tiny.tokenizer('gpt2').size}", "<|endoftext|>", "model.safetensors",
        "causal on my letters", "settings   optimiser muon (betas 0.9 0.95), steps 7", "validation loss 3.25",
    ):  # fmt: skip
        assert part in out
    # Neither Python's braces nor what is empty.
    assert "{" not in out and "()" not in out and "revisions" not in out


def test_json(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        cli.main(["show", str(run / "model"), "--json"])
    assert exit_info.value.code == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["family"] == "GPT-2" and shown["history"][0]["metrics"] == {"loss": 3.25}
    assert shown["folder"] == str(run / "model") and shown["shape"]["heads"] == 2


def test_foreign_checkpoint(shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        cli.main(["show", str(shared / "oracle" / "cases" / "bert_pretraining")])
    assert exit_info.value.code == 0
    out = capsys.readouterr().out
    assert "BERT (BertForPreTraining)" in out and "none in the folder" in out and "not known" in out


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(EtymonError, match=r"config\.json"):
        etymon.show(tmp_path)


def test_a_size_says_which_recipes_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    shown = etymon.show("bert")
    assert isinstance(shown, Shown) and list(shown.recipes)[:2] == ["pocket", "published"]
    assert shown.recipes["pocket"]["shape"]["position_kind"] == "rotary"
    assert shown.recipes["published"]["optimiser"] == "adam-bert" and "why" not in shown.recipes["published"]
    with pytest.raises(SystemExit):
        cli.main(["show", "bert", "--size", "base"])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("recipe")]
    assert lines[0].startswith("recipe     published: learning_rate 0.0001") and len(lines) == len(
        shown.recipes
    )
