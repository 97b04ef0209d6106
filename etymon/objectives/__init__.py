"""The objectives, by name: an explicit table, and nothing is imported until it is asked for."""

from __future__ import annotations

from importlib import import_module
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
    """The objective of that name for a tokenizer, with inputs of up to `length` tokens."""
    maker: Any = objective_class(name)
    objective: Objective = maker(tokenizer, length, **options)
    return objective
