"""What BERT and its relatives have in common: the shape, the body, the heads, and how these are published."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor, nn

from etymon.checkpoints.names import NameMap, rows
from etymon.checkpoints.settings import Constant, Field
from etymon.families.family import Head, TokenizerChoice
from etymon.families.positions import PositionKind, Positions, check_positions
from etymon.families.shape import ACTIVATION_NAMES, ActivationName, check_heads, shape_class
from etymon.nn.attention import Attention
from etymon.nn.blocks import Block, Body, FeedForward, Stack
from etymon.nn.embeddings import Embeddings
from etymon.nn.heads import Pooler, Projection, TokenScore
from etymon.nn.layers import ACTIVATIONS, Embedding, LayerNorm, Linear, Rate
from etymon.nn.visibility import FullRule
from etymon.nn.vocabulary import DenseVocabulary, Transform


@shape_class
class EncoderShape:
    vocabulary: PositiveInt = 30522
    positions: PositiveInt = 512
    position_kind: PositionKind = "learned"
    """How tokens know their places: by a learned table that is added to the word vectors, or in every layer
    by rotation (`rotary`), by learned vectors of distances, which queries meet (`relative_key`, Shaw et al.
    2018) or queries and keys do (`relative_key_query`), or by T5's biases (`relative_bias`)."""
    segments: PositiveInt = 2
    dim: PositiveInt = 768
    layers: PositiveInt = 12
    heads: PositiveInt = 12
    inner_dim: PositiveInt = 3072
    activation: ActivationName = "gelu"
    """The published checkpoints run with the exact `gelu`; the first TensorFlow code used `gelu_tanh`."""
    dropout: Rate = 0.1
    attention_dropout: Rate = 0.1
    head_dropout: Rate | None = None
    """Before task heads; `dropout` unless told."""
    norm_epsilon: NonNegativeFloat = 1e-12
    deviation: NonNegativeFloat = 0.02
    neighbours: NonNegativeFloat = 0.0
    """How strongly attention begins at a token's neighbours, where positions are `rotary` or a
    `relative_bias`; 0: nowhere, as published (`nn/neighbours.py`)."""
    tied: bool = True
    residual_scale: PositiveFloat = 1.0
    """What a layer's part adds is multiplied by it. Saving folds it into weights: Transformers has none."""

    def __post_init__(self) -> None:
        check_heads(self.dim, self.heads)
        check_positions(self.position_kind, self.dim // self.heads)


CAPABILITIES = frozenset({"bidirectional", "causal-rows"})
POCKET = {"vocabulary": 8192, "positions": 128, "dim": 256, "layers": 4, "heads": 4, "inner_dim": 1024}
WORDPIECE = TokenizerChoice(
    "wordpiece",
    {"pad": "[PAD]", "unknown": "[UNK]", "class": "[CLS]", "separator": "[SEP]", "mask": "[MASK]"},
    lowercase=True,
    strip_accents=True,
)
# RoBERTa's and BART's.
MASKED_BPE = TokenizerChoice(
    "byte-bpe",
    {
        "begin": "<s>",
        "class": "<s>",
        "pad": "<pad>",
        "end": "</s>",
        "separator": "</s>",
        "unknown": "<unk>",
        "mask": "<mask>",
    },
)


# --- the body


def encoder(
    shape: Any,
    *,
    segments: int,
    width: int | None = None,
    project: bool = False,
    first_position: int = 0,
    schedule: Sequence[int] | None = None,
    output_dropout: float | None = None,
    feed_forward_dropout: float | None = None,
    scaled_distances: bool = True,
) -> Body:
    """Summed embeddings with a norm, and layers whose norms follow the sums.

    `width` is that of the embeddings, if not the layers'; `project` leads from one to the other. Positions
    are counted from `first_position`, behind a row for padding. `schedule` names the physical layer of every
    logical one. The dropouts are those of what attention and the feed-forward parts add; the shape's unless
    told. `scaled_distances` says whether what relative positions add to scores is scaled like these.
    """
    width = width or shape.dim
    places = shape.positions + first_position
    padding = first_position - 1 if first_position else None
    positions = Positions(
        shape.position_kind, shape.heads, shape.dim // shape.heads, places, scaled=scaled_distances
    )
    embeddings = Embeddings(
        Embedding(shape.vocabulary, width),
        positions=Embedding(places, width, padding_idx=padding) if positions.has_table else None,
        longest=shape.positions,
        # Where the table has a row for padding (RoBERTa), only real tokens are counted.
        position_offset=first_position,
        count_hidden=not first_position,
        segments=Embedding(segments, width) if segments else None,
        norm=LayerNorm(width, shape.norm_epsilon),
        projection=Linear(width, shape.dim) if project else None,
        dropout=shape.dropout,
    )
    physical = shape.layers if schedule is None else max(schedule) + 1
    layers = [
        Block(
            Attention(shape.dim, shape.heads, dropout=shape.attention_dropout, **positions.attention()),
            FeedForward(shape.dim, shape.inner_dim, shape.activation),
            norms=[LayerNorm(shape.dim, shape.norm_epsilon) for _ in range(2)],
            norm_first=False,
            dropout=shape.dropout if output_dropout is None else output_dropout,
            feed_forward_dropout=shape.dropout if feed_forward_dropout is None else feed_forward_dropout,
            residual_scale=shape.residual_scale,
        )
        for _ in range(physical)
    ]
    bias = positions.bias(bidirectional=True)
    return Body(embeddings, Stack(layers, FullRule(), schedule=schedule, position_bias=bias))


# --- heads


def vocabulary_head(activation: Callable[[Tensor], Tensor] | None = None) -> Head:
    """Dense, activation (the shape's unless told) and norm, back to the width of the word vectors."""

    def build(shape: Any, body: nn.Module, labels: int) -> nn.Module:
        assert isinstance(body, Body)
        words = body.embeddings.words
        assert isinstance(words, Embedding)
        width = words.embedding_dim
        transform = Transform(
            Linear(shape.dim, width),
            activation or ACTIVATIONS[shape.activation],
            LayerNorm(width, shape.norm_epsilon),
        )
        weight = words.weight if shape.tied else Embedding(shape.vocabulary, width).weight
        return DenseVocabulary(weight, bias=True, transform=transform)

    return Head(build)


def head_dropout(shape: Any) -> float:
    return shape.dropout if shape.head_dropout is None else shape.head_dropout


def dropped(shape: Any, outputs: int) -> nn.Module:
    """A linear map behind the dropout of task heads."""
    return Projection(shape.dim, outputs, dropout=head_dropout(shape))


TOKEN_HEADS = {
    "replaced": Head(lambda s, body, labels: TokenScore(s.dim, ACTIVATIONS[s.activation])),
    "tagging": Head(lambda s, body, labels: dropped(s, labels)),
    "span": Head(lambda s, body, labels: Projection(s.dim, 2)),
}
# BERT's, with heads that Transformers has no class for, so that any objective can be trained.
POOLED_HEADS = {
    "pooler": Head(lambda s, body, labels: Pooler(s.dim), at="first"),
    "vocabulary": vocabulary_head(),
    "next_sentence": Head(lambda s, body, labels: Projection(s.dim, 2), after="pooler"),
    "sentence_order": Head(lambda s, body, labels: Projection(s.dim, 2), after="pooler"),
    "classification": Head(lambda s, body, labels: dropped(s, labels), after="pooler"),
    "choice": Head(lambda s, body, labels: dropped(s, 1), after="pooler"),
    **TOKEN_HEADS,
}


# --- as it is published


def embedding_names(prefix: str) -> dict[str, str]:
    ours, theirs = "body.embeddings.", f"{prefix}embeddings."
    return {
        ours + "words.weight": theirs + "word_embeddings.weight",
        ours + "positions.weight": theirs + "position_embeddings.weight",
        ours + "segments.weight": theirs + "token_type_embeddings.weight",
        ours + "norm.*": theirs + "LayerNorm.*",
        "body.stack.position_bias.table.weight": f"{prefix}encoder.relative_attention_bias.weight",
    }


LAYER = "body.stack.layers.{}."
PROJECTIONS = ("query", "key", "value")


def body_names(prefix: str) -> dict[str, str]:
    """Embeddings and layers as BERT, RoBERTa and ELECTRA name them."""
    theirs = f"{prefix}encoder.layer.{{}}."
    return {
        **embedding_names(prefix),
        **{LAYER + f"attention.{part}.*": theirs + f"attention.self.{part}.*" for part in PROJECTIONS},
        LAYER + "attention.relative.table.weight": theirs + "attention.self.distance_embedding.weight",
        LAYER + "attention.output.*": theirs + "attention.output.dense.*",
        LAYER + "attention_norm.*": theirs + "attention.output.LayerNorm.*",
        LAYER + "feed_forward.inner.*": theirs + "intermediate.dense.*",
        LAYER + "feed_forward.outer.*": theirs + "output.dense.*",
        LAYER + "feed_forward_norm.*": theirs + "output.LayerNorm.*",
    }


TASK_NAMES = {
    "heads.classification.linear.*": "classifier.*",
    "heads.choice.linear.*": "classifier.*",
    "heads.tagging.linear.*": "classifier.*",
    "heads.span.linear.*": "qa_outputs.*",
}


def name_map(
    shape: Any, table: Mapping[str, str], prefix: str, decoder: str, bias: str | None = None
) -> NameMap:
    """The table with the output matrix at `decoder`, and its bias there or, of tied ones, at `bias`."""
    words, own_bias = f"{prefix}embeddings.word_embeddings.weight", f"{decoder}.bias"
    # Transformers 5 keeps the two biases of an untied head apart and uses the decoder's; older files have the
    # other alone.
    twice = {own_bias: bias} if bias is not None else {}
    output = {
        "heads.vocabulary.weight": f"{decoder}.weight",
        "heads.vocabulary.bias": bias if shape.tied and bias is not None else own_bias,
    }
    # A buffer that older releases stored.
    left_over = ["position_ids"]
    if shape.position_kind != "learned":
        left_over.append("position_embeddings.weight")  # Transformers 4 stores a table that it does not use
    return NameMap(
        rows({**table, **output}),
        prefix=prefix,
        ties={f"{decoder}.weight": words, **twice} if shape.tied else {},
        copies={} if shape.tied else {copy: source for source, copy in twice.items()},
        stand_ins={} if shape.tied else twice,
        ignored=[re.escape(f"{prefix}embeddings.{name}") for name in left_over],
    )


TASK_CLASSES = (
    "ForSequenceClassification", "ForMultipleChoice", "ForTokenClassification", "ForQuestionAnswering",
)  # fmt: skip
KEYS = {
    "vocabulary": "vocab_size",
    "positions": "max_position_embeddings",
    "segments": "type_vocab_size",
    "dim": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "inner_dim": "intermediate_size",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "norm_epsilon": "layer_norm_eps",
    "deviation": "initializer_range",
    "tied": "tie_word_embeddings",
}
FIELDS = [
    Field("activation", "hidden_act", ACTIVATION_NAMES),
    Field(
        "position_kind",
        "position_embedding_type",
        {
            "learned": "absolute",
            "relative_key": "relative_key",
            "relative_key_query": "relative_key_query",
            # Of ours alone. Others' "rotary" may be turned in another way.
            "rotary": "etymon_rotary",
            "relative_bias": "etymon_relative_bias",
        },
        unless="learned",
    ),
]
CONSTANTS = [
    Constant("is_decoder", False, "an encoder that decodes is not supported"),
    Constant("add_cross_attention", False, "cross-attention in an encoder is not supported"),
]
# What Transformers reads of decoders, and to see whether heads divide the width.
IGNORED = ["is_causal", "embedding_size"]


def fits_transformers(shape: Any) -> bool:
    """Whether Transformers computes such a shape: its fifth release has learned positions alone in these
    encoders, and leaves out without an error what a folder says of others."""
    return bool(shape.position_kind == "learned")
