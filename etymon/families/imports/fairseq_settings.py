"""What fairseq's checkpoints say of a model: a `Namespace`, plain containers, or the objects of omegaconf
that releases between 0.10 and 0.12 saved as they were."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from etymon.errors import EtymonError
from etymon.families.imports.pickles import StandIn

CODES = ("fairseq.", "omegaconf.")
"""Whose classes stand beside weights: settings, their nodes, their choices (enums), meters."""
OTHERS = (
    # Best losses and the like, as numbers of numpy; and what omegaconf keeps beside every value.
    *("numpy.core.multiarray.scalar", "numpy._core.multiarray.scalar", "numpy.dtype", "_codecs.encode"),
    *(f"typing.{name}" for name in ("Any", "Dict", "List", "Optional", "Tuple", "Union")),
    *(f"builtins.{name}" for name in ("bool", "dict", "float", "int", "list", "str", "tuple")),
    "_operator.getitem",
)
DEEPEST = 20
"""Of containers within containers; more is a file that was made to be wrong."""
REFERENCE = re.compile(r"\$\{([\w.]+)\}")


def is_fairseq_name(name: str) -> bool:
    """Whether a class or function of this name may stand in a checkpoint. Nothing of it is looked up."""
    return name.startswith(CODES) or name in OTHERS


def fairseq_settings(state: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The model's settings: `args` of older releases, `cfg` of newer ones."""
    whole = plain_value(state.get("args"))
    if not isinstance(whole, dict):
        whole = plain_value(state.get("cfg"))
        model = whole.get("model") if isinstance(whole, dict) else None
        if not isinstance(model, dict):
            raise EtymonError(f"{path} has neither args nor cfg, by which fairseq says what a model is")
        whole = {**whole, **model, "": whole}
    settings = {name: _follow(value, whole.get("", whole)) for name, value in whole.items() if name}
    # Settings of a side may stand by themselves: `encoder: {layers: 6}` is `encoder_layers`.
    for side in ("encoder", "decoder"):
        if isinstance(part_settings := settings.get(side), dict):
            settings |= {
                f"{side}_{name}": _follow(value, whole.get("", whole))
                for name, value in part_settings.items()
            }
    return settings


def plain_value(value: Any, depth: int = 0, finished: dict[int, Any] | None = None) -> Any:
    """Dictionaries, lists and values, of whatever they were stored as; None where it is something else.

    `finished` has what was read before: an object that stands in many places is read once."""
    finished = {} if finished is None else finished
    if depth > DEEPEST or id(value) in finished:
        return finished.get(id(value))
    finished[id(value)] = None  # of an object within itself
    finished[id(value)] = _plain_parts(value, lambda part: plain_value(part, depth + 1, finished))
    return finished[id(value)]


def _plain_parts(value: Any, plain: Callable[[Any], Any]) -> Any:
    if isinstance(value, argparse.Namespace):
        value = vars(value)
    elif isinstance(value, StandIn):
        # A container of omegaconf, then a value of it, then a choice, which is made from its value.
        for name in ("_content", "_val"):
            if name in vars(value):
                return plain(vars(value)[name])
        return plain(value.arguments[0]) if len(value.arguments) == 1 else None
    if isinstance(value, dict):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return value if isinstance(value, str | int | float) else None


def _follow(value: Any, whole: Any) -> Any:
    """The value that a reference of omegaconf (`${task.tokens_per_sample}`) means."""
    for _ in range(DEEPEST):
        if not isinstance(value, str) or (reference := REFERENCE.fullmatch(value)) is None:
            return value
        value = whole
        for name in reference[1].split("."):
            value = value.get(name) if isinstance(value, dict) else None
    return None
