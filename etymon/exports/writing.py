"""Writing an export: aside, checked by its runtime, and only then renamed into place."""

from __future__ import annotations

import hashlib
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

import etymon
from etymon.checkpoints.folder import EXPORT_RECORD
from etymon.config import did_you_mean
from etymon.errors import EtymonError
from etymon.exports import get_target
from etymon.exports.check import CheckFigures, check_inputs, compare_answers, require_close
from etymon.exports.target import choose_head
from etymon.files import atomic_folder, write_json
from etymon.nn.lora import merge

if TYPE_CHECKING:
    from etymon.exports.target import ExportTarget
    from etymon.families.model import Model


@dataclass(frozen=True)
class Exported:
    folder: Path
    family: str
    head: str
    target: str
    quantization: str
    bytes: int
    check: CheckFigures
    checked_by: str


def find_target(name: str, quantization: str | None) -> tuple[ExportTarget, str]:
    """A target that is installed, and the name of a quantization of it."""
    target = get_target(name)
    quantization = quantization or next(iter(target.quantizations))
    if quantization not in target.quantizations:
        raise EtymonError(
            f"an export to {name} has no quantization {quantization!r}: "
            f"{did_you_mean(quantization, target.quantizations)}"
        )
    target.require_packages()
    return target, quantization


def require_new_folder(folder: Path) -> None:
    """Refuses a place that is taken: an export replaces nothing."""
    if folder.is_dir() and not any(folder.iterdir()):
        return
    if folder.exists():
        raise EtymonError(
            f"{folder} exists already and is left alone: give another name as --out, or remove it"
        )


def export_model(
    model: Model, target: ExportTarget, quantization: str, folder: Path, head: str | None = None
) -> Exported:
    """Writes a model for a runtime, has the runtime answer the inputs of the check, and only then renames
    the folder into place. A failed check, as any other error, leaves nothing."""
    head = choose_head(model, head)
    if model.int8:
        raise EtymonError(
            "weights of eight bits are rounded already: export the model that they were made of"
        )
    if (reason := target.unsupported_model(model, head)) is not None:
        raise EtymonError(f"{model.family.title} cannot be exported to {target.name} ({head}): {reason}")
    if (reason := target.unsupported_rounding(model, head, quantization)) is not None:
        raise EtymonError(
            f"{model.family.title} cannot be exported to {target.name} in {quantization} ({head}): {reason}"
        )
    require_new_folder(folder)
    if model.lora is not None or model.device.type != "cpu":
        # The caller's own model stays as it is.
        model = merge(deepcopy(model)).to("cpu")
    was_training = model.training
    model.eval()
    try:
        return _write_checked(model, head, target, quantization, folder)
    finally:
        model.train(was_training)


def _write_checked(
    model: Model, head: str, target: ExportTarget, quantization: str, folder: Path
) -> Exported:
    with atomic_folder(folder) as aside:
        target.write(model, head, aside, quantization)
        inputs, runner = check_inputs(model, head), target.open(aside)
        figures = compare_answers(target, runner, model, head, inputs)
        require_close(figures, target.quantizations[quantization], target.name)
        further = target.check_further(model, runner)
        size = sum(path.stat().st_size for path in aside.rglob("*") if path.is_file())
        write_json(
            # What it was made of, by what, and how far its answers are from the model's.
            aside / EXPORT_RECORD,
            {
                "family": model.family.name,
                "head": head,
                "target": target.name,
                "quantization": quantization,
                "model_sha256": weights_digest(model),
                "versions": {
                    "etymon": etymon.__version__,
                    "torch": torch.__version__,
                    **target.versions(),
                },
                "bytes": size,
                "checked_by": target.checker(),
                "check": {**asdict(figures), **further},
                "tolerance": asdict(target.quantizations[quantization]),
            },
        )
    return Exported(
        folder, model.family.title, head, target.name, quantization, size, figures, target.checker()
    )


def weights_digest(model: Model) -> str:
    """SHA-256 of a model's weights, by their names and bytes: the same however they lie in files."""
    digest = hashlib.sha256()
    # Sorted: the order of parameters is that of the code, which may change.
    for name, tensor in sorted(model.stored_tensors().items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
