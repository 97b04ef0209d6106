"""Kinds of positions as a field of a shape, the parts behind them, and their name in `config.json`."""

from __future__ import annotations

from typing import Any, Literal, get_args

from torch import nn

from etymon.checkpoints.settings import Field
from etymon.nn.relative_keys import RelativeKeys

PositionKind = Literal["learned", "relative_key", "relative_key_query"]
NAMES = {kind: kind for kind in get_args(PositionKind)} | {"learned": "absolute"}
POSITION_KIND = Field("position_kind", "position_embedding_type", NAMES, unless="learned")


def position_kind(shape: Any) -> PositionKind:
    """Families without a choice of kinds have learned positions."""
    return getattr(shape, "position_kind", "learned")


def relative_part(shape: Any, positions: int, scaled: bool) -> nn.Module | None:
    """The part of an attention that knows distances, if the shape's kind of positions has one."""
    kind = position_kind(shape)
    if kind == "learned":
        return None
    by_keys = kind == "relative_key_query"
    return RelativeKeys(positions, shape.dim // shape.heads, meets_keys=by_keys, scaled=scaled)


def known_to_transformers(shape: Any) -> bool:
    """Whether Transformers computes such a shape: its fifth release has no relative positions in encoders, and leaves out
    without an error what a folder says of them."""
    return position_kind(shape) == "learned"
