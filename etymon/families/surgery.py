"""Models made out of other models: averaged, with more words, sharing embeddings, or with some of their
layers."""

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

# The parts of the embeddings that ELECTRA's generator and discriminator have in common.
SHARED = ("words", "positions", "segments", "norm")
TOKEN_ID_KEY = re.compile("(token_id|tokens|_ids)$")
"""Keys of configurations whose values are ids of tokens."""
LAYER = re.compile(r"(.*\blayers\.)(\d+)(\..*)")


@torch.no_grad()
def average_checkpoints(folders: Sequence[str | Path]) -> Model:
    """A model whose every weight is the mean over the models in the folders; all else is the last one's.

    Often better than the last of them (Vaswani et al. 2017, section 6.1).
    """
    if not folders:
        raise EtymonError("there are no checkpoints to average")
    *others, last = folders
    model = merge(load(last))  # the mean of products is not the product of means
    # In double precision, so that the order of the sum leaves no trace.
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
def grow(model: Model, size: int, spellings: Sequence[Sequence[int] | None], seed: int = 0) -> Model:
    """The model with a row for every new word behind the first `size` ids; `spellings` are the ids that make
    each up.

    All that it computed it still computes. Word vectors, and the output matrix and bias where they are not
    the word vectors, start as the mean over the spelling, or, if a word is made of nothing (None), as the
    family's first values. Rows beyond `size`, which some published models have, belonged to no word and are
    used.
    """
    _require_rows(model)
    grown = _with_vocabulary(model, max(size + len(spellings), model.shape.vocabulary))
    if None in spellings:
        grown.initialise(seed)
    # Tensors that another vocabulary gives another shape have a row a word.
    with torch.device("meta"):
        larger = _with_vocabulary(model, model.shape.vocabulary + 1).stored_tensors()
    tensors = model.stored_tensors()
    for name, target in grown.stored_tensors().items():
        before = tensors[name]
        if before.shape == larger[name].shape:
            target.copy_(before)
        elif before.shape[1:] == larger[name].shape[1:]:
            first = target.clone()
            target[: len(before)] = before
            for number, pieces in enumerate(spellings, size):
                # What could not be spelled at all starts as the mean of everything.
                target[number] = (
                    first[number] if pieces is None else before[list(pieces) or slice(size)].mean(0)
                )
        else:
            raise EtymonError(f"the vocabulary of {model.family.title} cannot grow: {name} has no row a word")
    return _like(grown, model)


@torch.no_grad()
def replace_words(model: Model, spellings: Sequence[Sequence[int] | None], seed: int = 0) -> Model:
    """The model with other words: one for each of `spellings`, the old ids that it starts as the mean of.

    A word that is made of nothing (None) is drawn around the mean of the old ones, as far from it as they
    are. All but word vectors, and the output matrix and bias where they are not the word vectors,
    stays as it is.
    """
    _require_rows(model)
    made = _with_vocabulary(model, len(spellings))
    with torch.device("meta"):
        larger = _with_vocabulary(model, model.shape.vocabulary + 1).stored_tensors()
    tensors = model.stored_tensors()
    for name, target in made.stored_tensors().items():
        before = tensors[name]
        if before.shape == larger[name].shape:
            target.copy_(before)
        elif before.shape[1:] == larger[name].shape[1:]:
            generator = torch.Generator().manual_seed(seed)
            deviation, mean = torch.std_mean(before, dim=0, correction=0)
            drawn = torch.randn(target.shape, generator=generator).to(before)
            for number, pieces in enumerate(spellings):
                target[number] = (
                    mean + deviation * drawn[number] if pieces is None else before[list(pieces)].mean(0)
                )
        else:
            raise EtymonError(
                f"the words of {model.family.title} cannot be replaced: {name} has no row a word"
            )
    made = _like(made, model)
    # What the folder says of special tokens is by old ids: from now on the tokenizer says it.
    made.carried = {key: value for key, value in made.carried.items() if not TOKEN_ID_KEY.search(key)}
    if made.generation is not None:
        made.generation = {
            key: value for key, value in made.generation.items() if not TOKEN_ID_KEY.search(key)
        }
    return made


def _require_rows(model: Model) -> None:
    """Refuses models that have no word vectors of their own, or of several widths."""
    if model.lora is not None:
        raise EtymonError("adapters belong to their base and its words, which cannot grow: merge them first")
    if getattr(model.shape, "divisor", 1) > 1:
        raise EtymonError("word vectors of several widths cannot grow: a new word would be the rarest of all")


def _with_vocabulary(model: Model, words: int) -> Model:
    return Model(model.family, replace(model.shape, vocabulary=words), model.head_names, model.labels)


def _like(made: Model, model: Model) -> Model:
    """The new model, with all that is known of the old one."""
    made.carried, made.generation = model.carried, model.generation
    made.history, made.new_heads = model.history, model.new_heads
    return made.to(model.device).train(model.training)


# --- a generator beside the model


def generator_for(model: Model, changed: Mapping[str, Any], seed: int) -> Model:
    """A generator for replaced-token detection, with first values; fields of its shape may be changed by
    name."""
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
    """Gives the generator the model's embeddings, wherever it uses its own (tied weights included)."""
    replacements = {}
    for part in SHARED:
        before, shared = (getattr(each.body.embeddings, part) for each in (generator, model))
        if before is None or shared is None:
            continue
        for name, parameter in before.named_parameters():
            replacements[parameter] = shared.get_parameter(name)
            if replacements[parameter].shape != parameter.shape:
                raise EtymonError(
                    f"the generator's {part} are of shape {tuple(parameter.shape)}, the model's of "
                    f"{tuple(replacements[parameter].shape)}: they share them, so leave that as it is"
                )
    for module in generator.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if parameter in replacements:
                module.register_parameter(name, replacements[parameter])
    return generator


# --- a student that begins as a part of its teacher


def spread_layers(count: int, depth: int) -> list[int]:
    """Numbers of `count` layers out of `depth`, evenly spread: 0, 2, 4, 7, 9, 11 for 6 out of 12, as
    DistilBERT has it."""
    return [round(number * (depth - 1) / max(count - 1, 1)) for number in range(count)]


@torch.no_grad()
def copy_layers(student: Model, teacher: Model, layers: Sequence[int]) -> list[str]:
    """Gives the student its teacher's embeddings, heads and the layers named; returns what the teacher does
    not have."""
    schedule, source_schedule = student.body.stack.schedule, teacher.body.stack.schedule
    depth = len(source_schedule)
    if len(layers) != len(schedule) or not all(0 <= layer < depth for layer in layers):
        raise EtymonError(
            f"the student has {len(schedule)} layers and begins with {len(layers)} of its teacher's, "
            "numbered "
            f"{', '.join(map(str, layers))}: name one for each, from 0 to {depth - 1}"
        )
    sources = dict(teacher.named_parameters())
    absent = []
    for name, parameter in student.named_parameters():
        if match := LAYER.fullmatch(name):
            # A layer that is used many times begins as the one of its first use.
            place = source_schedule[layers[schedule.index(int(match[2]))]]
            name = f"{match[1]}{place}{match[3]}"
        source = sources.get(name)
        if source is None:
            absent.append(name)
        elif source.shape != parameter.shape:
            raise EtymonError(
                f"the student cannot begin as a part of its teacher: {name} is of shape "
                f"{tuple(parameter.shape)} here "
                f"and {tuple(source.shape)} there; teacher_layers: [] lets it begin anew"
            )
        else:
            parameter.copy_(source)
    return absent
