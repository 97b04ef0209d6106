"""A model with a larger vocabulary: all that it computed it still computes, and new words begin as what they are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from etymon.errors import EtymonError
from etymon.families.model import Model


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
        larger = _sized(model, model.shape.vocabulary + 1).kept()
    target = grown.kept()
    for name, before in model.kept().items():
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
    return Model(model.family, replace(model.shape, vocabulary=vocabulary), model.asked, model.labels)
