"""The objectives, by name: an explicit table, and nothing is imported until it is asked for."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from inspect import signature
from typing import TYPE_CHECKING, Any

from etymon.config import did_you_mean
from etymon.errors import EtymonError

if TYPE_CHECKING:
    from etymon.objectives.objective import Objective
    from etymon.text.tokenizer import Tokenizer

REGISTRY = {
    "causal": "etymon.objectives.causal:CausalLM",
    "recurrent": "etymon.objectives.recurrent:Recurrent",
    "prefix": "etymon.objectives.prefix:PrefixLM",
    "masked": "etymon.objectives.masked:MaskedLM",
    "masked-next-sentence": "etymon.objectives.masked:MaskedNextSentence",
    "masked-sentence-order": "etymon.objectives.masked:MaskedSentenceOrder",
    "permutation": "etymon.objectives.permutation:Permutation",
    "bidirectional": "etymon.objectives.bidirectional:Bidirectional",
    "replaced": "etymon.objectives.replaced:Replaced",
    "distilled-masked": "etymon.objectives.distillation:DistilledMasked",
    "distilled-causal": "etymon.objectives.distillation:DistilledCausal",
    "denoising": "etymon.objectives.denoising:Denoising",
    "span-corruption": "etymon.objectives.denoising:SpanCorruption",
}


def objective_class(name: str) -> type[Objective]:
    """The class of that name: what it needs can be asked before there is a tokenizer.

    Of a mixture (`masked=0.7,causal=0.3`) it is an object that can be asked and called alike.
    """
    if "=" in name or "," in name:
        return import_module("etymon.objectives.mixture").Blend(name)
    if name not in REGISTRY:
        raise EtymonError(f"there is no objective {name!r}: {did_you_mean(name, REGISTRY)}")
    module, member = REGISTRY[name].split(":")
    return getattr(import_module(module), member)


def get_objective(name: str, tokenizer: Tokenizer, length: int, **options: Any) -> Objective:
    """The objective of that name for a tokenizer, with inputs of up to `length` tokens, and options of its own."""
    maker: Any = objective_class(name)
    check_options(name, options)
    return maker(tokenizer, length, **options)


def check_options(name: str, options: Mapping[str, Any]) -> None:
    """Refuses options that the objective does not have, or that cannot be. A mixture takes those of each by its name."""
    kind: Any = objective_class(name)
    if weights := getattr(kind, "weights", None):
        for part, own in options.items():
            if part not in weights or not isinstance(own, Mapping):
                raise EtymonError(
                    f"options of the mixture {name!r} are given for each of {', '.join(weights)}, not for {part!r}"
                )
            check_options(part, own)
        return
    known = list(signature(kind).parameters.values())[2:]
    defaults = {parameter.name: parameter.default for parameter in known}
    for option, value in options.items():
        if option not in defaults:
            raise EtymonError(
                f"the objective {name!r} has no option {option!r}: {did_you_mean(option, defaults)}"
            )
        where, wanted = f"{option} of the objective {name!r}", type(defaults[option])
        if isinstance(value, bool) != (wanted is bool) or not isinstance(
            value, (float, int) if wanted is float else wanted
        ):
            raise EtymonError(f"{where} is {value!r}, and must be a {wanted.__name__}")
        if isinstance(value, str) and value not in kind.choices[option]:
            raise EtymonError(f"{where} cannot be {value!r}: {did_you_mean(value, kind.choices[option])}")
        if option in ("mean_span", "temperature", "samples") and not value:
            raise EtymonError(f"{where} cannot be 0")
        share = option in ("density", "recent", "smoothing")
        if isinstance(value, (int, float)) and not 0 <= value <= (1 if share else sys.float_info.max):
            raise EtymonError(f"{where} cannot be {value!r}{': it is a share of 1' if share else ''}")
        if option == "smoothing" and value == 1:
            raise EtymonError(f"{where} cannot be 1: nothing would be left of the targets")
    if hasattr(kind, "check_amounts"):
        kind.check_amounts(options)
