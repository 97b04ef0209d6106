"""Transformer-XL (Dai et al. 2019): a causal decoder that knows distances and remembers the segments
before."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pydantic import ConfigDict, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass
from torch import nn

from etymon.checkpoints.names import NameMap, Row, rows
from etymon.checkpoints.settings import Constant, Field, SettingsMap
from etymon.families.decoders import BYTE_BPE, HEADS, layer_norm, pocket_recipe
from etymon.families.family import Family, Head, Recipe, classes
from etymon.families.shape import check_cutoffs
from etymon.families.transformer_xl.recurrence import RecurrentBody, RecurrentStack
from etymon.nn.adaptive import AdaptiveEmbedding, AdaptiveVocabulary
from etymon.nn.blocks import Block, FeedForward
from etymon.nn.embeddings import Embeddings
from etymon.nn.initialise import COMMON, Filler, normal
from etymon.nn.layers import Rate
from etymon.nn.relative import RelativeAttention, relative_biases
from etymon.text import framing


@dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
class Shape:
    vocabulary: PositiveInt = 267735
    dim: PositiveInt = 1024
    layers: PositiveInt = 18
    heads: PositiveInt = 16
    head_dim: PositiveInt = 64
    inner_dim: PositiveInt = 4096
    memory: NonNegativeInt = 1600
    """Tokens that a segment sees of those before it."""
    clamp: int = 1000
    """Distances beyond it are taken for it; none are where it is not above 0."""
    same_length: bool = True
    """Every token sees as many as the memory is long, itself included."""
    zero_start: bool = True
    """A text begins behind a memory of zeros that are seen (as in Transformers), or behind nothing."""
    cutoffs: tuple[PositiveInt, ...] = (20000, 40000, 200000)
    """Ids at which rarer words begin, for the adaptive input and softmax; none: a plain softmax."""
    divisor: PositiveInt = 4
    """Word vectors are narrower by it from each cutoff to the next."""
    embedding_dim: PositiveInt | None = None
    """Of the most frequent words' vectors; None: the width."""
    tied: bool = True
    tied_maps: tuple[bool, ...] | None = None
    """Whether input and output share the maps of word vectors, by bin; None: all but the first."""
    norm_first: bool = False
    own_biases: bool = True
    """Each layer has its own u and v; otherwise all share them (the PyTorch code)."""
    reversed_clusters: bool = False
    """Read the entries of rarer words the other way round, as the original PyTorch code has them."""
    dropout: Rate = 0.1
    attention_dropout: Rate = 0.0
    norm_epsilon: NonNegativeFloat = 1e-5
    deviation: NonNegativeFloat = 0.02
    map_deviation: float = 0.01
    neighbours: NonNegativeFloat = 0.0
    """How strongly attention begins at a token's neighbours; 0: as published (`nn/neighbours.py`)."""
    residual_scale: PositiveFloat = 1.0

    def __post_init__(self) -> None:
        if self.same_length and not self.memory:
            # Transformers then hides every token: its softmax is the mean of all, later ones included.
            raise ValueError(
                "same_length lets a token see as many tokens as the memory is long, and memory is 0: "
                "set same_length to false"
            )
        if self.embedding_dim is None:
            # Resolved here, so that folders and comparisons see one spelling of the same shape.
            object.__setattr__(self, "embedding_dim", self.dim)
        maps = (False, *(True for _ in self.cutoffs)) if self.tied_maps is None else self.tied_maps
        object.__setattr__(self, "tied_maps", maps[: len(self.cutoffs) + 1])
        check_cutoffs(self, self.vocabulary)


# The original PyTorch code begins with an empty memory, and clamps distances only when it evaluates.
TORCH: dict[str, Any] = {"same_length": False, "zero_start": False, "clamp": 0, "own_biases": False}
CHARACTERS = {"cutoffs": (), "divisor": 1, **TORCH}
POCKET = {
    "vocabulary": 4096, "dim": 256, "layers": 4, "heads": 4, "inner_dim": 1024, "memory": 128, "dropout": 0.0,
    **CHARACTERS, "own_biases": True,
}  # fmt: skip
ENWIK8 = {
    "dim": 1024, "layers": 24, "heads": 8, "head_dim": 128, "inner_dim": 3072, "memory": 768, "dropout": 0.15,
    "attention_dropout": 0.15, **CHARACTERS, "own_biases": True,
}  # fmt: skip
SIZES: dict[str, dict[str, Any]] = {
    "pocket": POCKET,
    "pocket-large": {**POCKET, "vocabulary": 8192, "dim": 384, "layers": 6, "heads": 6, "inner_dim": 1536},
    "wt103-base": {
        "dim": 410, "layers": 16, "heads": 10, "head_dim": 41, "inner_dim": 2100, "memory": 150, "divisor": 1,
        **TORCH,
    },
    "wt103-large": {},
    "enwik8-12": {
        "vocabulary": 205, "dim": 512, "layers": 12, "heads": 8, "inner_dim": 2048, "memory": 512,
        **CHARACTERS,
    },
    "enwik8-24": {"vocabulary": 205, **ENWIK8},
    "text8-24": {"vocabulary": 27, **ENWIK8},
    "lm1b": {
        "vocabulary": 793471, "cutoffs": (60000, 100000, 640000), "heads": 8, "head_dim": 128, "memory": 32,
        "dropout": 0.0, "tied": False, "tied_maps": (False,) * 4, **TORCH, "own_biases": True,
    },
}  # fmt: skip
"""`wt103-large` has the memory of its evaluation; train it with one of 384, no clamp and dropouts of 0.2."""


