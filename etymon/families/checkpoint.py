"""What a folder holds (family, heads, labels) and how its weights get into a model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from etymon.checkpoints.names import NameMap, rows
from etymon.checkpoints.settings import OWN_TYPE, config_keys
from etymon.errors import EtymonError
from etymon.families import REGISTRY, family_of, get_family
from etymon.families.family import ENDINGS, Architecture, Family
from etymon.families.model import Model
from etymon.nn.int8 import shrink

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


OWN_HEADS = "etymon_heads."
POINTER = OWN_HEADS + "vocabulary.pointer."
OWN_PARTS = {
    "heads.vocabulary.pointer.*": POINTER + "*",
    "body.embeddings.words.tables.{}.*": "etymon_words.tables.{}.*",
    "body.embeddings.words.maps.{}.*": "etymon_words.maps.{}.*",
}
"""Parts that any decoder may have and few published ones have."""


def fill(
    model: Model,
    weights: Mapping[str, torch.Tensor],
    names: NameMap,
    stored: frozenset[str],
    folder: Path,
    chosen: bool,
    partial: bool,
    seed: int,
) -> None:
    """Copies the weights in, and refuses whatever does not fit."""
    family, parameters = model.family, model.stored_tensors()
    # Other heads than the checkpoint's were asked for: those it lacks start anew, those it has beyond are left out.
    absent = set(model.heads) - family.with_required(stored)
    new = {name for name in absent if any(ours.startswith(f"heads.{name}.") for ours in parameters)}
    fresh = tuple(f"heads.{name}." for name in new)
    wanted = {name: parameter.shape for name, parameter in parameters.items() if not name.startswith(fresh)}
    with torch.no_grad():
        result = names.read(weights, wanted, lambda name, tensor: parameters[name].copy_(tensor))
    groups = names.groups(wanted)
    # Buffers have a first value: old files do without them.
    result.missing = [name for name in result.missing if parameters[groups[name][1][0]].requires_grad]
    # A head that only serves others (BERT's pooler) is often stored with classes that have no use for it.
    serving = {head.after for head in family.heads.values() if head.after is not None}
    spare = serving - set(model.heads) if not chosen else set(family.heads)
    result.unexpected = [name for name in result.unexpected if head_of(names, name) not in spare]
    if chosen and model.encoder_decoder and model.body.decoder is None:  # heads of the encoder do without it
        result.unexpected = [
            name
            for name in result.unexpected
            if not any(ours.startswith("body.decoder.") for ours in names.ours_of(name))
        ]
    if partial:
        new |= {
            groups[name][1][0].split(".")[1]
            for name in result.missing
            if groups[name][1][0].startswith("heads.")
        }
        missing_body = [name for name in result.missing if not groups[name][1][0].startswith("heads.")]
        result.missing, result.unexpected = missing_body, []
    if problems := result.problems():
        hint = "" if result.misshapen or result.conflicting else " (partial=True tolerates unexpected names)"
        raise EtymonError(f"the weights in {folder} do not fit {model.family.title}: {problems}{hint}")
    model.initialise(seed, only=sorted(new))
    model.new_heads = tuple(sorted(new))


def fill_int8(model: Model, weights: Mapping[str, torch.Tensor], folder: Path) -> None:
    """Weights of eight bits lie under our own names."""
    try:
        # A copy: what is read is mapped, lies where the file has it, and would change if the file does.
        shrink(model, model.shape.vocabulary, lambda name: weights[name].clone())
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(weights[name])
    except KeyError as error:
        raise EtymonError(
            f"the eight-bit weights in {folder} have no {error.args[0]}: ask for the heads that it was stored with"
        ) from error


def require_finite(model: Model, folder: Path) -> None:
    """Refuses weights that are no numbers: everything that such a model says is NaN."""
    faults = {}
    for name, tensor in model.stored_tensors().items():
        # A sum is finite only if every value is, and takes half the time of looking at each.
        if tensor.is_floating_point() and not math.isfinite(tensor.detach().sum(dtype=torch.float32)):
            faults[name] = int(tensor.numel() - tensor.isfinite().sum())
    faults = {name: count for name, count in faults.items() if count}
    if faults:
        name, count = next(iter(faults.items()))
        more = f" (and {sum(faults.values()) - count:,} in {len(faults) - 1:,} other tensors)"
        raise EtymonError(
            f"the weights in {folder} are NaN or infinite: {count:,} values of {name}{more if len(faults) > 1 else ''}; take an "
            "older checkpoint, or open it all the same with --no-verify (verify=False)"
        )


def head_of(names: NameMap, stored: str) -> str | None:
    """The head that a stored name belongs to, whatever prefix it has or lacks."""
    for prefix in names.other_prefixes:
        stored = stored.removeprefix(prefix)
    return names.head_of(stored) or names.head_of(names.prefix + stored)


def name_map(family: Family, shape: Any, extra: Iterable[str]) -> NameMap:
    """The family's map, with rows of our own for heads `extra` to the published class."""
    own = {f"heads.{name}.*": f"{OWN_HEADS}{name}.*" for name in sorted(extra)}
    pointer, *others = rows(OWN_PARTS)
    names = family.names(shape)
    return replace(names, rows=[pointer, *rows(own), *names.rows, *others])


def extra_heads(stored: Iterable[str]) -> set[str]:
    """The heads that a folder keeps beside those of its class, by the names of its weights."""
    own = (name for name in stored if name.startswith(OWN_HEADS) and not name.startswith(POINTER))
    return {name.split(".")[1] for name in own}


def best_architecture(model: Model) -> Architecture:
    """The published class with the most of the model's heads, first of all of those that have weights of their own: words that
    are given back by their vectors are found again in any class, and may be more than was asked for."""
    heads, weighty = (
        model.head_names,
        {name.split(".")[1] for name in model.stored_tensors() if name.startswith("heads.")},
    )
    if model.encoder_decoder:  # without its vocabulary, the class may lack the decoder, too
        weighty = set()
    free = heads if model.encoder_decoder or "vocabulary" in weighty else {*heads, *_tied_vocabulary(model)}
    fitting = [known for known in model.family.architectures if known.heads <= free]
    return max(
        fitting,
        key=lambda known: (len(known.heads & weighty), len(known.heads & heads), -len(known.heads - heads)),
    )


def _tied_vocabulary(model: Model) -> set[str]:
    """The name of the vocabulary head, if its weights are all those of the body."""
    if "vocabulary" not in model.family.heads or model.int8:  # a folder of eight bits names no class
        return set()
    with torch.device("meta"):
        head = model.family.heads["vocabulary"].build(model.shape, model.body, len(model.labels))
    return set() if {*head.parameters()} - {*model.body.parameters()} else {"vocabulary"}
