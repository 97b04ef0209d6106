"""GPT-3 (Brown et al. 2020): GPT-2 whose layers take turns in seeing all that came before and only the last of it.

How wide the band is, and which layers have it, was not published: `band` and `pattern` say. GPT-Neo, which the folders of
Transformers hold, is the nearest relative: scores without a scale, and no biases of query, key and value. With
`attention_bias` and `scaled` off it is read and written exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import ConfigDict, PositiveInt
from pydantic.dataclasses import dataclass

from etymon.checkpoints.names import NameMap
from etymon.checkpoints.settings import RESIDUAL_SCALE, Field, SettingsMap
from etymon.errors import EtymonError
from etymon.families import decoders
from etymon.families.family import ACTIVATION_NAMES, Family, Recipe, classes
from etymon.nn.blocks import Body
from etymon.nn.layers import Rate
from etymon.nn.visibility import BandRule, CausalRule
from etymon.text import framing

KINDS = {"dense": "global", "banded": "local"}
"""What a layer sees, in our words and in GPT-Neo's."""


@dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
class Shape(decoders.DecoderShape):
    positions: PositiveInt = 2048
    dim: PositiveInt = 2048
    layers: PositiveInt = 24
    heads: PositiveInt = 16
    head_dim: PositiveInt | None = None
    """Width of a head, if the heads together are not as wide as the model."""
    inner_dim: PositiveInt | None = None
    """Of the feed-forward part; four times the width unless told."""
    pattern: str = "dense banded"
    """What the layers see, one word each, from the beginning again where there are more layers than words."""
    band: PositiveInt = 256
    """How many tokens a banded layer sees, the last one included."""
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


NEO = {"attention_bias": False, "scaled": False}
SMALL = {**decoders.SMALL_POCKET, "band": 64}
# The table of the paper gives the 1.3B model 24 heads of 128, wider than the model, and the 13B model a width of 5,140, which
# its heads do not make up.
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
"""Fields and learning rates."""
SIZES: dict[str, dict[str, Any]] = {
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
    return decoders.decoder(shape, lambda number: decoders.block(shape, norm_first=True, **options), rules)


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


def expressible(shape: Shape) -> bool:
    """Whether it is a GPT-Neo."""
    return not (shape.attention_bias or shape.scaled or shape.head_dim)


class NeoSettings(SettingsMap):
    """GPT-Neo tells the kinds of its layers as patterns, each so many times over, and once more one by one."""

    def read(
        self, config: Mapping[str, Any], where: str, heads: frozenset[str] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        # What goes without saying in GPT-Neo is not so in GPT-3.
        usual = {"etymon_attention_bias": False, "etymon_scaled": False}
        ours, carried = super().read({**usual, **config}, where, heads)
        config = self.told(config)
        if config.get("attention_types") is not None:
            words = {theirs: kind for kind, theirs in KINDS.items()}
            try:
                told = [kind for group, times in config["attention_types"] for kind in times * group]
                found = [words[kind] for kind in told]
            except (KeyError, TypeError, ValueError) as error:
                raise EtymonError(
                    f'{where} has attention_types = {config["attention_types"]!r}: expected patterns of "global" and '
                    '"local", such as [[["global", "local"], 12]]'
                ) from error
            if len(told) != ours.get("layers", Shape.layers) or told != config.get("attention_layers", told):
                raise EtymonError(
                    f"{where} tells the kinds of {len(told)} layers in attention_types, but num_layers or "
                    "attention_layers say otherwise"
                )
            ours["pattern"] = " ".join(shortest(found))
        return ours, carried

    def write(self, shape: Mapping[str, Any]) -> dict[str, Any]:
        told = [KINDS[kind] for kind in kinds(shape["pattern"], shape["layers"])]
        pattern = shortest(told)
        times, rest = divmod(len(told), len(pattern))
        written = super().write(shape)
        if shape["head_dim"] is None:
            del written["etymon_head_dim"]
        return {
            **written,
            "attention_types": [[told, 1]] if rest else [[pattern, times]],
            "attention_layers": told,
        }


def shortest(told: Sequence[str]) -> list[str]:
    """The fewest words that give all when they are said again and again."""
    sizes = range(1, len(told) + 1)
    return list(next(told[:n] for n in sizes if all(told[i] == told[i % n] for i in range(len(told)))))


SETTINGS = NeoSettings(
    fields=[
        Field("vocabulary", "vocab_size"),
        Field("positions", "max_position_embeddings"),
        Field("dim", "hidden_size"),
        Field("layers", "num_layers"),
        Field("heads", "num_heads"),
        Field("head_dim", "etymon_head_dim"),
        Field("inner_dim", "intermediate_size"),
        Field("band", "window_size"),
        Field("attention_bias", "etymon_attention_bias", unless=False),
        Field("scaled", "etymon_scaled", unless=False),
        Field("activation", "activation_function", ACTIVATION_NAMES),
        Field("embedding_dropout", "embed_dropout"),
        Field("attention_dropout", "attention_dropout"),
        Field("residual_dropout", "resid_dropout"),
        Field("head_dropout", "classifier_dropout"),
        Field("norm_epsilon", "layer_norm_epsilon"),
        Field("deviation", "initializer_range"),
        Field("tied", "tie_word_embeddings"),
        RESIDUAL_SCALE,
    ],
    ignored=[*decoders.IGNORED, "attention_types", "attention_layers"],
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
    expressible=expressible,
)
