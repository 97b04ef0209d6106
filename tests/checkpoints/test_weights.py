from __future__ import annotations

import json
import os
import pickle
import stat
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from etymon.checkpoints.weights import Weights, open_weights, write_weights
from etymon.errors import EtymonError


def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "h.1.weight": torch.randn(8, 16, generator=generator),
        "h.0.weight": torch.randn(16, 8, generator=generator).T,  # not contiguous
        "half": torch.randn(5, generator=generator).to(torch.bfloat16),
        "scalar": torch.tensor(3.5),
        "empty": torch.zeros(0, 4),
        "ids": torch.arange(6),
    }


def assert_same(found: Weights, expected: dict[str, torch.Tensor]) -> None:
    assert list(found) == sorted(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)


def one_line(error: pytest.ExceptionInfo[EtymonError]) -> str:
    message = str(error.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("shard_size", [None, 5_000_000_000, 600, 1])
def test_round_trip(tmp_path: Path, shard_size: int | None) -> None:
    write_weights(tmp_path, tensors(), shard_size)
    assert_same(open_weights(tmp_path), tensors())
    whole = shard_size is None or shard_size > 600
    assert (tmp_path / "model.safetensors").exists() == whole
    assert (tmp_path / "model.safetensors.index.json").exists() != whole
    for file in tmp_path.glob("*.safetensors"):
        with safe_open(str(file), framework="pt") as opened:
            assert opened.metadata() == {"format": "pt"}


def test_shards_stay_below_the_limit_and_the_index_adds_up(tmp_path: Path) -> None:
    write_weights(tmp_path, tensors(), shard_size=600)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    sizes = {name: tensor.numel() * tensor.element_size() for name, tensor in tensors().items()}
    assert index["metadata"] == {
        "total_parameters": sum(tensor.numel() for tensor in tensors().values()),
        "total_size": sum(sizes.values()),
    }
    assert set(index["weight_map"]) == set(sizes)
    count = len(set(index["weight_map"].values()))
    assert count > 1
    for number in range(1, count + 1):
        file = f"model-{number:05d}-of-{count:05d}.safetensors"
        assert sum(sizes[name] for name, home in index["weight_map"].items() if home == file) <= 600


@pytest.mark.parametrize("shard_size", [None, 600])
def test_the_order_of_the_names_does_not_change_a_byte(tmp_path: Path, shard_size: int | None) -> None:
    for name, given in (("one", tensors()), ("two", dict(reversed(tensors().items())))):
        (tmp_path / name).mkdir()
        write_weights(tmp_path / name, given, shard_size)
    names = sorted(os.listdir(tmp_path / "one"))
    assert names == sorted(os.listdir(tmp_path / "two"))
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_written_files_follow_the_umask(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    write_weights(tmp_path, tensors())
    expected = stat.S_IMODE((tmp_path / "plain").stat().st_mode)
    assert stat.S_IMODE((tmp_path / "model.safetensors").stat().st_mode) == expected


def test_asking_for_a_name_reads_nothing() -> None:
    def read(name: str) -> torch.Tensor:
        raise AssertionError(f"{name} was read")

    found = Weights(dict.fromkeys(tensors(), read), [])
    assert "half" in found
    assert "nothing" not in found
    assert len(found) == 6
    with pytest.raises(KeyError):
        found["nothing"]
    with pytest.raises(AssertionError, match="half was read"):
        found["half"]


def test_names_that_share_memory_are_a_programming_error(tmp_path: Path) -> None:
    table = torch.randn(6, 4)
    for other in (table, table.T, table[2:], table[0]):
        with pytest.raises(ValueError, match="share memory"):
            write_weights(tmp_path, {"a": table, "b": other})
    with pytest.raises(ValueError, match="meta"):
        write_weights(tmp_path, {"a": torch.empty(2, device="meta")})
    assert not os.listdir(tmp_path)
    pieces = {"rows": table[:2], "more": table[2:]}
    columns = dict(zip(("q", "k"), torch.randn(4, 6).chunk(2, dim=1)))
    write_weights(tmp_path, {**pieces, **columns})  # parts of one storage that do not overlap are fine
    assert_same(open_weights(tmp_path), {**pieces, **columns})


def test_nothing_to_open(tmp_path: Path) -> None:
    (tmp_path / "tf_model.h5").touch()
    with pytest.raises(EtymonError) as error:
        open_weights(tmp_path)
    message = one_line(error)
    for name in (
        "model.safetensors.index.json",
        "pytorch_model.bin.index.json",
        "tf_model.h5",
        str(tmp_path),
    ):
        assert name in message
    with pytest.raises(EtymonError, match="no such folder"):
        open_weights(tmp_path / "nowhere")


def test_missing_shard(tmp_path: Path) -> None:
    write_weights(tmp_path, tensors(), shard_size=600)
    lost = sorted(tmp_path.glob("model-00002-*"))[0]
    lost.unlink()
    with pytest.raises(EtymonError) as error:
        open_weights(tmp_path)
    assert lost.name in one_line(error)
    assert "1 of " in str(error.value)


def test_index_that_promises_too_much(tmp_path: Path) -> None:
    write_weights(tmp_path, tensors(), shard_size=600)
    path = tmp_path / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"]["ghost"] = index["weight_map"]["half"]
    path.write_text(json.dumps(index))
    with pytest.raises(EtymonError) as error:
        open_weights(tmp_path)
    assert "ghost" in one_line(error)
    assert path.name in str(error.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", "not valid JSON"),
        ("[]", "object was expected"),
        ("{}", "no weight_map"),
        ('{"weight_map": {"a": 3}}', "no weight_map"),
        ('{"weight_map": {"a": "../secret.safetensors"}}', "not beside it"),
    ],
)
def test_broken_index(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(EtymonError, match=expected) as error:
        open_weights(tmp_path)
    assert "model.safetensors.index.json" in one_line(error)


@pytest.mark.parametrize("kept", [0, 4, 60, -1])
def test_truncated_safetensors(tmp_path: Path, kept: int) -> None:
    write_weights(tmp_path, tensors())
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(EtymonError, match="damaged or incomplete") as error:
        open_weights(tmp_path)
    assert str(path) in one_line(error)
    assert "again" in str(error.value)


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_git_lfs_pointer(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1234\n")
    with pytest.raises(EtymonError, match="git lfs pull") as error:
        open_weights(tmp_path)
    one_line(error)


@pytest.mark.parametrize("zipped", [True, False])
def test_bin_files(tmp_path: Path, zipped: bool) -> None:
    state = {**tensors(), "parameter": torch.nn.Parameter(torch.ones(3))}
    torch.save(state, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
    found = open_weights(tmp_path)
    assert_same(found, {name: tensor.detach() for name, tensor in state.items()})
    assert not found["parameter"].requires_grad


def test_sharded_bin_files(tmp_path: Path) -> None:
    names = sorted(tensors())
    weight_map = {}
    for number, part in enumerate((names[:3], names[3:]), start=1):
        file = f"pytorch_model-{number:05d}-of-00002.bin"
        torch.save({name: tensors()[name] for name in part}, tmp_path / file)
        weight_map.update(dict.fromkeys(part, file))
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert_same(open_weights(tmp_path), tensors())


def test_safetensors_are_preferred_to_pickles(tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(2)}, tmp_path / "pytorch_model.bin")
    write_weights(tmp_path, {"a": torch.ones(2)})
    assert_same(open_weights(tmp_path), {"a": torch.ones(2)})


class Trap:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_with_code_is_refused_and_not_run(tmp_path: Path, zipped: bool) -> None:
    mark = tmp_path / "the code ran"
    path = tmp_path / "pytorch_model.bin"
    torch.save({"a": torch.ones(2), "b": Trap(mark)}, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(EtymonError, match="holds code") as error:
        open_weights(tmp_path)
    assert str(path) in one_line(error)
    assert "mkdir" in str(error.value)
    assert not mark.exists()


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("kept", [0, 40, 2000])
def test_truncated_bin(tmp_path: Path, zipped: bool, kept: int) -> None:
    path = tmp_path / "pytorch_model.bin"
    torch.save({"a": torch.ones(3000)}, path, _use_new_zipfile_serialization=zipped)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(EtymonError, match="damaged or incomplete") as error:
        open_weights(tmp_path)
    assert str(path) in one_line(error)


@pytest.mark.parametrize("value", [[torch.ones(2)], {"model": {"a": torch.ones(2)}}, {"step": 3}])
def test_bin_that_is_not_a_state_dict(tmp_path: Path, value: object) -> None:
    torch.save(value, tmp_path / "pytorch_model.bin")
    with pytest.raises(EtymonError, match=r"state.dict") as error:
        open_weights(tmp_path)
    one_line(error)


def test_plain_pickle_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps({"a": [1]}, protocol=5))
    with pytest.raises(EtymonError) as error:
        open_weights(tmp_path)
    one_line(error)


def test_transformers_opens_what_we_write_and_we_open_theirs(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=2, n_embd=16, n_head=2, vocab_size=50, n_positions=16)
    torch.manual_seed(0)
    theirs = transformers.GPT2LMHeadModel(config).eval()
    for name, limit in (("whole", "5GB"), ("shards", "8KB")):
        theirs.save_pretrained(tmp_path / name, max_shard_size=limit)
    assert not (tmp_path / "shards" / "model.safetensors").exists()
    state = {name: tensor for name, tensor in theirs.state_dict().items() if name != "lm_head.weight"}
    assert_same(open_weights(tmp_path / "whole"), state)
    assert_same(open_weights(tmp_path / "shards"), state)

    for name, size in (("ours whole", None), ("ours in shards", 8000)):
        folder = tmp_path / name
        folder.mkdir()
        write_weights(folder, state, size)
        config.save_pretrained(folder)
        opened, report = transformers.GPT2LMHeadModel.from_pretrained(folder, output_loading_info=True)
        assert not any(report.values()), report
        ids = torch.tensor([[3, 1, 4, 1, 5]])
        assert torch.equal(opened.eval()(ids).logits, theirs(ids).logits)
    read = [
        json.loads((tmp_path / name / "model.safetensors.index.json").read_text())
        for name in ("shards", "ours in shards")
    ]
    assert read[0]["metadata"] == read[1]["metadata"]
    assert set(read[0]["weight_map"]) == set(read[1]["weight_map"])
