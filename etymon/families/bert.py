"""BERT (Devlin et al. 2018): a bidirectional encoder with norms after the sums, read by a pooler or token by token."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, PositiveFloat
from pydantic.dataclasses import dataclass
from torch import nn

from etymon.checkpoints.names import NameMap, rows
from etymon.checkpoints.settings import RESIDUAL_SCALE, Constant, Field, SettingsMap
from etymon.data import framing
from etymon.families.family import Architecture, Family, Head, Recipe, TokenizerChoice
from etymon.nn.attention import Attention
from etymon.nn.blocks import ACTIVATIONS, Block, FeedForward, Stack
from etymon.nn.bodies import Body
from etymon.nn.embeddings import Embeddings
from etymon.nn.heads import Pooler, Projection
from etymon.nn.initialise import COMMON, Filler, truncated_normal
from etymon.nn.linear import Embedding, Linear
from etymon.nn.visibility import Everything
from etymon.nn.vocabulary import DenseVocabulary, Transform


@dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
class Shape:
    vocabulary: int = 30522
    positions: int = 512
    segments: int = 2
    dim: int = 768
    layers: int = 12
    heads: int = 12
    inner_dim: int = 3072
    activation: str = "gelu"
    """The published checkpoints run with the exact `gelu`; the first TensorFlow code used `gelu_tanh`."""
    dropout: float = 0.1
    attention_dropout: float = 0.1
    head_dropout: float | None = None
    """Before task heads; `dropout` unless told."""
    norm_epsilon: float = 1e-12
    deviation: float = 0.02
    tied: bool = True
    residual_scale: PositiveFloat = 1.0
    """What a layer's part adds is multiplied by it. Transformers has no such thing: saving folds it into the weights."""

    def __post_init__(self) -> None:
        if self.dim % self.heads:
            raise ValueError(f"dim {self.dim} is not a multiple of heads {self.heads}")


