"""GPT-2 (Radford et al. 2019): a causal decoder with norms before the parts and a final norm."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, PositiveFloat
from pydantic.dataclasses import dataclass
from torch import nn

from etymon.checkpoints.names import NameMap, Row, rows
from etymon.checkpoints.settings import RESIDUAL_SCALE, Constant, Field, SettingsMap
from etymon.data import framing
from etymon.families.family import Architecture, Family, Head, Recipe, TokenizerChoice
from etymon.nn.attention import Attention
from etymon.nn.blocks import Block, FeedForward, Stack
from etymon.nn.bodies import Body
from etymon.nn.embeddings import Embeddings
from etymon.nn.heads import Projection
from etymon.nn.initialise import COMMON, Filler, normal
from etymon.nn.linear import Embedding
from etymon.nn.visibility import Causal
from etymon.nn.vocabulary import DenseVocabulary


@dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
class Shape:
    vocabulary: int = 50257
    positions: int = 1024
    dim: int = 768
    layers: int = 12
    heads: int = 12
    inner_dim: int | None = None
    """Of the feed-forward part; four times the width unless told."""
    activation: str = "gelu_tanh"
    embedding_dropout: float = 0.1
    attention_dropout: float = 0.1
    residual_dropout: float = 0.1
    head_dropout: float = 0.1
    norm_epsilon: float = 1e-5
    deviation: float = 0.02
    tied: bool = True
    residual_scale: PositiveFloat = 1.0
    """What a layer's part adds is multiplied by it. Transformers has no such thing: saving folds it into the weights."""

    def __post_init__(self) -> None:
        if self.dim % self.heads:
            raise ValueError(f"dim {self.dim} is not a multiple of heads {self.heads}")


POCKET = {
    "positions": 256, "embedding_dropout": 0.0, "attention_dropout": 0.0, "residual_dropout": 0.0,
}  # fmt: skip
SIZES: dict[str, dict[str, Any]] = {
    "pocket": {"vocabulary": 4096, "dim": 256, "layers": 4, "heads": 4, **POCKET},
    "pocket-large": {"vocabulary": 8192, "dim": 384, "layers": 6, "heads": 6, **POCKET},
    "small": {},
    "medium": {"dim": 1024, "layers": 24, "heads": 16},
    "large": {"dim": 1280, "layers": 36, "heads": 20},
    "xl": {"dim": 1600, "layers": 48, "heads": 25},
}


def body(shape: Shape, heads: frozenset[str]) -> Body:
    def norm() -> nn.LayerNorm:
        return nn.LayerNorm(shape.dim, shape.norm_epsilon)

    embeddings = Embeddings(
        Embedding(shape.vocabulary, shape.dim),
        positions=Embedding(shape.positions, shape.dim),
        dropout=shape.embedding_dropout,
    )
    layers = [
        Block(
            Attention(shape.dim, shape.heads, dropout=shape.attention_dropout),
            FeedForward(shape.dim, shape.inner_dim or 4 * shape.dim, shape.activation),
            norms=(norm(), norm()),
            norm_first=True,
            dropout=shape.residual_dropout,
            residual_scale=shape.residual_scale,
        )
        for _ in range(shape.layers)
    ]
    return Body(embeddings, Stack(layers, Causal(), norm=norm()))


def vocabulary_head(shape: Shape, body: nn.Module, labels: int) -> nn.Module:
    assert isinstance(body, Body)
    own = Embedding(shape.vocabulary, shape.dim)
    return DenseVocabulary(body.embeddings.words.weight if shape.tied else own.weight)


HEADS = {
    "vocabulary": Head(vocabulary_head),
    "classification": Head(lambda s, body, labels: Projection(s.dim, labels, bias=False), at="last"),
    "tagging": Head(lambda s, body, labels: Projection(s.dim, labels, dropout=s.head_dropout)),
    "span": Head(lambda s, body, labels: Projection(s.dim, 2)),
    "choice": Head(lambda s, body, labels: Projection(s.dim, 1, dropout=s.head_dropout), at="last"),
}
ARCHITECTURES = [
    Architecture("GPT2LMHeadModel", frozenset({"vocabulary"})),
    Architecture("GPT2DoubleHeadsModel", frozenset({"vocabulary", "choice"})),
    Architecture("GPT2ForSequenceClassification", frozenset({"classification"})),
    Architecture("GPT2ForTokenClassification", frozenset({"tagging"})),
    Architecture("GPT2ForQuestionAnswering", frozenset({"span"})),
    Architecture("GPT2Model", frozenset(), prefix=""),
]

LAYER = "body.stack.layers.{}."
QUERY_KEY_VALUE = tuple(LAYER + f"attention.{part}.*" for part in ("query", "key", "value"))


