from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from safetensors import SafetensorError

from etymon.checkpoints.folder import (
    MANIFEST,
    checksums,
    ensure_replaceable,
    read_config,
    verify_checksums,
    write_model_folder,
)
from etymon.checkpoints.weights import open_weights
from etymon.errors import EtymonError
from etymon.files import read_json, write_json


def save(folder: Path, value: float = 1.0, **options: Any) -> None:
    parts: dict[str, Any] = {
        "config": {"model_type": "gpt2", "value": value},
        "weights": {"a": torch.full((3,), value)},
        "generation_config": {"eos_token_id": 1},
        "card": "# card\n",
        "tokenizer_saver": lambda path: (path / "tokenizer.json").write_text("{}"),
        "extra": {"run/notes.json": lambda path: write_json(path, {"step": 3})},
    }
    write_model_folder(folder, **{**parts, **options})


def assert_saved(folder: Path, value: float) -> None:
    assert read_config(folder)["value"] == value
    assert open_weights(folder)["a"].tolist() == [value] * 3


def test_everything_is_written(tmp_path: Path) -> None:
    save(tmp_path / "deep" / "model")
    folder = tmp_path / "deep" / "model"
    assert set(checksums(folder)) == {
        "README.md",
        "config.json",
        "etymon.json",
        "generation_config.json",
        "model.safetensors",
        "run/notes.json",
        "tokenizer.json",
    }
    assert_saved(folder, 1.0)
    assert read_json(folder / "run" / "notes.json") == {"step": 3}
    assert os.listdir(tmp_path / "deep") == ["model"]


def test_our_own_folder_and_an_empty_one_are_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    save(folder, 1.0)
    save(folder, 2.0, extra={})
    assert_saved(folder, 2.0)
    assert not (folder / "run").exists()


def test_a_link_keeps_being_a_link(tmp_path: Path) -> None:
    save(tmp_path / "real")
    (tmp_path / "latest").symlink_to("real")
    save(tmp_path / "latest", 2.0)
    assert (tmp_path / "latest").is_symlink()
    assert_saved(tmp_path / "real", 2.0)
    assert sorted(os.listdir(tmp_path)) == ["latest", "real"]


def test_the_current_folder_can_be_the_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    save(Path("."))
    assert_saved(tmp_path / "here", 1.0)


@pytest.mark.parametrize("name", ["notes.txt", "config.json", "model.safetensors"])
def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(EtymonError, match="not written by etymon") as error:
        save(tmp_path)
    assert name in str(error.value)
    assert os.listdir(tmp_path) == [name]
    assert (tmp_path / name).read_text() == "mine"


@pytest.mark.parametrize("name", ["notes.txt", "run/mine/notes.txt"])
def test_a_file_put_beside_ours_is_left_alone(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "model"
    save(folder)
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text("mine")
    with pytest.raises(EtymonError, match="did not write") as error:
        save(folder, 2.0)
    assert name in str(error.value)
    assert (folder / name).read_text() == "mine"
    assert_saved(folder, 1.0)


def test_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "model").write_text("mine")
    with pytest.raises(EtymonError, match="is a file"):
        ensure_replaceable(tmp_path / "model")
    ensure_replaceable(tmp_path / "nothing yet")


