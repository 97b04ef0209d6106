"""GPT-2 (Radford et al. 2019): a causal decoder with norms before the parts and a final norm."""

from __future__ import annotations

from pydantic import PositiveInt

from etymon.checkpoints.names import NameMap
from etymon.checkpoints.settings import Constant, SettingsMap
from etymon.families import decoders, summary
from etymon.families.family import Family, Recipe, classes
from etymon.families.shape import Sizes, shape_class
from etymon.nn.blocks import Block, Body
from etymon.text import framing


@shape_class
class Shape(summary.ChoiceShape):
    inner_dim: PositiveInt | None = None
    """Of the feed-forward part; four times the width unless told."""
    scaled: bool = True
    """Scores are divided by the square root of a head's width."""
    scaled_by_layer: bool = False
    """And by the number of their layer, counted from 1 (Mistral of CRFM, BioMedLM)."""


SIZES: Sizes = {
    "pocket": decoders.SMALL_POCKET,
    "pocket-large": {"vocabulary": 8192, "dim": 384, "layers": 6, "heads": 6, **decoders.POCKET},
    "small": {},
    "medium": {"dim": 1024, "layers": 24, "heads": 16},
    "large": {"dim": 1280, "layers": 36, "heads": 20},
    "xl": {"dim": 1600, "layers": 48, "heads": 25},
}


def body(shape: Shape, heads: frozenset[str]) -> Body:
    places = decoders.positions(shape)

    # Mistral of CRFM also divides by the layer's number, which keeps half precision from overflowing.
    def layer(number: int) -> Block:
        scale = (shape.dim // shape.heads) ** -0.5 if shape.scaled else 1.0
        if shape.scaled_by_layer:
            scale /= number + 1
        return decoders.block(shape, norm_first=True, scale=scale, **places.attention())

    return decoders.decoder(shape, layer, places=places)


def names(shape: Shape) -> NameMap:
    return decoders.name_map(shape, decoders.TABLE_NAMES, decoders.FUSED)


SETTINGS = SettingsMap(
    names={
        **decoders.KEYS,
        "inner_dim": "n_inner",
        "scaled": "scale_attn_weights",
        "scaled_by_layer": "scale_attn_by_inverse_layer_idx",
    },
    fields=[decoders.ACTIVATION, *summary.SCORE_FIELDS],
    constants=[
        Constant("add_cross_attention", False, "cross-attention in GPT-2 is not supported"),
        *summary.SCORE,
    ],
    # Rounding, and chance in training.
    ignored=[*decoders.IGNORED, "reorder_and_upcast_attn", "classifier_dropout", "hidden_dropout"],
)
FAMILY = Family(
    name="gpt2",
    title="GPT-2",
    model_type="gpt2",
    shape=Shape,
    sizes=SIZES,
    body=body,
    heads={**decoders.HEADS, "choice": summary.CHOICE},
    architectures=classes(
        "GPT2",
        "LMHeadModel",
        "DoubleHeadsModel",
        "ForSequenceClassification",
        "ForTokenClassification",
        "ForQuestionAnswering",
    ),
    names=names,
    settings=SETTINGS,
    initial=decoders.residual_initial,
    capabilities=decoders.CAPABILITIES,
    objective="causal",
    # The authors tuned the rate by hand for every size and did not publish it; these are GPT-3's settings.
    recipe=Recipe(
        learning_rate=6e-4, betas=(0.9, 0.95), weight_decay=0.1, schedule="cosine", warmup=0.02, final=0.1
    ),
    size_recipes={"pocket": decoders.pocket_recipe(4e-3), "pocket-large": decoders.pocket_recipe(3e-3)},
    tokenizer=decoders.BYTE_BPE,
    framing=framing.PLAIN,
    special_ids={"begin": 50256, "end": 50256},
)
