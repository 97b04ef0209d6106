"""Models that train beside another one and share parts with it, or begin as a part of it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from etymon.errors import EtymonError
from etymon.families import get_family
from etymon.families.loading import shape_of
from etymon.families.model import Model

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


def spread(count: int, depth: int) -> list[int]:
    """As many layers out of `depth` as asked for, evenly spread: 0, 2, 4, 7, 9, 11 for 6 out of 12, as DistilBERT has it."""
    return [round(number * (depth - 1) / max(count - 1, 1)) for number in range(count)]


@torch.no_grad()
def begin_as(student: Model, teacher: Model, layers: Sequence[int]) -> list[str]:
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
