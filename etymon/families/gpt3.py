"""GPT-3 (Brown et al. 2020): GPT-2 whose layers take turns in seeing all that came before and only the last
of it.

How wide the band is, and which layers have it, was not published: `band` and `pattern` say. GPT-Neo, which
the folders of Transformers hold, is the nearest relative: scores without a scale, and no biases of query, key
and value. With `attention_bias` and `scaled` off it is read and written exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import PositiveInt

from etymon.checkpoints.names import NameMap
from etymon.checkpoints.settings import Field, SettingsMap
from etymon.families import decoders
from etymon.families.family import Family, Recipe, classes
from etymon.families.positions import PositionKind
from etymon.families.shape import Sizes, shape_class
from etymon.nn.blocks import Block, Body
from etymon.nn.layers import Rate
from etymon.nn.visibility import BandRule, CausalRule
from etymon.text import framing

# What a layer sees, in our words and in GPT-Neo's.
KINDS = {"dense": "global", "banded": "local"}


@shape_class
class Shape(decoders.DecoderShape):
    positions: PositiveInt = 2048
    dim: PositiveInt = 2048
    layers: PositiveInt = 24
    heads: PositiveInt = 16
    head_dim: PositiveInt | None = None
    """Width of a head, if the heads together are not as wide as the model."""
    inner_dim: PositiveInt | None = None
    """Of the feed-forward part; four times the width unless told."""
    # The paper (section 2.1) alternates dense and banded layers. It does not say which come first, nor how
    # wide a band is: both are fields.
    pattern: str = "dense banded"
    """What the layers see, one word each, from the beginning again where there are more layers than words."""
    band: PositiveInt = 256
    """How many tokens a banded layer sees, the last one included."""
    position_kind: PositionKind = "learned"
    """How tokens know their places, see GPT-2's."""
    attention_bias: bool = True
    """Of query, key and value."""
    scaled: bool = True
    """Whether scores are divided by the square root of a head's width."""
    embedding_dropout: Rate = 0.0
    attention_dropout: Rate = 0.0
    residual_dropout: Rate = 0.0
    head_dropout: Rate = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        words = self.pattern.split()
        if not words or set(words) - set(KINDS):
            raise ValueError(f"the pattern {self.pattern!r} must be words out of {', '.join(KINDS)}")


def kinds(pattern: str, layers: int) -> list[str]:
    """What every layer sees."""
    words = pattern.split()
    return [words[number % len(words)] for number in range(layers)]


# GPT-Neo's queries, keys and values have no bias, and its scores are not divided.
NEO = {"attention_bias": False, "scaled": False}
SMALL = {**decoders.SMALL_POCKET, "band": 64}
# The table of the paper gives the 1.3B model 24 heads of 128, wider than the model, and the 13B model a width
# of 5,140, which its heads do not make up. Fields and learning rates.
PUBLISHED: dict[str, tuple[dict[str, Any], float]] = {
    "125M": ({"dim": 768, "layers": 12, "heads": 12}, 6e-4),
    "350M": ({"dim": 1024, "layers": 24, "heads": 16}, 3e-4),
    "760M": ({"dim": 1536, "layers": 24, "heads": 16}, 2.5e-4),
    "1.3B": ({}, 2e-4),
    "2.7B": ({"dim": 2560, "layers": 32, "heads": 32}, 1.6e-4),
    "6.7B": ({"dim": 4096, "layers": 32, "heads": 32}, 1.2e-4),
    "13B": ({"dim": 5120, "layers": 40, "heads": 40}, 1e-4),
    "175B": ({"dim": 12288, "layers": 96, "heads": 96}, 0.6e-4),
}
SIZES: Sizes = {
    "pocket": SMALL,
    "pocket-neo": {**SMALL, **NEO},
    **{size: fields for size, (fields, _) in PUBLISHED.items()},
    "neo-125M": {"dim": 768, "layers": 12, "heads": 12, **NEO},
    "neo-1.3B": NEO,
    "neo-2.7B": {"dim": 2560, "layers": 32, "heads": 20, **NEO},
}


def body(shape: Shape, heads: frozenset[str]) -> Body:
    options = {
        "head_dim": shape.head_dim,
        "bias": shape.attention_bias,
        "output_bias": True,
        "scale": None if shape.scaled else 1.0,
    }
    rules = [
        CausalRule() if kind == "dense" else BandRule(shape.band)
        for kind in kinds(shape.pattern, shape.layers)
    ]
    places = decoders.positions(shape)

    def layer(number: int) -> Block:
        return decoders.block(shape, norm_first=True, **options, **places.attention())

    return decoders.decoder(shape, layer, rules, places=places)


