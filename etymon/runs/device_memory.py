"""The memory of a run, cut over devices: what each of them holds under every precision and sharding.

What is cut is the estimate of `runs/memory.py`, the one that refuses runs which do not fit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from etymon.families.memory import by_depth
from etymon.files import format_bytes
from etymon.nn.blocks import Stack
from etymon.nn.footprint import CPU, Footprint, interpolate
from etymon.nn.precision import Precision
from etymon.objectives import get_objective
from etymon.runs.devices import Device
from etymon.runs.memory import SLICE_TOKENS, Plan, stand_in_tokenizer
from etymon.training.memory import without_values
from etymon.training.unit import TrainingUnit

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

    def __str__(self) -> str:
        nodes = f"{self.nodes} nodes of " if self.nodes > 1 else ""
        return f"{nodes}{self.per_node} x {self.device.name}"


@dataclass(frozen=True)
class WeightGroups:
    """Bytes of weights by what gathers them where a model is sharded: the largest block, and all that belongs
    to no block."""

    root: float
    block: float


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


def weight_groups(plan: Plan) -> WeightGroups:
    """The weights of a run by what FSDP gathers at a time."""

    def measure(shape: Any) -> Footprint:
        unit = _empty_unit(plan, shape)
        uses = Counter(
            id(stack.layers[number])
            for stack in unit.modules()
            if isinstance(stack, Stack)
            for number in stack.schedule
        )
        # A layer that is used several times is no group of its own.
        blocks = [
            sum(4.0 * value.numel() for value in part.parameters())
            for part in unit.modules()
            if uses.get(id(part)) == 1
        ]
        whole = sum(4.0 * value.numel() for value in unit.parameters())
        return Footprint(weights=whole - sum(blocks), gradients=max(blocks, default=0.0))

    found = by_depth(plan.shape, measure)
    return WeightGroups(found.weights, found.gradients)


def on_device(
    footprint: Footprint, groups: WeightGroups, cluster: Cluster, shard: Sharding
) -> dict[str, float]:
    """The parts of a step's footprint that one of several devices holds, by the names of `DeviceMemory`."""
    held = {
        "weights": footprint.weights,
        "gradients": footprint.gradients,
        "optimiser": footprint.optimiser,
        "activations": footprint.activations,
        "logits": footprint.logits,
        "gathered": 0.0,
        "other": footprint.program + footprint.gaps,
    }
    if cluster.size == 1:
        return held | {"total": footprint.total}
    passing, update = footprint.activations + footprint.logits, footprint.update
    if shard != "none":
        parts = cluster.size if shard == "full" else cluster.per_node
        held |= {name: held[name] / parts for name in ("weights", "gradients", "optimiser")}
        # The root is whole for a pass, with its gradients; of blocks one is computed while the next is
        # fetched, and the gradients of one are still whole.
        held["gathered"] = 2 * groups.root + 3 * groups.block
        update /= parts
    # Gradients are held between steps: they lie in the buffers that processes add up.
    always = held["weights"] + held["gradients"] + held["optimiser"] + held["other"]
    return held | {"total": always + max(passing + held["gathered"], update)}


class MemoryTable:
    """The memory of a run's devices under any precision and sharding, measured as it is asked for."""

    def __init__(self, plan: Plan, cluster: Cluster) -> None:
        self.plan, self.cluster = plan, cluster
        self.groups = weight_groups(plan)
        self._measured: dict[tuple[bool, int], Footprint] = {}

    def footprint(self, rows: int, precision: Precision = "float32") -> Footprint:
        """Of slices of so many samples."""
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
        ends = [self.footprint(point, precision) for point in points]

        def parts(count: int) -> dict[str, float]:
            measured = ends[points.index(count)] if count in points else interpolate(count, points, ends)
            return on_device(measured, self.groups, self.cluster, shard)

        largest = _largest(lambda count: parts(count)["total"] <= room)
        held = parts(rows)
        return DeviceMemory(
            precision=precision,
            shard=shard,
            rows=rows,
            fits=held["total"] <= room,
            largest_rows=largest,
            **held,
        )

    def fewest_devices(self, precision: Precision) -> int | None:
        """How many such devices could hold the model in parts with a sample each; None: no number of them."""
        one, room = self.footprint(1, precision), self.cluster.device.memory
        shared = one.weights + one.gradients + one.optimiser
        cut = replace(self.cluster, per_node=2, nodes=1)
        alone = on_device(one, self.groups, cut, "full")["total"] - shared / 2
        return None if alone >= room else max(2, -int(-shared // (room - alone)))


def _largest(fits: Callable[[int], bool]) -> int:
    """The largest number that fits, if all smaller ones do."""
    low, high = 0, 1
    while high < MOST_ROWS and fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _empty_unit(plan: Plan, shape: Any) -> TrainingUnit:
    samples = plan.samples[-1]
    tokenizer = stand_in_tokenizer(plan.family, shape.vocabulary)
    objective = get_objective(samples.objective, tokenizer, samples.length, **samples.options)
    with without_values():
        return plan.build_unit(shape, objective, tokenizer)
