"""The activations of feed-forward parts and heads, by name."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

Activation = Callable[[Tensor], Tensor]


def gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


def clipped_gelu(x: Tensor) -> Tensor:
    return F.gelu(x).clamp(-10, 10)


def squared_relu(x: Tensor) -> Tensor:
    return F.relu(x).square()


def laplace(x: Tensor) -> Tensor:
    """The normal distribution function around sqrt(1/2), which approximates a squared ReLU (Ma et al. 2022)."""
    return torch.special.ndtr((x - 0.707107) / 0.282095)


def identity(x: Tensor) -> Tensor:
    return x


ACTIVATIONS: dict[str, Activation] = {
    "gelu": F.gelu,
    "gelu_python": F.gelu,
    "gelu_tanh": gelu_tanh,
    "gelu_fast": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
    "gelu_python_tanh": gelu_tanh,
    "gelu_accurate": gelu_tanh,
    "gelu_10": clipped_gelu,
    "quick_gelu": quick_gelu,
    "relu": F.relu,
    "relu2": squared_relu,
    "relu6": F.relu6,
    "leaky_relu": F.leaky_relu,
    "silu": F.silu,
    "swish": F.silu,
    "hardswish": F.hardswish,
    "mish": F.mish,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "laplace": laplace,
    "linear": identity,
}
"""`gelu` is x * Phi(x) by the error function; `gelu_tanh` its approximation by tanh. Published folders spell one function in
several ways, all of which are names here, so that a folder is written with the spelling it was read with."""
