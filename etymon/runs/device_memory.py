"""The memory of a run, cut over devices: what each of them holds under every precision and sharding.

What is cut is the estimate of `runs/memory.py`, the one that refuses runs which do not fit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch

from etymon.files import format_bytes
from etymon.nn.footprint import CPU, Footprint, interpolate
from etymon.nn.precision import Precision
from etymon.runs.devices import Device
from etymon.runs.memory import SLICE_TOKENS, Plan

Sharding = Literal["none", "hybrid", "full"]
"""By how much is sent between devices, the least first."""

MOST_ROWS = 1 << 24


@dataclass(frozen=True)
class Cluster:
    """Equal devices on equal nodes."""

    device: Device
    per_node: int
    nodes: int

    @property
    def size(self) -> int:
        return self.per_node * self.nodes

    def can_shard(self, shard: Sharding) -> bool:
        """Whether it differs here from one that communicates less."""
        return shard == "none" or (self.size > 1 and (shard == "full" or self.nodes > 1 < self.per_node))

    def parts(self, shard: Sharding) -> int:
        """That a model is cut into."""
        return {"none": 1, "hybrid": self.per_node, "full": self.size}[shard]

    def __str__(self) -> str:
        nodes = f"{self.nodes} nodes of " if self.nodes > 1 else ""
        return f"{nodes}{self.per_node} x {self.device.name}"


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes that one device holds, part by part, under one precision and one sharding."""

    precision: Precision
    shard: Sharding
    rows: int
    """Samples that are computed at a time."""
    weights: float
    gradients: float
    optimiser: float
    activations: float
    logits: float
    gathered: float
    """Whole weights and gradients of what is computed at the moment, where each device keeps but a part."""
    other: float
    """The program and, on a processor, its allocator's gaps."""
    total: float
    """The most at once, which may be less than the sum: gradients come as activations go."""
    fits: bool
    largest_rows: int
    """Samples that fit at a time; 0: not one."""

    def __str__(self) -> str:
        shard = {"none": "not sharded", "hybrid": "sharded over a node", "full": "sharded over all"}[
            self.shard
        ]
        return f"{self.precision}, {shard}, {format_bytes(self.total)} a device"


class MemoryTable:
    """The memory of a run's devices under any precision and sharding, measured as it is asked for."""

    def __init__(self, plan: Plan, cluster: Cluster) -> None:
        self.plan, self.cluster = plan, cluster
        self._measured: dict[tuple[bool, int], Footprint] = {}

    def footprint(self, rows: int, precision: Precision) -> Footprint:
        """Of slices of so many samples, before anything is cut."""
        is_half = precision != "float32"
        if (is_half, rows) not in self._measured:
            # Both halves are as long.
            samples = [replace(each, rows=rows) for each in self.plan.samples]
            sliced = replace(self.plan, samples=samples, precision="bf16" if is_half else "float32")
            place = CPU if self.cluster.device.is_processor else torch.device("cuda")
            self._measured[is_half, rows] = sliced.footprint(place)
        return self._measured[is_half, rows]

    def row(self, precision: Precision, shard: Sharding, rows: int) -> DeviceMemory:
        """What a device holds with so many samples at a time, and how many would fit."""
        room = self.cluster.device.memory
        # Two measurements tell any number: what a slice takes is linear in its samples.
        most = max(1, SLICE_TOKENS // max(each.length for each in self.plan.samples))
        points = (min(rows, most), 2 * min(rows, most))
        shared = replace(self.plan, processes=self.cluster.size, parts=self.cluster.parts(shard))
        ends = [shared.share(self.footprint(point, precision)) for point in points]

        def held(count: int) -> Footprint:
            # Measured where it was measured: a straight line misses even its own points by a rounding.
            return ends[points.index(count)] if count in points else interpolate(count, points, ends)

        footprint = held(rows)
        return DeviceMemory(
            precision=precision,
            shard=shard,
            rows=rows,
            weights=footprint.weights,
            gradients=footprint.gradients,
            optimiser=footprint.optimiser,
            activations=footprint.activations,
            logits=footprint.logits,
            gathered=footprint.gathered,
            other=footprint.program + footprint.gaps,
            total=footprint.total,
            fits=footprint.total <= room,
            largest_rows=_largest(lambda count: held(count).total <= room),
        )

    def fewest_devices(self, precision: Precision) -> int | None:
        """How many such devices could hold the model in parts with a sample each; None: no number of them."""
        footprint, room = self.footprint(1, precision), self.cluster.device.memory
        # What is cut halves with twice the devices; what each needs beside it does not.
        cut = replace(self.plan, processes=2, parts=2).share(footprint)
        kept = cut.weights + cut.gradients + cut.optimiser
        alone = cut.total - kept
        return None if alone >= room else max(2, -int(-2 * kept // (room - alone)))


def _largest(fits: Callable[[int], bool]) -> int:
    """The largest number that fits, if all smaller ones do."""
    low, high = 0, 1
    # Doubled, then halved: memory grows with rows, so fifty questions at most find any number.
    while high < MOST_ROWS and fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
