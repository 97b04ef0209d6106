"""One case of the oracle's format, as it lies on disk."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

MANIFEST = "manifest.json"


class Case:
    """What was fed to the reference, what it gave, and how far another implementation may be off."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.name = folder.name

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """Read when it is asked for, so that a broken one is a problem of its case alone."""
        found: dict[str, Any] = json.loads((self.folder / MANIFEST).read_text(encoding="utf-8"))
        return found

    def open(self) -> Case:
        """Reads the tensors as well."""
        self.inputs: dict[str, Tensor] = load_file(self.folder / "inputs.safetensors")
        self.outputs: dict[str, Tensor] = load_file(self.folder / "outputs.safetensors")
        stored = self.folder / "grads.json"
        self.gradients: dict[str, dict[str, Any] | None] = (
            json.loads(stored.read_text(encoding="utf-8"))["params"] if stored.is_file() else {}
        )
        return self

    @property
    def model_type(self) -> str:
        """The family as its `config.json` names it; what is not a Hugging Face folder has its kind's name."""
        if self.manifest.get("kind", "hf") != "hf":
            return str(self.manifest["kind"])
        return str(
            json.loads((self.folder / "config.json").read_text(encoding="utf-8")).get("model_type", "")
        )

    @property
    def calls(self) -> list[dict[str, Any]]:
        return self._list("calls")

    @property
    def generations(self) -> list[dict[str, Any]]:
        return self._list("generate")

    @property
    def backward(self) -> dict[str, Any]:
        return self.manifest.get("backward") or {}

    @property
    def tied(self) -> list[list[str]]:
        return self._list("tied_parameters")

    def tolerance(self, kind: str) -> float:
        return float(self.manifest["tolerance"][kind])

    def tensors(self, call: dict[str, Any]) -> dict[str, Any]:
        """The arguments of a call by name: tensors and constants."""
        named = {argument: self.inputs[key] for argument, key in call.get("tensors", {}).items()}
        return {**named, **(call.get("const") or {})}

    def depends_on_version(self, kind: str, name: str) -> bool:
        """Releases of the reference differ here, so nobody is judged on it."""
        listed = (self.manifest.get("version_dependent") or {}).get(kind) or []
        if kind == "outputs":
            return any(name.startswith(prefix) for prefix in listed)
        return name in listed

    def compared(self, key: str, shape: tuple[int, ...]) -> Tensor | None:
        """Which entries of an output mean something (None: all); elsewhere the reference itself is arbitrary."""
        for prefix, rule in (self.manifest.get("compare_mask") or {}).items():
            if key == prefix or key.startswith(prefix + "."):
                mask = self.inputs[rule["mask"]].bool()
                mask = mask.reshape(-1, mask.shape[-1])
                axes = [1] * len(shape)
                axes[0], axes[rule["dim"]] = mask.shape
                return mask.view(axes).expand(shape)
        return None

    def _list(self, field: str) -> list[Any]:
        return self.manifest.get(field) or []


def find_cases(paths: Iterable[str | Path]) -> Iterator[Case]:
    """Every case at or below the paths, in order of their folders; a path without any is an error."""
    for path in paths:
        found = sorted(Path(path).rglob(MANIFEST))
        if not found:
            raise FileNotFoundError(f"there is no case (a folder with {MANIFEST}) at or below {path}")
        for manifest in found:
            yield Case(manifest.parent)
