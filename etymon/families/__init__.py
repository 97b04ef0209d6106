"""The families, by name: an explicit table, and nothing is imported until it is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from etymon.config import did_you_mean
from etymon.errors import EtymonError

if TYPE_CHECKING:
    from etymon.families.family import Family

# Family name -> module with a `FAMILY`.
REGISTRY = {
    "gpt1": "etymon.families.gpt1",
    "gpt2": "etymon.families.gpt2",
    "gpt3": "etymon.families.gpt3",
    "gptj": "etymon.families.gptj",
    "bert": "etymon.families.bert",
    "t5": "etymon.families.t5",
    "roberta": "etymon.families.roberta",
    "albert": "etymon.families.albert",
    "distilbert": "etymon.families.distilbert",
    "electra": "etymon.families.electra",
    "bart": "etymon.families.bart",
    "elmo": "etymon.families.elmo",
    "transformer": "etymon.families.transformer",
    "rnn": "etymon.families.rnn",
    "xlnet": "etymon.families.xlnet",
    "transformer-xl": "etymon.families.transformer_xl",
}


def get_family(name: str) -> Family:
    """The family of that name (`gpt2`, `bert`, ...; upper case and hyphens do not matter)."""
    plain = name.lower().replace("-", "").replace("_", "")
    modules = {listed.replace("-", ""): module for listed, module in REGISTRY.items()}
    if plain not in modules:
        raise EtymonError(f"there is no family {name!r}: {did_you_mean(name, REGISTRY)}")
    return import_module(modules[plain]).FAMILY


def family_of(model_type: str) -> Family:
    """The family whose published configurations call themselves `model_type`."""
    for name in REGISTRY:
        family = get_family(name)
        if model_type in family.model_types:
            return family.as_model_type(model_type)
    raise EtymonError(
        f"model_type {model_type!r} is not a family known here: {did_you_mean(model_type, REGISTRY)}"
    )
