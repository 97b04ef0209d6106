"""What BART and the Transformer of 2017 have in common: layers with layer norms, on either side of
cross-attention, and heads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

from torch import nn

from etymon.families.family import Head, Recipe
from etymon.families.positions import Positions
from etymon.nn.attention import Attention
from etymon.nn.blocks import Block, EncoderDecoder, FeedForward, Stack
from etymon.nn.heads import DeepProjection, Projection
from etymon.nn.layers import Embedding, LayerNorm
from etymon.nn.visibility import CausalRule, FullRule
from etymon.nn.vocabulary import DenseVocabulary
from etymon.settings.training import PhaseFile

# Of families that never had published ones.
SPECIALS = {
    "pad": "<pad>", "begin": "<s>", "class": "<s>", "end": "</s>", "separator": "</s>", "unknown": "<unk>",
    "mask": "<mask>",
}  # fmt: skip

# Minutes, not days: Muon had a lower loss than AdamW after a third of the steps. An encoder whose tokens do
# not know their neighbours, under a decoder that does not know where to look, becomes a constant: both begin
# with something useful instead (docs/lab-notes.md).
POCKET_RECIPE = Recipe(
    name="pocket",
    why="Positions as biases of distances, attention that begins at neighbours, cross-attention that begins "
    "at equal words, 1,024 tokens a step, Muon: otherwise a decoder of minutes does not find what its "
    "encoder has read.",
    shape={"position_kind": "relative_bias", "neighbours": 1.0, "matches": 8.0},
    batch_tokens=1024,
    tuning_share=1.0,
    learning_rate=4e-3,
    optimiser="muon",
    betas=(0.9, 0.98),
    weight_decay=0.0,
    schedule="cosine",
    warmup=0.1,
    final=0.1,
)
# T5's word vectors are of size 1, fifty times GPT-2's, and its biases of distances have to become numbers of
# several units: at the rate of the matrices neither moved within minutes. Adafactor, as published, scales
# steps by the size of what moves.
T5_POCKET_RECIPE = replace(
    POCKET_RECIPE,
    why="Attention that begins at neighbours, cross-attention that begins at equal words, whole texts before "
    "spans behind sentinels, 1,024 tokens a step, Muon, and a larger rate for word vectors, which are of "
    "size 1 in T5: with spans alone, a decoder of minutes takes its encoder for a constant.",
    shape={"neighbours": 1.0, "matches": 8.0},
    options={"density": 0.3},
    # To write the whole text the decoder has to find every word, and the encoder to keep them apart.
    phases=(
        PhaseFile(share=0.6, objective="denoising", options={"noise": "masking", "density": 0.3}),
        PhaseFile(share=0.4),
    ),
    learning_rate=0.03,
    matrix_share=4e-3 / 0.03,
)


# Distances with vectors of their own in a family without a limit of length; those beyond share the last.
FARTHEST = 128


def stack(
    shape: Any, *, decoder: bool, norm_epsilon: float, norm_first: bool = False, attention_bias: bool = True
) -> Stack:
    """Layers of an encoder, or of a decoder that looks at one, whose numbers may be its own
    (`decoder_layers`). Norms before the parts need one more at the end. Positions are told within a side:
    cross-attention knows none."""

    def number(field: str) -> int:
        return (getattr(shape, f"decoder_{field}", None) if decoder else None) or getattr(shape, field)

    def norm() -> LayerNorm:
        return LayerNorm(shape.dim, norm_epsilon)

    places = Positions(
        shape.position_kind,
        number("heads"),
        shape.dim // number("heads"),
        getattr(shape, "positions", FARTHEST),
    )

    def attention(**options: Any) -> Attention:
        return Attention(
            shape.dim, number("heads"), bias=attention_bias, dropout=shape.attention_dropout, **options
        )

    # Three norms in a decoder's layer: of its own attention, of the one over the encoder, of the feed-
    # forward part.
    blocks = [
        Block(
            attention(**places.attention()),
            FeedForward(shape.dim, number("inner_dim"), shape.activation, dropout=shape.inner_dropout),
            norms=[norm() for _ in range(3 if decoder else 2)],
            norm_first=norm_first,
            cross=attention() if decoder else None,
            dropout=shape.dropout,
            residual_scale=shape.residual_scale,
        )
        for _ in range(number("layers"))
    ]
    rule, last_norm = CausalRule() if decoder else FullRule(), norm() if norm_first else None
    return Stack(blocks, rule, norm=last_norm, position_bias=places.bias(bidirectional=not decoder))


def layer_names(theirs: Callable[[str], str]) -> dict[str, str]:
    """Rows for the layers of both sides as fairseq, and Transformers after it, names them; `theirs` puts the
    side in front."""
    table: dict[str, str] = {}
    for side in ("encoder", "decoder"):
        ours, layer = f"body.{side}.stack.layers.{{}}.", theirs(side) + "layers.{}."
        table |= {
            ours + "attention_norm.*": layer + "self_attn_layer_norm.*",
            ours + "cross_norm.*": layer + "encoder_attn_layer_norm.*",
            ours + "feed_forward_norm.*": layer + "final_layer_norm.*",
            ours + "feed_forward.inner.*": layer + "fc1.*",
            ours + "feed_forward.outer.*": layer + "fc2.*",
            # Of positions that nobody published.
            ours + "attention.relative.table.weight": layer + "self_attn.distance_embedding.weight",
            f"body.{side}.stack.position_bias.table.weight": theirs(side) + "relative_attention_bias.weight",
        }
        for part, letter in (("query", "q"), ("key", "k"), ("value", "v"), ("output", "out")):
            table[ours + f"attention.{part}.*"] = layer + f"self_attn.{letter}_proj.*"
            table[ours + f"cross.{part}.*"] = layer + f"encoder_attn.{letter}_proj.*"
    return table


def heads(
    width: str = "dim", bias: Callable[[Any], bool | Literal["fixed"]] = lambda shape: False
) -> dict[str, Head]:
    """All of them read the decoder, whose width a field of the shape tells; without a text to write, it is
    fed the source. `bias` says of a shape whether the scores of words have one."""

    def vocabulary(shape: Any, body: nn.Module, labels: int) -> nn.Module:
        assert isinstance(body, EncoderDecoder)
        table = body.words if shape.tied else Embedding(shape.vocabulary, getattr(shape, width))
        return DenseVocabulary(table.weight, bias=bias(shape))

    def projection(shape: Any, outputs: int, maker: type[nn.Module] = Projection) -> nn.Module:
        return maker(getattr(shape, width), outputs, dropout=shape.head_dropout)

    return {
        "vocabulary": Head(vocabulary),
        # The decoder's last token has seen all of the text, on both sides.
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
