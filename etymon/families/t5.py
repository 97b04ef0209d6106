"""T5 (Raffel et al. 2019), versions 1.0 and 1.1: an encoder and a decoder with relative position buckets.

Root-mean-square norms before the parts, no biases, unscaled scores. Version 1.1 has gated feed-forward parts
and its own output matrix; version 1.0 ties it to the embedding and scales the hidden states down before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import nn

from etymon.checkpoints.names import NameMap, rows
from etymon.checkpoints.settings import SettingsMap
from etymon.config import did_you_mean
from etymon.families.family import Architecture, Family, Head, Recipe, TokenizerChoice
from etymon.families.positions import matching_rules
from etymon.families.seq2seq import T5_POCKET_RECIPE, TASK_NAMES
from etymon.families.shape import ACTIVATION_NAMES, Sizes, shape_class
from etymon.nn.attention import Attention
from etymon.nn.blocks import Block, Body, EncoderDecoder, FeedForward, Stack
from etymon.nn.embeddings import BucketedBias, Embeddings
from etymon.nn.heads import DeepProjection, Projection
from etymon.nn.initialise import Filler, constant, normal
from etymon.nn.layers import Embedding, Rate, RootMeanSquareNorm
from etymon.nn.visibility import CausalRule, FullRule
from etymon.nn.vocabulary import DenseVocabulary
from etymon.text import framing


@shape_class
class Shape:
    vocabulary: PositiveInt = 32128
    dim: PositiveInt = 512
    head_dim: PositiveInt = 64
    inner_dim: PositiveInt = 2048
    layers: PositiveInt = 6
    decoder_layers: PositiveInt | None = None
    """As many as the encoder's unless told."""
    heads: PositiveInt = 8
    buckets: PositiveInt = 32
    longest_distance: PositiveInt = 128
    feed_forward: str = "relu"
    """An activation by its published name; `gated-` before it multiplies the activation of one map with
    another map."""
    dropout: Rate = 0.1
    head_dropout: Rate = 0.0
    norm_epsilon: NonNegativeFloat = 1e-6
    initial_factor: NonNegativeFloat = 1.0
    tied: bool = True
    """The output matrix is the embedding, and hidden states are scaled by dim^-0.5 before it (version
    1.0)."""
    neighbours: NonNegativeFloat = 0.0
    """How strongly attention begins at a token's neighbours; 0: as published (`nn/neighbours.py`)."""
    matches: NonNegativeFloat = 0.0
    """The first score of equal words in cross-attention; 0: drawn, as published."""
    residual_scale: PositiveFloat = 1.0
    """What a layer's part adds is multiplied by it. Saving folds it into weights: Transformers has none."""

    def __post_init__(self) -> None:
        if self.feed_forward not in FEED_FORWARDS:
            raise ValueError(
                f"feed_forward is {self.feed_forward!r}: {did_you_mean(self.feed_forward, FEED_FORWARDS)}"
            )


SPELLINGS = {theirs: ours for ours, theirs in ACTIVATION_NAMES.items()}
# The published name of a feed-forward part -> its activation.
FEED_FORWARDS = {
    **SPELLINGS,
    **{f"gated-{theirs}": ours for theirs, ours in SPELLINGS.items()},
    # Version 1.1's, where Transformers takes it for its "gelu_new"; the plain one is exact.
    "gated-gelu": "gelu_tanh",
}
VERSION_1_1 = {"feed_forward": "gated-gelu", "tied": False}
POCKET = {"vocabulary": 4096, "dim": 256, "inner_dim": 640, "layers": 3, "heads": 4, "dropout": 0.0,
          "feed_forward": "gated-gelu"}  # fmt: skip
SIZES: Sizes = {
    "pocket": POCKET,
    "small": {},
    "base": {"dim": 768, "inner_dim": 3072, "layers": 12, "heads": 12},
    "large": {"dim": 1024, "inner_dim": 4096, "layers": 24, "heads": 16},
    "3b": {"dim": 1024, "head_dim": 128, "inner_dim": 16384, "layers": 24, "heads": 32},
    "11b": {"dim": 1024, "head_dim": 128, "inner_dim": 65536, "layers": 24, "heads": 128},
    "v1.1-small": {"dim": 512, "inner_dim": 1024, "layers": 8, "heads": 6, **VERSION_1_1},
    "v1.1-base": {"dim": 768, "inner_dim": 2048, "layers": 12, "heads": 12, **VERSION_1_1},
    "v1.1-large": {"dim": 1024, "inner_dim": 2816, "layers": 24, "heads": 16, **VERSION_1_1},
    "v1.1-xl": {"dim": 2048, "inner_dim": 5120, "layers": 24, "heads": 32, **VERSION_1_1},
    "v1.1-xxl": {"dim": 4096, "inner_dim": 10240, "layers": 24, "heads": 64, **VERSION_1_1},
}


