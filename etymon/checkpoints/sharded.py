"""Checkpoints in parts, as several processes write them (torch.distributed.checkpoint), read by any number.

`<checkpoint>/shards` holds the tensors, `<checkpoint>/<model>` a model folder without weights.
"""

from __future__ import annotations

import io
import pickle
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from etymon.errors import EtymonError

SHARDS = "shards"
METADATA = ".metadata"
# What a table of tensors is made of: anything else in it is refused.
TABLES = {
    "torch.distributed.checkpoint.metadata": {
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.serialization": {"_get_layout"},
    "torch": {"Size"},
    "pathlib": {"PosixPath", "WindowsPath"},
}


def is_sharded(checkpoint: Path) -> bool:
    return (checkpoint / SHARDS / METADATA).is_file()


def shard_sizes(checkpoint: Path) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Size and kind of every tensor, by name."""
    with _read_errors(checkpoint):
        entries = _reader(checkpoint).read_metadata().state_dict_metadata
        return {name: (entry.size, entry.properties.dtype) for name, entry in entries.items()}


def read_into(checkpoint: Path, tensors: Mapping[str, Tensor]) -> None:
    """Fills tensors by name, in place; of those that are cut over processes, this process's part alone."""
    if not tensors:
        return
    with _read_errors(checkpoint):
        from torch.distributed.checkpoint import load

        # Each process reads by itself what it needs: none waits for another.
        with warnings.catch_warnings(action="ignore", category=UserWarning):
            load(dict(tensors), storage_reader=_reader(checkpoint), no_dist=True)


def read_whole(checkpoint: Path, prefix: str = "") -> dict[str, Tensor]:
    """The tensors whose names begin so, under the rest of their names."""
    sizes = {name: size for name, size in shard_sizes(checkpoint).items() if name.startswith(prefix)}
    tensors = {name: torch.empty(size, dtype=dtype) for name, (size, dtype) in sizes.items()}
    read_into(checkpoint, tensors)
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}


def model_prefix(checkpoint: Path, member: str) -> str:
    """What the names of a member's tensors begin with: those of a model that trains beside say so."""
    beside = f"companions.{member}."
    return beside if any(name.startswith(beside) for name in shard_sizes(checkpoint)) else "model."


def _reader(checkpoint: Path) -> Any:
    from torch.distributed.checkpoint import FileSystemReader

    class SafeReader(FileSystemReader):
        """PyTorch's reader unpickles the table of tensors: from a foreign folder that could run anything."""

        def read_metadata(self, *args: Any, **kwargs: Any) -> Any:
            from torch.distributed.checkpoint.metadata import StorageMeta

            metadata = _TableReader(io.BytesIO((checkpoint / SHARDS / METADATA).read_bytes())).load()
            metadata.storage_meta = metadata.storage_meta or StorageMeta()
            metadata.storage_meta.load_id = self.load_id
            return metadata

    return SafeReader(checkpoint / SHARDS)


class _TableReader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if is_dtype or name in TABLES.get(module, ()):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} is no part of a table of tensors")


@contextmanager
def _read_errors(checkpoint: Path) -> Iterator[None]:
    try:
        yield
    except EtymonError:
        raise
    except Exception as error:  # DCP wraps whatever its threads met in an exception of its own
        reason = " ".join(str(error).split())[:200]
        raise EtymonError(
            f"the parts in {checkpoint / SHARDS} cannot be read ({reason}): use an older checkpoint"
        ) from error
