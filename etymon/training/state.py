"""The folder of a run: its metrics and checkpoints. Everything appears whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from etymon.checkpoints.folder import checksums, verify_checksums
from etymon.checkpoints.sharded import is_sharded, read_into, read_whole, shard_sizes
from etymon.errors import EtymonError
from etymon.files import atomic_folder, atomic_write, finite, parse_json, read_json, remove, write_json
from etymon.training.feeding import Position
from etymon.training.loggers import OpenLoggers
from etymon.training.shards import as_cut, is_cut

# Before the names of a validation's metrics in metrics.jsonl.
VALIDATION_PREFIX = "validation_"
# Prefixes of the tensors that are saved beside the optimiser's.
BRIDGE, MEMORY = "bridge/", "memory/"
# The same of the weights that training goes on with, where the models have an average of them.
WEIGHTS = "weights/"
# What streams remember, where the other tensors are in parts.
MEMORIES = "memories.safetensors"
# Before the names of the optimiser's tensors there.
OPTIMISER = "optimiser/"


SMALLEST_SCALE = 2.0**-10
"""A loss that overflows fp16 even when it is scaled down so far has diverged."""
STEPS_AT_SCALE = 2000
"""Steps without an overflow after which the loss scale is tried twice as large, as PyTorch's does."""


@dataclass
class TrainingState:
    """All that a run needs to resume exactly, beside the weights and the optimiser's tensors."""

    step: int = 0
    position: Position = field(default_factory=Position)
    tokens: int = 0
    words: float = 0.0
    """Of the text, counted once an epoch."""
    epochs: float = 0.0
    seconds: float = 0.0
    best: float | None = None
    best_step: int | None = None
    words_read: float = 0.0
    """Of all samples: a word that an epoch reads twice counts twice."""
    loss_scale: float = 65536.0
    """In fp16: what losses are multiplied with, so that small gradients do not vanish."""
    scale_steps: int = 0
    """Steps since the loss scale was changed."""

    def adapt_loss_scale(self, is_overflown: bool) -> None:
        """Halves the loss scale after an overflow, and doubles it after many steps without any (Micikevicius
        et al. 2018, section 3.2)."""
        self.scale_steps = 0 if is_overflown else self.scale_steps + 1
        if is_overflown:
            self.loss_scale /= 2
        elif self.scale_steps == STEPS_AT_SCALE:
            self.loss_scale, self.scale_steps = self.loss_scale * 2, 0

    def seen(self) -> dict[str, int]:
        """What a model's history and its card say that it has seen."""
        return {"steps": self.step, **self.amounts()}

    def amounts(self) -> dict[str, int]:
        """What was read so far, as every row of metrics has it."""
        return {
            "tokens": self.tokens,
            "words": round(self.words),
            "words_read": round(self.words_read),
        }


