"""Half precision: the activations decide.

Weights, gradients, optimiser and losses stay in float32. Where a model turns ids into vectors it rounds them
to its `compute_dtype`, and every part behind follows the numbers that it gets: matrices are rounded to the
type of what they are multiplied with (`follow`), norms and softmaxes add up in float32 inside, and heads
answer in float32 (`widen`). So nothing is half by accident, and no list of operators, which differs from
device to device, decides instead (as `torch.autocast` would).

Recurrent bodies compute in float32: a state that is rounded at every token drifts. Their vocabularies are
computed in half precision all the same.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from etymon.errors import EtymonError

Precision = Literal["float32", "bf16", "fp16"]

DTYPES: dict[str, torch.dtype] = {"float32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class ComputesInPrecision:
    """Mixed into the modules at which a model's numbers begin: they `enter` them into its precision."""

    compute_dtype: torch.dtype | None = None
    """None: that of the weights."""

    def enter(self, x: Tensor) -> Tensor:
        """The numbers that enter a model, rounded to its precision."""
        return x if self.compute_dtype is None else x.to(self.compute_dtype)


def set_precision(module: nn.Module, precision: Precision) -> None:
    """From now on the models in `module` compute in this precision; their weights stay as they are."""
    dtype = None if precision == "float32" else DTYPES[precision]
    for part in module.modules():
        if isinstance(part, ComputesInPrecision):
            part.compute_dtype = dtype


def get_precision(module: nn.Module) -> Precision:
    """The precision that the models in `module` compute in."""
    found = {part.compute_dtype for part in module.modules() if isinstance(part, ComputesInPrecision)}
    names: dict[torch.dtype | None, Any] = {dtype: name for name, dtype in DTYPES.items()}
    return names[found.pop() or torch.float32] if found else "float32"


def round_weights(model: nn.Module, precision: Precision) -> None:
    """Rounds the matrices of a model that is only read from, once: half the memory, and half of it to read
    for every token. Vectors (biases, norms) keep float32, and so do modules with `keeps_float32`."""
    if precision == "float32":
        return
    set_precision(model, precision)
    kept = {
        id(parameter)
        for part in model.modules()
        if getattr(part, "keeps_float32", False)
        for parameter in part.parameters()
    }
    for parameter in model.parameters():
        if parameter.dim() > 1 and parameter.is_floating_point() and id(parameter) not in kept:
            parameter.requires_grad_(False)
            parameter.data = parameter.data.to(DTYPES[precision])


def require_precision(precision: Precision, device: torch.device) -> None:
    """Refuses a precision that the device cannot compute in."""
    if precision == "float32":
        return
    lacks_bf16 = device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False)
    try:
        ones = torch.ones(2, 2, dtype=DTYPES[precision], device=device)
        lacks = (precision == "bf16" and lacks_bf16) or float((ones @ ones)[0, 0]) != 2
    except (RuntimeError, TypeError):
        lacks = True
    if lacks:
        other = "fp16" if precision == "bf16" and device.type == "cuda" else "float32"
        raise EtymonError(f"this {device.type} device cannot compute in {precision}: say --precision {other}")


def follow(parameter: Tensor, x: Tensor) -> Tensor:
    """A parameter in the type of the numbers that it meets. Its gradient comes back in its own."""
    return parameter if parameter.dtype == x.dtype else parameter.to(x.dtype)


def widen(x: Tensor) -> Tensor:
    """At least float32: losses, logits and scores are no half-precision numbers."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
