"""Activations as fields of a shape, and as `config.json` spells them."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator

from etymon.config import did_you_mean
from etymon.nn.activations import ACTIVATIONS


def _known(name: str) -> str:
    if name not in ACTIVATIONS:
        raise ValueError(f"which is no activation: {did_you_mean(name, ACTIVATIONS)}")
    return name


ActivationName = Annotated[str, AfterValidator(_known)]
"""The type of a shape's field that holds the name of an activation."""
ACTIVATION_NAMES = {name: name for name in ACTIVATIONS} | {"gelu_tanh": "gelu_new"}
"""Ours -> theirs, for every family whose class looks the name up in Transformers' common table."""