class RunFolder:
    """The folder of a training run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.metrics_file = folder / "metrics.jsonl"
        self.loggers: OpenLoggers | None = None
        """Who else is told of every line of metrics."""

    def log(self, record: dict[str, Any]) -> None:
        """Appends a line of metrics, and tells the loggers its numbers."""
        if self.loggers is not None:
            self.loggers.log(record["step"], record)
        # JSON has no NaN: such a value is left out.
        numbers = {name: value for name, value in record.items() if finite(value) is not None}
        with _write_errors(self.metrics_file), open(self.metrics_file, "a", encoding="utf-8") as file:
            file.write(json.dumps(numbers) + "\n")

    def close(self) -> None:
        if self.loggers is not None:
            self.loggers.finish()

    def metrics(self) -> list[dict[str, Any]]:
        if not self.metrics_file.is_file():
            return []
        records = []
        lines = self.metrics_file.read_text(encoding="utf-8", errors="replace").splitlines()
        for number, line in enumerate(lines, 1):
            place = f"{self.metrics_file}, line {number}"
            try:
                record = parse_json(line, place, "correct or remove that line")
            except EtymonError:
                if number == len(lines):  # a line that a crash or a power cut tore
                    break
                raise
            if not isinstance(record, dict) or not isinstance(record.get("step"), int):
                raise EtymonError(f"{place} has no step and its metrics: correct or remove that line")
            records.append(record)
        return records

    def last_validation(self) -> dict[str, float]:
        """The metrics of the newest validation that is on record; empty if there is none."""
        for record in reversed(self.metrics()):
            names = [name for name in record if name.startswith(VALIDATION_PREFIX)]
            if names:
                return {name.removeprefix(VALIDATION_PREFIX): record[name] for name in names}
        return {}

    def forget_after(self, step: int) -> None:
        """Drops metrics of steps that are going to be taken again; -1 drops them all."""
        kept = [record for record in self.metrics() if record["step"] <= step]
        with atomic_write(self.metrics_file) as file:
            file.writelines(json.dumps(record) + "\n" for record in kept)

    def checkpoint(self, step: int) -> Path:
        return self.folder / "checkpoints" / f"step-{step:08d}"

    def checkpoints(self) -> list[int]:
        """The steps that have a checkpoint, oldest first."""
        names = [path.name.removeprefix("step-") for path in (self.folder / "checkpoints").glob("step-*")]
        return sorted(int(name) for name in names if name.isdigit())

    def save(
        self,
        state: TrainingState,
        optimiser: dict[str, Tensor],
        save_members: Callable[[Path], None],
        keep: int,
    ) -> Path:
        """Writes a checkpoint, then removes the oldest beyond `keep` (never the best one)."""
        target = self.checkpoint(state.step)
        self.sync_metrics()
        # Safetensors takes no views with other strides.
        tensors = {name: tensor.contiguous() for name, tensor in optimiser.items()}
        with atomic_folder(target) as folder:
            save_members(folder)
            with _write_errors(target):
                save_file(tensors, folder / "optimiser.safetensors")
            write_json(folder / "state.json", asdict(state))
            write_json(folder / "checksums.json", checksums(folder))
        self.remove_old(state, keep)
        return target

    def sync_metrics(self) -> None:
        """A checkpoint outlives a power cut, and so must the curve that leads to it."""
        if self.metrics_file.is_file():
            with _write_errors(self.metrics_file), open(self.metrics_file, "r+b") as file:
                os.fsync(file.fileno())

    def remove_old(self, state: TrainingState, keep: int) -> None:
        """Removes the oldest checkpoints beyond `keep`, but never the best one."""
        # The best one is what fine-tuning goes back to at its end.
        for step in self.checkpoints()[:-keep]:
            if step != state.best_step:
                shutil.rmtree(self.checkpoint(step), ignore_errors=True)

    def latest(self, on_note: Callable[[str], None] = lambda text: None) -> Path | None:
        """The newest checkpoint that is whole; broken ones are passed over with a note."""
        for step in reversed(self.checkpoints()):
            folder = self.checkpoint(step)
            try:
                verify_checksums(folder, read_json(folder / "checksums.json"))
            except EtymonError as error:
                on_note(f"passing over a checkpoint: {error}")
                continue
            return folder
        return None

    def tidy(self) -> None:
        """Removes what a killed process left half written."""
        for place in (self.folder, self.folder / "checkpoints", self.folder / "milestones"):
            for path in (*place.glob(".*.partial"), *place.glob(".*.replaced")):
                remove(path)


@contextmanager
def _write_errors(path: Path) -> Iterator[None]:
    """Inside, a file that cannot be written (the disk is full, or gone) is an `EtymonError` of one line."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise EtymonError(
            f"cannot write {path}: {reason}; make room there and go on with --resume", code="no-room"
        ) from error


def read_state(
    folder: Path, parameters: Mapping[str, nn.Parameter] | None = None
) -> tuple[TrainingState, dict[str, Tensor]]:
    """The state and the optimiser's tensors of a checkpoint, in parts if the `parameters` are and it is."""
    fields = read_json(folder / "state.json")
    state = TrainingState(**{**fields, "position": Position(**fields["position"])})
    if not is_sharded(folder):
        return state, load_file(folder / "optimiser.safetensors")
    bridges, memories = read_whole(folder, "bridges."), load_file(folder / MEMORIES)
    return state, {
        **_read_optimiser(folder, parameters or {}),
        **{BRIDGE + name: tensor for name, tensor in bridges.items()},
        **{MEMORY + name: tensor for name, tensor in memories.items()},
    }


def _read_optimiser(checkpoint: Path, parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """The optimiser's tensors by `<quantity>/<parameter>`, cut as the parameters are."""
    tensors: dict[str, Tensor] = {}
    for name, (size, dtype) in shard_sizes(checkpoint).items():
        if name.startswith(OPTIMISER):
            like: Any = parameters.get(name.removeprefix(OPTIMISER).split("/", 1)[1])
            tensors[name] = _blank(size, dtype, like)
    read_into(checkpoint, tensors)
    return {name.removeprefix(OPTIMISER): tensor for name, tensor in tensors.items()}


def _blank(size: torch.Size, dtype: torch.dtype, like: Any) -> Tensor:
    """A tensor to read into: cut as the parameter `like` is, if it has an entry for each of its rows."""
    if like is None or not is_cut(like) or len(size) != like.dim() or not size or size[0] != len(like):
        return torch.empty(size, dtype=dtype)
    part = torch.empty((len(like._local_tensor), *size[1:]), dtype=dtype, device=like.device)
    return as_cut(part, like, size)


def take_prefixed(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Takes the tensors out whose names begin so, under the rest of their names."""
    names = [name for name in tensors if name.startswith(prefix)]
    return {name.removeprefix(prefix): tensors.pop(name) for name in names}
