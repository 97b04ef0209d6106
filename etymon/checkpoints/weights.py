"""The weights of a Hugging Face folder: safetensors, whole or in shards. Foreign `.bin` files are read only.

Reading is lazy: `open_weights` reads the headers, checks that every promised tensor is there, and each tensor
is read when it is asked for.
"""

from __future__ import annotations

import os
import pickle
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from etymon.errors import EtymonError
from etymon.files import holds, read_json, some, write_json

WHOLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLED = "pytorch_model.bin"
PICKLED_INDEX = "pytorch_model.bin.index.json"
MODEL_FILES = (WHOLE, INDEX, PICKLED, PICKLED_INDEX)
ADAPTERS = "adapter_model.safetensors"
ADAPTER_FILES = (ADAPTERS, "adapter_model.bin")
SHARD_SIZE = 5 * 10**9
Reader = Callable[[str], torch.Tensor]


class Weights(Mapping[str, torch.Tensor]):
    """The tensors of a folder by name, in sorted order. `weights[name]` reads one."""

    def __init__(self, readers: Mapping[str, Reader], files: list[Path]) -> None:
        self._readers = {name: readers[name] for name in sorted(readers)}
        self.files = files

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._readers[name](name)

    # Names are looked for far more often than tensors are read.
    def __contains__(self, name: object) -> bool:
        return name in self._readers  # the inherited one would read the tensor to find out

    def __iter__(self) -> Iterator[str]:
        return iter(self._readers)

    def __len__(self) -> int:
        return len(self._readers)


