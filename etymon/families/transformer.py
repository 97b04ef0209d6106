"""The Transformer (Vaswani et al. 2017): encoder and decoder over sinusoids, one matrix for source, target
and output.

There is no published class of it: its folders are for etymon alone, with fairseq's names.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

from etymon.checkpoints.names import NameMap, rows
from etymon.checkpoints.settings import SettingsMap
from etymon.families.family import Architecture, Family, Recipe, TokenizerChoice
from etymon.families.positions import check_positions, matching_rules
from etymon.families.seq2seq import POCKET_RECIPE, SPECIALS, TASK_NAMES, heads, layer_names, stack
from etymon.families.shape import ActivationName, Sizes, check_heads, shape_class
from etymon.nn.blocks import Body, EncoderDecoder
from etymon.nn.embeddings import Embeddings, Sinusoids
from etymon.nn.initialise import COMMON, Filler, normal, xavier
from etymon.nn.layers import Embedding, Rate
from etymon.text import framing


@shape_class
class Shape:
    vocabulary: PositiveInt = 37000
    source_vocabulary: PositiveInt | None = None
    """Of a source with words of its own; unless told, both sides have one vocabulary and one table."""
    dim: PositiveInt = 512
    layers: PositiveInt = 6
    decoder_layers: PositiveInt | None = None
    """As many as the encoder's unless told."""
    heads: PositiveInt = 8
    inner_dim: PositiveInt = 2048
    norm: Literal["after", "before"] = "after"
    """After the sum as published, or before the parts, which trains without a warm-up."""
    attention_bias: bool = False
    activation: ActivationName = "relu"
    position_kind: Literal["sinusoidal", "rotary", "relative_key", "relative_key_query", "relative_bias"] = (
        "sinusoidal"
    )
    """How tokens of either side know their places: by sinusoids that are added to the word vectors, or in
    every layer by rotation (`rotary`), by learned vectors of distances (`relative_key`,
    `relative_key_query`) or by T5's biases (`relative_bias`)."""
    sinusoids: bool = True
    """False leaves the sinusoids of `position_kind` out; nothing then tells the order of a source."""
    sinusoid_layout: Literal["paper", "fairseq"] = "paper"
    """Sines and cosines in turn as published, or as fairseq's checkpoints were trained with."""
    dropout: Rate = 0.1
    attention_dropout: Rate = 0.0
    inner_dropout: Rate = 0.0
    head_dropout: Rate = 0.0
    norm_epsilon: NonNegativeFloat = 1e-6
    tied: bool = True
    """The output matrix is the table of the target's words."""
    neighbours: NonNegativeFloat = 0.0
    """How strongly attention begins at a token's neighbours; 0: as published (`nn/neighbours.py`)."""
    matches: NonNegativeFloat = 0.0
    """The first score of equal words in cross-attention; 0: drawn, as published."""
    residual_scale: PositiveFloat = 1.0

    def __post_init__(self) -> None:
        check_heads(self.dim, self.heads)
        check_positions(self.position_kind, self.dim // self.heads)


POCKET = {"vocabulary": 4096, "dim": 256, "layers": 3, "heads": 4, "inner_dim": 1024}
SIZES: Sizes = {
    "pocket": POCKET,
    "tiny": {**POCKET, "dim": 128, "layers": 2, "inner_dim": 512},
    "base": {},
    # A dropout of 0.1 for English to French.
    "big": {"dim": 1024, "heads": 16, "inner_dim": 4096, "dropout": 0.3},
}


# Word vectors are multiplied by sqrt(dim), so that sinusoids of size 1 do not drown them (section 3.4).
def side(shape: Shape, words: Embedding, *, decoder: bool) -> Body:
    is_added = shape.sinusoids and shape.position_kind == "sinusoidal"
    embeddings = Embeddings(
        words,
        positions=Sinusoids(shape.dim, halved=shape.sinusoid_layout == "fairseq") if is_added else None,
        scale=shape.dim**0.5,
        dropout=shape.dropout,
    )
    layers = stack(
        shape,
        decoder=decoder,
        norm_epsilon=shape.norm_epsilon,
        norm_first=shape.norm == "before",
        attention_bias=shape.attention_bias,
    )
    return Body(embeddings, layers)


def body(shape: Shape, heads: frozenset[str]) -> EncoderDecoder:
    words = Embedding(shape.vocabulary, shape.dim)
    source = words if shape.source_vocabulary is None else Embedding(shape.source_vocabulary, shape.dim)
    return EncoderDecoder(words, side(shape, source, decoder=False), side(shape, words, decoder=True))


ARCHITECTURES = [
    Architecture("Transformer", frozenset({"vocabulary"})),
    Architecture("TransformerBody", frozenset()),
]


def names(shape: Shape) -> NameMap:
    # fairseq's names: Transformers has no class of this model.
    table = {
        "body.words.weight": "decoder.embed_tokens.weight",
        "body.encoder.embeddings.words.weight": "encoder.embed_tokens.weight",
        "body.encoder.stack.norm.*": "encoder.layer_norm.*",
        "body.decoder.stack.norm.*": "decoder.layer_norm.*",
        **layer_names(lambda side: f"{side}."),
        "heads.vocabulary.weight": "output_projection.weight",
        **TASK_NAMES,
    }
    return NameMap(rows(table))


# These have keys in every family.
OWN_FIELDS = {"residual_scale", "neighbours", "matches"}
SETTINGS = SettingsMap(names={name: name for name in Shape.__dataclass_fields__ if name not in OWN_FIELDS})


# The paper says nothing of first values; these are fairseq's and tensor2tensor's.
def initial(shape: Shape) -> list[tuple[str, Filler]]:
    """Word vectors of length 1 before their scale; the matrices as is usual where the paper says nothing."""
    words = normal(shape.dim**-0.5)
    width = shape.dim // shape.heads
    matching = matching_rules(shape, width, scale=width**-0.5)
    return [
        *matching,
        *COMMON,
        ("body.*words.weight", words),
        ("heads.vocabulary.weight", words),
        ("*.weight", xavier),
    ]


WARMUP = 4000
# The published rate, dim^-0.5 * min(step^-0.5, step * 4000^-1.5), has its peak at step 4,000.
RECIPE = Recipe(
    learning_rate=(512 * WARMUP) ** -0.5,
    betas=(0.9, 0.98),
    epsilon=1e-9,
    weight_decay=0.0,
    # tensor2tensor clips no gradients.
    clip=None,
    schedule="noam",
    warmup_steps=WARMUP,
)
FAMILY = Family(
    name="transformer",
    title="Transformer",
    model_type="transformer",
    shape=Shape,
    sizes=SIZES,
    body=body,
    heads=heads(),
    architectures=ARCHITECTURES,
    names=names,
    settings=SETTINGS,
    initial=initial,
    capabilities=frozenset({"encoder-decoder", "state"}),
    # It was made for pairs of texts. From raw text it learns to undo BART's noise.
    objective="denoising",
    recipe=RECIPE,
    size_recipes={
        "big": replace(RECIPE, learning_rate=(1024 * WARMUP) ** -0.5),
        **dict.fromkeys(("pocket", "tiny"), POCKET_RECIPE),
    },
    tuning=Recipe(learning_rate=5e-5, options={"text2text": {"smoothing": 0.1}}),
    tokenizer=TokenizerChoice("bpe", SPECIALS),
    framing=framing.BEGIN_END,
    special_ids={"pad": 0, "begin": 1, "end": 2},
    fits_transformers=lambda shape: False,
)
