"""How tokens know their places, as a choice of shape (`position_kind`): the parts that each kind gives to
embeddings, to attention and to a stack.

- `learned`: a table that is added to the word vectors, as most families were published.
- `rotary`: queries and keys are turned by angles that grow with their places (Su et al. 2021).
- `relative_key`, `relative_key_query`: learned vectors of distances, which queries meet, or queries and keys
  (Shaw et al. 2018, Huang et al. 2020).
- `relative_bias`: a learned number a head and bucket of distances, added to the scores (T5).
"""

from __future__ import annotations

from typing import Any, Literal

import torch

from etymon.nn import neighbours
from etymon.nn.attention import RelativeKeys
from etymon.nn.embeddings import BucketedBias, Rotary
from etymon.nn.initialise import Filler
from etymon.nn.relative import DistanceSinusoids

PositionKind = Literal["learned", "rotary", "relative_key", "relative_key_query", "relative_bias"]
# T5's: 32 buckets, the last of which holds all distances from 128 on.
BUCKETS, LONGEST_DISTANCE = 32, 128


def check_positions(kind: str, head_dim: int) -> None:
    """Refuses rotation of heads whose numbers do not make pairs."""
    if kind == "rotary" and head_dim % 2:
        raise ValueError(
            f"position_kind rotary turns pairs of numbers, and a head has {head_dim}: take an even width of heads"
        )


class Positions:
    """The parts of one stack. `places` is how many distances to either side have vectors of their own, and
    `scaled` says whether these meet the scale of the scores."""

    def __init__(self, kind: str, heads: int, head_dim: int, places: int, *, scaled: bool = True) -> None:
        self.kind, self.heads, self.head_dim = kind, heads, head_dim
        self.places, self.scaled = places, scaled
        # One for all layers, which then compute its sines once. They are exact: so are RoFormer's.
        self.rotary = Rotary(head_dim, angles=torch.float64) if kind == "rotary" else None

    @property
    def has_table(self) -> bool:
        """Whether the embeddings add a learned table."""
        return self.kind == "learned"

    def attention(self) -> dict[str, Any]:
        """The arguments of one layer's self-attention."""
        relative = None
        if self.kind in ("relative_key", "relative_key_query"):
            meets_keys = self.kind == "relative_key_query"
            relative = RelativeKeys(self.places, self.head_dim, meets_keys=meets_keys, scaled=self.scaled)
        return {"rotary": self.rotary, "relative": relative}

    def bias(self, *, bidirectional: bool) -> BucketedBias | None:
        """What the stack adds to the scores of all its layers."""
        if self.kind != "relative_bias":
            return None
        return BucketedBias(self.heads, BUCKETS, LONGEST_DISTANCE, bidirectional=bidirectional)


def neighbour_rules(shape: Any, *, is_causal: bool) -> list[tuple[str, Filler]]:
    """First values with which attention begins at neighbours, if the shape has it so and its positions can
    say it."""
    strength = getattr(shape, "neighbours", 0.0)
    if not strength:
        return []
    rules: list[tuple[str, Filler]] = []
    # The sides of an encoder-decoder first: a pattern that fits both is for models of one side.
    for side, bidirectional in (("encoder.", True), ("decoder.", False), ("", not is_causal)):
        layers, way = f"body.{side}stack.layers.*.attention.", {"bidirectional": bidirectional}
        longest = getattr(shape, "longest_distance", LONGEST_DISTANCE)
        table = f"body.{side}stack.position_bias.table.weight"
        rules.append((table, neighbours.bucketed(strength, longest, **way)))
        if getattr(shape, "position_kind", None) == "rotary":
            for part, of_keys in (("query", False), ("key", True)):
                heads = (getattr(shape, "decoder_heads", None) if side == "decoder." else None) or shape.heads
                filler = neighbours.rotary(strength, heads, of_keys=of_keys, **way)
                rules.append((f"{layers}{part}.bias", filler))
        if not hasattr(shape, "position_kind") and hasattr(shape, "memory"):
            sinusoids = DistanceSinusoids(shape.dim)
            filler = neighbours.relative_map(strength, shape.heads, shape.deviation, sinusoids, **way)
            rules += [
                (f"{layers}position.weight", filler),
                (f"{layers}position_bias", neighbours.relative_bias(shape.deviation)),
            ]
    return rules


def matching_rules(shape: Any, head_dim: int, *, scale: float) -> list[tuple[str, Filler]]:
    """First values with which cross-attention finds equal words, if the shape has it so; `scale` is that of
    the scores."""
    if not shape.matches:
        return []
    # Numbers of normed states have size 1, and there are `head_dim` of them in a score.
    filler = neighbours.matching((shape.matches / (head_dim * scale)) ** 0.5)
    return [("*.cross.query.weight", filler), ("*.cross.key.weight", filler)]
