"""First values of parameters, by rules over their names.

Every parameter draws from its own generator, keyed by seed and name: adding a head or a layer changes no other
parameter's start.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

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
    """Uniform, with a variance between those that keep the size of values and that of gradients."""
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


def remembering(bias: Tensor, generator: torch.Generator) -> None:
    """Of an LSTM: the forget gates, which are the second of four, begin open."""
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
        digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
        blank = torch.empty(parameter.shape, dtype=torch.float32)
        filler(blank, generator)
        parameter.copy_(blank)
