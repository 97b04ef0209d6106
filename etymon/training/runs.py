"""A run's folder: settings, metrics, checkpoints. Everything appears whole or not at all."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from etymon.checkpoints.documents import read_json, write_json
from etymon.checkpoints.folder import checksums, verify_checksums
from etymon.errors import EtymonError
from etymon.files import atomic_folder, atomic_write
from etymon.training.feeding import Position

JUDGED = "validation_"
"""What the names of validation figures begin with in the metrics."""


@dataclass
class TrainingState:
    """All that a run needs to go on exactly, beside the weights and the optimiser's tensors."""

    step: int = 0
    position: Position = field(default_factory=Position)
    tokens: int = 0
    seconds: float = 0.0
    best: float | None = None
    best_step: int | None = None


class Run:
    """The folder of a training run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.metrics_file = folder / "metrics.jsonl"

    def log(self, record: dict[str, Any]) -> None:
        with open(self.metrics_file, "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        if not self.metrics_file.is_file():
            return []
        records = []
        for line in self.metrics_file.read_text(encoding="utf-8", errors="replace").splitlines():
            with suppress(json.JSONDecodeError):  # a line that a crash or a power cut tore
                records.append(json.loads(line))
        return records

    def last_validation(self) -> dict[str, float]:
        """The figures of the newest validation that is on record."""
        for record in reversed(self.metrics()):
            found = {
                name.removeprefix(JUDGED): value for name, value in record.items() if name.startswith(JUDGED)
            }
            if found:
                return found
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
        found = (self.folder / "checkpoints").glob("step-*")
        return sorted(int(path.name.removeprefix("step-")) for path in found if path.name[5:].isdigit())

    def save(
        self,
        state: TrainingState,
        optimiser: dict[str, Tensor],
        save_model: Callable[[Path], None],
        keep: int,
    ) -> Path:
        """Writes a checkpoint, then removes the oldest beyond `keep` (never the best one)."""
        target = self.checkpoint(state.step)
        with atomic_folder(target) as aside:
            save_model(aside / "model")
            save_file(
                {name: tensor.contiguous() for name, tensor in optimiser.items()},
                aside / "optimiser.safetensors",
            )
            write_json(aside / "state.json", asdict(state))
            write_json(aside / "checksums.json", checksums(aside))
        for step in self.checkpoints()[:-keep]:
            if step != state.best_step:
                shutil.rmtree(self.checkpoint(step), ignore_errors=True)
        return target

    def latest(self) -> Path | None:
        """The newest checkpoint that is whole; broken ones are passed over."""
        for step in reversed(self.checkpoints()):
            folder = self.checkpoint(step)
            try:
                verify_checksums(folder, read_json(folder / "checksums.json"))
            except EtymonError:
                continue
            return folder
        return None


def read_state(folder: Path) -> tuple[TrainingState, dict[str, Tensor]]:
    """The state and the optimiser's tensors of a checkpoint."""
    fields = read_json(folder / "state.json")
    state = TrainingState(**{**fields, "position": Position(**fields["position"])})
    return state, load_file(folder / "optimiser.safetensors")
