"""A model that was damaged since it was saved does not open without a word, and one that was edited on purpose does."""

from __future__ import annotations

import inspect
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import etymon
from etymon import cli
from etymon.checkpoints import folder as folders
from etymon.checkpoints.folder import MANIFEST, is_verifying, verifying
from etymon.errors import EtymonError
from etymon.files import json_text, read_json, sha256, write_json
from etymon.settings import OpeningOptions
from etymon.verbs.verb import verb
from tests import tiny

WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "gpt2"
    etymon.save(tiny.model("gpt2", frozenset({"vocabulary"})), folder)
    return folder


@pytest.fixture
def copy(model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(model, tmp_path / "copy"))


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def test_the_manifest_has_digests_that_sha256sum_would_give(model: Path) -> None:
    assert read_json(model / MANIFEST)["sha256"] == {name: sha256(model / name) for name in (WEIGHTS,)}


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        (WEIGHTS, lambda path: flip(path, -1)),
        (WEIGHTS, lambda path: flip(path, path.stat().st_size // 2)),
        (WEIGHTS, lambda path: flip(path, 30)),  # a name or a type in the header
        (WEIGHTS, lambda path: path.write_bytes(path.read_bytes()[:-64])),
    ],
)
def test_a_damaged_file_is_named_whatever_else_it_leads_to(
    copy: Path, name: str, damage: Callable[[Path], None]
) -> None:
    damage(copy / name)
    with pytest.raises(EtymonError, match="is not what was saved") as error:
        etymon.load(copy)
    assert str(copy / name) in str(error.value) and "--no-verify" in str(error.value)
    assert "\n" not in str(error.value)


def test_who_wants_it_all_the_same_gets_it(copy: Path) -> None:
    flip(copy / WEIGHTS, -1)
    assert etymon.load(copy, verify=False).parameter_count()
    assert etymon.score(copy, "The river", verify=False)[0].tokens
    with verifying(False):
        assert etymon.load(copy).parameter_count()
    assert is_verifying()


def test_every_shard_has_a_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "SHARD_SIZE", 20_000)
    etymon.save(tiny.model("gpt2", frozenset({"vocabulary"})), tmp_path / "model")
    shards = sorted(path.name for path in (tmp_path / "model").glob("model-*.safetensors"))
    assert len(shards) > 1
    etymon.load(tmp_path / "model")
    flip(tmp_path / "model" / shards[-1], -1)
    with pytest.raises(EtymonError, match=f"{shards[-1]} is not what was saved"):
        etymon.load(tmp_path / "model")


def test_what_people_edit_is_not_compared_and_older_folders_open(copy: Path) -> None:
    for name in ("config.json", "tokenizer_config.json", "generation_config.json", "history.json"):
        (copy / name).write_text(json_text(read_json(copy / name)), encoding="utf-8")
    (copy / "README.md").write_text("# mine", encoding="utf-8")
    etymon.load(copy)
    flip(copy / WEIGHTS, -1)
    manifest = read_json(copy / MANIFEST)
    write_json(copy / MANIFEST, {"files": manifest["files"]})  # as it was written before there were digests
    etymon.load(copy)
    for damaged in ([], {WEIGHTS: 3}):
        write_json(copy / MANIFEST, {"files": manifest["files"], "sha256": damaged})
        with pytest.raises(EtymonError, match="is damaged: its sha256 is no table of digests; remove it"):
            etymon.load(copy)


def test_what_transformers_saves_over_ours_is_its_own(copy: Path) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(copy)
    with torch.no_grad():
        theirs.transformer.ln_f.bias += 1
    theirs.save_pretrained(copy)
    assert (etymon.load(copy).stored_tensors()["body.stack.norm.bias"] >= 0.5).all()


def test_weights_that_are_no_numbers_are_named_and_counted(tmp_path: Path) -> None:
    model = tiny.model("gpt2", frozenset({"vocabulary"}))
    name, other = list(model.stored_tensors())[:2]
    with torch.no_grad():
        model.stored_tensors()[name][0, :3] = float("nan")
        model.stored_tensors()[other][0, 0] = float("-inf")
    etymon.save(model, tmp_path / "model")
    with pytest.raises(EtymonError, match="NaN or infinite") as error:
        etymon.load(tmp_path / "model")
    line = str(error.value)
    assert f"3 values of {name} (and 1 in 1 other tensors)" in line and "--no-verify" in line
    assert etymon.load(tmp_path / "model", verify=False).stored_tensors()[name][0, :3].isnan().all()


def test_large_numbers_are_numbers(tmp_path: Path) -> None:
    model = tiny.model("gpt2", frozenset({"vocabulary"}))
    with torch.no_grad():
        model.stored_tensors()["body.stack.norm.weight"].fill_(3e38)  # their sum is infinite
    etymon.save(model, tmp_path / "model")
    assert bool((etymon.load(tmp_path / "model").stored_tensors()["body.stack.norm.weight"] == 3e38).all())


def test_json_of_a_broken_model_is_json_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tiny.model("gpt2", frozenset({"vocabulary"}))
    with torch.no_grad():
        model.stored_tensors()["body.stack.norm.bias"].fill_(float("nan"))
    etymon.save(model, tmp_path / "model")

    def run(*options: str) -> int | str | None:
        with pytest.raises(SystemExit) as end:
            cli.main(["score", str(tmp_path / "model"), "The river", "--json", *options])
        return end.value.code

    assert run() == 2
    assert "NaN or infinite" in capsys.readouterr().err
    assert not run("--no-verify")
    (line,) = capsys.readouterr().out.splitlines()

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    found = json.loads(line, parse_constant=refuse)
    assert found["perplexity"] is None and found["tokens"] > 0


def test_every_verb_that_opens_models_can_do_without_verifying() -> None:
    others = {"demo", "tokenizer", "prepare", "plan", "tasks", "new"}
    for name in {*etymon.VERBS} - others:
        assert inspect.signature(getattr(etymon, name)).parameters["verify"].default is True, name


def test_a_verb_verifies_as_its_option_says() -> None:
    @verb(OpeningOptions)
    def look(options: OpeningOptions) -> tuple[bool, bool]:
        return options.verify, is_verifying()

    assert look() == (True, True) and look(verify=False) == (False, False)