# Scores are not divided by the square root of a head's width: the first values of the queries are smaller
# instead, see `initial`. One table of distances serves all layers of a side.
def stack(shape: Shape, words: Embedding, *, decoder: bool) -> Body:
    def norm() -> RootMeanSquareNorm:
        return RootMeanSquareNorm(shape.dim, shape.norm_epsilon)

    def attention() -> Attention:
        return Attention(shape.dim, shape.heads, shape.head_dim, bias=False, scale=1.0, dropout=shape.dropout)

    layers = [
        Block(
            attention(),
            FeedForward(
                shape.dim,
                shape.inner_dim,
                FEED_FORWARDS[shape.feed_forward],
                gated=shape.feed_forward.startswith("gated"),
                bias=False,
                dropout=shape.dropout,
            ),
            norms=[norm() for _ in range(3 if decoder else 2)],
            norm_first=True,
            cross=attention() if decoder else None,
            dropout=shape.dropout,
            residual_scale=shape.residual_scale,
        )
        for _ in range((shape.decoder_layers or shape.layers) if decoder else shape.layers)
    ]
    bias = BucketedBias(shape.heads, shape.buckets, shape.longest_distance, bidirectional=not decoder)
    rule = CausalRule() if decoder else FullRule()
    return Body(
        Embeddings(words, dropout=shape.dropout),
        Stack(layers, rule, norm=norm(), position_bias=bias, dropout=shape.dropout),
    )


ENCODER_ONLY = frozenset({"encoder", "tagging"})


def body(shape: Shape, heads: frozenset[str]) -> EncoderDecoder:
    words = Embedding(shape.vocabulary, shape.dim)
    encoder_only = bool(heads) and heads <= ENCODER_ONLY
    decoder = None if encoder_only else stack(shape, words, decoder=True)
    return EncoderDecoder(words, stack(shape, words, decoder=False), decoder)


def vocabulary_head(shape: Shape, body: nn.Module, labels: int) -> nn.Module:
    assert isinstance(body, EncoderDecoder)
    if shape.tied:
        return DenseVocabulary(body.words.weight, scale=shape.dim**-0.5)
    return DenseVocabulary(Embedding(shape.vocabulary, shape.dim).weight)


HEADS = {
    "vocabulary": Head(vocabulary_head),
    # Reads the decoder, which is fed the text itself, at the last token.
    "classification": Head(
        lambda s, body, labels: DeepProjection(s.dim, labels, dropout=s.head_dropout), at="last"
    ),
    "span": Head(lambda s, body, labels: Projection(s.dim, 2)),
    # These read the encoder, and without other heads the decoder is not built.
    "tagging": Head(lambda s, body, labels: Projection(s.dim, labels, dropout=s.head_dropout)),
    "encoder": Head(lambda s, body, labels: nn.Identity()),
}
ARCHITECTURES = [
    Architecture("T5ForConditionalGeneration", frozenset({"vocabulary"})),
    Architecture("T5ForSequenceClassification", frozenset({"classification"}), prefix="transformer."),
    Architecture("T5ForTokenClassification", frozenset({"tagging"}), prefix="transformer."),
    Architecture("T5ForQuestionAnswering", frozenset({"span"})),
    Architecture("T5EncoderModel", frozenset({"encoder"})),
    Architecture("T5Model", frozenset()),
]


RELATIVE_BIAS = "0.SelfAttention.relative_attention_bias.weight"