def body(shape: Shape, heads: frozenset[str]) -> RecurrentBody:
    # The original PyTorch code has one pair of u and v for all layers.
    shared = None if shape.own_biases else relative_biases(shape.heads, shape.head_dim)
    layers = [
        Block(
            RelativeAttention(
                shape.dim, shape.heads, shape.head_dim, dropout=shape.attention_dropout, biases=shared
            ),
            FeedForward(shape.dim, shape.inner_dim, "relu", dropout=shape.dropout),
            norms=(layer_norm(shape), layer_norm(shape)),
            norm_first=shape.norm_first,
            dropout=shape.dropout,
            residual_scale=shape.residual_scale,
        )
        for _ in range(shape.layers)
    ]
    words = AdaptiveEmbedding(
        shape.vocabulary, shape.dim, shape.cutoffs, width=shape.embedding_dim, divisor=shape.divisor
    )
    embeddings = Embeddings(words, scale=shape.dim**0.5, dropout=shape.dropout)
    return RecurrentBody(embeddings, RecurrentStack(layers, shape), zero_start=shape.zero_start)


def vocabulary(shape: Shape, body: Any, labels: int) -> nn.Module:
    words, maps = body.embeddings.words, shape.tied_maps or ()
    return AdaptiveVocabulary(words, shape.cutoffs, tied=shape.tied, tied_maps=maps)


# --- as it is published


# Cluster i is entry -i in the original PyTorch code, entry i - 1 in TensorFlow and Transformers.
class Reversed(Row):
    """Rows in the opposite order."""

    def join(self, parts: Any) -> Any:
        return super().join(parts).flip(0)

    def split(self, whole: Any) -> Any:
        return super().split(whole.flip(0))


BODY = "transformer."
LAYER, THEIRS = "body.stack.layers.{}.", BODY + "layers.{}."
WORDS, THEIR_WORDS = "body.embeddings.words.", BODY + "word_emb."
BIASES = {"content_bias": "r_w_bias", "position_bias": "r_r_bias"}


def names(shape: Shape) -> NameMap:
    bins = range(len(shape.cutoffs) + 1)
    narrowing = shape.divisor > 1
    # Maps exist only where widths differ.
    mapped = narrowing or shape.embedding_dim != shape.dim
    ties = {
        f"crit.out_layers.{i}.weight": f"{THEIR_WORDS}emb_layers.{i}.weight"
        for i in (bins if narrowing else (0,))
        if shape.tied
    }
    for i, tied in zip(bins, shape.tied_maps or (), strict=False):
        if tied and mapped:
            ties[f"crit.out_projs.{i}"] = f"{THEIR_WORDS}emb_projs.{i if narrowing else 0}"
    table = {
        WORDS + "tables.{}.weight": THEIR_WORDS + "emb_layers.{}.weight",
        WORDS + "maps.{}.weight": THEIR_WORDS + "emb_projs.{}",
        LAYER + "attention.output.*": THEIRS + "dec_attn.o_net.*",
        LAYER + "attention.position.*": THEIRS + "dec_attn.r_net.*",
        LAYER + "attention_norm.*": THEIRS + "dec_attn.layer_norm.*",
        LAYER + "feed_forward.inner.*": THEIRS + "pos_ff.CoreNet.0.*",
        LAYER + "feed_forward.outer.*": THEIRS + "pos_ff.CoreNet.3.*",
        LAYER + "feed_forward_norm.*": THEIRS + "pos_ff.layer_norm.*",
        "heads.vocabulary.words.{}.*": "crit.out_layers.{}.*",
        "heads.vocabulary.maps.{}.weight": "crit.out_projs.{}",
        "heads.classification.linear.weight": "score.weight",
    }
    for ours, theirs in BIASES.items():
        if shape.own_biases:
            table[LAYER + f"attention.{ours}"] = THEIRS + f"dec_attn.{theirs}"
        else:  # the first layer's are everybody's
            table[LAYER.format(0) + f"attention.{ours}"] = BODY + theirs
            copies = (f"{THEIRS.format(layer)}dec_attn.{theirs}" for layer in range(shape.layers))
            ties |= dict.fromkeys(copies, BODY + theirs)
    row = Reversed if shape.reversed_clusters else Row
    clusters = [row((f"heads.vocabulary.clusters.{p}",), f"crit.cluster_{p}") for p in ("weight", "bias")]
    attention = tuple(LAYER + f"attention.{part}.*" for part in ("query", "key", "value"))
    return NameMap(
        [Row(attention, THEIRS + "dec_attn.qkv_net.*"), *clusters, *rows(table)],
        prefix=BODY,
        ties=ties,
        # The speeds of the sinusoids, which Transformers stores as a buffer.
        ignored=[r"(transformer\.)?pos_emb\.inv_freq"],
    )


