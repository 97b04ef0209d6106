"""Models for other runtimes: what they can become, written, and checked by the runtime itself."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from etymon.config import did_you_mean
from etymon.errors import EtymonError

if TYPE_CHECKING:
    from etymon.exports.target import ExportTarget

# In the order of `etymon export --list`. Modules are imported when a target is asked for.
TARGETS = {
    "onnx": "etymon.exports.onnx_target:OnnxTarget",
    "ctranslate2": "etymon.exports.ctranslate2_target:CTranslate2Target",
    "gguf": "etymon.exports.gguf_target:GgufTarget",
    "torch": "etymon.exports.torch_target:TorchTarget",
}


@dataclass(frozen=True)
class ExportCell:
    """Whether a family's head can be exported to a target: `reason` says why not, or is empty."""

    family: str
    head: str
    target: str
    reason: str = ""


def get_target(name: str) -> ExportTarget:
    if name not in TARGETS:
        raise EtymonError(f"there is no export target {name!r}: {did_you_mean(name, TARGETS)}")
    module, _, attribute = TARGETS[name].partition(":")
    target: ExportTarget = getattr(import_module(module), attribute)()
    return target


def export_cells() -> list[ExportCell]:
    """Every family, head and target, as the targets themselves say."""
    from etymon.exports.target import exportable_heads
    from etymon.families import REGISTRY, get_family

    return [
        ExportCell(name, head, target, get_target(target).unsupported(get_family(name), head) or "")
        for name in REGISTRY
        for head in exportable_heads(get_family(name))
        for target in TARGETS
    ]
