"""XLNet (Yang et al. 2019): an encoder that learns to predict a text's tokens in any order.

Layers know distances and segments, and remember the segments of text before. Fine-tuning, embedding and
masked words use the content stream alone; permutation language modelling and generation use both
(`two_stream.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from pydantic import ConfigDict, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass
from torch import nn

from etymon.checkpoints.names import NameMap, Row, rows
from etymon.checkpoints.settings import Field, SettingsMap
from etymon.families import recipes, summary
from etymon.families.decoders import vocabulary_head
from etymon.families.encoders import LAYER
from etymon.families.family import Architecture, Family, Head, Recipe, TokenizerChoice
from etymon.families.shape import ACTIVATION_NAMES, ActivationName, check_heads
from etymon.families.xlnet.block import SegmentAttention, TwoStreamBlock
from etymon.families.xlnet.two_stream import TwoStreamBody, TwoStreamStack
from etymon.nn.blocks import FeedForward
from etymon.nn.embeddings import Embeddings
from etymon.nn.heads import ConditionalSpan, Pooler, Projection
from etymon.nn.initialise import COMMON, Filler, normal
from etymon.nn.layers import ACTIVATIONS, Embedding, LayerNorm, Rate
from etymon.text.framing import Framing


@dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
class Shape:
    vocabulary: PositiveInt = 32000
    dim: PositiveInt = 1024
    layers: PositiveInt = 24
    heads: PositiveInt = 16
    head_dim: PositiveInt | None = None
    inner_dim: PositiveInt = 4096
    activation: ActivationName = "gelu"
    """The published checkpoints run with the exact `gelu`; the first TensorFlow code used `gelu_tanh`."""
    memory: NonNegativeInt | None = 512
    """Tokens before a segment that it sees. None: no memory in training, and generation that sees all of
    its text."""
    reuse: NonNegativeInt | None = None
    """Of a segment, only so many tokens at its beginning are remembered; none or 0: all."""
    causal: bool = False
    """Tokens see only those before them (the published attention type "uni")."""
    clamp: int = -1
    """Distances beyond it are taken for it; none are where it is not above 0."""
    same_length: bool = False
    """If causal, tokens see as far back as the memory is long."""
    both_ways: bool = False
    """The second half of every batch are texts that were turned round. Batches may tell it themselves
    instead."""
    own_biases: bool = True
    """Each layer has its own biases of content, distance and segment; otherwise all share them."""
    dropout: Rate = 0.1
    summary_type: summary.Type = "last"
    """Which state of a text task heads read."""
    summary_dense: bool = True
    summary_activation: ActivationName = "tanh"
    """Before task heads, a dense map and its activation."""
    summary_first_dropout: Rate = 0.0
    summary_dropout: Rate = 0.1
    """Before and behind them."""
    norm_epsilon: NonNegativeFloat = 1e-12
    deviation: NonNegativeFloat = 0.02
    tied: bool = True
    span_starts: PositiveInt = 5
    span_ends: PositiveInt = 5
    """Beginnings of an answer that are followed up, and ends of each."""
    neighbours: NonNegativeFloat = 0.0
    """How strongly attention begins at a token's neighbours; 0: as published (`nn/neighbours.py`)."""
    residual_scale: PositiveFloat = 1.0

    def __post_init__(self) -> None:
        check_heads(self.dim, self.heads)


POCKET = {"vocabulary": 8192, "dim": 256, "layers": 4, "heads": 4, "inner_dim": 1024, "memory": 96}
SIZES: dict[str, dict[str, Any]] = {
    "pocket": POCKET,
    "tiny": {**POCKET, "vocabulary": 2048, "dim": 64, "layers": 2, "heads": 2, "inner_dim": 256},
    "base": {"dim": 768, "layers": 12, "heads": 12, "inner_dim": 3072, "memory": 384},
    # The memory of the paper's pretraining; Transformers' class takes 512 for granted.
    "large": {"memory": 384},
}


def body(shape: Shape, heads: frozenset[str]) -> TwoStreamBody:
    wide = shape.heads, shape.head_dim or shape.dim // shape.heads
    # `untie_r` off: u, v and the segments' bias are the same in all layers.
    shared = None if shape.own_biases else [nn.Parameter(torch.empty(wide)) for _ in range(3)]
    layers = [
        TwoStreamBlock(
            SegmentAttention(shape.dim, *wide, dropout=shape.dropout, biases=shared),
            FeedForward(shape.dim, shape.inner_dim, shape.activation, dropout=shape.dropout),
            norms=[LayerNorm(shape.dim, shape.norm_epsilon) for _ in range(2)],
            norm_first=False,
            dropout=shape.dropout,
            residual_scale=shape.residual_scale,
        )
        for _ in range(shape.layers)
    ]
    embeddings = Embeddings(Embedding(shape.vocabulary, shape.dim), dropout=shape.dropout)
    return TwoStreamBody(embeddings, TwoStreamStack(layers, shape))


