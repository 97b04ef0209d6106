"""What a target of an export is: a runtime that a model is written for, and that answers for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from etymon.errors import EtymonError

if TYPE_CHECKING:
    import numpy as np

    from etymon.families.family import Family
    from etymon.families.model import Model

STATES = "states"
"""Stands for the hidden states of every token (of an encoder-decoder, its encoder's), where no head is
wanted."""


@dataclass(frozen=True)
class Tolerance:
    """How far a runtime's answers may be from the model's (`CheckFigures`): the least agreement, and the
    most of the others."""

    worst: float
    agreement: float
    noise: float
    lost: float


# Rounded weights are held by their noise above all: of small or new models, whose best outputs are close to
# each other, many change places, and nothing is lost.
EXACT = Tolerance(worst=1e-4, agreement=0.999, noise=1e-4, lost=1e-4)
HALF = Tolerance(worst=0.01, agreement=0.99, noise=0.005, lost=0.001)
EIGHT_BITS = Tolerance(worst=0.25, agreement=0.85, noise=0.1, lost=0.01)


@dataclass(frozen=True)
class CheckInputs:
    """Rows of token ids, special tokens included; of an encoder-decoder with a vocabulary also what its
    decoder reads (`targets`), and of a model that reads letters those of every token, `[tokens, 50]`."""

    rows: Sequence[Sequence[int]]
    targets: Sequence[Sequence[int]] | None = None
    letters: Sequence[np.ndarray] | None = None


class Runner(Protocol):
    """An export, opened by the runtime that it is for."""

    def answer(self, inputs: CheckInputs) -> list[np.ndarray]:
        """What it says of every row, `[outputs]`, or of every token of every row, `[tokens, outputs]`."""


class ExportTarget:
    """A subclass a runtime. Its `name` is what `--to` takes."""

    name: str
    packages: Sequence[str]
    """Modules that have to be there."""
    extra: str = ""
    """The extra of etymon that installs them; empty where they come with it."""
    quantizations: Mapping[str, Tolerance] = {"float32": EXACT}
    """By the name that `--quantize` takes, how far answers may be off; the first is the default."""

    def unsupported(self, family: Family, head: str) -> str | None:
        """Why this head of a family (or `states`) cannot be exported; None where it can."""
        raise NotImplementedError

    def unsupported_model(self, model: Model, head: str) -> str | None:
        """The same of a model, whose shape may be one that the runtime has no layers for."""
        return self.unsupported(model.family, head)

    def unsupported_rounding(self, model: Model, head: str, quantization: str) -> str | None:
        """Why a model cannot have such weights; None where it can."""
        return None

    def write(self, model: Model, head: str, folder: Path, quantization: str) -> None:
        """Writes the export into an empty folder. The model is on the processor, in evaluation mode, without
        adapters, and may not be changed."""
        raise NotImplementedError

    def open(self, folder: Path) -> Runner:
        """The export in a folder, by the runtime that it is for."""
        raise NotImplementedError

    def answers(self, model: Model, head: str, inputs: CheckInputs) -> list[np.ndarray]:
        """What the runner's answers have to be. A target whose runtime says something else than a head's
        outputs (vectors of texts, probabilities) computes that of the model here."""
        from etymon.exports.check import model_answers

        return model_answers(model, head, inputs)

    def checker(self) -> str:
        """Who answers in the check, as the verb says it."""
        return "the runtime"

    def check_further(self, model: Model, runner: Runner) -> dict[str, Any]:
        """What a runtime does beside computing (cutting texts into tokens) and was compared: stored beside
        the export. What differs too much is refused."""
        return {}

    def require_packages(self) -> None:
        """Refuses before any work where the runtime is not installed."""
        missing = [name for name in self.packages if find_spec(name) is None]
        if missing:
            raise EtymonError(
                f"an export to {self.name} needs {', '.join(missing)}: pip install 'etymon[{self.extra}]'"
            )

    def versions(self) -> dict[str, str]:
        """Of the packages that wrote and checked it."""
        versions = {}
        for name in self.packages:
            try:
                versions[name] = version(name)
            except PackageNotFoundError:  # a module of another name than its package
                versions[name] = "unknown"
        return versions


def exportable_heads(family: Family) -> list[str]:
    """A family's heads that answer something by themselves, and its states."""
    return [name for name in family.heads if name not in ("pooler", "mix", "encoder")] + [STATES]


def choose_head(model: Model, wanted: str | None) -> str:
    """The head to export: the one that was asked for, or the model's only one, or its vocabulary."""
    names = [name for name in exportable_heads(model.family) if name in model.head_names]
    if wanted is not None:
        if wanted not in [*names, STATES]:
            raise EtymonError(
                f"this {model.family.title} has no head {wanted!r}: export {' or '.join([*names, STATES])}"
            )
        return wanted
    if len(names) <= 1:
        return names[0] if names else STATES
    if "vocabulary" in names:
        return "vocabulary"
    raise EtymonError(f"this {model.family.title} has the heads {', '.join(names)}: say which with --head")
