"""A run on paper: what it would take of memory, operations and time on given devices, before it costs anything.

Memory and operations are those of `runs/memory.py`, the same estimate that refuses runs which do not fit;
here it is cut over devices. Time is operations by the devices' peak and the share of it that is reached.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Literal

import torch

from etymon.errors import EtymonError
from etymon.families.memory import by_depth
from etymon.nn.blocks import Stack
from etymon.nn.footprint import CPU, Footprint, available_memory, interpolate
from etymon.objectives import get_objective
from etymon.objectives.objective import weighted_loss
from etymon.runs.devices import Device, Precision
from etymon.runs.memory import SAFE, SLICE_TOKENS, Plan, matching_choice, stand_in_slices, stand_in_tokenizer
from etymon.training.budgets import Budget
from etymon.training.memory import without_values
from etymon.training.optimisers import build_optimiser
from etymon.training.unit import StreamMemories, TrainingUnit

Sharding = Literal["none", "full", "hybrid"]

UTILISATION = 0.4
"""Of a device's peak, where nothing was measured: what well-kept runs on A100s report (MFU of 0.3 to 0.5)."""
TOKENS_A_WORD = 1.33
"""Assumed where a text is given by its words: 0.75 English words a token are usual."""
DIRECT_SECONDS = 5.0
"""A step of so many seconds at the peak is timed as it is; a longer one by some of its layers."""
TIMED_STEPS = 3
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
    footprint: Footprint, groups: WeightGroups, cluster: Cluster, precision: Precision, shard: Sharding
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
            samples = [replace(each, rows=rows) for each in self.plan.samples]
            place = CPU if self.cluster.device.is_processor else torch.device("cuda")
            whole = replace(self.plan, samples=samples).footprint(place)
            self._measured[is_half, rows] = _in_half(whole) if is_half else whole
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
            return on_device(measured, self.groups, self.cluster, precision, shard)

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
        alone = on_device(one, self.groups, cut, precision, "full")["total"] - shared / 2
        return None if alone >= room else max(2, -int(-shared // (room - alone)))


def _in_half(whole: Footprint) -> Footprint:
    """A step in mixed precision: activations of half the bytes, beside the rounded weights that they meet."""
    return replace(
        whole, activations=whole.activations / 2 + whole.weights / 2, gaps=whole.gaps / 2
    )


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


# --- time


def step_seconds(plan: Plan, footprint: Footprint, peak: float) -> float | None:
    """How long a slice of the plan takes on this processor, with its share of the optimiser, by taking real
    steps; None where even one of a few layers would not fit. `footprint` and `peak` are of the slice."""
    samples = plan.samples[-1]
    tokenizer = stand_in_tokenizer(plan.family, plan.shape.vocabulary)

    def measure(shape: Any) -> Footprint:
        objective = get_objective(samples.objective, tokenizer, samples.length, **samples.options)
        earlier, first, later = stand_in_slices(objective, tokenizer, samples.length, samples.rows, TIMED_STEPS)
        unit = plan.build_unit(shape, objective, tokenizer)
        for value in unit.parameters():
            torch.nn.init.normal_(value, std=0.02)
        optimiser = build_optimiser(unit, matching_choice(plan.optimiser, unit))
        unit.train()
        unit.memories = StreamMemories()
        times = []
        for batch in (*earlier, first, *later):
            begin = time.perf_counter()
            weighted_loss(unit(batch), batch.counts).backward()
            passed = time.perf_counter()
            torch.nn.utils.clip_grad_norm_(unit.parameters(), 1.0)
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
            times.append(passed - begin + (time.perf_counter() - passed) / plan.slices)
        return Footprint(weights=median(times[1:]))

    with torch.random.fork_rng():
        if footprint.operations / peak <= DIRECT_SECONDS and footprint.total <= SAFE * available_memory():
            return measure(plan.shape).weights
        if plan.shallow().footprint().total > SAFE * available_memory():
            return None
        return by_depth(plan.shape, measure).weights


@dataclass(frozen=True)
class Amounts:
    """What a budget comes to."""

    tokens: float
    steps: float
    operations: float
    seconds: float


def amounts(
    budget: Budget,
    tokens_a_step: float,
    operations_a_token: float,
    seconds_a_token: float,
    text_tokens: float | None,
) -> Amounts:
    """Tokens, steps, operations and seconds of a budget in any unit."""
    if budget.unit == "epochs" and text_tokens is None:
        raise EtymonError("a budget of epochs needs the size of the text: give --words, such as --words 100M")
    tokens = {
        "seconds": lambda: budget.amount / seconds_a_token,
        "steps": lambda: budget.amount * tokens_a_step,
        "tokens": lambda: budget.amount,
        "epochs": lambda: budget.amount * (text_tokens or 0.0),
        "words": lambda: budget.amount * TOKENS_A_WORD,
        "flops": lambda: budget.amount / operations_a_token,
    }[budget.unit]()
    return Amounts(tokens, tokens / tokens_a_step, tokens * operations_a_token, tokens * seconds_a_token)