def names(shape: Shape) -> NameMap:
    table = [
        *rows({
            "body.embeddings.words.weight": "transformer.wte.weight",
            "body.embeddings.positions.weight": "transformer.wpe.weight",
            LAYER + "attention_norm.*": "transformer.h.{}.ln_1.*",
            LAYER + "feed_forward_norm.*": "transformer.h.{}.ln_2.*",
            "body.stack.norm.*": "transformer.ln_f.*",
            "heads.vocabulary.weight": "lm_head.weight",
            "heads.classification.linear.weight": "score.weight",
            "heads.tagging.linear.*": "classifier.*",
            "heads.span.linear.*": "qa_outputs.*",
            "heads.choice.linear.*": "multiple_choice_head.summary.*",
        }),
        # Their matrices are `[in, out]`, and query, key and value are one.
        Row(QUERY_KEY_VALUE, "transformer.h.{}.attn.c_attn.*", transposed=True),
        *rows({
            LAYER + "attention.output.*": "transformer.h.{}.attn.c_proj.*",
            LAYER + "feed_forward.inner.*": "transformer.h.{}.mlp.c_fc.*",
            LAYER + "feed_forward.outer.*": "transformer.h.{}.mlp.c_proj.*",
        }, transposed=True),
    ]  # fmt: skip
    return NameMap(
        table,
        prefix="transformer.",
        ties={"lm_head.weight": "transformer.wte.weight"} if shape.tied else {},
        ignored=[r"transformer\.h\.\d+\.attn\.(bias|masked_bias)"],
    )


ACTIVATION_NAMES = {"gelu_tanh": "gelu_new", "gelu": "gelu", "relu": "relu", "silu": "silu"}
SETTINGS = SettingsMap(
    fields=[
        Field("vocabulary", "vocab_size"),
        Field("positions", "n_positions"),
        Field("dim", "n_embd"),
        Field("layers", "n_layer"),
        Field("heads", "n_head"),
        Field("inner_dim", "n_inner"),
        Field("activation", "activation_function", ACTIVATION_NAMES),
        Field("embedding_dropout", "embd_pdrop"),
        Field("attention_dropout", "attn_pdrop"),
        Field("residual_dropout", "resid_pdrop"),
        Field("head_dropout", "summary_first_dropout"),
        Field("norm_epsilon", "layer_norm_epsilon"),
        Field("deviation", "initializer_range"),
        Field("tied", "tie_word_embeddings"),
        RESIDUAL_SCALE,
    ],
    constants=[
        Constant("scale_attn_weights", True, "scores without scaling are not GPT-2's"),
        Constant("scale_attn_by_inverse_layer_idx", False, "scaling by layer is not GPT-2's"),
        Constant("reorder_and_upcast_attn", False, "upcast attention is not supported"),
        Constant("add_cross_attention", False, "cross-attention in GPT-2 is not supported", write=False),
        Constant("summary_type", "cls_index", "the choice head reads one token"),
        Constant("summary_use_proj", True, "the choice head is a linear map"),
        Constant("summary_activation", None, "the choice head has no activation"),
        Constant("summary_proj_to_labels", True, "the choice head gives one score"),
    ],
    ignored=["n_ctx", "classifier_dropout", "hidden_dropout"],
)


def initial(shape: Shape) -> list[tuple[str, Filler]]:
    residual = normal(shape.deviation / (2 * shape.layers) ** 0.5)
    return [
        ("*.attention.output.weight", residual),
        ("*.feed_forward.outer.weight", residual),
        ("body.embeddings.positions.weight", normal(shape.deviation / 2)),
        *COMMON,
        ("*.weight", normal(shape.deviation)),
    ]


FAMILY = Family(
    name="gpt2",
    title="GPT-2",
    model_type="gpt2",
    shape=Shape,
    sizes=SIZES,
    body=body,
    heads=HEADS,
    architectures=ARCHITECTURES,
    names=names,
    settings=SETTINGS,
    initial=initial,
    capabilities=frozenset({"causal", "prefix", "state"}),
    objective="causal",
    # The authors tuned the rate by hand for every size and did not publish it; these are GPT-3's settings.
    recipe=Recipe(
        learning_rate=6e-4, betas=(0.9, 0.95), weight_decay=0.1, schedule="cosine", warmup=0.02, final=0.1
    ),
    # Minutes, not weeks: Muon needed far fewer steps for the same loss (docs/lab-notes.md).
    size_recipes={
        size: Recipe(
            learning_rate=rate,
            optimiser="muon",
            betas=(0.9, 0.95),
            weight_decay=0.1,
            schedule="cosine",
            warmup=0.05,
            final=0.1,
        )
        for size, rate in {"pocket": 4e-3, "pocket-large": 3e-3}.items()
    },
    tokenizer=TokenizerChoice("byte-bpe", {"begin": "<|endoftext|>", "end": "<|endoftext|>"}),
    framing=framing.PLAIN,
)