SETTINGS = SettingsMap(
    fields=[
        Field("vocabulary", "vocab_size"),
        Field("dim", "d_model"),
        Field("layers", "n_layer"),
        Field("heads", "n_head"),
        Field("head_dim", "d_head"),
        Field("inner_dim", "d_inner"),
        Field("memory", "mem_len"),
        Field("clamp", "clamp_len"),
        Field("same_length", "same_length"),
        Field("zero_start", "etymon_zero_start", unless=True),
        Field("cutoffs", "cutoffs"),
        Field("divisor", "div_val"),
        Field("embedding_dim", "d_embed"),
        Field("tied", "tie_word_embeddings"),
        Field("tied", "tie_weight"),
        Field("tied_maps", "tie_projs"),
        Field("norm_first", "pre_lnorm"),
        Field("own_biases", "untie_r"),
        Field("reversed_clusters", "etymon_reversed_clusters", unless=False),
        Field("dropout", "dropout"),
        Field("attention_dropout", "dropatt"),
        Field("norm_epsilon", "layer_norm_epsilon"),
        Field("deviation", "init_std"),
        Field("map_deviation", "proj_init_std"),
    ],
    constants=[
        Constant(
            "adaptive",
            True,
            "only the adaptive softmax is built (without cutoffs it is a plain one)",
            write=True,
        ),
        Constant("attn_type", 0, "only the paper's relative attention is built", write=True),
        Constant("sample_softmax", -1, "a sampled softmax is not supported", write=True),
        Constant("ext_len", 0, "an extended context is not supported"),
    ],
    ignored=["init", "init_range", "proj_share_all_but_first", "is_decoder"],
)


def shape_after_loading(shape: Shape) -> Shape:
    """As it is once its weights are read: the order of the file has no meaning any more."""
    return replace(shape, reversed_clusters=False)


def initial(shape: Shape) -> list[tuple[str, Filler]]:
    usual = normal(shape.deviation)
    return [
        ("*.content_bias", usual),
        ("*.position_bias", usual),
        ("*.maps.*", normal(shape.map_deviation)),
        # Norms begin around 1 and not at it, as in the original code.
        ("*norm.weight", lambda tensor, generator: tensor.normal_(1.0, shape.deviation, generator=generator)),
        *COMMON,
        ("*.weight", usual),
    ]


def published_recipe(warmup: int) -> Recipe:
    return Recipe(learning_rate=2.5e-4, weight_decay=0.0, clip=0.25, schedule="cosine", warmup_steps=warmup)


WARMUPS = {"wt103-large": 16000, "enwik8-24": 4000, "text8-24": 4000, "lm1b": 20000}
FAMILY = Family(
    name="transformer-xl",
    title="Transformer-XL",
    model_type="transfo-xl",
    shape=Shape,
    sizes=SIZES,
    body=body,
    heads={**HEADS, "vocabulary": Head(vocabulary)},
    architectures=classes("TransfoXL", "LMHeadModel", "ForSequenceClassification"),
    names=names,
    settings=SETTINGS,
    shape_after_loading=shape_after_loading,
    initial=initial,
    capabilities=frozenset({"causal", "state", "memory"}),
    objective="recurrent",
    recipe=published_recipe(0),
    size_recipes={
        "pocket": pocket_recipe(4e-3),
        "pocket-large": pocket_recipe(3e-3),
        **{size: published_recipe(steps) for size, steps in WARMUPS.items()},
    },
    tokenizer=BYTE_BPE,
    framing=framing.PLAIN,
    special_ids={"end": 0},
)
