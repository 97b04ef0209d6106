"""What shapes share: strict fields, names of activations, and checks of fields that belong together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar, dataclass_transform

from pydantic import AfterValidator, ConfigDict
from pydantic.dataclasses import dataclass as pydantic_dataclass

from etymon.config import did_you_mean
from etymon.nn.layers import ACTIVATIONS

Class = TypeVar("Class")


@dataclass_transform(frozen_default=True)
def shape_class(cls: type[Class]) -> type[Class]:
    """Makes a frozen dataclass whose values are checked strictly; fields that it does not have are
    refused."""
    strict: Any = pydantic_dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
    return strict(cls)


# By name: the fields that differ from the shape's defaults. `pocket` sizes train on a laptop.
Sizes = Mapping[str, Mapping[str, Any]]


def check_heads(dim: int, *heads: int | None) -> None:
    """Refuses heads that a width cannot be divided by."""
    for count in heads:
        if count is not None and dim % count:
            raise ValueError(f"dim {dim} is not a multiple of heads {count}")


def _check_activation(name: str) -> str:
    if name not in ACTIVATIONS:
        raise ValueError(f"which is no activation: {did_you_mean(name, ACTIVATIONS)}")
    return name


# The type of a shape's field that holds the name of an activation.
ActivationName = Annotated[str, AfterValidator(_check_activation)]
# Ours -> theirs, for every family whose class looks the name up in Transformers' common table.
ACTIVATION_NAMES = {name: name for name in ACTIVATIONS} | {"gelu_tanh": "gelu_new"}


def check_divisor(shape: Any) -> None:
    if shape.divisor > 1 and not shape.cutoffs:
        raise ValueError(
            "a divisor makes vectors narrower from cutoff to cutoff: give cutoffs, or leave it out"
        )


def check_cutoffs(shape: Any, words: int) -> None:
    edges = (0, *shape.cutoffs, words)
    if list(edges) != sorted(set(edges)):
        raise ValueError(
            f"cutoffs {list(shape.cutoffs)} have to rise, from above 0 to below the {words} words"
        )
    narrowest = (getattr(shape, "embedding_dim", None) or shape.dim) // shape.divisor ** len(shape.cutoffs)
    if not narrowest:
        raise ValueError(
            f"divisor {shape.divisor} leaves nothing of the rarest words' vectors: take a smaller one"
        )
