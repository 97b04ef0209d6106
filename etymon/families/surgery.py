"""Models made out of other models: averaged, with more words, sharing embeddings, or with some of their layers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from etymon.errors import EtymonError
from etymon.families import get_family
from etymon.families.loading import load, shape_of
from etymon.families.model import Model
from etymon.nn.lora import merge


@torch.no_grad()
def average_checkpoints(folders: Sequence[str | Path]) -> Model:
    """A model whose every weight is the mean over the models in the folders; all else is the last one's."""
    if not folders:
        raise EtymonError("there are no checkpoints to average")
    *others, last = folders
    model = merge(load(last))  # the mean of products is not the product of means
    sums = {name: tensor.double() for name, tensor in model.stored_tensors().items()}
    for folder in others:
        other = merge(load(folder))
        if (other.family, other.shape, other.head_names) != (model.family, model.shape, model.head_names):
            raise EtymonError(f"{folder} and {last} hold models of different shapes: they have no mean")
        for name, tensor in other.stored_tensors().items():
            sums[name] += tensor
    for name, tensor in model.stored_tensors().items():
        tensor.copy_(sums[name] / len(folders))
    return model


@torch.no_grad()
def grow(model: Model, known: int, spelled: Sequence[Sequence[int] | None], seed: int = 0) -> Model:
    """The model with a row for every new word; `known` ids have one, and `spelled` says of which of them each new one is made.

    Word vectors, and the output matrix and bias where they are not the word vectors, start as the mean over the spelling, or,
    if a word is made of nothing (None), as the family's first values. Rows beyond the known ids, which some published models
    have, belonged to no word and are used.
    """
    if model.lora is not None:
        raise EtymonError("adapters belong to their base and its words, which cannot grow: merge them first")
    if getattr(model.shape, "divisor", 1) > 1:
        raise EtymonError("word vectors of several widths cannot grow: a new word would be the rarest of all")
    grown = _sized(model, max(known + len(spelled), model.shape.vocabulary))
    if None in spelled:
        grown.initialise(seed)
    with torch.device("meta"):
        larger = _sized(model, model.shape.vocabulary + 1).stored_tensors()
    target = grown.stored_tensors()
    for name, before in model.stored_tensors().items():
        if before.shape == larger[name].shape:
            target[name].copy_(before)
        elif before.shape[1:] == larger[name].shape[1:]:
            first = [
                # What could not be spelled at all starts as the mean of everything.
                target[name][number].clone()
                if pieces is None
                else before[list(pieces) or slice(known)].mean(0)
                for number, pieces in enumerate(spelled, known)
            ]
            target[name][: len(before)] = before
            for number, row in enumerate(first, known):
                target[name][number] = row
        else:
            raise EtymonError(f"the vocabulary of {model.family.title} cannot grow: {name} has no row a word")
    grown.carried, grown.generation = model.carried, model.generation
    grown.history, grown.new_heads = model.history, model.new_heads
    return grown.to(model.device).train(model.training)


def _sized(model: Model, vocabulary: int) -> Model:
    return Model(model.family, replace(model.shape, vocabulary=vocabulary), model.head_names, model.labels)


SHARED = ("words", "positions", "segments", "norm")
"""The parts of the embeddings that ELECTRA's generator and discriminator have in common."""


LAYER = re.compile(r"(.*\blayers\.)(\d+)(\..*)")


def generator_for(model: Model, changed: Mapping[str, Any], seed: int) -> Model:
    """A generator for replaced-token detection, with first values; fields of its shape may be changed by name."""
    # Another seed: parameters draw by their names, and the two have many names in common.
    return share_embeddings(blank_generator(model, changed).initialise(seed + 1), model)


def blank_generator(model: Model, changed: Mapping[str, Any]) -> Model:
    """The same without values, and with embeddings of its own."""
    assert model.family.generator is not None, f"{model.family.title} has no generator"
    name, shape = model.family.generator(model.shape)
    family = get_family(name)
    generator = Model(family, shape_of(family, **{**shape, **changed}), ("vocabulary",))
    generator.tokenizer = model.tokenizer
    return generator


def share_embeddings(generator: Model, model: Model) -> Model:
    """Gives the generator the model's own embeddings, wherever it uses its own (tied weights included)."""
    instead = {}
    for part in SHARED:
        own, given = (getattr(each.body.embeddings, part) for each in (generator, model))
        if own is None or given is None:
            continue
        for name, parameter in own.named_parameters():
            instead[parameter] = given.get_parameter(name)
            if instead[parameter].shape != parameter.shape:
                raise EtymonError(
                    f"the generator's {part} are of shape {tuple(parameter.shape)}, the model's of "
                    f"{tuple(instead[parameter].shape)}: they share them, so leave that as it is"
                )
    for module in generator.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if parameter in instead:
                module.register_parameter(name, instead[parameter])
    return generator


def spread_layers(count: int, depth: int) -> list[int]:
    """As many layers out of `depth` as asked for, evenly spread: 0, 2, 4, 7, 9, 11 for 6 out of 12, as DistilBERT has it."""
    return [round(number * (depth - 1) / max(count - 1, 1)) for number in range(count)]


@torch.no_grad()
def copy_layers(student: Model, teacher: Model, layers: Sequence[int]) -> list[str]:
    """Gives the student its teacher's embeddings, heads and the layers named; returns what the teacher does not have."""
    own, given = student.body.stack.schedule, teacher.body.stack.schedule
    depth = len(given)
    if len(layers) != len(own) or not all(0 <= layer < depth for layer in layers):
        raise EtymonError(
            f"the student has {len(own)} layers and begins with {len(layers)} of its teacher's, numbered "
            f"{', '.join(map(str, layers))}: name one for each, from 0 to {depth - 1}"
        )
    known = dict(teacher.named_parameters())
    anew = []
    for name, parameter in student.named_parameters():
        if match := LAYER.fullmatch(name):
            # A layer that is used many times begins as the one of its first use.
            place = given[layers[own.index(int(match[2]))]]
            name = f"{match[1]}{place}{match[3]}"
        if name not in known:
            anew.append(name)
        elif known[name].shape != parameter.shape:
            raise EtymonError(
                f"the student cannot begin as a part of its teacher: {name} is of shape {tuple(parameter.shape)} here "
                f"and {tuple(known[name].shape)} there; teacher_layers: [] lets it begin anew"
            )
        else:
            parameter.copy_(known[name])
    return anew
