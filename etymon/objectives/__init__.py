"""The objectives, by name; nothing is imported until it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from etymon.config import strict
from etymon.errors import EtymonError
from etymon.registry import OBJECTIVES as REGISTRY

if TYPE_CHECKING:
    from etymon.objectives.objective import Objective
    from etymon.text.tokenizer import Tokenizer


def objective_class(name: str) -> type[Objective]:
    """The class of that name: what it needs can be asked before there is a tokenizer.

    Of a mixture (`masked=0.7,causal=0.3`) it is an object that can be asked and called alike.
    """
    if "=" in name or "," in name:
        return import_module("etymon.objectives.mixture").Blend(name)
    return REGISTRY.find(name)


def get_objective(name: str, tokenizer: Tokenizer, length: int, **options: Any) -> Objective:
    """The objective of that name for a tokenizer, with inputs of up to `length` tokens, and options of its
    own."""
    kind: Any = objective_class(name)
    return kind(tokenizer, length, read_options(name, options))


def read_options(name: str, options: Mapping[str, Any]) -> Any:
    """An object of the objective's `Options`; of a mixture, a dict of those of each member by its name.

    Raises an EtymonError for options that the objective does not have, or that cannot be. It needs no
    tokenizer, so that a run is refused before any work.
    """
    kind: Any = objective_class(name)
    weights = getattr(kind, "weights", None)
    if weights is None:
        return strict(kind.Options, options, f"the options of the objective {name!r}")
    for member, values in options.items():
        if member not in weights or not isinstance(values, Mapping):
            raise EtymonError(
                f"options of the mixture {name!r} are given for each of {', '.join(weights)}, "
                f"not for {member!r}"
            )
    return {member: read_options(member, options.get(member, {})) for member in weights}