def ladder(layers: int, dim: int) -> dict[str, Any]:
    """One rung of the published ladder of small models: 64 wide heads, an inner width of four times the width."""
    return {"layers": layers, "dim": dim, "heads": dim // 64, "inner_dim": 4 * dim}


POCKET = {"vocabulary": 8192, "positions": 128}
SIZES: dict[str, dict[str, Any]] = {
    "pocket": {**ladder(4, 256), **POCKET},
    "base": {},
    "base-cased": {"vocabulary": 28996},
    "large": {"layers": 24, "dim": 1024, "heads": 16, "inner_dim": 4096},
    "tiny": ladder(2, 128),
    "mini": ladder(4, 256),
    "small": ladder(4, 512),
    "medium": ladder(8, 512),
    **{
        f"L{layers}-H{dim}": ladder(layers, dim)
        for layers in (2, 4, 6, 8, 10, 12)
        for dim in (128, 256, 512, 768)
    },
}


def body(shape: Shape, heads: frozenset[str]) -> Body:
    def norm() -> nn.LayerNorm:
        return nn.LayerNorm(shape.dim, shape.norm_epsilon)

    embeddings = Embeddings(
        Embedding(shape.vocabulary, shape.dim),
        positions=Embedding(shape.positions, shape.dim),
        segments=Embedding(shape.segments, shape.dim),
        norm=norm(),
        dropout=shape.dropout,
    )
    layers = [
        Block(
            Attention(shape.dim, shape.heads, dropout=shape.attention_dropout),
            FeedForward(shape.dim, shape.inner_dim, shape.activation),
            norms=(norm(), norm()),
            norm_first=False,
            dropout=shape.dropout,
            residual_scale=shape.residual_scale,
        )
        for _ in range(shape.layers)
    ]
    return Body(embeddings, Stack(layers, Everything()))


def vocabulary_head(shape: Shape, body: nn.Module, labels: int) -> nn.Module:
    assert isinstance(body, Body)
    transform = Transform(
        Linear(shape.dim, shape.dim),
        ACTIVATIONS[shape.activation],
        nn.LayerNorm(shape.dim, shape.norm_epsilon),
    )
    own = Embedding(shape.vocabulary, shape.dim)
    weight = body.embeddings.words.weight if shape.tied else own.weight
    return DenseVocabulary(weight, bias=True, transform=transform)


def projection(shape: Shape, outputs: int, dropout: bool = True) -> nn.Module:
    chosen = shape.dropout if shape.head_dropout is None else shape.head_dropout
    return Projection(shape.dim, outputs, dropout=chosen if dropout else 0.0)


HEADS = {
    "pooler": Head(lambda s, body, labels: Pooler(s.dim), at="first"),
    "vocabulary": Head(vocabulary_head),
    "next_sentence": Head(lambda s, body, labels: projection(s, 2, dropout=False), after="pooler"),
    "classification": Head(lambda s, body, labels: projection(s, labels), after="pooler"),
    "choice": Head(lambda s, body, labels: projection(s, 1), after="pooler"),
    "tagging": Head(lambda s, body, labels: projection(s, labels)),
    "span": Head(lambda s, body, labels: projection(s, 2, dropout=False)),
}
ARCHITECTURES = [
    Architecture("BertForPreTraining", frozenset({"vocabulary", "next_sentence"})),
    Architecture("BertForMaskedLM", frozenset({"vocabulary"})),
    Architecture("BertForNextSentencePrediction", frozenset({"next_sentence"})),
    Architecture("BertForSequenceClassification", frozenset({"classification"})),
    Architecture("BertForMultipleChoice", frozenset({"choice"})),
    Architecture("BertForTokenClassification", frozenset({"tagging"})),
    Architecture("BertForQuestionAnswering", frozenset({"span"})),
    Architecture("BertModel", frozenset({"pooler"}), prefix=""),
    Architecture("BertModel", frozenset(), prefix=""),
]

LAYER, THEIR_LAYER = "body.stack.layers.{}.", "bert.encoder.layer.{}."


def names(shape: Shape) -> NameMap:
    table = {
        "body.embeddings.words.weight": "bert.embeddings.word_embeddings.weight",
        "body.embeddings.positions.weight": "bert.embeddings.position_embeddings.weight",
        "body.embeddings.segments.weight": "bert.embeddings.token_type_embeddings.weight",
        "body.embeddings.norm.*": "bert.embeddings.LayerNorm.*",
        **{
            LAYER + f"attention.{part}.*": THEIR_LAYER + f"attention.self.{part}.*"
            for part in ("query", "key", "value")
        },
        LAYER + "attention.output.*": THEIR_LAYER + "attention.output.dense.*",
        LAYER + "attention_norm.*": THEIR_LAYER + "attention.output.LayerNorm.*",
        LAYER + "feed_forward.inner.*": THEIR_LAYER + "intermediate.dense.*",
        LAYER + "feed_forward.outer.*": THEIR_LAYER + "output.dense.*",
        LAYER + "feed_forward_norm.*": THEIR_LAYER + "output.LayerNorm.*",
        "heads.pooler.dense.*": "bert.pooler.dense.*",
        "heads.vocabulary.transform.dense.*": "cls.predictions.transform.dense.*",
        "heads.vocabulary.transform.norm.*": "cls.predictions.transform.LayerNorm.*",
        "heads.vocabulary.bias": "cls.predictions.bias",
        "heads.vocabulary.weight": "cls.predictions.decoder.weight",
        "heads.next_sentence.linear.*": "cls.seq_relationship.*",
        "heads.classification.linear.*": "classifier.*",
        "heads.choice.linear.*": "classifier.*",
        "heads.tagging.linear.*": "classifier.*",
        "heads.span.linear.*": "qa_outputs.*",
    }
    bias, decoder_bias = "cls.predictions.bias", "cls.predictions.decoder.bias"
    words, decoder = "bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"
    if not shape.tied:
        # Transformers 5 keeps two biases apart and uses the decoder's; older files have the other one alone.
        table["heads.vocabulary.bias"] = decoder_bias
    return NameMap(
        rows(table),
        prefix="bert.",
        ties={decoder_bias: bias, decoder: words} if shape.tied else {},
        copies={} if shape.tied else {bias: decoder_bias},
        stand_ins={} if shape.tied else {decoder_bias: bias},
        ignored=[r"bert\.embeddings\.position_ids"],
    )


SETTINGS = SettingsMap(
    fields=[
        Field("vocabulary", "vocab_size"),
        Field("positions", "max_position_embeddings"),
        Field("segments", "type_vocab_size"),
        Field("dim", "hidden_size"),
        Field("layers", "num_hidden_layers"),
        Field("heads", "num_attention_heads"),
        Field("inner_dim", "intermediate_size"),
        Field("activation", "hidden_act", {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu", "silu": "silu"}),
        Field("dropout", "hidden_dropout_prob"),
        Field("attention_dropout", "attention_probs_dropout_prob"),
        Field("head_dropout", "classifier_dropout"),
        Field("norm_epsilon", "layer_norm_eps"),
        Field("deviation", "initializer_range"),
        Field("tied", "tie_word_embeddings"),
        RESIDUAL_SCALE,
    ],
    constants=[
        Constant("position_embedding_type", "absolute", "relative positions are not BERT's", write=False),
        Constant("is_decoder", False, "a BERT that decodes is not supported", write=False),
        Constant("add_cross_attention", False, "cross-attention in BERT is not supported", write=False),
    ],
    ignored=["pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_size_per_head",
             "pooler_type", "embedding_size", "is_encoder_decoder"],
)  # fmt: skip


def initial(shape: Shape) -> list[tuple[str, Filler]]:
    return [*COMMON, ("*.weight", truncated_normal(shape.deviation))]


FAMILY = Family(
    name="bert",
    title="BERT",
    model_type="bert",
    shape=Shape,
    sizes=SIZES,
    body=body,
    heads=HEADS,
    architectures=ARCHITECTURES,
    names=names,
    settings=SETTINGS,
    initial=initial,
    capabilities=frozenset({"bidirectional", "segments"}),
    objective="masked-next-sentence",
    recipe=Recipe(
        learning_rate=1e-4,
        optimiser="adam-bert",
        epsilon=1e-6,
        weight_decay=0.01,
        schedule="linear",
        warmup=0.01,
    ),
    # A pocket model trains for minutes: ten times the rate, and bias correction, which matters while steps are few.
    size_recipes={"pocket": Recipe(learning_rate=1e-3, epsilon=1e-6, weight_decay=0.01, warmup=0.1)},
    tokenizer=TokenizerChoice(
        "wordpiece",
        {"pad": "[PAD]", "unknown": "[UNK]", "class": "[CLS]", "separator": "[SEP]", "mask": "[MASK]"},
        lowercase=True,
        strip_accents=True,
    ),
    framing=framing.BERT,
)
