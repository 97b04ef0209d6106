"""DistilBERT (Sanh et al. 2019): BERT with half the layers, without segments and pooler, taught by a larger
model."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import nn

from etymon.checkpoints.names import NameMap
from etymon.checkpoints.settings import Field, SettingsMap
from etymon.families import encoders, recipes
from etymon.families.family import Family, Head, Recipe, classes
from etymon.families.positions import PositionKind, check_positions
from etymon.families.shape import ACTIVATION_NAMES, ActivationName, Sizes, check_heads, shape_class
from etymon.nn.blocks import Body
from etymon.nn.embeddings import sinusoidal
from etymon.nn.heads import DeepProjection, Projection
from etymon.nn.initialise import Filler, normal_weights
from etymon.nn.layers import Rate
from etymon.text import framing


@shape_class
class Shape:
    vocabulary: PositiveInt = 30522
    positions: PositiveInt = 512
    dim: PositiveInt = 768
    layers: PositiveInt = 6
    heads: PositiveInt = 12
    inner_dim: PositiveInt = 3072
    activation: ActivationName = "gelu"
    dropout: Rate = 0.1
    attention_dropout: Rate = 0.1
    head_dropout: Rate = 0.2
    """Of classification and choice."""
    span_dropout: Rate = 0.1
    deviation: NonNegativeFloat = 0.02
    position_kind: PositionKind = "learned"
    """How tokens know their places, see BERT's."""
    sinusoidal: bool = False
    """The table of positions begins as sines and cosines; a published model has its table, however that
    began."""
    tied: bool = True
    neighbours: NonNegativeFloat = 0.0
    """How strongly attention begins at a token's neighbours; 0: as published (`nn/neighbours.py`)."""
    residual_scale: PositiveFloat = 1.0
    """What a layer's part adds is multiplied by it. Transformers has no such thing: saving folds it into the
    weights."""
    # Of this family alone these are no keys of `config.json`: Transformers has them in its code.
    norm_epsilon: ClassVar[float] = 1e-12

    def __post_init__(self) -> None:
        check_heads(self.dim, self.heads)
        check_positions(self.position_kind, self.dim // self.heads)


SIZES: Sizes = {
    "pocket": {**encoders.POCKET, "layers": 2},
    "base": {},
    "base-cased": {"vocabulary": 28996},
    "base-multilingual-cased": {"vocabulary": 119547},
}


def body(shape: Shape, heads: frozenset[str]) -> Body:
    return encoders.encoder(shape, segments=0, output_dropout=0.0)  # what attention adds is left whole


# There is no pooler: a head has a dense map of its own, with ReLU where BERT's pooler has tanh.
def first_token(shape: Shape, outputs: int) -> nn.Module:
    return DeepProjection(
        shape.dim, outputs, dropout=shape.head_dropout, activation=torch.relu, input_dropout=0.0
    )


HEADS = {
    "vocabulary": encoders.vocabulary_head(),
    "classification": Head(lambda s, body, labels: first_token(s, labels), at="first"),
    "choice": Head(lambda s, body, labels: first_token(s, 1), at="first"),
    "tagging": Head(lambda s, body, labels: Projection(s.dim, labels, dropout=s.dropout)),
    "span": Head(lambda s, body, labels: Projection(s.dim, 2, dropout=s.span_dropout)),
}


def names(shape: Shape) -> NameMap:
    layer, theirs = encoders.LAYER, "distilbert.transformer.layer.{}."
    parts = {"query": "q_lin", "key": "k_lin", "value": "v_lin", "output": "out_lin"}
    table = {
        **encoders.embedding_names("distilbert."),
        **{layer + f"attention.{ours}.*": theirs + f"attention.{name}.*" for ours, name in parts.items()},
        layer + "attention.relative.table.weight": theirs + "attention.distance_embedding.weight",
        layer + "attention_norm.*": theirs + "sa_layer_norm.*",
        layer + "feed_forward.inner.*": theirs + "ffn.lin1.*",
        layer + "feed_forward.outer.*": theirs + "ffn.lin2.*",
        layer + "feed_forward_norm.*": theirs + "output_layer_norm.*",
        "heads.vocabulary.transform.dense.*": "vocab_transform.*",
        "heads.vocabulary.transform.norm.*": "vocab_layer_norm.*",
        "heads.classification.dense.*": "pre_classifier.*",
        "heads.choice.dense.*": "pre_classifier.*",
        **encoders.TASK_NAMES,
    }
    return encoders.name_map(shape, table, "distilbert.", "vocab_projector")


SETTINGS = SettingsMap(
    names={
        "vocabulary": "vocab_size",
        "positions": "max_position_embeddings",
        "dim": "dim",
        "layers": "n_layers",
        "heads": "n_heads",
        "inner_dim": "hidden_dim",
        "dropout": "dropout",
        "attention_dropout": "attention_dropout",
        "head_dropout": "seq_classif_dropout",
        "span_dropout": "qa_dropout",
        "deviation": "initializer_range",
        "sinusoidal": "sinusoidal_pos_embds",
        "tied": "tie_word_embeddings",
    },
    fields=[
        Field("activation", "activation", ACTIVATION_NAMES),
    ],
    ignored=["is_decoder"],
)


def initial(shape: Shape) -> list[tuple[str, Filler]]:
    waves = [("body.embeddings.positions.weight", sinusoidal)] if shape.sinusoidal else []
    return [*waves, *normal_weights(shape)]


MUON = replace(recipes.MUON, weight_decay=0.0)
POCKET_RECIPE = replace(recipes.POCKET_RECIPE, weight_decay=0.0)
FAMILY = Family(
    name="distilbert",
    title="DistilBERT",
    model_type="distilbert",
    shape=Shape,
    sizes=SIZES,
    body=body,
    heads=HEADS,
    architectures=classes("DistilBert", "ForMaskedLM", *encoders.TASK_CLASSES),
    names=names,
    settings=SETTINGS,
    initial=initial,
    capabilities=encoders.CAPABILITIES,
    objective="masked",
    # Of the authors' training script; the paper (section 3) only gives the losses and batches of up to
    # 4,000.
    recipe=Recipe(
        learning_rate=5e-4,
        betas=(0.9, 0.98),
        epsilon=1e-6,
        weight_decay=0.0,
        clip=5.0,
        schedule="linear",
        warmup=0.05,
    ),
    size_recipes={"pocket": POCKET_RECIPE},
    recipes=recipes.encoder_recipes(MUON, POCKET_RECIPE),
    tokenizer=encoders.WORDPIECE,
    # The tokens of BERT without its segments.
    framing=replace(framing.CLASS_FIRST, name="distilbert", pair_segments=()),
    special_ids={"pad": 0},
)
