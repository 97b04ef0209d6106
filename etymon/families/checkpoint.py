"""What a folder holds (family, heads, labels) and how its weights get into a model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from etymon.checkpoints.names import NameMap, rows
from etymon.checkpoints.settings import OWN_TYPE, config_keys
from etymon.checkpoints.sharded import model_prefix, read_into
from etymon.errors import EtymonError
from etymon.families import REGISTRY, family_of, get_family
from etymon.families.family import ENDINGS, LABELLED_HEADS, Architecture, Family
from etymon.families.model import Model
from etymon.nn.int8 import shrink

# Before the names of weights of heads that no published class has.
OWN_HEADS = "etymon_heads."
POINTER = OWN_HEADS + "vocabulary.pointer."
# Parts that any decoder may have and few published ones have.
OWN_PARTS = {
    "body.embeddings.words.tables.{}.*": "etymon_words.tables.{}.*",
    "body.embeddings.words.maps.{}.*": "etymon_words.maps.{}.*",
}


# --- what a folder holds, where it does not say so itself


def recognise_family(
    config: Mapping[str, Any],
    weight_names: Callable[[], Iterable[str]],
    where: str,
    given: str | Family | None = None,
) -> Family:
    """The family of a folder: the `given` one, or the one that its `model_type`, its class or its weights'
    names tell."""
    model_type = str(config.get("model_type") or "").removeprefix(OWN_TYPE)
    # All families, under each `model_type` that they were published as.
    published = [
        family.as_model_type(alias)
        for family in map(get_family, REGISTRY if given is not None or not model_type else ())
        for alias in family.model_types
    ]
    if isinstance(given, str):
        given = next((family for family in published if family.model_type == given), None) or get_family(
            given
        )
    if given is not None:
        return given.as_model_type(model_type) if model_type in given.model_types else given
    if model_type:
        return family_of(model_type)
    named_classes = {*class_names(config)}
    for family in published:
        if named_classes & {architecture.name for architecture in family.architectures}:
            return family
    # Folders of families that Transformers does not have are our own, and say what they are.
    foreign = [name for name in REGISTRY if config_keys(get_family(name).model_type) is not None]
    stored = list(weight_names())
    shares = {name: _covered_share(get_family(name), stored) for name in foreign}
    best = [name for name, share in shares.items() if share == max(shares.values())]
    if len(best) == 1 and shares[best[0]] >= 0.5:
        return get_family(best[0])
    reason = (
        "are called like those of no family"
        if max(shares.values()) < 0.5
        else f"may be those of {' or '.join(best)}"
    )
    raise EtymonError(
        f"{where} has no model_type, and its weights {reason}: say what it is with etymon convert SOURCE "
        "TARGET "
        "--family NAME"
    )


def _covered_share(family: Family, stored: list[str]) -> float:
    """The share of stored names that a family's map has a row for."""
    names = family.names(family.shape())
    covered = sum(bool(_ours_of(names, name)) or name in names.ties for name in stored)
    return covered / max(1, len(stored))


def _spellings(names: NameMap, stored: str) -> tuple[str, str]:
    """A stored name without and with the prefix of the map, whatever prefix it has or lacks."""
    for prefix in names.other_prefixes:
        stored = stored.removeprefix(prefix)
    return stored, names.prefix + stored


def _ours_of(names: NameMap, stored: str) -> list[str]:
    """The patterns of ours that a stored name may stand for."""
    return next(filter(None, map(names.ours_of, _spellings(names, stored))), [])


def head_of(names: NameMap, stored: str) -> str | None:
    """The head that a stored name belongs to, if it is one's."""
    return next(filter(None, map(names.head_of, _spellings(names, stored))), None)


def class_names(config: Mapping[str, Any]) -> list[str]:
    """The classes that a configuration says its weights were saved by."""
    classes = config.get("architectures")
    return [name for name in classes if isinstance(name, str)] if isinstance(classes, list) else []


