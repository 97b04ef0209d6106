"""Weights lie in aligned memory, wherever they come from, so that equal models compute the same to the last bit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import etymon
from etymon.families.model import Model
from etymon.nn.batch import Batch
from etymon.nn.initialise import ALIGNMENT, is_aligned
from etymon.training.unit import StreamMemories, TrainingUnit
from tests import tiny


def shift(file: Path) -> None:
    """Makes the header longer, so that no tensor of the file is aligned."""
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.dumps(json.loads(data[8 : 8 + length])).encode()
    header += b" " * (
        (8 - 8 - len(header)) % ALIGNMENT
    )  # the tensors then begin at 8 bytes beyond a multiple
    assert (8 + len(header)) % ALIGNMENT == 8
    file.write_bytes(len(header).to_bytes(8, "little") + header + data[8 + length :])


def everything(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def unaligned(size: int) -> Tensor:
    return torch.arange(float(size + 1))[1:]


@pytest.mark.parametrize("quantize", [None, "int8"])
def test_a_loaded_model_is_aligned_whatever_its_file(tmp_path: Path, quantize: str | None) -> None:
    model = tiny.model("gpt2", frozenset({"vocabulary"})).eval()
    etymon.save(model.quantize() if quantize else model, tmp_path / "model")
    before = etymon.load(tmp_path / "model")
    shift(tmp_path / "model" / "model.safetensors")
    with safe_open(tmp_path / "model" / "model.safetensors", "pt") as file:
        mapped = [file.get_tensor(name) for name in file.keys()]  # noqa: SIM118
    assert not all(map(is_aligned, mapped)), "or nothing is tried here"
    after = etymon.load(tmp_path / "model", verify=False)
    for name, tensor in everything(after).items():
        assert is_aligned(tensor), name
    batch = Batch.of([[5, 6, 7, 8], [9, 10]])
    with torch.no_grad():
        one, two = (logits(each, batch) for each in (before, after))
    assert torch.equal(one, two), "the same kernels and the same alignment"


def logits(model: Model, batch: Batch) -> Tensor:
    return model.heads["vocabulary"].logits(model.hidden(batch)[0])


def test_what_trains_is_aligned_and_what_is_tied_stays_so() -> None:
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    first.weight = second.weight = nn.Parameter(unaligned(9).view(3, 3))
    first.register_buffer("counts", unaligned(4))
    module = nn.ModuleList([first, second])
    assert not is_aligned(first.weight) and not is_aligned(first.counts)
    unit = TrainingUnit(module, objective=None)  # type: ignore[arg-type]
    assert all(map(is_aligned, everything(unit).values()))
    assert first.weight is second.weight and first.weight.flatten().tolist() == list(range(1, 10))


def test_what_streams_remember_is_aligned_when_it_comes_back(tmp_path: Path) -> None:
    class State:
        def load(self, tensors: dict[str, Tensor], lengths: list[int]) -> None:
            self.tensors = tensors

        def forget(self, rows: list[int]) -> None: ...

    class Slice:
        streams, fresh = (0, 1), (False, True)

    saved = {"0-1/mean": unaligned(6), "0-1/lengths": torch.tensor([2, 3])}
    save_file({name: tensor.clone() for name, tensor in saved.items()}, tmp_path / "x.safetensors")
    shift(tmp_path / "x.safetensors")
    found = load_file(tmp_path / "x.safetensors")
    state = StreamMemories(found).recall(Slice(), lambda rows: State(), torch.device("cpu"))  # type: ignore[arg-type]
    assert is_aligned(state.tensors["mean"]) and state.tensors["mean"].tolist() == saved["0-1/mean"].tolist()
