"""Speed and memory: the machine's peak, and the floating-point operations of a step, counted and not
estimated."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from math import prod
from typing import Any

import psutil
import torch
from torch.utils.flop_counter import FlopCounterMode, flop_registry, shape_wrapper

from etymon.nn.machine import best_time
from etymon.objectives.objective import weighted_loss
from etymon.training.distributed import CPU
from etymon.training.feeding import Feed, Position
from etymon.training.unit import TrainingUnit

Shape = Sequence[int]


@cache
def matmul_peak(
    device: torch.device = CPU, dtype: torch.dtype = torch.float32, seconds: float = 0.3
) -> float:
    """Floating-point operations a second of a large matrix product here: 100% utilisation."""
    # A processor that emulates a precision takes a minute for what others do in a millisecond.
    size = 8192 if device.type != "cpu" else 1024 if dtype != torch.float16 else 128
    # Ones: nothing is drawn, so that measuring the speed does not change what is drawn next.
    left, right = (torch.ones(size, size, device=device, dtype=dtype) for _ in range(2))
    return 2 * size**3 / best_time(partial(torch.matmul, left, right), device, seconds)


def flops_per_token(unit: TrainingUnit, feed: Feed, slices: int = 1) -> float:
    """Floating-point operations a token, counted in so many slices; the unit must not be wrapped."""
    unit.train()
    unit.objective = feed.objective
    position, device = Position(), next(unit.parameters()).device
    flops: list[float] = []
    tokens: list[int] = []
    with unit.isolated_memory():
        while True:
            addresses, position = feed.addresses(position)
            batch = feed.slice(addresses[0])
            flops.append(slice_flops(unit, batch.to(device)))
            tokens.append(batch.tokens)
            if not unit.memories.tensors():
                if len(tokens) == slices:
                    return sum(flops) / sum(tokens)
            # What streams remember is read, too: the next slice costs more until the memory is full.
            elif len(tokens) > 1 and flops[-1] / tokens[-1] <= flops[-2] / tokens[-2]:
                return flops[-1] / tokens[-1]


def slice_flops(unit: torch.nn.Module, batch: Any) -> float:
    """Floating-point operations of one slice, forward and backward."""
    with FlopCounterMode(display=False, custom_mapping=EXTRA_FLOPS) as counter:
        weighted_loss(unit(batch), batch.counts).backward()
    for parameter in unit.parameters():
        parameter.grad = None
    return float(counter.get_total_flops())


# Counters are called with the shapes of an operation's arguments. A product [.., m, k] x [.., k, n] is k
# multiplications and additions for each of m * n numbers.
def _product(into: Shape, left: Shape, right: Shape, *rest: Any, **options: Any) -> int:
    return 2 * prod(left) * right[-1]


def _attention(query: Shape, key: Shape, value: Shape, *rest: Any, **options: Any) -> int:
    rows, heads, queries, width = query
    # Queries with keys, then weights with values. A causal mask is not subtracted, as in PyTorch's
    # own counters.
    return 2 * rows * heads * queries * key[2] * (width + value[3])


def _attention_backward(grad: Shape, *rest: Any, **options: Any) -> int:
    # The scores, which this kernel computes anew, are not counted twice: another kernel keeps them.
    return 2 * _attention(*rest, **options)


def _recurrence(x: Shape, inputs: Shape, states: Shape, *rest: Any, **options: Any) -> int:
    steps, rows, _ = x
    # Both matrices hold all gates: [gates * width, input width] and [gates * width, width].
    return 2 * steps * rows * (inputs[0] * inputs[1] + states[0] * states[1])


def _recurrence_backward(*shapes: Any, **options: Any) -> int:
    return 2 * _recurrence(*shapes, **options)


# What PyTorch counts nothing for: products that are added in place, and kernels that only processors have.
EXTRA_FLOPS = {
    torch.ops.aten.addmm_: _product,
    torch.ops.aten.baddbmm_: _product,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
    torch.ops.aten.mkldnn_rnn_layer: _recurrence,
    torch.ops.aten.mkldnn_rnn_layer_backward: _recurrence_backward,
}


_COUNTERS = {**flop_registry, **{each: shape_wrapper(count) for each, count in EXTRA_FLOPS.items()}}


def count_operations(func: Any, args: Any, kwargs: Any, result: Any) -> float:
    """Floating-point operations of one call of PyTorch's, as `slice_flops` counts them."""
    counter = _COUNTERS.get(func._overloadpacket)
    return 0.0 if counter is None else float(counter(*args, **kwargs, out_val=result))


def recurrence_operations(x: Shape, weights: Sequence[Any]) -> float:
    """The same of a recurrent layer's way forward; of its weights, matrices count."""
    tokens = prod(x[:-1])
    return float(sum(2 * tokens * prod(each.shape) for each in weights if each.dim() == 2))


def memory_in_use(device: torch.device = CPU) -> float:
    """Bytes of memory this process holds; of a GPU's, the most it has held."""
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device))
    return float(psutil.Process().memory_info().rss)