def stored_heads(
    family: Family, config: Mapping[str, Any], note: Mapping[str, Any], weights: Iterable[str]
) -> frozenset[str]:
    """Which heads a folder holds: as our own note says, as its class says, or as its names say."""
    if "heads" in note:
        return frozenset(note["heads"])
    names = family.names(family.shape())  # which heads there are does not depend on the sizes
    present = frozenset(head for name in weights if (head := head_of(names, name)) is not None)
    named = class_names(config)[:1]
    candidates = [published.heads for published in family.architectures if [published.name] == named]
    if named and not candidates:  # a class of an old release or of another package
        endings = [ending for ending in ENDINGS if named[0].endswith(ending)]
        heads = frozenset(ENDINGS[max(endings, key=len)] if endings else ())
        candidates = [heads] if heads and heads <= family.heads.keys() else []
    if not candidates:
        heads = present - {family.heads[name].after for name in present}
        # Words that are given back by their vectors leave no trace in the names.
        return heads or (family.architectures[0].heads if "state" in family.capabilities else heads)
    heads = next((heads for heads in candidates if heads <= present), candidates[0])
    # A file may hold more than its class: BERT's published ones name the masked model and have both its
    # heads.
    fuller = [published.heads for published in family.architectures if heads < published.heads <= present]
    return max(fuller, key=len, default=heads)


def stored_labels(
    family: Family, config: Mapping[str, Any], weights: Mapping[str, Tensor], heads: frozenset[str]
) -> list[str]:
    """The names of a checkpoint's outputs, in their order. How many there are is for the weights to say."""
    labels = {str(key): str(label) for key, label in (config.get("id2label") or {}).items()}
    number = config.get("num_labels")
    count = len(labels) or (number if isinstance(number, int) and number > 0 else 2)
    names = name_map(family, family.shape(), extra_heads(weights))
    outputs = tuple(f"heads.{head}.linear." for head in heads & LABELLED_HEADS)
    for stored in weights if outputs else ():
        if stored.endswith(".weight") and any(ours.startswith(outputs) for ours in _ours_of(names, stored)):
            count = len(weights[stored])
    return [labels.get(str(number), label) for number, label in enumerate(unnamed_labels(count))]


def unnamed_labels(count: int) -> list[str]:
    return [f"LABEL_{number}" for number in range(count)]


def name_map(family: Family, shape: Any, extra: Iterable[str]) -> NameMap:
    """The family's map, with rows of our own for heads `extra` to the published class."""
    first = {"heads.vocabulary.pointer.*": POINTER + "*"}
    first |= {f"heads.{name}.*": f"{OWN_HEADS}{name}.*" for name in sorted(extra)}
    names = family.names(shape)
    return replace(names, rows=[*rows(first), *names.rows, *rows(OWN_PARTS)])


def extra_heads(stored: Iterable[str]) -> set[str]:
    """The heads that a folder keeps beside those of its class, by the names of its weights."""
    extra = (name for name in stored if name.startswith(OWN_HEADS) and not name.startswith(POINTER))
    return {name.split(".")[1] for name in extra}


# --- weights into a model


def fill(
    model: Model,
    weights: Mapping[str, Tensor],
    names: NameMap,
    stored: frozenset[str],
    folder: Path,
    is_choice: bool,
    partial: bool,
    seed: int,
) -> None:
    """Copies the weights in, and refuses whatever does not fit.

    `stored` heads are taken from the folder and others start anew. If `is_choice`, the heads were asked for
    by name: those that the folder has beyond them are left out.
    """
    family, parameters = model.family, model.stored_tensors()
    absent = set(model.heads) - family.with_required(stored)
    new = {name for name in absent if any(ours.startswith(f"heads.{name}.") for ours in parameters)}
    fresh = tuple(f"heads.{name}." for name in new)
    shapes = {name: tensor.shape for name, tensor in parameters.items() if not name.startswith(fresh)}
    with torch.no_grad():
        result = names.read(weights, shapes, lambda name, tensor: parameters[name].copy_(tensor))
    ours_by_name = {theirs: parts[0] for theirs, (_, parts) in names.groups(shapes).items()}
    # Buffers have a first value: old files do without them.
    result.missing = [name for name in result.missing if parameters[ours_by_name[name]].requires_grad]
    # A head that only serves others (BERT's pooler) is often stored with classes that have no use for it.
    serving = {head.after for head in family.heads.values() if head.after is not None}
    spare = set(family.heads) if is_choice else serving - set(model.heads)
    result.unexpected = [name for name in result.unexpected if head_of(names, name) not in spare]
    if (
        is_choice and model.encoder_decoder and model.body.decoder is None
    ):  # heads of the encoder do without it
        result.unexpected = [
            name
            for name in result.unexpected
            if not any(ours.startswith("body.decoder.") for ours in names.ours_of(name))
        ]
    if partial:
        missing_heads = [name for name in result.missing if ours_by_name[name].startswith("heads.")]
        new |= {ours_by_name[name].split(".")[1] for name in missing_heads}
        result.missing = [name for name in result.missing if name not in missing_heads]
        result.unexpected = []
    if problems := result.problems():
        hint = "" if result.misshapen or result.conflicting else " (partial=True tolerates unexpected names)"
        raise EtymonError(f"the weights in {folder} do not fit {model.family.title}: {problems}{hint}")
    model.initialise(seed, only=sorted(new))
    model.new_heads = tuple(sorted(new))


