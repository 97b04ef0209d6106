"""ELECTRA (Clark et al. 2020): an encoder that tells replaced tokens from original ones.

There is no pooler: rows are read at their first token. A small generator, a model of the same family with a
vocabulary head, trains beside it and shares its embeddings, which may be narrower than the layers.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from pydantic import PositiveInt
from torch import nn

from etymon.checkpoints.names import NameMap
from etymon.checkpoints.settings import SettingsMap
from etymon.families import encoders, recipes, summary
from etymon.families.family import Architecture, Family, Head, Recipe, classes
from etymon.families.shape import ActivationName, Sizes, shape_class
from etymon.nn.blocks import Body
from etymon.nn.heads import DeepProjection, Projection
from etymon.nn.initialise import truncated_weights
from etymon.nn.layers import ACTIVATIONS, Rate
from etymon.settings.training import PhaseFile
from etymon.text import framing


@shape_class
class Shape(encoders.EncoderShape):
    embedding_dim: PositiveInt = 128
    dim: PositiveInt = 256
    heads: PositiveInt = 4
    inner_dim: PositiveInt = 1024
    choice_dropout: Rate = 0.1
    summary_type: summary.Type = "first"
    """Which state the choice head reads."""
    summary_dense: bool = True
    summary_activation: ActivationName = "gelu"
    """In the choice head, a dense map and its activation."""
    summary_first_dropout: Rate = 0.0
    """Before them."""


# `small` is a shape of its own, not a rung of BERT's: embeddings of 128 under layers of 256.
BASE = {"embedding_dim": 768, "dim": 768, "heads": 12, "inner_dim": 3072}
LARGE = {"embedding_dim": 1024, "layers": 24, "dim": 1024, "heads": 16, "inner_dim": 4096}
GENERATOR = {"dim": 256, "heads": 4, "inner_dim": 1024}
SIZES: Sizes = {
    "pocket": encoders.POCKET,
    "small": {},
    "base": BASE,
    "large": LARGE,
    "small-generator": {"dim": 64, "heads": 1, "inner_dim": 256},
    "base-generator": {**BASE, **GENERATOR},
    "large-generator": {**LARGE, **GENERATOR},
}


def body(shape: Shape, heads: frozenset[str]) -> Body:
    # Embeddings are shared with a generator of another width: a map leads from them to each one's layers.
    project = shape.embedding_dim != shape.dim
    return encoders.encoder(shape, segments=shape.segments, width=shape.embedding_dim, project=project)


# Always gelu, where RoBERTa's head has tanh; the layers' activation does not matter here.
def classification(shape: Shape, body: nn.Module, labels: int) -> nn.Module:
    dropout = encoders.head_dropout(shape)
    return DeepProjection(shape.dim, labels, dropout=dropout, activation=ACTIVATIONS["gelu"])


def choice(shape: Shape, body: nn.Module, labels: int) -> nn.Module:
    return DeepProjection(
        shape.dim,
        1,
        dropout=shape.choice_dropout,
        activation=ACTIVATIONS[shape.summary_activation],
        input_dropout=shape.summary_first_dropout,
        dense=shape.summary_dense,
    )


def generator(shape: encoders.EncoderShape) -> tuple[str, dict[str, Any]]:
    """Family and shape of a generator that can share the embeddings of this shape, an ELECTRA's or a
    relative's."""
    # A quarter as wide; the published base model has one of a third (section 3.2 of the paper, and its code).
    width = round(shape.dim * (1 / 3 if shape.dim == 768 else 1 / 4))
    heads = max(1, width // 64)
    width -= width % heads
    return "electra", {
        **{field.name: getattr(shape, field.name) for field in fields(encoders.EncoderShape)},
        "dim": width,
        "heads": heads,
        "inner_dim": 4 * width,
        # The table that both share is the generator's output matrix, too.
        "tied": True,
        "embedding_dim": getattr(shape, "embedding_dim", shape.dim),
    }


PAIRS = Head(lambda s, body, labels: Projection(s.dim, 2), at="first")
HEADS = {
    "vocabulary": encoders.vocabulary_head(ACTIVATIONS["gelu"]),
    "next_sentence": PAIRS,
    "sentence_order": PAIRS,
    "classification": Head(classification, at="first"),
    "choice": Head(choice, at=summary.place),
    **encoders.TOKEN_HEADS,
}


def names(shape: Shape) -> NameMap:
    table = {
        **encoders.body_names("electra."),
        "body.embeddings.projection.*": "electra.embeddings_project.*",
        "heads.replaced.dense.*": "discriminator_predictions.dense.*",
        "heads.replaced.linear.*": "discriminator_predictions.dense_prediction.*",
        "heads.vocabulary.transform.dense.*": "generator_predictions.dense.*",
        "heads.vocabulary.transform.norm.*": "generator_predictions.LayerNorm.*",
        "heads.choice.dense.*": "sequence_summary.summary.*",
        "heads.classification.dense.*": "classifier.dense.*",
        **encoders.TASK_NAMES,
        "heads.classification.linear.*": "classifier.out_proj.*",
    }
    return encoders.name_map(shape, table, "electra.", "generator_lm_head")


SETTINGS = SettingsMap(
    names={
        **encoders.KEYS,
        "embedding_dim": "embedding_size",
        "head_dropout": "classifier_dropout",
        "choice_dropout": "summary_last_dropout",
    },
    fields=[*encoders.FIELDS, *summary.FIELDS],
    constants=[*encoders.CONSTANTS, summary.TO_WIDTH],
    ignored=encoders.IGNORED,
)


# Table 6 of the paper; the warm-up is 10,000 of 766,000 steps for the base model.
RECIPE = Recipe(
    learning_rate=2e-4,
    optimiser="adam-bert",
    epsilon=1e-6,
    weight_decay=0.01,
    schedule="linear",
    warmup=0.013,
)
# Rates that fall from layer to layer (table 7) are what makes ELECTRA's fine-tuning steady.
TUNING = Recipe(learning_rate=1e-4, optimiser="adam-bert", epsilon=1e-6, layer_decay=0.8)
# Of a generator that knows but the frequencies of words nothing can be learnt: both begin with masked words.
POCKET_RECIPE = replace(
    recipes.POCKET_RECIPE,
    why="As for BERT but with positions as biases of distances, and three quarters of the run on masked "
    "words before replaced ones: a discriminator of minutes calls every token original.",
    # With rotation it found a twentieth of the replaced tokens after 10 Tflop, with these a fifth.
    shape={**recipes.POCKET_RECIPE.shape, "position_kind": "relative_bias", "neighbours": 1.0},
    objective="replaced",
    options={},
    phases=(
        PhaseFile(share=0.75, objective="masked", options=dict(recipes.POCKET_RECIPE.options)),
        PhaseFile(share=0.25),
    ),
)
FAMILY = Family(
    name="electra",
    title="ELECTRA",
    model_type="electra",
    shape=Shape,
    sizes=SIZES,
    body=body,
    heads=HEADS,
    architectures=[
        Architecture("ElectraForPreTraining", frozenset({"replaced"})),
        *classes("Electra", "ForMaskedLM", *encoders.TASK_CLASSES),
    ],
    names=names,
    settings=SETTINGS,
    initial=truncated_weights,
    capabilities=encoders.CAPABILITIES | {"segments", "generator"},
    objective="replaced",
    recipe=RECIPE,
    size_recipes={
        "pocket": POCKET_RECIPE,
        "small": replace(RECIPE, learning_rate=5e-4, warmup=0.01),
        # The large model has a quarter of its tokens masked, and not 15%.
        "large": replace(RECIPE, warmup=0.025, options={"density": 0.25}),
    },
    recipes=recipes.encoder_recipes(recipes.MUON, recipes.POCKET_RECIPE),
    tuning=TUNING,
    size_tunings={
        "small": replace(TUNING, learning_rate=3e-4),
        "large": replace(TUNING, learning_rate=5e-5, layer_decay=0.9),
    },
    fits_transformers=encoders.fits_transformers,
    tokenizer=encoders.WORDPIECE,
    framing=framing.CLASS_FIRST,
    special_ids={"pad": 0},
    generator=generator,
)