def names(shape: Shape) -> NameMap:
    table = {"body.words.weight": "shared.weight"}
    for side, last in (("encoder", 1), ("decoder", 2)):
        ours, theirs = f"body.{side}.stack.", f"{side}.block.{{}}.layer."
        inner = "wi_1" if shape.feed_forward.startswith("gated") else "wi"
        table |= {
            # One table of distances a side, which Transformers keeps in its first layer.
            ours + "position_bias.table.weight": theirs.format(0) + RELATIVE_BIAS,
            ours + "norm.weight": f"{side}.final_layer_norm.weight",
            ours + "layers.{}.attention_norm.weight": theirs + "0.layer_norm.weight",
            ours + "layers.{}.cross_norm.weight": theirs + "1.layer_norm.weight",
            ours + "layers.{}.feed_forward_norm.weight": theirs + f"{last}.layer_norm.weight",
            ours + "layers.{}.feed_forward.gate.weight": theirs + f"{last}.DenseReluDense.wi_0.weight",
            ours + "layers.{}.feed_forward.inner.weight": theirs + f"{last}.DenseReluDense.{inner}.weight",
            ours + "layers.{}.feed_forward.outer.weight": theirs + f"{last}.DenseReluDense.wo.weight",
        }
        for part, letter in (("query", "q"), ("key", "k"), ("value", "v"), ("output", "o")):
            table[ours + f"layers.{{}}.attention.{part}.weight"] = theirs + f"0.SelfAttention.{letter}.weight"
            table[ours + f"layers.{{}}.cross.{part}.weight"] = theirs + f"1.EncDecAttention.{letter}.weight"
    table |= {"heads.vocabulary.weight": "lm_head.weight", **TASK_NAMES}
    ties = {f"{side}.embed_tokens.weight": "shared.weight" for side in ("encoder", "decoder")}
    return NameMap(
        rows(table),
        other_prefixes=("transformer.",),
        ties=ties | ({"lm_head.weight": "shared.weight"} if shape.tied else {}),
        # A version 1.1 model that Transformers 5 built itself has one matrix for both and stores it once.
        stand_ins={} if shape.tied else {"lm_head.weight": "shared.weight"},
        ignored=[r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight"],
    )


def after_read(ours: dict[str, Any], carried: dict[str, Any], keys: Mapping[str, Any]) -> None:
    """Sets `tied` and `feed_forward`, for each of which config.json has several keys that may disagree."""
    # Tying and scaling are one choice with two spellings, the newer of which wins where both are given.
    tied = keys.get("scale_decoder_outputs", keys.get("tie_word_embeddings", True))
    # Every mT5 is of version 1.1, and Transformers 5 writes that it is tied all the same.
    ours["tied"] = bool(tied) and keys.get("model_type") != "mt5"
    # `feed_forward_proj` is the old spelling of two newer keys, by which Transformers goes where they differ.
    old, activation = keys.get("feed_forward_proj", "relu"), keys.get("dense_act_fn")
    was_gated = str(old).startswith("gated-")
    is_gated = bool(keys.get("is_gated_act", was_gated))
    old_agrees = is_gated == was_gated and SPELLINGS.get(str(activation)) == FEED_FORWARDS.get(str(old))
    ours["feed_forward"] = old
    if activation is not None and not old_agrees:
        # Behind "gated-", "gelu" would be the one by tanh: the exact one has a name of its own.
        exact = "gelu_python" if is_gated and activation == "gelu" else activation
        ours["feed_forward"] = f"gated-{exact}" if is_gated else exact


SETTINGS = SettingsMap(
    names={
        "vocabulary": "vocab_size",
        "dim": "d_model",
        "head_dim": "d_kv",
        "inner_dim": "d_ff",
        "layers": "num_layers",
        "decoder_layers": "num_decoder_layers",
        "heads": "num_heads",
        "buckets": "relative_attention_num_buckets",
        "longest_distance": "relative_attention_max_distance",
        "feed_forward": "feed_forward_proj",
        "dropout": "dropout_rate",
        "head_dropout": "classifier_dropout",
        "norm_epsilon": "layer_norm_epsilon",
        "initial_factor": "initializer_factor",
        "tied": "tie_word_embeddings",
    },
    fields=[],
    # The classes with an encoder alone say that they are no encoder-decoders: their names tell as much.
    ignored=["scale_decoder_outputs", "dense_act_fn", "is_gated_act", "is_decoder", "is_encoder_decoder"],
    after_read=after_read,
    after_write=lambda shape: {"scale_decoder_outputs": shape["tied"], "is_encoder_decoder": True},
)


def initial(shape: Shape) -> list[tuple[str, Filler]]:
    """Variances that stand in for the missing scale of the scores (Mesh TensorFlow's defaults)."""
    factor, dim = shape.initial_factor, shape.dim
    return [
        ("body.words.weight", normal(factor)),
        # Of version 1.1. From N(0, 1), as in Transformers, the first loss is over a hundred bits.
        ("heads.vocabulary.weight", normal(factor * dim**-0.5)),
        *matching_rules(shape, shape.head_dim, scale=1.0),
        ("*.query.weight", normal(factor * (dim * shape.head_dim) ** -0.5)),
        ("*.output.weight", normal(factor * (shape.heads * shape.head_dim) ** -0.5)),
        ("*.outer.weight", normal(factor * shape.inner_dim**-0.5)),
        ("*norm.weight", constant(factor)),
        ("*bias", constant(0.0)),  # of task heads: the body has none
        ("*.weight", normal(factor * dim**-0.5)),
    ]


FAMILY = Family(
    name="t5",
    title="T5",
    model_type="t5",
    shape=Shape,
    sizes=SIZES,
    body=body,
    heads=HEADS,
    architectures=ARCHITECTURES,
    names=names,
    settings=SETTINGS,
    initial=initial,
    capabilities=frozenset({"encoder-decoder", "state", "written answers"}),
    objective="span-corruption",
    # 1 / sqrt(max(t, 10,000)) at step t: 0.01 for the first 10,000 steps, however long the run. The rate is
    # relative to the size of the parameters, and updates are clipped by Adafactor itself, gradients not at
    # all.
    recipe=Recipe(
        learning_rate=0.01,
        optimiser="adafactor",
        weight_decay=0.0,
        clip=None,
        schedule="inverse-square-root",
        warmup_steps=10_000,
    ),
    tuning=Recipe(
        learning_rate=1e-3, optimiser="adafactor", weight_decay=0, clip=None, schedule="constant", warmup=0
    ),
    # A pocket model trains for minutes, within which the published rate would not begin to fall.
    size_recipes={"pocket": T5_POCKET_RECIPE},
    tokenizer=TokenizerChoice("unigram", {"pad": "<pad>", "end": "</s>", "unknown": "<unk>"}, sentinels=100),
    framing=framing.TEXT_END,
    special_ids={"pad": 0, "end": 1},
    aliases={"mt5": "MT5"},
)
