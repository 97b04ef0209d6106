"""Weights from a checkpoint into a model: which heads it holds, whose names they go by, and what does not fit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from etymon.checkpoints.names import NameMap, rows
from etymon.errors import EtymonError
from etymon.families.family import Architecture, Family
from etymon.families.model import Model
from etymon.nn.int8 import shrink

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
    family, parameters = model.family, model.kept()
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
    for name, tensor in model.kept().items():
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
    heads, weighty = model.asked, {name.split(".")[1] for name in model.kept() if name.startswith("heads.")}
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
