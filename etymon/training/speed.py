"""What the machine can do, and what a step asks of it."""

from __future__ import annotations

import time
from functools import cache
from typing import Any

import psutil
import torch
from torch.utils.flop_counter import FlopCounterMode

from etymon.objectives.objective import weighted_loss


@cache
def matmul_peak(seconds: float = 0.3) -> float:
    """Floating-point operations a second of a large float32 matrix product here: the yardstick of utilisation."""
    left, right = torch.randn(1024, 1024), torch.randn(1024, 1024)
    left @ right
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        begin = time.perf_counter()
        left @ right
        best = min(best, time.perf_counter() - begin)
    return 2 * 1024**3 / best


def step_operations(unit: torch.nn.Module, prepared: Any) -> float:
    """Floating-point operations of one slice, forward and backward, counted and not estimated."""
    with FlopCounterMode(display=False) as counter:
        weighted_loss(unit(prepared), prepared.counts).backward()
    for parameter in unit.parameters():
        parameter.grad = None
    return float(counter.get_total_flops())


def memory() -> float:
    """Bytes of memory this process holds."""
    return float(psutil.Process().memory_info().rss)