def disk_full(*arguments: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("part", ["tokenizer_saver", "extra", "weights"])
def test_a_full_disk_keeps_the_old_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    folder = tmp_path / "model"
    save(folder)
    before = checksums(folder)
    options: dict[str, Any] = {"tokenizer_saver": disk_full, "extra": {"more": disk_full}, "weights": {}}
    if part == "weights":
        failure = SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
        monkeypatch.setattr("etymon.checkpoints.weights.save_file", Mock(side_effect=failure))
    with pytest.raises(EtymonError, match="No space left on device;") as error:
        save(folder, 2.0, **({} if part == "weights" else {part: options[part]}))
    assert str(folder) in str(error.value)
    assert "partial" not in str(error.value)
    assert checksums(folder) == before
    assert os.listdir(tmp_path) == ["model"]


def test_a_crash_leaves_no_half_folder(tmp_path: Path) -> None:
    def crash(path: Path) -> None:
        assert (path / "model.safetensors").exists()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        save(tmp_path / "model", tokenizer_saver=crash)
    assert not os.listdir(tmp_path)


def test_an_extra_may_not_replace_a_part(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="already part"):
        save(tmp_path / "model", extra={"config.json": lambda path: None})
    assert not os.listdir(tmp_path)


def test_reading_a_config(tmp_path: Path) -> None:
    with pytest.raises(EtymonError, match="no such folder"):
        read_config(tmp_path / "nowhere")
    with pytest.raises(EtymonError, match="it is empty"):
        read_config(tmp_path)
    for number in range(12):
        (tmp_path / f"file{number:02d}").touch()
    with pytest.raises(EtymonError, match=r"file00, .* and 4 more") as error:
        read_config(tmp_path)
    assert str(tmp_path) in str(error.value)
    config = tmp_path / "config.json"
    for content, expected in (
        (b'{"a": 1,}', "not valid JSON .* column 9"),
        (b"\xff\xfe", "not UTF-8"),
        (b"3", "object was expected"),
    ):
        config.write_bytes(content)
        with pytest.raises(EtymonError, match=expected) as error:
            read_config(tmp_path)
        assert str(config) in str(error.value)
    write_json(config, {"b": "слово", "a": {10: 1, 2: 2}})
    assert config.read_text("utf-8") == '{\n  "a": {\n    "2": 2,\n    "10": 1\n  },\n  "b": "слово"\n}\n'
    assert read_config(tmp_path)["b"] == "слово"
    with pytest.raises(ValueError):
        write_json(config, {"a": float("nan")})
    assert read_config(tmp_path)["b"] == "слово"


def test_checksums_name_the_broken_file(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    save(folder)
    manifest = checksums(folder)
    assert list(manifest) == sorted(manifest)
    verify_checksums(folder, manifest)
    weights = folder / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(EtymonError, match=r"model\.safetensors is not what was saved"):
        verify_checksums(folder, manifest)
    weights.write_bytes(content)
    verify_checksums(folder, manifest)
    (folder / "run" / "notes.json").unlink()
    with pytest.raises(EtymonError, match=r"run/notes\.json is missing"):
        verify_checksums(folder, manifest)


def test_the_manifest_lists_itself(tmp_path: Path) -> None:
    save(tmp_path / "model")
    assert set(read_json(tmp_path / "model" / MANIFEST)["files"]) == set(checksums(tmp_path / "model"))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("architectures", 1),
        ("architectures", [[]]),
        ("id2label", {"a": "b"}),
        ("id2label", ["a"]),
        ("num_labels", 10**12),
        ("num_labels", "two"),
        ("eos_token_id", "x"),
        ("task_specific_params", {"translation": 5}),
        ("model_type", {}),
    ],
)
def test_keys_of_another_type_are_named(key: str, value: object, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert", key: value}))
    with pytest.raises(EtymonError, match=rf"bad value in .*config\.json: {key}") as refused:
        read_config(tmp_path)
    assert "\n" not in str(refused.value)


def test_numbers_that_json_does_not_have_are_null_in_a_saved_folder(tmp_path: Path) -> None:
    """Foreign files hold them (`-Infinity` in a generation_config.json), and what they say is carried along."""
    infinite = {"eos_token_id": 1, "temperature": float("-inf")}
    save(tmp_path / "model", generation_config=infinite, config={"model_type": "gpt2", "x": float("nan")})
    assert read_json(tmp_path / "model" / "generation_config.json") == {
        "eos_token_id": 1,
        "temperature": None,
    }
    assert read_json(tmp_path / "model" / "config.json")["x"] is None
