"""Writing checkpoints: by the first process alone or, of a sharded model, by all while training goes on.

Parts are copied at once and written by a thread of each process, into a folder aside. When all are there, the
first process adds checksums and gives the folder its name: until then the older checkpoint counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor, nn

from etymon.checkpoints.folder import checksums
from etymon.checkpoints.sharded import SHARDS, read_into
from etymon.errors import EtymonError
from etymon.files import atomic_folder, write_json
from etymon.nn.initialise import stored_buffers
from etymon.training.distributed import PATIENCE, World
from etymon.training.optimisers import optimiser_tensors
from etymon.training.shards import fully_gathered, gather_whole
from etymon.training.state import BRIDGE, MEMORIES, MEMORY, OPTIMISER, WEIGHTS, RunFolder, TrainingState
from etymon.training.unit import TrainingUnit
from etymon.training.weight_average import WeightAverage


class CheckpointWriter:
    """Writes the checkpoints of a run, one at a time."""

    def __init__(
        self,
        folder: RunFolder,
        unit: TrainingUnit,
        optimiser: torch.optim.Optimizer,
        average: WeightAverage,
        world: World,
    ) -> None:
        self.folder, self.unit, self.optimiser, self.world = folder, unit, optimiser, world
        self.average = average
        # Adapters are small: they are gathered, and their checkpoints are ordinary ones.
        self.in_parts = world.is_sharded and getattr(unit.model, "lora", None) is None
        self._pending: Future[Any] | None = None
        self._finisher = ThreadPoolExecutor(1, "etymon-checkpoint")

    def save(self, state: TrainingState, save_members: Callable[[Path], None], keep: int) -> None:
        """Writes a checkpoint, or begins to: parts are written while training goes on. All processes call it.

        `save_members` writes the models into a folder, without their weights if those are in parts.
        """
        # Streams belong to slices, so that each process has its own: together they are the run's.
        memories = self.world.gather(self.unit.memories.tensors())
        tensors = optimiser_tensors(self.optimiser, self.unit)
        tensors |= {WEIGHTS + name: tensor for name, tensor in self.average.tensors().items()}
        if self.in_parts:
            tensors = {OPTIMISER + name: part for name, part in tensors.items()}
            self._save_parts(state, stored_tensors(self.unit) | tensors, memories, save_members, keep)
            return
        tensors = {name: gather_whole(tensor) for name, tensor in tensors.items()}
        with fully_gathered(self.unit), self.world.first_alone() as is_first:
            if is_first:
                tensors |= {BRIDGE + name: value for name, value in self.unit.bridges.named_parameters()}
                tensors |= {MEMORY + name: value for name, value in memories.items()}
                self.folder.save(state, tensors, save_members, keep)

    def _save_parts(
        self,
        state: TrainingState,
        tensors: dict[str, Tensor],
        memories: dict[str, Tensor],
        save_members: Callable[[Path], None],
        keep: int,
    ) -> None:
        from torch.distributed.checkpoint import FileSystemWriter, async_save

        # One at a time: a second one would need another copy of everything.
        self.wait()
        stack = ExitStack()
        aside: list[Any] = [None]
        with self.world.first_alone() as is_first:
            if is_first:
                self.folder.sync_metrics()
                folder = aside[0] = stack.enter_context(atomic_folder(self.folder.checkpoint(state.step)))
                save_members(folder)
                memories = {name: tensor.contiguous() for name, tensor in memories.items()}
                save_file(memories, folder / MEMORIES)
                write_json(folder / "state.json", asdict(state))
        # Its name is drawn at random by the first process: the others are told.
        dist.broadcast_object_list(aside, group=own_group(), group_src=0)
        writer = FileSystemWriter(str(aside[0] / SHARDS), single_file_per_rank=True, sync_files=True)
        written: Any = async_save(tensors, storage_writer=writer, process_group=own_group())
        if self.world.first:
            # A copy of the state: training goes on and changes it.
            finish = partial(self._finish, written, stack, aside[0], replace(state), keep)
            self._pending = self._finisher.submit(finish)
        else:
            self._pending = written

    def _finish(
        self, written: Future[Any], stack: ExitStack, aside: Path, state: TrainingState, keep: int
    ) -> None:
        with stack:
            # Of all processes: DCP ends when the last of them has written its part.
            written.result()
            write_json(aside / "checksums.json", checksums(aside))
        self.folder.remove_old(state, keep)

    def wait(self) -> None:
        """Waits until the last checkpoint is whole; refuses to go on if one process could not write."""
        pending, self._pending = self._pending, None
        # Asked for by all: all have begun one, or none has.
        if pending is None:
            return
        error: BaseException | None = None
        try:
            pending.result()
        except BaseException as caught:
            error = caught
        # All stop together: one that went on alone would wait for the others for ever.
        if self.world.any(error is not None):
            reason = " ".join(str(error or "another process says why").split())[:300]
            raise EtymonError(
                f"cannot write a checkpoint to {self.folder.folder}: {reason}; make room there and go on "
                "with --resume",
                code="no-room",
            ) from error


_groups: list[Any] = []


def own_group() -> Any:
    """Connections for checkpoints alone: messages of the thread that writes them do not meet training's."""
    if not _groups:
        _groups.append(dist.new_group(backend="gloo", timeout=PATIENCE))
    return _groups[0]


# ------------------------------------------------------------ what is in them


def stored_tensors(unit: TrainingUnit) -> dict[str, Tensor]:
    """Everything of the unit's members, each by itself: of those that share word vectors, both have them."""
    tensors: dict[str, Tensor] = {}
    for prefix, member in _members(unit):
        named = {**dict(member.named_parameters()), **stored_buffers(member)}
        # Views, not copies: DCP makes its own before training goes on.
        tensors |= {prefix + name: tensor.detach() for name, tensor in named.items()}
    return tensors


def _members(unit: TrainingUnit) -> Iterator[tuple[str, nn.Module]]:
    yield "model.", unit.model
    for name, companion in unit.companions.items():
        yield f"companions.{name}.", companion
    yield "bridges.", unit.bridges


def restore_weights(unit: TrainingUnit, checkpoint: Path) -> None:
    """Puts the weights of a sharded checkpoint into the unit, part by part."""
    read_into(checkpoint, stored_tensors(unit))
