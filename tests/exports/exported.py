"""Tiny models for exports: weights that are all different, so that nothing can be left out unnoticed."""

from __future__ import annotations

from typing import Any

import torch

from etymon.exports.target import STATES
from etymon.families import get_family
from etymon.families.loading import shape_of
from etymon.families.model import Model
from tests import tiny


def exported_model(
    family: str, head: str, *, labels: tuple[str, ...] = ("0", "1"), tokenizer: bool = True, **fields: Any
) -> Model:
    """A tiny model of a family with one head; `fields` are those of its shape."""
    known, words = get_family(family), tiny.tokenizer(family)
    shape = shape_of(known, None, **{**tiny.shape(family), "vocabulary": words.size, **fields})
    model = Model(known, shape, () if head == STATES else (head,), labels).initialise(1).eval()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        # First values leave biases at zero and norms at one.
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    if tokenizer:
        model.tokenizer = words
    return model
