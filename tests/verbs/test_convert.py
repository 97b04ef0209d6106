"""`etymon convert`: old layouts come out in today's, precision is chosen, and nobody's files are overwritten."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, safe_open

import etymon
from etymon import cli
from etymon.errors import EtymonError
from tests import tiny

LEGACY = ["gpt2_lm_legacykeys", "bert_pretraining_legacykeys", "t5_v10_legacykeys"]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    model = tiny.model("bert", tiny.objective("bert", "masked-next-sentence"))
    model.history = [
        {"objective": "masked-next-sentence", "data": "a text", "metrics": {"masked": float("nan")}}
    ]
    etymon.save(model, tmp_path / "saved")
    return tmp_path / "saved"


@pytest.mark.parametrize("name", LEGACY)
def test_legacy_layouts_come_out_in_todays(name: str, shared: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    source = shared / "oracle" / "cases" / name
    manifest = json.loads((source / "manifest.json").read_text(encoding="utf-8"))
    result = etymon.convert(source, tmp_path / "out")
    assert result.new_heads == () and result.parameters > 0
    cls = getattr(transformers, manifest["model_class"])
    model, notes = cls.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not notes["missing_keys"] and not notes["unexpected_keys"] and not notes["mismatched_keys"]
    # The case it was derived from has the same weights under today's names.
    twin = cls.from_pretrained(shared / "oracle" / "cases" / manifest["derived_from"])
    theirs = dict(twin.named_parameters())
    for parameter_name, parameter in model.named_parameters():
        assert torch.equal(parameter, theirs[parameter_name]), parameter_name
    stored = load_file(tmp_path / "out" / "model.safetensors")
    assert not any(key.endswith((".gamma", ".beta")) for key in stored)


def test_the_copy_is_exact_and_keeps_the_history(saved: Path, tmp_path: Path) -> None:
    etymon.convert(saved, tmp_path / "out")
    one, two = load_file(saved / "model.safetensors"), load_file(tmp_path / "out" / "model.safetensors")
    assert set(one) == set(two) and all(torch.equal(one[name], two[name]) for name in one)
    copied = etymon.load(tmp_path / "out")
    assert copied.history == [
        {"objective": "masked-next-sentence", "data": "a text", "metrics": {"masked": None}}
    ]
    assert copied.tokenizer is not None and copied.head_names == {"vocabulary", "next_sentence"}
    etymon.convert(
        tmp_path / "out", tmp_path / "out"
    )  # our own folder may be written again, even onto itself
    assert etymon.load(tmp_path / "out").history == copied.history


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_halves_the_file(dtype: str, saved: Path, tmp_path: Path) -> None:
    etymon.convert(saved, tmp_path / "half", dtype=dtype)  # type: ignore[arg-type]
    with safe_open(tmp_path / "half" / "model.safetensors", "pt") as file:
        names = file.keys()
        kinds = {file.get_slice(name).get_dtype() for name in names}
    assert kinds == {dtype.replace("bfloat", "BF").replace("float", "F")}
    sizes = [
        sum(t.nbytes for t in load_file(folder / "model.safetensors").values())
        for folder in (saved, tmp_path / "half")
    ]
    assert sizes[1] * 2 == sizes[0]
    assert json.loads((tmp_path / "half" / "config.json").read_text(encoding="utf-8"))["dtype"] == dtype
    whole, half = etymon.load(saved), etymon.load(tmp_path / "half")
    for name, parameter in half.named_parameters():
        torch.testing.assert_close(
            parameter.float(), dict(whole.named_parameters())[name], rtol=1e-2, atol=1e-3
        )


def test_heads_are_kept_dropped_or_added(saved: Path, tmp_path: Path) -> None:
    assert etymon.convert(saved, tmp_path / "kept").heads == ("next_sentence", "vocabulary")
    dropped = etymon.convert(saved, tmp_path / "dropped", heads=["vocabulary"])
    assert dropped.heads == ("vocabulary",) and dropped.new_heads == ()
    config = json.loads((tmp_path / "dropped" / "config.json").read_text(encoding="utf-8"))
    assert config["architectures"] == ["BertForMaskedLM"]
    assert etymon.convert(saved, tmp_path / "added", heads=["tagging"]).new_heads == ("tagging",)


def test_foreign_folders_are_left_alone(saved: Path, tmp_path: Path) -> None:
    target = tmp_path / "mine"
    target.mkdir()
    (target / "notes.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(EtymonError, match="was not written by etymon"):
        etymon.convert(saved, target)
    assert [path.name for path in target.iterdir()] == ["notes.txt"]
    file = target / "notes.txt"
    with pytest.raises(EtymonError, match="is a file"):
        etymon.convert(saved, file)
    with pytest.raises(EtymonError):
        etymon.convert(tmp_path / "nowhere", tmp_path / "out")
    broken = tmp_path / "broken"
    shutil.copytree(saved, broken)
    (broken / "model.safetensors").write_bytes((saved / "model.safetensors").read_bytes()[:-50])
    with pytest.raises(EtymonError):
        etymon.convert(broken, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_command_line(saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        cli.main(["convert", str(saved), str(tmp_path / "out"), "--dtype", "bfloat16"])
    assert exit_info.value.code == 0
    assert f"written to {tmp_path / 'out'}" in capsys.readouterr().out
    assert etymon.load(tmp_path / "out").head_names == {"vocabulary", "next_sentence"}, (
        "no --heads means all of them"
    )
    with pytest.raises(SystemExit) as exit_info:
        cli.main(["convert", str(saved), str(tmp_path / "new"), "--heads", "tagging", "--heads", "span"])
    assert exit_info.value.code == 0
    assert "initialised anew, since the checkpoint has none: span, tagging" in capsys.readouterr().out


def test_the_mean_of_the_last_checkpoints(tmp_path: Path) -> None:
    from etymon.training.state import RunFolder, TrainingState

    run, weights = RunFolder(tmp_path / "run"), []
    for step in range(4):
        model = tiny.model("t5", tiny.objective("t5", "span-corruption"), seed=step)
        weights.append(model.body.words.weight.detach().double())
        run.save(
            TrainingState(step), {}, lambda aside, model=model: etymon.save(model, aside / "model"), keep=4
        )  # type: ignore[misc]
    assert etymon.convert(run.folder, tmp_path / "mean", average=3).averaged == (1, 2, 3)
    mean = etymon.load(tmp_path / "mean")
    expected = (sum(weights[1:]) / 3).float()
    torch.testing.assert_close(mean.body.words.weight.detach(), expected, rtol=1e-6, atol=0)
    assert mean.tokenizer is not None
    with pytest.raises(EtymonError, match="has 4 checkpoints"):
        etymon.convert(run.folder, tmp_path / "more", average=5)
    with pytest.raises(EtymonError, match="give --average alone"):
        etymon.convert(run.folder, tmp_path / "more", average=2, partial=True)


def test_what_rounding_cannot_do_is_refused(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("the river", encoding="utf-8")
    with pytest.raises(EtymonError, match=r"BERT writes no text from left to right.*leave out --data"):
        etymon.convert(saved, tmp_path / "out", quantize="int8", data=tmp_path / "text.txt")
    etymon.convert(saved, tmp_path / "small", quantize="int8")
    with pytest.raises(
        EtymonError, match="holds weights of eight bits: convert the model that they were made of"
    ):
        etymon.convert(tmp_path / "small", tmp_path / "out", dtype="bfloat16")
    assert not (tmp_path / "out").exists()


def test_a_text_to_judge_by_is_looked_for_first(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(EtymonError, match=r"cannot read .*nowhere.txt: No such file"):
        etymon.convert(saved, tmp_path / "out", quantize="int8", data=tmp_path / "nowhere.txt")


def test_a_decoder_of_eight_bits_is_saved_and_opens(tmp_path: Path) -> None:
    etymon.save(tiny.model("gpt2", frozenset({"vocabulary"})), tmp_path / "whole")
    etymon.convert(tmp_path / "whole", tmp_path / "small", quantize="int8")
    assert etymon.load(tmp_path / "small").int8
