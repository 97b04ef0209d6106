"""What a model takes in memory, part by part, and what the machine has left."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import psutil
import torch

from etymon.errors import EtymonError
from etymon.files import format_bytes

CPU = torch.device("cpu")
CGROUPS = Path("/sys/fs/cgroup")
"""Where Linux says what a container may take."""


@dataclass(frozen=True)
class Footprint:
    """Bytes, by what holds them. A model that is only opened has `weights` alone."""

    weights: float
    """Of every member: the model, who trains beside it, and a teacher. Each shared parameter counts once."""
    gradients: float = 0.0
    optimiser: float = 0.0
    """What the optimiser keeps from step to step."""
    activations: float = 0.0
    """What one slice keeps for the way back."""
    logits: float = 0.0
    """What lives for a moment in a pass: mostly a chunk of the vocabulary's logits and their gradient."""
    update: float = 0.0
    """What lives for a moment while the optimiser steps."""
    slices: int = 1
    """Of a step: behind the first one, gradients are there while activations are."""
    gathered: float = 0.0
    """Whole weights and gradients of what is computed at the moment, where a process keeps a part of them."""
    gaps: float = 0.0
    """What a processor's allocator holds beside tensors: the places of those that came and went."""
    operations: float = 0.0
    """Floating-point operations of one slice, forward and backward: not bytes, but measured beside them."""
    tokens: float = 0.0
    """Of that slice."""
    program: float = 0.0
    """What a run holds beside tensors of the model: its tokenizer, the places of its text, samples that are
    made ahead."""

    @property
    def total(self) -> float:
        """The most that is held at once. In a step of one slice, gradients come as activations go."""
        # Behind the first slice, gradients of earlier ones are held while the next is computed.
        held = self.gradients if self.slices > 1 else max(0.0, self.gradients - self.activations)
        forward = self.activations + held + self.logits + self.gathered
        step = max(forward, self.gradients + self.update)
        return self.program + self.weights + self.optimiser + self.gaps + step

    def of_processes(self, parts: int, root: float = 0.0, block: float = 0.0) -> Footprint:
        """Of one of several processes that train together, each with a part of the model: `block` bytes of
        weights are in the largest of its layers, `root` in none of them."""
        # Gradients lie in the buffers that processes add up, so that they are always there. The root is whole
        # for a pass, with its gradients; of layers one is computed while the next is fetched, and the
        # gradients of one are still whole.
        return replace(
            self,
            weights=self.weights / parts,
            gradients=self.gradients / parts,
            optimiser=self.optimiser / parts,
            update=self.update / parts,
            gathered=0.0 if parts == 1 else 2 * root + 3 * block,
            slices=max(2, self.slices),
        )

    def __str__(self) -> str:
        parts = {
            "weights": self.weights,
            "gradients": self.gradients,
            "optimiser": self.optimiser,
            "activations": self.activations + self.logits + self.gaps,
            "gathered": self.gathered,
        }
        shown = [f"{name} {format_bytes(size)}" for name, size in parts.items() if size]
        return f"about {format_bytes(self.total)}" + (f" ({', '.join(shown)})" if len(shown) > 1 else "")


def extrapolate(value: int, points: Sequence[int], measure: Callable[[int], Footprint]) -> Footprint:
    """`measure(value)`; beyond the last of the points, by the polynomial through its values at them."""
    return measure(value) if value <= points[-1] else interpolate(value, points, [*map(measure, points)])


def interpolate(value: float, points: Sequence[int], measured: Sequence[Footprint]) -> Footprint:
    """The value at any place of the polynomial through those measured at some points."""
    # Lagrange's form: the share of each measured point in the polynomial's value.
    shares = [
        math.prod((value - other) / (point - other) for other in points if other != point) for point in points
    ]
    names = [part.name for part in fields(Footprint) if part.name != "slices"]
    sums = {
        name: sum(share * getattr(footprint, name) for share, footprint in zip(shares, measured))
        for name in names
    }
    return Footprint(**{name: max(0.0, size) for name, size in sums.items()}, slices=measured[0].slices)


def available_memory(device: torch.device = CPU) -> float:
    """Bytes that a process can still take here; of a machine's memory its share, where `torchrun` started
    several."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    # A container may be allowed less than the machine has left.
    free = min(float(psutil.virtual_memory().available), container_memory())
    return free / int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def container_memory(root: Path = CGROUPS, process: Path = Path("/proc/self/cgroup")) -> float:
    """Bytes that the control groups of this process leave to it; infinite where there is no limit."""
    try:
        lines = process.read_text(encoding="utf-8").splitlines()
    except OSError:
        return math.inf
    left = math.inf
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        # Version 2 has one tree and no list of controllers, version 1 a tree of its own for memory.
        tree, limit, usage = (
            (root / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes")
            if controllers
            else (root, "memory.max", "memory.current")
        )
        group = tree / path.lstrip("/")
        for place in (group, *group.parents):
            if place == root.parent:
                break
            left = min(left, _left_in(place, limit, usage))
    return left


def _left_in(group: Path, limit: str, usage: str) -> float:
    try:
        most = (group / limit).read_text(encoding="ascii").strip()
        used = float((group / usage).read_text(encoding="ascii"))
        counts = dict(
            line.split() for line in (group / "memory.stat").read_text(encoding="ascii").splitlines()
        )
    except OSError:
        return math.inf  # the group of another tree, or no limit at its root
    if most == "max":
        return math.inf
    # Files that were read are counted as used and are given back when memory is wanted.
    files = sum(float(counts.get(kind, 0)) for kind in ("active_file", "inactive_file"))
    return max(0.0, float(most) - used + files)


def no_memory(
    what: str, needed: Footprint, free: float, advice: str, device: torch.device = CPU
) -> EtymonError:
    """The refusal of what does not fit: `what` is asked for, and `advice` says what would fit."""
    place = "this machine has" if device.type == "cpu" else f"{device} has"
    return EtymonError(
        f"{what} needs {needed}, and {place} {format_bytes(free)} free: {advice}", code="no-memory"
    )
