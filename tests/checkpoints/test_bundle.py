"""TensorFlow's checkpoints without TensorFlow: every variable as it was saved, and damage said in one line."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from etymon.checkpoints.bundle import Bundle, find_bundle
from etymon.checkpoints.crc32c import LANES, crc32c, unmasked
from etymon.errors import EtymonError

FIXTURES = Path(__file__).parents[1] / "fixtures" / "tensorflow"


def slow_crc32c(data: bytes) -> int:
    register = 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = register >> 1 ^ (0x82F63B78 if register & 1 else 0)
    return register ^ 0xFFFFFFFF


def test_the_checksum_is_castagnoli_s() -> None:
    assert crc32c(b"") == 0
    assert crc32c(b"123456789") == 0xE3069283  # the check value of every catalogue of CRCs
    assert (
        crc32c(bytes(32)) == 0x8A9136AA and crc32c(bytes(range(32))) == 0x46DD794E
    )  # RFC 3720, appendix B.4


@pytest.mark.parametrize("length", [1, 4 * LANES - 1, 4 * LANES, 12 * LANES + 7])
def test_lanes_side_by_side_give_what_a_loop_over_bytes_gives(length: int) -> None:
    data = np.random.default_rng(length).integers(0, 256, length, dtype=np.uint8)
    assert crc32c(data) == slow_crc32c(data.tobytes())


def test_stored_checksums_are_masked() -> None:
    value = crc32c(b"foo")
    masked = ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF
    assert unmasked(masked) == value != masked


@pytest.mark.parametrize("name", ["bert", "t5"])
def test_every_variable_is_there_with_its_shape(name: str) -> None:
    bundle = Bundle(find_bundle(FIXTURES / name) or Path())
    assert len(bundle.shards) == {"bert": 1, "t5": 3}[name]
    for variable, entry in bundle.entries.items():
        if variable == "global_step":
            assert not entry.is_float and entry.shape == ()
            continue
        tensor = bundle[variable]
        assert tensor.shape == entry.shape and tensor.dtype == torch.float32
        is_slot = "adam_" in variable or "_slot_" in variable
        assert bool(tensor.any()) is not is_slot, variable


def test_a_variable_that_is_no_weight_is_refused() -> None:
    bundle = Bundle(find_bundle(FIXTURES / "bert") or Path())
    with pytest.raises(EtymonError, match=r"global_step .* holds no weights"):
        bundle["global_step"]


def test_the_checkpoint_file_says_which_one(tmp_path: Path) -> None:
    source = find_bundle(FIXTURES / "bert")
    assert source is not None
    for name in ("model.ckpt-900", "model.ckpt-1000", "old"):
        for path in FIXTURES.joinpath("bert").glob("bert_model.ckpt.*"):
            shutil.copy(path, tmp_path / path.name.replace("bert_model.ckpt", name))
    assert (
        find_bundle(tmp_path) == tmp_path / "model.ckpt-1000"
    )  # the newest, and not the last by the alphabet
    (tmp_path / "checkpoint").write_text(
        'model_checkpoint_path: "/elsewhere/old"\nall_model_checkpoint_paths: "x"\n'
    )
    assert find_bundle(tmp_path) == tmp_path / "old"
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "gone"\n')
    assert find_bundle(tmp_path) == tmp_path / "model.ckpt-1000"
    assert find_bundle(FIXTURES) is None


def cut(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data))]


def flip(data: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(data))
    return data[:place] + bytes([data[place] ^ 1 << rng.randrange(8)]) + data[place + 1 :]


def noise(data: bytes, rng: random.Random) -> bytes:
    return rng.randbytes(len(data))


def footer(data: bytes, rng: random.Random) -> bytes:
    """Handles that point anywhere, before a good magic number."""
    return data[:-48] + rng.randbytes(40) + data[-8:]


@pytest.mark.parametrize("damage", [cut, flip, noise, footer])
def test_a_damaged_index_is_refused_in_one_line(damage: Callable[..., bytes], tmp_path: Path) -> None:
    for path in (FIXTURES / "bert").glob("bert_model.ckpt.*"):
        shutil.copy(path, tmp_path / path.name)
    index = tmp_path / "bert_model.ckpt.index"
    whole, refused = index.read_bytes(), 0
    before = Bundle(tmp_path / "bert_model.ckpt").entries
    for seed in range(150):
        index.write_bytes(damage(whole, random.Random(seed)))
        try:
            bundle = Bundle(tmp_path / "bert_model.ckpt")
        except EtymonError as error:
            assert "\n" not in str(error) and str(index) in str(error)
            refused += 1
        else:  # a bit of the padding, or of the list of places to begin at, of which nothing is read
            assert bundle.entries == before
    assert refused >= 130


def test_every_flipped_bit_of_a_weight_is_noticed(tmp_path: Path) -> None:
    for path in (FIXTURES / "gpt2").iterdir():
        shutil.copy(path, tmp_path / path.name)
    data = tmp_path / "model.ckpt.data-00000-of-00001"
    whole = data.read_bytes()
    for seed in range(20):
        data.write_bytes(flip(whole, random.Random(seed)))
        bundle = Bundle(tmp_path / "model.ckpt")
        with pytest.raises(EtymonError, match="its checksum differs"):
            for name in bundle.entries:
                bundle[name]


def test_files_that_are_short_or_missing_are_refused_before_any_is_read(tmp_path: Path) -> None:
    shutil.copytree(FIXTURES / "t5", tmp_path / "t5")
    shard = tmp_path / "t5" / "model.ckpt-1000000.data-00001-of-00003"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(EtymonError, match="is cut short"):
        Bundle(tmp_path / "t5" / "model.ckpt-1000000")
    shard.unlink()
    with pytest.raises(
        EtymonError, match=r"1 of 3 files .* missing: model\.ckpt-1000000\.data-00001-of-00003"
    ):
        Bundle(tmp_path / "t5" / "model.ckpt-1000000")
