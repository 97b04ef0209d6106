"""BERT (Devlin et al. 2018): a bidirectional encoder with norms after the sums, read by a pooler or token by
token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from etymon.checkpoints.names import NameMap
from etymon.checkpoints.settings import Constant, Field, SettingsMap
from etymon.families import electra, encoders, recipes
from etymon.families.family import Architecture, Family, Head, Recipe, classes
from etymon.families.shape import Sizes
from etymon.nn.blocks import Body
from etymon.nn.embeddings import Rotary
from etymon.nn.heads import DeepProjection, Projection
from etymon.nn.initialise import truncated_weights
from etymon.nn.layers import ACTIVATIONS
from etymon.text import framing

Shape = encoders.EncoderShape


def ladder(layers: int, dim: int) -> dict[str, Any]:
    """One rung of the published ladder of small models: 64 wide heads, an inner width of four times the
    width."""
    return {"layers": layers, "dim": dim, "heads": dim // 64, "inner_dim": 4 * dim}


# The small ones are the ladder of Turc et al. 2019 (arXiv 1908.08962), of which four have names.
SIZES: Sizes = {
    "pocket": encoders.POCKET,
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
    return encoders.encoder(shape, segments=shape.segments)


def names(shape: Shape) -> NameMap:
    table = {
        **encoders.body_names("bert."),
        "heads.pooler.dense.*": "bert.pooler.dense.*",
        "heads.vocabulary.transform.dense.*": "cls.predictions.transform.dense.*",
        "heads.vocabulary.transform.norm.*": "cls.predictions.transform.LayerNorm.*",
        "heads.next_sentence.linear.*": "cls.seq_relationship.*",
        **encoders.TASK_NAMES,
    }
    return encoders.name_map(shape, table, "bert.", "cls.predictions.decoder", bias="cls.predictions.bias")


SETTINGS = SettingsMap(
    names={**encoders.KEYS, "head_dropout": "classifier_dropout"},
    fields=encoders.FIELDS,
    constants=encoders.CONSTANTS,
    ignored=[*encoders.IGNORED, "is_encoder_decoder"],
)


BERT = Family(
    name="bert",
    title="BERT",
    model_type="bert",
    shape=Shape,
    sizes=SIZES,
    body=body,
    heads=encoders.POOLED_HEADS,
    # The first class is what `etymon.build` takes: both heads of the paper's pretraining (section 3.1).
    architectures=[
        Architecture("BertForPreTraining", frozenset({"vocabulary", "next_sentence"})),
        *classes("Bert", "ForMaskedLM", "ForNextSentencePrediction", *encoders.TASK_CLASSES, pooled=True),
    ],
    names=names,
    settings=SETTINGS,
    # Truncated normals, as in Google's code; Transformers draws plain ones.
    initial=truncated_weights,
    capabilities=encoders.CAPABILITIES | {"segments", "generator"},
    objective="masked-next-sentence",
    # 10,000 of 1,000,000 steps of warm-up (appendix A.2), and Adam without bias correction, as in Google's
    # code.
    recipe=Recipe(
        learning_rate=1e-4,
        optimiser="adam-bert",
        epsilon=1e-6,
        weight_decay=0.01,
        schedule="linear",
        warmup=0.01,
    ),
    size_recipes={"pocket": recipes.POCKET_RECIPE},
    recipes=recipes.encoder_recipes(recipes.MUON, recipes.POCKET_RECIPE),
    fits_transformers=encoders.fits_transformers,
    tokenizer=encoders.WORDPIECE,
    framing=framing.CLASS_FIRST,
    special_ids={"pad": 0},
    generator=electra.generator,
)


# --- with rotary positions: RoFormer (Su et al. 2021)

# There is no pooler: a text is classified by a dense map of its own, and chosen by its first token as it is.
ROFORMER_HEADS = {
    **encoders.POOLED_HEADS,
    "classification": Head(
        lambda s, body, labels: DeepProjection(
            s.dim, labels, dropout=encoders.head_dropout(s), activation=ACTIVATIONS[s.activation]
        ),
        at="first",
    ),
    "choice": Head(lambda s, body, labels: Projection(s.dim, 1), at="first"),
}


def rotary_table(shape: Shape) -> Tensor:
    """Sines, then cosines of all positions, as RoFormer's folders hold them."""
    rotary = Rotary(shape.dim // shape.heads, angles=torch.float64)
    cosines, sines = rotary.waves(torch.arange(shape.positions))
    return torch.cat((sines, cosines), -1)[:, 0]


def roformer_names(shape: Shape) -> NameMap:
    table = {
        **encoders.body_names("roformer."),
        # No class of theirs has one: it serves the next sentences of pretraining.
        "heads.pooler.dense.*": "etymon_heads.pooler.dense.*",
        "heads.vocabulary.transform.dense.*": "cls.predictions.transform.dense.*",
        "heads.vocabulary.transform.norm.*": "cls.predictions.transform.LayerNorm.*",
        **encoders.TASK_NAMES,
        "heads.classification.dense.*": "classifier.dense.*",
        "heads.classification.linear.*": "classifier.out_proj.*",
    }
    names = encoders.name_map(
        shape, table, "roformer.", "cls.predictions.decoder", bias="cls.predictions.bias"
    )
    return replace(names, tables={"roformer.encoder.embed_positions.weight": lambda: rotary_table(shape)})


def roformer_after_read(ours: dict[str, Any], carried: dict[str, Any], keys: Mapping[str, Any]) -> None:
    width = keys.get("hidden_size", 768)
    if keys.get("embedding_size") not in (None, width):
        raise ValueError(
            f"has embedding_size = {keys['embedding_size']}, but hidden_size = {width}: a RoFormer with "
            "narrower word vectors is not built here"
        )


ROFORMER = replace(
    BERT,
    model_type="roformer",
    heads=ROFORMER_HEADS,
    architectures=classes("RoFormer", "ForMaskedLM", *encoders.TASK_CLASSES),
    names=roformer_names,
    settings=SettingsMap(
        names=encoders.KEYS,
        fields=[
            encoders.FIELDS[0],
            # Values that are turned as well make another model.
            Field("position_kind", "rotary_value", {"rotary": False}),
            Field("head_dropout", "etymon_head_dropout", unless=None),
        ],
        constants=[
            *encoders.CONSTANTS,
            Constant("summary_type", "first", "the choice head reads the first token of a text", write=True),
        ],
        ignored=[*encoders.IGNORED, "is_encoder_decoder"],
        # What their class takes for granted.
        usual={
            "vocab_size": 50000,
            "max_position_embeddings": 1536,
            "rotary_value": False,
            "summary_type": "last",
        },
        after_read=roformer_after_read,
    ),
    fits_transformers=lambda shape: bool(shape.position_kind == "rotary"),
)
FAMILY = replace(BERT, rotary=ROFORMER)
