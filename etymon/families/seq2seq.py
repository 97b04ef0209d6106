"""What BART and the Transformer of 2017 have in common: layers with layer norms, on either side of cross-attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from etymon.families.family import Head
from etymon.nn.attention import Attention
from etymon.nn.blocks import Block, FeedForward, Stack
from etymon.nn.heads import DeepProjection, Projection
from etymon.nn.visibility import Causal, Everything

SPECIALS = {
    "pad": "<pad>", "begin": "<s>", "class": "<s>", "end": "</s>", "separator": "</s>", "unknown": "<unk>",
    "mask": "<mask>",
}  # fmt: skip
"""Of families that never had published ones."""


def stack(
    *,
    dim: int,
    layers: int,
    heads: int,
    inner_dim: int,
    decoder: bool,
    activation: str,
    norm_epsilon: float,
    norm_first: bool = False,
    attention_bias: bool = True,
    dropout: float = 0.0,
    attention_dropout: float = 0.0,
    inner_dropout: float = 0.0,
    residual_scale: float = 1.0,
) -> Stack:
    """Layers of an encoder, or of a decoder that looks at one. Norms before the parts need one more at the end."""

    def norm() -> nn.LayerNorm:
        return nn.LayerNorm(dim, norm_epsilon)

    def attention() -> Attention:
        return Attention(dim, heads, bias=attention_bias, dropout=attention_dropout)

    blocks = [
        Block(
            attention(),
            FeedForward(dim, inner_dim, activation, dropout=inner_dropout),
            norms=[norm() for _ in range(3 if decoder else 2)],
            norm_first=norm_first,
            cross=attention() if decoder else None,
            dropout=dropout,
            residual_scale=residual_scale,
        )
        for _ in range(layers)
    ]
    return Stack(blocks, Causal() if decoder else Everything(), norm=norm() if norm_first else None)


def layer_names(theirs: Callable[[str], str]) -> dict[str, str]:
    """Rows for the layers of both sides as fairseq, and Transformers after it, names them; `theirs` puts the side in front."""
    table: dict[str, str] = {}
    for side in ("encoder", "decoder"):
        ours, layer = f"body.{side}.stack.layers.{{}}.", theirs(side) + "layers.{}."
        table |= {
            ours + "attention_norm.*": layer + "self_attn_layer_norm.*",
            ours + "cross_norm.*": layer + "encoder_attn_layer_norm.*",
            ours + "feed_forward_norm.*": layer + "final_layer_norm.*",
            ours + "feed_forward.inner.*": layer + "fc1.*",
            ours + "feed_forward.outer.*": layer + "fc2.*",
        }
        for part, letter in (("query", "q"), ("key", "k"), ("value", "v"), ("output", "out")):
            table[ours + f"attention.{part}.*"] = layer + f"self_attn.{letter}_proj.*"
            table[ours + f"cross.{part}.*"] = layer + f"encoder_attn.{letter}_proj.*"
    return table


def task_heads(width: str = "dim") -> dict[str, Head]:
    """All of them read the decoder, whose width a field of the shape tells; without a text to write, it is fed the source."""

    def projection(shape: Any, outputs: int, maker: type[nn.Module] = Projection) -> nn.Module:
        return maker(getattr(shape, width), outputs, dropout=shape.head_dropout)

    return {
        "classification": Head(lambda s, body, labels: projection(s, labels, DeepProjection), at="last"),
        "choice": Head(lambda s, body, labels: projection(s, 1, DeepProjection), at="last"),
        "span": Head(lambda s, body, labels: Projection(getattr(s, width), 2)),
        "tagging": Head(lambda s, body, labels: projection(s, labels)),
    }


TASK_NAMES = {
    "heads.classification.dense.*": "classification_head.dense.*",
    "heads.classification.linear.*": "classification_head.out_proj.*",
    "heads.span.linear.*": "qa_outputs.*",
    "heads.tagging.linear.*": "classifier.*",
}


def divides(dim: int, *heads: int | None) -> None:
    """Refuses heads that a width cannot be divided by."""
    for count in heads:
        if count is not None and dim % count:
            raise ValueError(f"dim {dim} is not a multiple of heads {count}")
