"""Small parts of every model: linear maps and tables, norms, activations by name, and dropout.

Parameters are left blank until a family initialises or a checkpoint fills them: PyTorch's own constructors
would draw random numbers that are thrown away at once.

Dropout draws sixteen random bits an element; PyTorch draws a float, which on a processor took longer than
the linear layer before it (docs/lab-notes.md). The rate is off by less than 1/65,536. All draws come from
the device's generator, so that a seed decides them.

Legend: R rows, H heads, Q queries, T keys, K head width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from etymon.nn.precision import follow, widen
from etymon.nn.products import Multiplied

Rate = Annotated[float, Field(ge=0, lt=1)]
"""Of a dropout: below 1, so that something is left."""


def keep_mask(shape: torch.Size, rate: float, dtype: torch.dtype = torch.bool) -> Tensor:
    """Which elements stay, on the CPU: each with probability 1 - `rate`. As floats they can be multiplied
    with."""
    count = shape.numel()
    # One draw of 64 bits serves four elements: 16 bits are compared with the rate.
    bits = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    kept = torch.empty(count, dtype=dtype)
    # A signed 16-bit number is at least `rate * 65536 - 32768` with probability 1 - rate.
    return torch.ge(bits.view(torch.int16)[:count], round(rate * 65536) - 32768, out=kept).view(shape)


class _Dropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rate: float) -> Tensor:
        keep = keep_mask(x.shape, rate)
        ctx.save_for_backward(keep)
        ctx.factor = 1 / (1 - rate)
        return (x * keep).mul_(ctx.factor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (keep,) = ctx.saved_tensors
        return (gradient * keep).mul_(ctx.factor), None


def dropout(x: Tensor, rate: float) -> Tensor:
    """Zeroes elements with probability `rate` and scales the others up."""
    if rate == 0.0:
        return x
    if x.device.type != "cpu":
        return F.dropout(x, rate)
    return _Dropped.apply(x, rate)


class Dropout(nn.Module):
    """`dropout` while training, nothing otherwise."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.rate) if self.training else x

    # Without the machinery for hooks: a token of GPT-2 goes through 38 of these, which do nothing then.
    __call__ = forward

    def extra_repr(self) -> str:
        return f"{self.rate:g}"


class StoredAttention(torch.autograd.Function):
    """Scaled dot-product attention that keeps its weights for the way back, on the CPU, with dropout on them
    or without; `mask` is boolean or a bias to add.

    PyTorch's fused kernels have no dropout on a processor, and its general path keeps three arrays of `[R,
    H, Q, T]` for the way back; this keeps the weights, and a byte an element for what was dropped.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        causal: bool,
        scale: float,
        rate: float,
    ) -> Tensor:
        # The smaller array is scaled.
        scores = (q * scale) @ k.transpose(-1, -2)
        hidden = None
        if causal:
            hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu_(1)
        elif mask is not None and mask.dtype == torch.bool:
            hidden = ~mask
        elif mask is not None:
            scores.add_(mask)
        if hidden is not None:
            scores.masked_fill_(hidden, float("-inf"))
        # Dropout comes after the softmax: weights are kept whole for its gradient.
        weights = torch.softmax(scores, -1)
        if hidden is not None and not causal:
            weights.masked_fill_(hidden, 0.0)  # a query that may see nothing gets zeros, and not NaN
        keep = keep_mask(weights.shape, rate) if rate else None
        ctx.save_for_backward(q, k, v, weights, keep)
        ctx.scale, ctx.factor = scale, 1 / (1 - rate)
        ctx.bias_shape = mask.shape if mask is not None and ctx.needs_input_grad[3] else None
        if keep is None:
            return weights @ v
        torch.mul(weights, keep, out=scores)  # the scores are needed no more: their array is used again
        return (scores @ v).mul_(ctx.factor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, weights, keep = ctx.saved_tensors
        if keep is None:
            gradient_v = weights.transpose(-1, -2) @ gradient
            error = gradient @ v.transpose(-1, -2)
        else:
            # The factor of what is kept is applied to the smaller array, `[.., Q, K]`.
            gradient = gradient * ctx.factor
            gradient_v = (weights * keep).transpose(-1, -2) @ gradient
            error = (gradient @ v.transpose(-1, -2)).mul_(keep)
        error = torch._softmax_backward_data(error, weights, -1, error.dtype)
        # A bias may be shared by rows or heads: its gradient is the sum over them.
        gradient_bias = None if ctx.bias_shape is None else error.sum_to_size(ctx.bias_shape)
        gradient_q = (error @ k).mul_(ctx.scale)
        gradient_k = (error.transpose(-1, -2) @ q).mul_(ctx.scale)
        return gradient_q, gradient_k, gradient_v, gradient_bias, None, None, None


class Linear(Multiplied, nn.Linear):
    """A linear map that computes in the type of its input."""

    def reset_parameters(self) -> None:
        pass

    def forward(self, x: Tensor) -> Tensor:
        return self.multiply(x, self.weight, self.bias)


class Embedding(nn.Embedding):
    def reset_parameters(self) -> None:
        pass


class LayerNorm(nn.LayerNorm):
    """Means and variances are float32 whatever the input has; the output has its type."""

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype == self.weight.dtype or x.device.type == "cpu":
            # On a processor the kernel takes half-precision inputs with float32 weights. By its plain name:
            # two wrappers around it take longer than a row of 768 (3.7 against 1.7 µs, 25 times a token).
            return torch.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
        return super().forward(x.to(self.weight.dtype)).to(x.dtype)


class RootMeanSquareNorm(nn.Module):
    """Scale-only normalisation (T5): no mean is taken off, no bias is added."""

    def __init__(self, dim: int, epsilon: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        wide = widen(x)
        return F.rms_norm(wide, self.weight.shape, follow(self.weight, wide), self.epsilon).to(x.dtype)


Activation = Callable[[Tensor], Tensor]


def gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def quick_gelu(x: Tensor) -> Tensor:
    # The sigmoid approximation of GELU (Hendrycks and Gimpel 2016).
    return x * torch.sigmoid(1.702 * x)


def clipped_gelu(x: Tensor) -> Tensor:
    return F.gelu(x).clamp(-10, 10)


def squared_relu(x: Tensor) -> Tensor:
    return F.relu(x).square()


def laplace(x: Tensor) -> Tensor:
    """The normal distribution function around sqrt(1/2), which approximates a squared ReLU (Ma et al.
    2022)."""
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
"""`gelu` is x * Phi(x) by the error function; `gelu_tanh` its approximation by tanh. Published folders
spell one function in several ways, all of which are names here, so that a folder is written with the
spelling it was read with."""


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Turns dropout off, and afterwards back to what it was."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)