def pooler(shape: Shape, body: nn.Module, labels: int) -> nn.Module:
    return Pooler(
        shape.dim,
        ACTIVATIONS[shape.summary_activation],
        dense=shape.summary_dense,
        dropout=shape.summary_first_dropout,
    )


HEADS = {
    # Reads `<cls>`, which in XLNet stands at the end of a text.
    "pooler": Head(pooler, at=summary.place),
    "vocabulary": vocabulary_head(bias=True),
    "classification": Head(
        lambda s, body, labels: Projection(s.dim, labels, dropout=s.summary_dropout), after="pooler"
    ),
    "choice": Head(lambda s, body, labels: Projection(s.dim, 1, dropout=s.summary_dropout), after="pooler"),
    "tagging": Head(lambda s, body, labels: Projection(s.dim, labels)),
    "span": Head(lambda s, body, labels: Projection(s.dim, 2)),
    # The published SQuAD head: an end is scored given its beginning. `span` is Transformers' plain one.
    "conditional_span": Head(
        lambda s, body, labels: ConditionalSpan(s.dim, s.norm_epsilon, s.span_starts, s.span_ends, s.dropout)
    ),
}
ARCHITECTURES = [
    Architecture("XLNetLMHeadModel", frozenset({"vocabulary"})),
    Architecture("XLNetForSequenceClassification", frozenset({"classification"})),
    Architecture("XLNetForMultipleChoice", frozenset({"choice"})),
    Architecture("XLNetForTokenClassification", frozenset({"tagging"})),
    Architecture("XLNetForQuestionAnsweringSimple", frozenset({"span"})),
    Architecture("XLNetForQuestionAnswering", frozenset({"conditional_span"})),
    Architecture("XLNetModel", frozenset(), prefix=""),
]


# --- as it is published

THEIRS = "transformer.layer.{}."
PARTS = {"query": "q", "key": "k", "value": "v", "position": "r"}
BIASES = {"content_bias": "r_w_bias", "position_bias": "r_r_bias", "segment_bias": "r_s_bias"}


