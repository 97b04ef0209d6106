"""Files of `torch.save` that hold more than tensors, opened without running anything that is in them.

PyTorch's restricted unpickler builds tensors, plain containers and what it is told. It is told of inert
stand-ins: objects with the attributes of the original ones and none of their code.
"""

from __future__ import annotations

import argparse
import errno
import pickle
import pickletools
import re
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from etymon.errors import EtymonError


class StandIn:
    """An object of a class that is not here: its attributes, what it was made from, and no code."""

    # In a slot, so that no attribute of the original object takes its place.
    __slots__ = ("__dict__", "arguments")
    arguments: tuple[Any, ...]

    def __new__(cls, *arguments: Any) -> StandIn:
        made = super().__new__(cls)
        # A choice (an enum) is nothing but the value that it is made from.
        made.arguments = arguments
        return made

    def __setstate__(self, state: Any) -> None:
        # Slots and the like would come as something else, which no module of these codes has.
        if isinstance(state, dict):
            self.__dict__.update({key: value for key, value in state.items() if isinstance(key, str)})


def no_backend(*arguments: Any) -> None:
    """What modules of PyTorch before 1.5 were bound to."""


def empty_table(*arguments: Any) -> dict[Any, Any]:
    """What a dictionary with a default for missing keys is here."""
    return {}


def names_in_pickle(path: Path) -> list[str]:
    """The full names of classes and functions that a file holds beside what PyTorch opens by itself, without
    looking any of them up."""
    try:
        if zipfile.is_zipfile(path):
            return torch.serialization.get_unsafe_globals_in_checkpoint(str(path))
        with path.open("rb") as file:
            # Before torch 1.6 the object comes fourth: behind a magic number, a version and the system's
            # sizes.
            codes = [code for _ in range(4) for code in pickletools.genops(file)]
        return [str(name).replace(" ", ".") for code, name, _ in codes if code.name == "GLOBAL"]
    except Exception:  # damaged, which is found and said when it is opened
        return []


def load_pickle(path: Path, stand_ins: Sequence[str] = ()) -> Any:
    """What a file holds. Beside tensors and plain values, only `argparse.Namespace` and the classes in
    `stand_ins`, by their full names, may be among it."""
    # A name that is not listed ends the reading before anything of it is looked up.
    allowed: list[Any] = [argparse.Namespace, *((StandIn, name) for name in stand_ins)]
    if stand_ins:
        allowed.append((no_backend, "torch.nn.backends.thnn._get_thnn_function_backend"))
        allowed.append((empty_table, "collections.defaultdict"))
    try:
        with torch.serialization.safe_globals(allowed):
            # Files from before torch 1.6 are not zip archives; those have to be read whole.
            return torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except OSError as error:
        # Half an archive: PyTorch looks for its end before its beginning.
        if error.errno == errno.EINVAL:
            raise _damage(path) from error
        raise EtymonError(f"cannot read {path}: {error.strerror or error}") from error
    except pickle.UnpicklingError as error:
        code = re.search(r"GLOBAL (\S+)", str(error))
        if code is not None:
            raise EtymonError(
                f"{path} holds code ({code[1]}), not only tensors and settings, and was not opened"
            ) from error
        raise _damage(path) from error
    except Exception as error:  # a broken pickle may raise anything at all
        raise _damage(path) from error


def _damage(path: Path) -> EtymonError:
    return EtymonError(f"{path} is damaged, or no file of PyTorch; download or copy it again")


def module_tensors(module: Any, prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Tensor]]:
    """The parameters and buffers of a stand-in for a module, by the names that `state_dict` gives them."""
    if depth > 20:  # its own child, in a file that was made to be wrong
        return
    state = getattr(module, "__dict__", {})
    for kind in ("_parameters", "_buffers"):
        for name, tensor in _items(state.get(kind)):
            if isinstance(tensor, Tensor):
                yield f"{prefix}{name}", tensor.detach()
    for name, child in _items(state.get("_modules")):
        yield from module_tensors(child, f"{prefix}{name}.", depth + 1)


def _items(table: Any) -> Iterator[tuple[str, Any]]:
    return iter([(str(key), value) for key, value in table.items()] if isinstance(table, dict) else [])