def open_weights(folder: str | os.PathLike[str], files: Sequence[str] = MODEL_FILES) -> Weights:
    """Open the weights of a model folder: the first of `files` that there is, in the order of preference of
    Transformers.

    Missing shards, tensors that an index promises and no file has, and broken files are refused here, not
    when the tensor is wanted.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise EtymonError(f"no such folder: {folder}")
    for name in files:
        path = folder / name
        if path.is_file():
            return _open_index(path) if name.endswith(".json") else Weights(_open_file(path), [path])
    raise EtymonError(
        f"no weights in {folder}: looked for {', '.join(files[:-1])} and {files[-1]}, but {holds(folder)}"
    )


# Not `huggingface_hub.save_torch_state_dict`: it writes an index without the number of parameters, leaves
# files that only their owner may read, and turns a full disk into a traceback.
def write_weights(
    folder: str | os.PathLike[str], tensors: Mapping[str, torch.Tensor], shard_size: int | None = SHARD_SIZE
) -> None:
    """Write `tensors` into `folder` as Transformers would: one file, or shards of at most `shard_size` bytes.

    The same tensors give the same bytes, whatever the order of `tensors`. Tied names must have been dropped
    by the caller. The folder is a new one (that of `atomic_folder`): file by file, a crash would mix two
    models.
    """
    folder = Path(folder)
    _refuse_aliases(tensors)
    shards = _shards(tensors, shard_size)
    if len(shards) == 1:
        _write_file(folder / WHOLE, tensors, shards[0])
        return
    files = [
        folder / f"model-{number + 1:05d}-of-{len(shards):05d}.safetensors" for number in range(len(shards))
    ]
    totals = {
        "total_parameters": sum(tensor.numel() for tensor in tensors.values()),
        "total_size": sum(_bytes(tensor) for tensor in tensors.values()),
    }
    for file, names in zip(files, shards):
        _write_file(file, tensors, names)
    weight_map = {name: file.name for file, names in zip(files, shards) for name in names}
    write_json(folder / INDEX, {"metadata": totals, "weight_map": weight_map})


def _open_file(path: Path) -> dict[str, Reader]:
    """The names in one weights file, each with what reads it."""
    if path.suffix == ".bin":
        tensors = _unpickle(path)
        return dict.fromkeys(tensors, tensors.__getitem__)
    try:
        file = safe_open(str(path), framework="pt")  # also compares the header with the file's length
    except SafetensorError as error:
        raise _damage_error(path, str(error)) from error
    except OSError as error:
        raise EtymonError(f"cannot read {path}: {error.strerror or error}") from error

    def read(name: str) -> torch.Tensor:
        try:
            return file.get_tensor(name)
        except SafetensorError as error:
            raise _damage_error(path, str(error)) from error

    return dict.fromkeys(file.keys(), read)


def _unpickle(path: Path) -> dict[str, torch.Tensor]:
    """A state dict that `torch.save` wrote, opened without running any code that it may hold."""
    # Files from before torch 1.6 are not zip archives; those have to be read whole.
    mapped = zipfile.is_zipfile(path)
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except PermissionError as error:
        raise EtymonError(f"cannot read {path}: {error.strerror}") from error
    except pickle.UnpicklingError as error:
        code = re.search(r"GLOBAL (\S+)", str(error))
        if code is None:
            raise _damage_error(path, "not a PyTorch state dict") from error
        raise EtymonError(
            f"{path} holds code ({code[1]}), not only tensors, and was not opened; get a safetensors version"
        ) from error
    except Exception as error:  # a broken pickle may raise anything at all
        raise _damage_error(path, str(error)) from error
    if not isinstance(state, dict):
        raise EtymonError(f"{path} holds a {type(state).__name__}, not tensors by name; save a state_dict")
    for name, value in state.items():
        if not isinstance(name, str) or not isinstance(value, torch.Tensor):
            problem = f"{name!r} is a {type(value).__name__}, not a tensor"
            raise EtymonError(f"{path} is not a state dict: {problem}; save model.state_dict() alone")
    return {name: value.detach() for name, value in state.items()}


def _open_index(index: Path) -> Weights:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
        raise EtymonError(f"{index} has no weight_map from tensor names to files; download it again")
    files = sorted(set(weight_map.values()))
    for file in files:
        if Path(file).name != file:  # an index must not reach outside of its folder
            raise EtymonError(f"{index} names the shard {file!r}, which is not beside it; download it again")
    missing = [file for file in files if not (index.parent / file).is_file()]
    if missing:
        raise EtymonError(
            f"{len(missing)} of {len(files)} shards that {index} names are missing: {some(missing, 3)}; "
            "download or copy them again"
        )
    readers = {file: _open_file(index.parent / file) for file in files}
    lost = sorted(name for name, file in weight_map.items() if name not in readers[file])
    if lost:
        raise EtymonError(
            f"{index} names tensors that its shards do not hold: {some(lost, 3)}; index and shards belong to "
            "different models, download them again together"
        )
    named = {name: readers[file][name] for name, file in weight_map.items()}
    return Weights(named, [index.parent / file for file in files])


def _damage_error(path: Path, reason: str) -> EtymonError:
    with open(path, "rb") as file:
        pointer = file.read(40).startswith(b"version https://git-lfs")
    if pointer:
        return EtymonError(
            f"{path} is a git-lfs pointer, not the weights themselves; run `git lfs pull` beside it"
        )
    first_line = reason.strip().partition("\n")[0] or "it ends too early"
    return EtymonError(f"{path} is damaged or incomplete ({first_line}); download or copy it again")


def _shards(tensors: Mapping[str, torch.Tensor], shard_size: int | None) -> list[list[str]]:
    """Names by file, filled in order; a tensor beyond the limit has a file of its own."""
    shards: list[list[str]] = [[]]
    filled = 0
    for name in sorted(tensors):
        size = _bytes(tensors[name])
        if shard_size is not None and shards[-1] and filled + size > shard_size:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += size
    return shards


def _write_file(path: Path, tensors: Mapping[str, torch.Tensor], names: list[str]) -> None:
    # safetensors replaces the file by one that only its owner may read: note what the umask gives.
    path.touch()
    mode = path.stat().st_mode
    shard = {name: tensors[name].detach().to("cpu").contiguous() for name in names}
    try:
        save_file(shard, path, metadata={"format": "pt"})
    except SafetensorError as error:
        failure = re.search(r"I/O error: (.*?)(?: \(os error \d+\))?$", str(error))
        if failure is None:
            raise
        raise EtymonError(f"cannot write {path}: {failure[1]}; nothing was changed there") from error
    path.chmod(mode)


def _refuse_aliases(tensors: Mapping[str, torch.Tensor]) -> None:
    """Two names for one memory would be saved twice and come back untied: the caller must drop one of
    them."""
    extents: list[tuple[str, int, int, str]] = []
    for name, tensor in tensors.items():
        if tensor.is_meta:
            raise ValueError(f"the tensor {name} has no values (it is on the meta device)")
        if tensor.numel():
            # Columns of one matrix interleave without touching, so only a contiguous extent counts whole.
            extent = _bytes(tensor) if tensor.is_contiguous() else 1
            extents.append((str(tensor.device), tensor.data_ptr(), tensor.data_ptr() + extent, name))
    extents.sort()
    for (device, _, stop, name), (next_device, start, _, next_name) in pairwise(extents):
        if device == next_device and start < stop:
            raise ValueError(
                f"{name} and {next_name} share memory; drop one of two tied names before writing"
            )


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
