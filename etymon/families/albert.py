"""ALBERT (Lan et al. 2019): narrow word vectors led into wide layers, and one set of weights for all
layers."""

from __future__ import annotations

from dataclasses import replace

from pydantic import PositiveInt

from etymon.checkpoints.names import NameMap
from etymon.checkpoints.settings import SettingsMap
from etymon.families import electra, encoders, recipes
from etymon.families.family import Architecture, Family, Head, Recipe, TokenizerChoice, classes
from etymon.families.shape import ActivationName, Sizes, shape_class
from etymon.nn.blocks import Body
from etymon.nn.initialise import truncated_weights
from etymon.nn.layers import Rate
from etymon.text import framing


@shape_class
class Shape(encoders.EncoderShape):
    vocabulary: PositiveInt = 30000
    embedding_dim: PositiveInt = 128
    dim: PositiveInt = 4096
    groups: PositiveInt = 1
    """Layers are cut into so many runs of equal length, and those of a run share their weights."""
    inner_groups: PositiveInt = 1
    """So many layers with weights of their own take turns within every layer."""
    heads: PositiveInt = 64
    inner_dim: PositiveInt = 16384
    activation: ActivationName = "gelu_tanh"
    dropout: Rate = 0.0
    attention_dropout: Rate = 0.0
    head_dropout: Rate | None = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.groups <= self.layers:
            raise ValueError(
                f"groups is {self.groups}: it must be from 1 to the number of layers, {self.layers}"
            )


SIZES: Sizes = {
    "pocket": encoders.POCKET,
    "base": {"dim": 768, "heads": 12, "inner_dim": 3072},
    "large": {"layers": 24, "dim": 1024, "heads": 16, "inner_dim": 4096},
    "xlarge": {"layers": 24, "dim": 2048, "heads": 16, "inner_dim": 8192},
    "xxlarge": {},
}


def body(shape: Shape, heads: frozenset[str]) -> Body:
    inner = range(shape.inner_groups)
    # In floating point, as the published code does it.
    groups = [int(layer / (shape.layers / shape.groups)) for layer in range(shape.layers)]
    return encoders.encoder(
        shape,
        segments=shape.segments,
        width=shape.embedding_dim,
        project=True,
        schedule=[group * shape.inner_groups + number for group in groups for number in inner],
        feed_forward_dropout=0.0,  # Transformers has it and does not use it; Google's code does
        scaled_distances=False,  # as Transformers 4 has it, in this family alone
    )


# Behind the dropout of task heads, unlike BERT's.
PAIRS = Head(lambda s, body, labels: encoders.dropped(s, 2), after="pooler")
HEADS = {**encoders.POOLED_HEADS, "next_sentence": PAIRS, "sentence_order": PAIRS}


def names(shape: Shape) -> NameMap:
    table = {
        **encoders.embedding_names("albert."),
        "body.embeddings.projection.*": "albert.encoder.embedding_hidden_mapping_in.*",
        "heads.pooler.dense.*": "albert.pooler.*",
        "heads.vocabulary.transform.dense.*": "predictions.dense.*",
        "heads.vocabulary.transform.norm.*": "predictions.LayerNorm.*",
        "heads.sentence_order.linear.*": "sop_classifier.classifier.*",
        **encoders.TASK_NAMES,
    }
    # Every published size has one group of one layer: twelve passes or more through the same weights.
    for physical in range(shape.groups * shape.inner_groups):
        group, number = divmod(physical, shape.inner_groups)
        ours = f"body.stack.layers.{physical}."
        theirs = f"albert.encoder.albert_layer_groups.{group}.albert_layers.{number}."
        table |= {
            **{ours + f"attention.{part}.*": theirs + f"attention.{part}.*" for part in encoders.PROJECTIONS},
            ours + "attention.relative.table.weight": theirs + "attention.distance_embedding.weight",
            ours + "attention.output.*": theirs + "attention.dense.*",
            ours + "attention_norm.*": theirs + "attention.LayerNorm.*",
            ours + "feed_forward.inner.*": theirs + "ffn.*",
            ours + "feed_forward.outer.*": theirs + "ffn_output.*",
            ours + "feed_forward_norm.*": theirs + "full_layer_layer_norm.*",
        }
    return encoders.name_map(shape, table, "albert.", "predictions.decoder", bias="predictions.bias")


SETTINGS = SettingsMap(
    names={
        **encoders.KEYS,
        "embedding_dim": "embedding_size",
        "groups": "num_hidden_groups",
        "inner_groups": "inner_group_num",
        "head_dropout": "classifier_dropout_prob",
    },
    fields=encoders.FIELDS,
    constants=encoders.CONSTANTS,
)


OPTIONS = {"masking": "ngram"}
MUON = replace(recipes.MUON, options=OPTIONS)
FAMILY = Family(
    name="albert",
    title="ALBERT",
    model_type="albert",
    shape=Shape,
    sizes=SIZES,
    body=body,
    heads=HEADS,
    architectures=[
        Architecture("AlbertForPreTraining", frozenset({"vocabulary", "sentence_order"})),
        *classes("Albert", "ForMaskedLM", *encoders.TASK_CLASSES, pooled=True),
    ],
    names=names,
    settings=SETTINGS,
    initial=truncated_weights,
    capabilities=encoders.CAPABILITIES | {"segments", "generator"},
    layers=lambda shape: (shape.layers * shape.inner_groups + 1, shape.dim),
    objective="masked-sentence-order",
    # LAMB with batches of 4,096 and 3,125 of 125,000 steps of warm-up (section 4.1); masks cover n-grams.
    recipe=Recipe(
        learning_rate=0.00176,
        optimiser="lamb",
        epsilon=1e-6,
        weight_decay=0.01,
        schedule="linear",
        warmup=0.025,
        options=OPTIONS,
    ),
    size_recipes={"pocket": recipes.POCKET_RECIPE},
    recipes=recipes.encoder_recipes(MUON, recipes.POCKET_RECIPE),
    fits_transformers=encoders.fits_transformers,
    tokenizer=TokenizerChoice(
        "unigram",
        {"pad": "<pad>", "unknown": "<unk>", "class": "[CLS]", "separator": "[SEP]", "mask": "[MASK]"},
        lowercase=True,
        strip_accents=True,
    ),
    framing=framing.CLASS_FIRST,
    special_ids={"pad": 0, "begin": 2, "end": 3},
    generator=electra.generator,
)