def names(shape: Shape) -> NameMap:
    return decoders.name_map(
        shape,
        {
            **decoders.TABLE_NAMES,
            **decoders.separate("attn.attention."),
            decoders.LAYER + "feed_forward.inner.*": decoders.THEIRS + "mlp.c_fc.*",
            decoders.LAYER + "feed_forward.outer.*": decoders.THEIRS + "mlp.c_proj.*",
        },
    )


def fits_transformers(shape: Shape) -> bool:
    """Whether it is a GPT-Neo."""
    return not (shape.attention_bias or shape.scaled or shape.head_dim)


def after_read(ours: dict[str, Any], carried: dict[str, Any], keys: Mapping[str, Any]) -> None:
    """GPT-Neo gives the kinds of its layers as patterns, each so many times over, and once more layer by
    layer."""
    groups = keys.get("attention_types")
    if groups is None:
        return
    words = {theirs: kind for kind, theirs in KINDS.items()}
    try:
        layers = [kind for group, times in groups for kind in times * group]
        ours["pattern"] = " ".join(shortest_pattern([words[kind] for kind in layers]))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f'has attention_types = {groups!r}: expected patterns of "global" and "local", such as '
            '[[["global", "local"], 12]]'
        ) from error
    if len(layers) != ours.get("layers", Shape.layers) or layers != keys.get("attention_layers", layers):
        raise ValueError(
            f"tells the kinds of {len(layers)} layers in attention_types, but num_layers or "
            "attention_layers say "
            "otherwise"
        )


def after_write(shape: Mapping[str, Any]) -> dict[str, Any]:
    layers = [KINDS[kind] for kind in kinds(shape["pattern"], shape["layers"])]
    pattern = shortest_pattern(layers)
    times, rest = divmod(len(layers), len(pattern))
    return {"attention_types": [[layers, 1]] if rest else [[pattern, times]], "attention_layers": layers}


def shortest_pattern(words: Sequence[str]) -> list[str]:
    """The fewest words that give all when they are repeated; at least one word is needed."""
    sizes = range(1, len(words) + 1)
    return list(next(words[:n] for n in sizes if all(words[i] == words[i % n] for i in range(len(words)))))


SETTINGS = SettingsMap(
    names={
        "vocabulary": "vocab_size",
        "positions": "max_position_embeddings",
        "dim": "hidden_size",
        "layers": "num_layers",
        "heads": "num_heads",
        "inner_dim": "intermediate_size",
        "band": "window_size",
        "embedding_dropout": "embed_dropout",
        "attention_dropout": "attention_dropout",
        "residual_dropout": "resid_dropout",
        "head_dropout": "classifier_dropout",
        "norm_epsilon": "layer_norm_epsilon",
        "deviation": "initializer_range",
        "tied": "tie_word_embeddings",
    },
    fields=[
        Field("head_dim", "etymon_head_dim", unless=None),
        Field("attention_bias", "etymon_attention_bias", unless=False),
        Field("scaled", "etymon_scaled", unless=False),
        decoders.ACTIVATION,
    ],
    ignored=[*decoders.IGNORED, "attention_types", "attention_layers"],
    # What goes without saying in GPT-Neo is not so in GPT-3.
    usual={"etymon_attention_bias": False, "etymon_scaled": False},
    after_read=after_read,
    after_write=after_write,
)
# A rate for every size. The warm-up was 375 million of 300 billion tokens.
RECIPE = Recipe(
    learning_rate=2e-4, betas=(0.9, 0.95), weight_decay=0.1, schedule="cosine", warmup=0.00125, final=0.1,
    decay_end=260 / 300, ramp=4 / 300,
)  # fmt: skip
FAMILY = Family(
    name="gpt3",
    title="GPT-3",
    model_type="gpt_neo",
    shape=Shape,
    sizes=SIZES,
    body=body,
    heads=decoders.HEADS,
    architectures=classes(
        "GPTNeo", "ForCausalLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"
    ),
    names=names,
    settings=SETTINGS,
    initial=decoders.residual_initial,
    capabilities=decoders.CAPABILITIES,
    objective="causal",
    recipe=RECIPE,
    size_recipes={
        **dict.fromkeys(("pocket", "pocket-neo"), decoders.pocket_recipe(4e-3)),
        **{size: replace(RECIPE, learning_rate=rate) for size, (_, rate) in PUBLISHED.items()},
        "neo-125M": replace(RECIPE, learning_rate=6e-4),
        "neo-2.7B": replace(RECIPE, learning_rate=1.6e-4),
    },
    tokenizer=decoders.BYTE_BPE,
    framing=framing.PLAIN,
    special_ids={"begin": 50256, "end": 50256},
    fits_transformers=fits_transformers,
)
