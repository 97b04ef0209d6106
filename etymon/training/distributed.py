"""The processes of a run: how they begin, add up, take turns and are stopped.

Under `torchrun` the same command simply runs on all of them; alone, a process does the same without waiting.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import signal
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from etymon.errors import EtymonError

CPU = torch.device("cpu")
# How long processes wait for each other: the first one may have a large text to prepare.
PATIENCE = timedelta(hours=12)


@dataclass(frozen=True)
class World:
    """This process's place among the others. Alone, everything here does nothing."""

    rank: int = 0
    size: int = 1
    device: torch.device = CPU
    mesh: Any = None
    """The `DeviceMesh` that parameters are cut over; None: every process has all of them."""

    @property
    def is_sharded(self) -> bool:
        """Each process has a part of every parameter: the model is only called by all of them in step."""
        return self.mesh is not None

    @property
    def parts(self) -> int:
        """That every parameter is cut into; of a hybrid mesh, each node has all of them."""
        return int(self.mesh.shape[-1]) if self.is_sharded else 1

    @property
    def first(self) -> bool:
        """The process that speaks and writes."""
        return self.rank == 0

    def add(self, values: dict[str, float]) -> dict[str, float]:
        """The sums over all processes; all of them must have the same names."""
        if self.size == 1 or not values:
            return values
        names = sorted(values)
        # A number for the names travels with them: sums of different things would otherwise look like sums.
        mark = float(zlib.crc32("\n".join(names).encode()))
        numbers = torch.tensor(
            [mark, *map(values.__getitem__, names)], dtype=torch.float64, device=self.device
        )
        dist.all_reduce(numbers)
        total, *sums = numbers.tolist()
        if total != mark * self.size:
            raise RuntimeError(
                f"process {self.rank} adds up {', '.join(names)}, and another one something else"
            )
        return {name: sums[names.index(name)] for name in values}

    def any(self, here: bool) -> bool:
        """Whether it is so anywhere."""
        return self.add({"here": float(here)})["here"] > 0

    def gather(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The tensors of all processes, which have different names, for the first one (on its processor)."""
        mine = {name: tensor.cpu() for name, tensor in tensors.items()}
        if self.size == 1:
            return mine
        parts: list[dict[str, torch.Tensor]] | None = [{}] * self.size if self.first else None
        dist.gather_object(mine, parts)
        return {name: tensor for part in parts or [mine] for name, tensor in part.items()}

    @contextmanager
    def first_alone(self) -> Iterator[bool]:
        """The first process does the work while the others wait; yields whether it is this one.

        If it fails, the others end as well instead of going on without what it was to make.
        """
        done = False
        try:
            yield self.first
            done = True
        finally:
            # Every process has to report here, or those that wait would wait for hours.
            failed = self.any(not done)
            if failed and done:
                raise EtymonError("another process of this run has failed: see what it says")

    def wrap(self, unit: nn.Module, *, find_unused: bool = False) -> nn.Module:
        """The unit, with gradients averaged over the processes after every backward.

        `find_unused` is for units of which a step may leave parameters out, such as heads of another phase.
        """
        if self.size == 1:
            return unit
        if self.is_sharded:  # which was wrapped, so to speak, when it was cut
            unit.set_reduce_scatter_unused_params(find_unused)  # type: ignore[operator]
            return unit
        devices = [self.device] if self.device.type == "cuda" else None
        return nn.parallel.DistributedDataParallel(
            unit, device_ids=devices, gradient_as_bucket_view=True, find_unused_parameters=find_unused
        )


def usable_device(name: str) -> torch.device:
    """The device of that name, if there is one here that can compute."""
    try:
        torch.zeros(1, device=name).item()  # of the device "meta" nothing can be read
    except (RuntimeError, AssertionError) as error:
        raise EtymonError(f"there is no device {name!r} here: say cpu, or cuda where there is one") from error
    return torch.device(name)


@contextmanager
def open_world(device: str | None = None, shard: str = "none") -> Iterator[World]:
    """The processes that `torchrun` started, or this one alone; with `shard`, their mesh.

    They are joined once and left when the process ends: those that leave and join again may miss each other.
    """
    cuda = torch.cuda.is_available() if device is None else usable_device(device).type == "cuda"
    if shard != "none" and "TORCHELASTIC_RUN_ID" not in os.environ:
        raise EtymonError(
            f"--shard {shard} cuts a model over several processes: start them with torchrun "
            "--nproc-per-node N -m etymon ..., or leave --shard out"
        )
    # A single process under torchrun may be what is left of several: it goes on with the same command.
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield World(device=torch.device(device or ("cuda" if cuda else "cpu")))
        return
    local = int(os.environ.get("LOCAL_RANK", "0"))
    place = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(place)
    if not dist.is_initialized():
        from torch.distributed.rendezvous import rendezvous  # which not every build of PyTorch has

        store, rank, size = next(rendezvous("env://", timeout=PATIENCE))
        # `torchrun --max-restarts` keeps its store: without a prefix, a process may get the address of one
        # that has died.
        # Where every attempt has a store of its own, nodes that join count their attempts differently.
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
            store = dist.PrefixStore(f"attempt-{attempt}", store)
        backend = "nccl" if cuda else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=PATIENCE)
        atexit.register(dist.destroy_process_group)
    mesh = None if shard == "none" else open_mesh(place.type, shard)
    yield World(dist.get_rank(), dist.get_world_size(), place, mesh)


_meshes: dict[str, Any] = {}
"""By kind: each one opens connections of its own, which runs of one process share."""


def open_mesh(device: str, shard: str) -> Any:
    """The processes as a mesh: in one line, or (hybrid) nodes x processes of a node, which share a model."""
    from torch.distributed.device_mesh import init_device_mesh

    if shard not in _meshes:
        size, local = dist.get_world_size(), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        if shard == "hybrid" and size % local:
            raise EtymonError(
                f"--shard hybrid needs as many processes on every node, and {size} are not a multiple of "
                f"this node's {local}: say --shard full"
            )
        shape, names = {
            "full": ((size,), ("shard",)),
            "hybrid": ((size // local, local), ("replicate", "shard")),
        }[shard]
        _meshes[shard] = init_device_mesh(device, shape, mesh_dim_names=names)
    return _meshes[shard]


class StopRequest(threading.Event):
    signal: int | None = None
    """The first one that came."""


@contextmanager
def stop_on_signal() -> Iterator[StopRequest]:
    """An event that Ctrl-C and SIGTERM set; a second Ctrl-C interrupts at once. Only in the main thread."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def on_signal(number: int, frame: Any) -> None:
        if request.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        request.signal = request.signal or number
        request.set()

    previous = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: not set from Python


def seed_device(seed: int, step: int, number: int) -> None:
    """Sets the device's generator from (seed, step, number of the slice)."""
    # A digest: a sum such as seed + step would give neighbouring runs each other's dropout.
    digest = hashlib.blake2b(f"{seed}/{step}/{number}".encode(), digest_size=8).digest()
    torch.manual_seed(int.from_bytes(digest, "little") >> 1)