def names(shape: Shape) -> NameMap:
    words = "transformer.word_embedding.weight"
    table = {
        "body.embeddings.words.weight": words,
        LAYER + "attention.segments": THEIRS + "rel_attn.seg_embed",
        LAYER + "attention_norm.*": THEIRS + "rel_attn.layer_norm.*",
        LAYER + "feed_forward.inner.*": THEIRS + "ff.layer_1.*",
        LAYER + "feed_forward.outer.*": THEIRS + "ff.layer_2.*",
        LAYER + "feed_forward_norm.*": THEIRS + "ff.layer_norm.*",
        "heads.vocabulary.*": "lm_loss.*",
        "heads.pooler.dense.*": "sequence_summary.summary.*",
        "heads.classification.linear.*": "logits_proj.*",
        "heads.choice.linear.*": "logits_proj.*",
        "heads.tagging.linear.*": "classifier.*",
        "heads.span.linear.*": "qa_outputs.*",
        "heads.conditional_span.start.*": "start_logits.dense.*",
        "heads.conditional_span.end_dense.*": "end_logits.dense_0.*",
        "heads.conditional_span.end_norm.*": "end_logits.LayerNorm.*",
        "heads.conditional_span.end_linear.*": "end_logits.dense_1.*",
        "heads.conditional_span.answer_dense.*": "answer_class.dense_0.*",
        "heads.conditional_span.answer_linear.*": "answer_class.dense_1.*",
    }
    copies = {}
    for ours, theirs in BIASES.items():
        table[LAYER + f"attention.{ours}"] = THEIRS + f"rel_attn.{theirs}"
        if not shape.own_biases:  # the first layer's are everybody's
            for layer in range(1, shape.layers):
                copies[THEIRS.format(layer) + f"rel_attn.{theirs}"] = THEIRS.format(0) + f"rel_attn.{theirs}"
    # Published matrices are stored by head, `[D, H, K]`.
    by_head = (shape.dim, shape.heads, shape.head_dim or shape.dim // shape.heads)
    attention = [
        Row((LAYER + f"attention.{ours}.weight",), THEIRS + f"rel_attn.{theirs}", True, their_shape=by_head)
        for ours, theirs in PARTS.items()
    ]
    # `o` meets its input by the last two axes there (ibnd,hnd->ibh): no transposition.
    output = Row((LAYER + "attention.output.weight",), THEIRS + "rel_attn.o", their_shape=by_head)
    blank = Row(("body.embeddings.blank",), "transformer.mask_emb", their_shape=(1, 1, shape.dim))
    return NameMap(
        [*rows(table), *attention, output, blank],
        prefix="transformer.",
        ties={"lm_loss.weight": words} if shape.tied else {},
        copies=copies,
    )


class XlnetSettings(SettingsMap):
    """The width of heads is always written, since Transformers 4 refuses null, and read as None where it is
    the usual one."""

    def read(
        self, config: Mapping[str, Any], where: str, heads: frozenset[str] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        ours, carried = super().read(config, where, heads)
        # Types are checked after this: until then a damaged file may hold anything.
        usual = Shape()
        dim, count = ours.get("dim", usual.dim), ours.get("heads", usual.heads)
        if isinstance(dim, int) and isinstance(count, int) and count and ours.get("head_dim") == dim // count:
            ours["head_dim"] = None
        return ours, carried

    def write(self, shape: Any) -> dict[str, Any]:
        return {**super().write(shape), "d_head": shape["head_dim"] or shape["dim"] // shape["heads"]}


SETTINGS = XlnetSettings(
    fields=[
        Field("vocabulary", "vocab_size"),
        Field("dim", "d_model"),
        Field("layers", "n_layer"),
        Field("heads", "n_head"),
        Field("head_dim", "d_head"),
        Field("inner_dim", "d_inner"),
        Field("activation", "ff_activation", ACTIVATION_NAMES),
        Field("memory", "mem_len"),
        Field("reuse", "reuse_len"),
        Field("causal", "attn_type", {False: "bi", True: "uni"}),
        Field("clamp", "clamp_len"),
        Field("same_length", "same_length"),
        Field("both_ways", "bi_data"),
        Field("own_biases", "untie_r", unless=True),
        Field("dropout", "dropout"),
        Field("summary_dropout", "summary_last_dropout"),
        *summary.FIELDS,
        Field("norm_epsilon", "layer_norm_eps"),
        Field("deviation", "initializer_range"),
        Field("tied", "tie_word_embeddings"),
        Field("span_starts", "start_n_top"),
        Field("span_ends", "end_n_top"),
    ],
    constants=[summary.TO_WIDTH],
    # Whether a memory is used is what the caller says, not the folder.
    ignored=["use_mems_eval", "use_mems_train", "is_decoder"],
    head_keys={"summary_": ("classification", "choice")},
)


def initial(shape: Shape) -> list[tuple[str, Filler]]:
    fill = normal(shape.deviation)
    names = [*(f"*attention.{bias}" for bias in BIASES), "*attention.segments", "*embeddings.blank"]
    return [*((name, fill) for name in names), *COMMON, ("*.weight", fill)]


FAMILY = Family(
    name="xlnet",
    title="XLNet",
    model_type="xlnet",
    shape=Shape,
    sizes=SIZES,
    body=body,
    heads=HEADS,
    architectures=ARCHITECTURES,
    names=names,
    settings=SETTINGS,
    initial=initial,
    capabilities=frozenset({"bidirectional", "segments", "two-stream", "memory", "state"}),
    objective="permutation",
    # A warm-up of 40,000 of 500,000 steps.
    recipe=Recipe(
        learning_rate=4e-4, optimiser="adam-bert", epsilon=1e-6, weight_decay=0.01, clip=0.25, warmup=0.08,
        length=512,
    ),
    tokenizer=TokenizerChoice(
        "unigram",
        {
            "unknown": "<unk>", "begin": "<s>", "end": "</s>", "class": "<cls>", "separator": "<sep>",
            "pad": "<pad>", "mask": "<mask>",
        },
    ),
    # What a text says is read at its end, in a segment of its own.
    framing=Framing(
        "xlnet",
        (0, "separator", "class"),
        (0, "separator", 1, "separator", "class"),
        (0, 0, 2),
        (0, 0, 1, 1, 2),
        context_first=True,
        padding_side="left",
    ),
    special_ids={"begin": 1, "end": 2, "pad": 5},
    tuning=Recipe(learning_rate=2e-5, epsilon=1e-6),
    size_recipes=dict.fromkeys(("pocket", "tiny"), recipes.XLNET_POCKET),
    recipes=[replace(recipes.MUON, length=128)],
)  # fmt: skip
