"""RoBERTa (Liu et al. 2019): BERT without segments and next sentences, over byte-level BPE.

Positions are counted behind the padding token's row of their table, and padding itself is not counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from pydantic import NonNegativeFloat, PositiveInt

from etymon.checkpoints.names import NameMap
from etymon.checkpoints.settings import SettingsMap
from etymon.families import encoders, recipes
from etymon.families.family import Family, Head, Recipe, classes
from etymon.families.shape import Sizes, shape_class
from etymon.nn.blocks import Body
from etymon.nn.heads import DeepProjection, Projection
from etymon.nn.initialise import COMMON, Filler, normal, with_zero_row
from etymon.nn.layers import ACTIVATIONS
from etymon.text import framing


@shape_class
class Shape(encoders.EncoderShape):
    vocabulary: PositiveInt = 50265
    segments: PositiveInt = 1
    norm_epsilon: NonNegativeFloat = 1e-5
    pad: int = 1
    """The id of the padding token; the first position is on the row behind it."""


SIZES: Sizes = {
    "pocket": encoders.POCKET,
    "base": {},
    "large": {"layers": 24, "dim": 1024, "heads": 16, "inner_dim": 4096},
}


def body(shape: Shape, heads: frozenset[str]) -> Body:
    return encoders.encoder(shape, segments=shape.segments, first_position=shape.pad + 1)


HEADS = {
    **encoders.POOLED_HEADS,
    # Transformers has gelu here, whatever the layers' activation is.
    "vocabulary": encoders.vocabulary_head(ACTIVATIONS["gelu"]),
    # No pooler: pretraining had no task that would have trained one, so the head brings a dense map.
    "classification": Head(
        lambda s, body, labels: DeepProjection(s.dim, labels, dropout=encoders.head_dropout(s)), at="first"
    ),
    "choice": Head(lambda s, body, labels: Projection(s.dim, 1, dropout=s.dropout), after="pooler"),
}


def names(shape: Shape) -> NameMap:
    table = {
        **encoders.body_names("roberta."),
        "heads.pooler.dense.*": "roberta.pooler.dense.*",
        "heads.vocabulary.transform.dense.*": "lm_head.dense.*",
        "heads.vocabulary.transform.norm.*": "lm_head.layer_norm.*",
        "heads.classification.dense.*": "classifier.dense.*",
        **encoders.TASK_NAMES,
        "heads.classification.linear.*": "classifier.out_proj.*",
    }
    return encoders.name_map(shape, table, "roberta.", "lm_head.decoder", bias="lm_head.bias")


def after_read(ours: dict[str, Any], carried: dict[str, Any], keys: Mapping[str, Any]) -> None:
    """Their number of positions includes the rows of the table up to the padding token's, which hold none."""
    ours["pad"] = keys["pad_token_id"]
    if isinstance(ours["positions"], int) and isinstance(ours["pad"], int):
        ours["positions"] -= ours["pad"] + 1


def after_write(shape: Mapping[str, Any]) -> dict[str, Any]:
    table = shape["positions"] + shape["pad"] + 1
    return {"max_position_embeddings": table, "pad_token_id": shape["pad"]}


SETTINGS = SettingsMap(
    names={**encoders.KEYS, "head_dropout": "classifier_dropout"},
    fields=encoders.FIELDS,
    constants=encoders.CONSTANTS,
    ignored=encoders.IGNORED,
    # What their class takes for granted, which is not what was published.
    usual={
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
        "pad_token_id": 1,
    },
    after_read=after_read,
    after_write=after_write,
)


def initial(shape: Shape) -> list[tuple[str, Filler]]:
    plain = normal(shape.deviation)
    blank = with_zero_row(plain, shape.pad)
    tables = [(f"body.embeddings.{table}.weight", blank) for table in ("words", "positions")]
    return [*COMMON, *tables, ("*.weight", plain)]


# Narrower embeddings would need a map, which this family has not: so it is as wide, and less deep.
def generator(shape: Shape) -> tuple[str, dict[str, Any]]:
    """As wide, since its positions are of the same kind, with a quarter of the layers."""
    return "roberta", {**asdict(shape), "layers": max(1, shape.layers // 4), "tied": True}


OPTIONS = {"masking": "roberta", "packing": "full-sentences"}
# No clipping, and a second moment that forgets faster, for the sake of large batches.
RECIPE = Recipe(
    learning_rate=6e-4,
    betas=(0.9, 0.98),
    epsilon=1e-6,
    weight_decay=0.01,
    clip=None,
    schedule="linear",
    warmup=0.048,
    options=OPTIONS,
)
MUON = replace(recipes.MUON, betas=(0.9, 0.98), options=OPTIONS)
POCKET_RECIPE = replace(
    recipes.POCKET_RECIPE, betas=(0.9, 0.98), options={**OPTIONS, **recipes.POCKET_RECIPE.options}
)
FAMILY = Family(
    name="roberta",
    title="RoBERTa",
    model_type="roberta",
    shape=Shape,
    sizes=SIZES,
    body=body,
    heads=HEADS,
    architectures=classes("Roberta", "ForMaskedLM", *encoders.TASK_CLASSES, pooled=True),
    names=names,
    settings=SETTINGS,
    initial=initial,
    capabilities=encoders.CAPABILITIES | {"generator"},
    objective="masked",
    recipe=RECIPE,
    size_recipes={
        "pocket": POCKET_RECIPE,
        "large": replace(RECIPE, learning_rate=4e-4, warmup=0.06),
    },
    recipes=recipes.encoder_recipes(MUON, POCKET_RECIPE),
    tuning=Recipe(learning_rate=2e-5, betas=(0.9, 0.98), epsilon=1e-6, weight_decay=0.1, warmup=0.06),
    fits_transformers=encoders.fits_transformers,
    tokenizer=encoders.MASKED_BPE,
    framing=framing.DOUBLE_SEPARATOR,
    special_ids={"begin": 0, "pad": 1, "end": 2},
    generator=generator,
    aliases={"xlm-roberta": "XLMRoberta", "camembert": "Camembert"},
)
