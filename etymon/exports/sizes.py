"""Whether a family fits a runtime that asks for parts, and not for families."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING

import torch

from etymon.exports.target import STATES
from etymon.families.model import Model

if TYPE_CHECKING:
    from etymon.families.family import Family

FEW = 2
"""Layers that tell of all others: GPT-3's come in two kinds, in turn."""


def find_family_misfit(
    family: Family, head: str, find_misfit: Callable[[Model, str], str | None]
) -> str | None:
    """None where some published size of a family fits, or else the reason of its first: sizes may differ in
    parts, as ELECTRA's small ones have narrower word vectors."""
    reasons = []
    for size in family.sizes.values():
        # GPT-3's 96 layers took a second to build, for every head.
        fields = asdict(family.shape(**size))
        few = {
            name: min(value, FEW)
            for name, value in fields.items()
            if name.endswith("layers") and isinstance(value, int)
        }
        # Without values: only the parts are looked at.
        with torch.device("meta"):
            model = Model(family, family.shape(**{**fields, **few}), () if head == STATES else (head,))
        reasons.append(find_misfit(model, head))
        if reasons[-1] is None:
            return None
    return reasons[0]
