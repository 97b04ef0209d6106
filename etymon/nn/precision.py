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

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from etymon.errors import EtymonError
from etymon.nn.machine import best_time, measured_once

Precision = Literal["float32", "bf16", "fp16"]

DTYPES: dict[Precision, torch.dtype] = {
    "float32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}


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
    # Only where numbers enter: everything behind follows their type.
    for part in module.modules():
        if isinstance(part, ComputesInPrecision):
            part.compute_dtype = dtype


def get_precision(module: nn.Module) -> Precision:
    """The precision that the models in `module` compute in."""
    dtypes = {part.compute_dtype for part in module.modules() if isinstance(part, ComputesInPrecision)}
    names: dict[torch.dtype | None, Any] = {dtype: name for name, dtype in DTYPES.items()}
    return names[dtypes.pop() or torch.float32] if dtypes else "float32"


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


TOO_SLOW = 2.0
"""A processor without arithmetic of a precision emulates it, at a tenth of the speed of float32 and less."""


def require_precision(precision: Precision, device: torch.device) -> None:
    """Refuses a precision that the device cannot compute in, or only by emulation."""
    if precision == "float32":
        return
    reason = ""
    if device.type == "cuda" and precision == "bf16":
        if not torch.cuda.is_bf16_supported(including_emulation=False):
            reason = f"{torch.cuda.get_device_name(device)} has no bfloat16"
    elif device.type != "cuda":
        try:
            slower = 1 / products_speed(precision, device, [(256, 256)], rows=256)
        except (RuntimeError, TypeError):
            reason = f"this {device.type} device cannot multiply in it"
        else:
            if slower > TOO_SLOW:
                reason = (
                    f"this {device.type} device has no arithmetic for it, it is {slower:.0f} times slower"
                )
    if reason:
        raise EtymonError(f"no precision {precision} here: {reason}; say --precision float32, or auto")


def products_speed(
    precision: Precision, device: torch.device, sizes: Sequence[tuple[int, int]], rows: int
) -> float:
    """How many times as fast as in float32 products of `rows` rows with matrices of these sizes are in a
    precision. Measured once a machine."""

    def measure() -> float:
        times: dict[Precision, float] = {"float32": 0.0, precision: 0.0}
        for outputs, inputs in sizes:
            for name in times:
                x_RI = torch.ones(rows, inputs, dtype=DTYPES[name], device=device)
                weight_OI = torch.ones(outputs, inputs, dtype=DTYPES[name], device=device)
                times[name] += best_time(partial(F.linear, x_RI, weight_OI), device)
        return float(f"{times['float32'] / times[precision]:.2g}")

    shapes = " and ".join(f"{inputs}x{outputs}" for outputs, inputs in sizes)
    return float(measured_once(f"{precision} against float32, {rows} rows of {shapes}", device, measure))


WORTH_IT = 1.2
"""How many times faster half precision has to be for `auto` to choose it: less is not worth its rounding."""
ROWS = 1024


def choose_precision(model: nn.Module, device: torch.device) -> tuple[Precision, str]:
    """What `auto` stands for here, and why, in words: half precision if two products of the model's own
    sizes are clearly faster in it."""
    # The largest two take most of a step: small ones may even be slower in half precision.
    sizes = {(part.shape[0], part.shape[1]) for part in model.parameters() if part.dim() == 2}
    largest = sorted(sizes, key=lambda size: (size[0] * size[1], size))[-2:]
    refusal = ""
    # fp16 only where there is no bf16: it needs a loss scale.
    for half in ("bf16", "fp16"):
        try:
            require_precision(half, device)
        except EtymonError as error:
            refusal = refusal or str(error).removesuffix("; say --precision float32, or auto")
            continue
        gain = products_speed(half, device, largest, ROWS)
        shapes = " and ".join(f"{inputs}x{outputs}" for outputs, inputs in largest)
        reason = f"products of {ROWS:,} rows with {shapes} are {gain:g} times as fast in {half} as in float32"
        return (half, reason) if gain >= WORTH_IT else ("float32", reason)
    return "float32", refusal


def follow(parameter: Tensor, x: Tensor) -> Tensor:
    """A parameter in the type of the numbers that it meets. Its gradient comes back in its own."""
    return parameter if parameter.dtype == x.dtype else parameter.to(x.dtype)


def widen(x: Tensor) -> Tensor:
    """At least float32: losses, logits and scores are no half-precision numbers."""
    return x.float() if is_half(x) else x


def is_half(x: Tensor) -> bool:
    return x.dtype in (torch.bfloat16, torch.float16)
