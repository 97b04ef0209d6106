"""The weights of a Hugging Face folder: safetensors, whole or in shards. Foreign `.bin` files are read only.

Reading is lazy: `open_weights` reads the headers, checks that every promised tensor is there, and each tensor
is read when it is asked for.
"""

from __future__ import annotations

import os
import pickle
import re
import secrets
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from etymon.checkpoints.documents import holds, read_json, write_json
from etymon.errors import EtymonError

WHOLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLED = "pytorch_model.bin"
PICKLED_INDEX = "pytorch_model.bin.index.json"
MODEL_FILES = (WHOLE, INDEX, PICKLED, PICKLED_INDEX)
ADAPTERS = "adapter_model.safetensors"
ADAPTER_FILES = (ADAPTERS, "adapter_model.bin")
SHARD_SIZE = 5 * 10**9


class Weights(Mapping[str, torch.Tensor]):
    """The tensors of a folder by name, in sorted order. `weights[name]` reads one."""

    def __init__(self, readers: Mapping[str, Reader]) -> None:
        self._readers = {name: readers[name] for name in sorted(readers)}

    @property
    def files(self) -> list[Path]:
        return sorted({reader.path for reader in self._readers.values()})

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._readers[name].read(name)

    def __contains__(self, name: object) -> bool:
        return name in self._readers  # the inherited one would read the tensor to find out

    def __iter__(self) -> Iterator[str]:
        return iter(self._readers)

    def __len__(self) -> int:
        return len(self._readers)


def open_weights(folder: str | os.PathLike[str], files: Sequence[str] = MODEL_FILES) -> Weights:
    """Open the weights of a model folder: the first of `files` that there is, in the order of preference of Transformers.

    Missing shards, tensors that an index promises and no file has, and broken files are refused here, not
    when the tensor is wanted.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise EtymonError(f"no such folder: {folder}")
    for name in files:
        path = folder / name
        if path.is_file():
            return _open_index(path) if name.endswith(".json") else Weights(_by_name(_open_file(path)))
    raise EtymonError(
        f"no weights in {folder}: looked for {', '.join(files[:-1])} and {files[-1]}, but {holds(folder)}"
    )


def write_weights(
    folder: str | os.PathLike[str], tensors: Mapping[str, torch.Tensor], shard_size: int | None = SHARD_SIZE
) -> None:
    """Write `tensors` into `folder` as Transformers would: one file, or shards of at most `shard_size` bytes.

    The same tensors give the same bytes, whatever the order of `tensors`. Tied names must have been dropped by
    the caller. Weights that are already there are not replaced file by file, because a crash in between would
    mix two models: write a new folder (`write_model_folder`).
    """
    folder = Path(folder)
    for present in (WHOLE, INDEX):
        if (folder / present).exists():
            raise EtymonError(f"{folder} already holds weights ({present}); write to a new folder")
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
    try:
        for file, names in zip(files, shards):
            _write_file(file, tensors, names)
        weight_map = {name: file.name for file, names in zip(files, shards) for name in names}
        write_json(
            folder / INDEX, {"metadata": totals, "weight_map": weight_map}
        )  # last: it makes them a model
    except BaseException:
        for file in files:
            file.unlink(missing_ok=True)
        raise


class Reader(Protocol):
    """One open weights file."""

    path: Path
    names: frozenset[str]

    def read(self, name: str) -> torch.Tensor: ...


class SafetensorsFile:
    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = safe_open(
                str(path), framework="pt"
            )  # also compares the header with the file's length
        except SafetensorError as error:
            raise _damaged(path, str(error)) from error
        except OSError as error:
            raise EtymonError(f"cannot read {path}: {error.strerror or error}") from error
        self.names = frozenset(self._file.keys())

    def read(self, name: str) -> torch.Tensor:
        try:
            tensor: torch.Tensor = self._file.get_tensor(name)
        except SafetensorError as error:
            raise _damaged(self.path, str(error)) from error
        return tensor


class PickledFile:
    """A state dict that `torch.save` wrote, opened without running any code that it may hold."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # Files from before torch 1.6 are not zip archives; those have to be read whole.
        mapped = zipfile.is_zipfile(path)
        try:
            found = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
        except PermissionError as error:
            raise EtymonError(f"cannot read {path}: {error.strerror}") from error
        except pickle.UnpicklingError as error:
            code = re.search(r"GLOBAL (\S+)", str(error))
            if code is None:
                raise _damaged(path, "not a PyTorch state dict") from error
            raise EtymonError(
                f"{path} holds code ({code[1]}), not only tensors, and was not opened; get a safetensors version"
            ) from error
        except Exception as error:  # a broken pickle may raise anything at all
            raise _damaged(path, str(error)) from error
        if not isinstance(found, dict):
            raise EtymonError(
                f"{path} holds a {type(found).__name__}, not tensors by name; save a state_dict"
            )
        for name, value in found.items():
            if not isinstance(name, str) or not isinstance(value, torch.Tensor):
                what = f"{name!r} is a {type(value).__name__}, not a tensor"
                raise EtymonError(f"{path} is not a state dict: {what}; save model.state_dict() alone")
        self._tensors = {name: value.detach() for name, value in found.items()}
        self.names = frozenset(self._tensors)

    def read(self, name: str) -> torch.Tensor:
        return self._tensors[name]


def _open_file(path: Path) -> Reader:
    return PickledFile(path) if path.suffix == ".bin" else SafetensorsFile(path)


def _by_name(reader: Reader) -> dict[str, Reader]:
    return dict.fromkeys(reader.names, reader)


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
            f"{len(missing)} of {len(files)} shards that {index} names are missing: {_some(missing)}; "
            "download or copy them again"
        )
    readers = {file: _open_file(index.parent / file) for file in files}
    lost = sorted(name for name, file in weight_map.items() if name not in readers[file].names)
    if lost:
        raise EtymonError(
            f"{index} names tensors that its shards do not hold: {_some(lost)}; index and shards belong to "
            "different models, download them again together"
        )
    return Weights({name: readers[file] for name, file in weight_map.items()})


def _damaged(path: Path, reason: str) -> EtymonError:
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
    aside = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.partial")
    shard = {name: tensors[name].detach().to("cpu").contiguous() for name in names}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # safetensors replaces the file by one that only its owner may read: note what the umask gives.
        aside.touch()
        mode = aside.stat().st_mode
        save_file(shard, aside, metadata={"format": "pt"})
        aside.chmod(mode)
        with open(aside, "r+b") as file:
            os.fsync(file.fileno())
        os.replace(aside, path)
    except SafetensorError as error:
        failure = re.search(r"I/O error: (.*?)(?: \(os error \d+\))?$", str(error))
        if failure is None:
            raise
        raise EtymonError(f"cannot write {path}: {failure[1]}; nothing was changed there") from error
    except OSError as error:
        raise EtymonError(
            f"cannot write {path}: {error.strerror or error}; nothing was changed there"
        ) from error
    finally:
        aside.unlink(missing_ok=True)


def _refuse_aliases(tensors: Mapping[str, torch.Tensor]) -> None:
    """Two names for one memory would be saved twice and come back untied: the caller must drop one of them."""
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


def _some(names: list[str], limit: int = 3) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