def fill_from_parts(model: Model, folder: Path, stored: frozenset[str], seed: int) -> None:
    """The same from a sharded checkpoint, which has the weights of the model folder in it under our names."""
    new = sorted(set(model.heads) - model.family.with_required(stored))
    fresh = tuple(f"heads.{name}." for name in new)
    prefix = model_prefix(folder.parent, folder.name)
    parameters = {name: tensor.detach() for name, tensor in model.stored_tensors().items()}
    wanted = {prefix + name: tensor for name, tensor in parameters.items() if not name.startswith(fresh)}
    read_into(folder.parent, wanted)
    model.initialise(seed, only=new)
    model.new_heads = tuple(new)


def fill_int8(model: Model, weights: Mapping[str, Tensor], folder: Path) -> None:
    """Copies weights of eight bits in, which lie under our own names."""
    try:
        # A copy: what is read is mapped, lies where the file has it, and would change if the file does.
        shrink(model, model.shape.vocabulary, lambda name: weights[name].clone())
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(weights[name])
    except KeyError as error:
        raise EtymonError(
            f"the eight-bit weights in {folder} have no {error.args[0]}: ask for the heads that it was "
            "stored with"
        ) from error


def require_finite(model: Model, folder: Path) -> None:
    """Refuses weights that are no numbers: everything that such a model says is NaN."""
    # A sum is finite only if every value is, and takes half the time of looking at each; finite values may
    # overflow it.
    faults = {
        name: int(tensor.numel() - tensor.isfinite().sum())
        for name, tensor in model.stored_tensors().items()
        if tensor.is_floating_point() and not math.isfinite(tensor.detach().sum(dtype=torch.float32))
    }
    faults = {name: count for name, count in faults.items() if count}
    if faults:
        name, count = next(iter(faults.items()))
        more = f" (and {sum(faults.values()) - count:,} in {len(faults) - 1:,} other tensors)"
        raise EtymonError(
            f"the weights in {folder} are NaN or infinite: {count:,} values of "
            f"{name}{more if len(faults) > 1 else ''}; "
            "take an older checkpoint, or open it all the same with --no-verify (verify=False)",
            code="damaged-model",
        )


# --- the class that a model is saved as


def best_architecture(model: Model) -> Architecture:
    """The published class with the most of the model's heads, first of all of those that have weights of
    their own: a tied vocabulary is found again in any class, and so a class with one fits models that were
    not asked to have it."""
    heads = model.head_names
    weighty = {name.split(".")[1] for name in model.stored_tensors() if name.startswith("heads.")}
    free = set(heads)
    if model.encoder_decoder:
        weighty = set()  # without its vocabulary, the class may lack the decoder, too
    elif "vocabulary" not in weighty and "vocabulary" in model.family.heads and not model.int8:
        with torch.device("meta"):
            head = model.family.heads["vocabulary"].build(model.shape, model.body, len(model.labels))
        if {*head.parameters()} <= {*model.body.parameters()}:
            free.add("vocabulary")
    return max(
        (published for published in model.family.architectures if published.heads <= free),
        key=lambda published: (
            len(published.heads & weighty),
            len(published.heads & heads),
            -len(published.heads - heads),
        ),
    )
