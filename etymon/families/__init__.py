"""The families, by name; nothing is imported until it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from etymon.errors import EtymonError
from etymon.registry import FAMILIES as REGISTRY

if TYPE_CHECKING:
    from etymon.families.family import Family

__all__ = ["REGISTRY", "family_of", "get_family"]


def get_family(name: str) -> Family:
    """The family of that name (`gpt2`, `bert`, ...; upper case and hyphens do not matter)."""
    listed = {_plain(each): each for each in REGISTRY}
    return REGISTRY.find(listed.get(_plain(name), name))


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


def family_of(model_type: str) -> Family:
    """The family whose published configurations call themselves `model_type`."""
    for name in REGISTRY:
        family = get_family(name)
        if model_type in family.model_types:
            return family.as_model_type(model_type)
    # Families of plugins, which folders name as they name themselves.
    if model_type in REGISTRY:
        return REGISTRY[model_type]
    raise EtymonError(f"model_type {model_type!r} is not a family known here: {REGISTRY.advise(model_type)}")
