"""How a text becomes one vector in front of a head, where `config.json` tells it (Transformers'
`SequenceSummary`): the choice head of GPT-1 and GPT-2, the task heads of XLNet, the choice head of ELECTRA.

Which state is read, first dropout, a dense map, an activation, last dropout.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from torch import nn

from etymon.checkpoints.settings import Constant, Field
from etymon.families.decoders import DecoderShape
from etymon.families.family import Head, Where
from etymon.families.positions import PositionKind
from etymon.families.shape import ACTIVATION_NAMES, ActivationName, shape_class
from etymon.nn.heads import Projection
from etymon.nn.layers import ACTIVATIONS, Rate

# `cls_index` is a place that the caller names, and the last unless told; ours is the last, where the class
# token stands.
Type = Literal["last", "first", "mean", "cls_index"]


def place(shape: Any) -> Where:
    """Where a head reads in such a shape."""
    kind: Type = shape.summary_type
    return "last" if kind == "cls_index" else kind


@shape_class
class ChoiceShape(DecoderShape):
    """A decoder's shape with a summary that is itself the score of a choice."""

    position_kind: PositionKind = "learned"
    """How tokens know their places: by a learned table that is added to the word vectors, or in every layer
    by rotation (`rotary`), by learned vectors of distances (`relative_key`, `relative_key_query`) or by T5's
    biases (`relative_bias`)."""
    head_dropout: Rate = 0.1
    summary_type: Type = "cls_index"
    """Which state the choice head reads."""
    summary_activation: ActivationName = "linear"
    """Of the choice head's score, with the dropout behind it."""
    summary_last_dropout: Rate = 0.0


def score(shape: ChoiceShape, body: nn.Module, labels: int) -> nn.Module:
    return Projection(
        shape.dim,
        1,
        dropout=shape.head_dropout,
        activation=ACTIVATIONS[shape.summary_activation],
        output_dropout=shape.summary_last_dropout,
    )


CHOICE = Head(score, at=place)


@dataclass(frozen=True)
class SummaryActivation(Field):
    """No activation is `linear` here; there it is None, an empty name or "linear", of which `none` is
    written."""

    none: str | None = "linear"
    values: Mapping[Any, Any] | None = field(default_factory=lambda: ACTIVATION_NAMES)

    def write(self, value: Any) -> Any:
        return self.none if value == "linear" else super().write(value)

    def read(self, value: Any) -> Any:
        return super().read(value or "linear")


# --- rows of a family's settings

TYPE = Field("summary_type", "summary_type", {kind: kind for kind in get_args(Type)})
# Of a summary that another map follows (XLNet, ELECTRA). Transformers 5 takes no None for their activation.
FIELDS = [
    TYPE,
    Field("summary_dense", "summary_use_proj"),
    SummaryActivation("summary_activation", "summary_activation"),
    Field("summary_first_dropout", "summary_first_dropout", unless=0.0),
]
TO_WIDTH = Constant("summary_proj_to_labels", False, "a summary is as wide as what follows it")
# Of a summary that is itself the score of a choice (GPT-1, GPT-2).
SCORE_FIELDS = [
    TYPE,
    SummaryActivation("summary_activation", "summary_activation", none=None),
    Field("head_dropout", "summary_first_dropout"),
    Field("summary_last_dropout", "summary_last_dropout", unless=0.0),
]
SCORE = [
    Constant("summary_use_proj", True, "without a map the choice head gives no score", write=True),
    Constant("summary_proj_to_labels", True, "the choice head gives one score", write=True),
]
