"""First values of parameters, by rules over their names, and where parameters lie in memory.

Every parameter draws from a generator of its own, keyed by seed and name: adding a head or a layer changes
no other parameter's start.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

Filler = Callable[[Tensor, torch.Generator], object]


def normal(deviation: float) -> Filler:
    return lambda tensor, generator: tensor.normal_(0.0, deviation, generator=generator)


def truncated_normal(deviation: float) -> Filler:
    """Normal, redrawn beyond two deviations (as TensorFlow's initialiser of that name)."""
    return lambda tensor, generator: nn.init.trunc_normal_(
        tensor, std=deviation, a=-2 * deviation, b=2 * deviation, generator=generator
    )


def uniform(bound: float) -> Filler:
    return lambda tensor, generator: tensor.uniform_(-bound, bound, generator=generator)


def xavier(tensor: Tensor, generator: torch.Generator) -> None:
    """Uniform, with a variance between those that keep the size of values and the size of gradients (Glorot
    2010)."""
    nn.init.xavier_uniform_(tensor, generator=generator)


def orthogonal(tensor: Tensor, generator: torch.Generator) -> None:
    """Every square block of rows, that is every gate of a recurrent map, keeps the length of what it maps."""
    for block in tensor.split(tensor.shape[1]):
        nn.init.orthogonal_(block, generator=generator)


def with_zero_row(filler: Filler, row: int) -> Filler:
    """The same, and then one row of nothing: a padding token's."""

    def fill(tensor: Tensor, generator: torch.Generator) -> None:
        filler(tensor, generator)
        tensor[row].zero_()

    return fill


def open_forget_gates(bias: Tensor, generator: torch.Generator) -> None:
    """Biases of an LSTM: 1 for the forget gates, the second of four, which begin open; else 0."""
    bias.zero_().chunk(4)[1].fill_(1.0)


def constant(value: float) -> Filler:
    return lambda tensor, generator: tensor.fill_(value)


COMMON: list[tuple[str, Filler]] = [("*norm.weight", constant(1.0)), ("*bias", constant(0.0))]
"""What all families agree on; a family's own rules come first."""


def normal_weights(shape: Any) -> list[tuple[str, Filler]]:
    return [*COMMON, ("*.weight", normal(shape.deviation))]


def truncated_weights(shape: Any) -> list[tuple[str, Filler]]:
    return [*COMMON, ("*.weight", truncated_normal(shape.deviation))]


@torch.no_grad()
def initialise(
    model: nn.Module,
    rules: Sequence[tuple[str, Filler]],
    seed: int = 0,
    only: Callable[[str], bool] | None = None,
) -> None:
    """Fills every parameter by the first rule whose pattern matches its name."""
    for name, parameter in model.named_parameters():
        if only is not None and not only(name):
            continue
        filler = next((filler for pattern, filler in rules if fnmatchcase(name, pattern)), None)
        if filler is None:
            raise LookupError(f"no rule initialises {name}")
        # Drawn on the CPU and in float32, so that device and precision do not change the values.
        digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
        blank = torch.empty(parameter.shape, dtype=torch.float32)
        filler(blank, generator)
        parameter.copy_(blank)


ALIGNMENT = 64
"""Bytes: PyTorch's own, and the width of the widest vectors."""


def align(module: nn.Module) -> None:
    """Moves those parameters and buffers of a module that are not aligned."""
    # A kernel may add up in another order where a row does not begin at a multiple of its vectors' width,
    # so that two equal models agree to the last bit only if their weights lie alike. PyTorch allocates
    # aligned memory; what is mapped from a file lies wherever the file's header ends.
    for tensor in chain(module.parameters(), module.buffers()):
        if not is_aligned(tensor):
            tensor.data = tensor.data.clone()


def is_aligned(tensor: Tensor) -> bool:
    """Always true on other devices, which align by themselves, and for tensors without values."""
    if tensor.device.type != "cpu" or isinstance(tensor.data, FakeTensor):
        return True
    return tensor.data_ptr() % ALIGNMENT == 0


def stored_buffers(module: nn.Module) -> dict[str, Tensor]:
    """The buffers that a checkpoint holds, by name (of a sharded model, `state_dict` would take the weights
    apart again)."""
    return {
        f"{place}.{name}" if place else name: buffer
        for place, part in module.named_modules()
        for name, buffer in part.named_buffers(recurse=False)
        if name not in part._non_persistent_buffers_set
    }
