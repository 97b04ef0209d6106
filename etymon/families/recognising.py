"""What a folder holds, where it does not say so itself: its family, its heads, and how many labels these know."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from etymon.checkpoints.config_keys import config_keys
from etymon.checkpoints.names import NameMap
from etymon.checkpoints.settings import OWN_TYPE
from etymon.errors import EtymonError
from etymon.families import REGISTRY, family_of, get_family
from etymon.families.family import ENDINGS, Family
from etymon.families.filling import extra_heads, head_of, name_map

LABELLING = frozenset({"classification", "tagging"})
"""The heads with an output for every label."""


def recognise_family(
    config: Mapping[str, Any],
    weight_names: Callable[[], Iterable[str]],
    where: str,
    told: str | Family | None = None,
) -> Family:
    """The family that a folder is of: as `told`, as its `model_type` or its class says, or as its weights are called."""
    named = str(config.get("model_type") or "").removeprefix(OWN_TYPE)
    if isinstance(told, str):
        published = (family for family in published_families() if family.model_type == told)
        told = next(published, None) or get_family(told)
    if told is not None:
        return told.published_as(named) if named in told.aliases else told
    if named:
        return family_of(named)
    classes = {*class_names(config)}
    for family in published_families():
        if classes & {known.name for known in family.architectures}:
            return family
    stored = list(weight_names())
    # Folders of families that Transformers does not have are our own, and say what they are.
    foreign = (name for name in REGISTRY if config_keys(get_family(name).model_type) is not None)
    shares = {name: known_share(get_family(name), stored) for name in foreign}
    best = [name for name, share in shares.items() if share == max(shares.values())]
    if max(shares.values()) < 0.5:
        raise EtymonError(
            f"{where} has no model_type, and its weights are called like those of no family: say what it is with "
            "etymon convert SOURCE TARGET --family NAME"
        )
    if len(best) > 1:
        raise EtymonError(
            f"{where} has no model_type, and its weights may be those of {' or '.join(best)}: say what it is with "
            "etymon convert SOURCE TARGET --family NAME"
        )
    return get_family(best[0])


def published_families() -> Iterable[Family]:
    """All families, under each `model_type` that they were published as."""
    for name in REGISTRY:
        family = get_family(name)
        for model_type in (family.model_type, *family.aliases):
            yield family.published_as(model_type)


def known_share(family: Family, stored: Iterable[str]) -> float:
    """The share of stored names that a family's map has a row for."""
    names = family.names(family.shape())
    found = [bool(ours_of(names, name)) or name in names.ties for name in stored]
    return sum(found) / max(1, len(found))


def ours_of(names: NameMap, stored: str) -> list[str]:
    """The patterns of ours that a stored name may stand for, whatever prefix it has or lacks."""
    for prefix in names.other_prefixes:
        stored = stored.removeprefix(prefix)
    return names.ours_of(stored) or names.ours_of(names.prefix + stored)


def class_names(config: Mapping[str, Any]) -> list[str]:
    """The classes that a configuration says its weights were saved by."""
    named = config.get("architectures")
    return [each for each in named if isinstance(each, str)] if isinstance(named, list) else []


def stored_heads(
    family: Family, config: Mapping[str, Any], history: Mapping[str, Any], weights: Iterable[str]
) -> frozenset[str]:
    """Which heads a folder holds: as our own note says, as its class says, or as its names say."""
    if "heads" in history:
        return frozenset(history["heads"])
    names = family.names(family.shape())  # which heads there are does not depend on the sizes
    present = frozenset(head for name in weights if (head := head_of(names, name)) is not None)
    named = class_names(config)[:1]
    candidates = [known.heads for known in family.architectures if [known.name] == named]
    if named and not candidates:  # a class of an old release or of another package
        endings = sorted((ending for ending in ENDINGS if named[0].endswith(ending)), key=len)
        candidates = [
            frozenset(ENDINGS[ending]) for ending in endings[-1:] if ENDINGS[ending] <= {*family.heads}
        ]
    if not candidates:
        found = present - {family.heads[name].after for name in present}
        # Words that are given back by their vectors leave no trace in the names.
        return found or (family.architectures[0].heads if "state" in family.capabilities else found)
    fitting = [heads for heads in candidates if heads <= present or len(candidates) == 1]
    found = (fitting or candidates)[0]
    # A file may hold more than its class: BERT's published ones name the masked model and have both its heads.
    fuller = [known.heads for known in family.architectures if found < known.heads <= present]
    return max(fuller, key=len, default=found)


def stored_labels(
    family: Family, config: Mapping[str, Any], weights: Mapping[str, torch.Tensor], heads: frozenset[str]
) -> list[str]:
    """The names of a checkpoint's outputs, in their order. How many there are is for the weights to say."""
    known = {str(key): str(label) for key, label in (config.get("id2label") or {}).items()}
    number = config.get("num_labels")
    count = len(known) or (number if isinstance(number, int) and number > 0 else 2)
    names = name_map(family, family.shape(), extra_heads(weights))
    outputs = tuple(f"heads.{head}.linear." for head in heads & LABELLING)
    for stored in weights if outputs else ():
        if stored.endswith(".weight") and any(ours.startswith(outputs) for ours in ours_of(names, stored)):
            count = len(weights[stored])
    return [known.get(str(number), label) for number, label in enumerate(unnamed_labels(count))]


def unnamed_labels(count: int) -> list[str]:
    return [f"LABEL_{number}" for number in range(count)]
