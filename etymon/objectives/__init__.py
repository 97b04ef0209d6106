"""The objectives, by name: an explicit table, and nothing is imported until it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from inspect import signature
from typing import TYPE_CHECKING, Any

from etymon.config import did_you_mean
from etymon.errors import EtymonError

if TYPE_CHECKING:
    from etymon.data.tokenizer import Tokenizer
    from etymon.objectives.objective import Objective

REGISTRY = {
    "causal": "etymon.objectives.causal:Causal",
    "masked": "etymon.objectives.masked:Masked",
    "masked-next-sentence": "etymon.objectives.masked:MaskedNextSentence",
    "span-corruption": "etymon.objectives.denoising:SpanCorruption",
}


def objective_class(name: str) -> type[Objective]:
    """The class of that name: what it needs can be asked before there is a tokenizer."""
    if name not in REGISTRY:
        raise EtymonError(f"there is no objective {name!r}: {did_you_mean(name, REGISTRY)}")
    module, member = REGISTRY[name].split(":")
    found: type[Objective] = getattr(import_module(module), member)
    return found


def get_objective(name: str, tokenizer: Tokenizer, length: int, **options: Any) -> Objective:
    """The objective of that name for a tokenizer, with inputs of up to `length` tokens, and options of its own."""
    maker: Any = objective_class(name)
    check_options(name, options)
    objective: Objective = maker(tokenizer, length, **options)
    return objective


def check_options(name: str, options: Mapping[str, Any]) -> None:
    """Refuses options that the objective does not have, or of another type."""
    known = list(signature(objective_class(name)).parameters.values())[2:]
    defaults = {parameter.name: parameter.default for parameter in known}
    for option, value in options.items():
        if option not in defaults:
            raise EtymonError(
                f"the objective {name!r} has no option {option!r}: {did_you_mean(option, defaults)}"
            )
        wanted = type(defaults[option])
        if isinstance(value, bool) != (wanted is bool) or not isinstance(value, (wanted, int)):
            raise EtymonError(
                f"{option} of the objective {name!r} is {value!r}, and must be a {wanted.__name__}"
            )
