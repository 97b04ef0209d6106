"""GPT-1 (Radford et al. 2018): a causal decoder whose norms follow the sums, over lower-cased words in
pieces.

Transformers computes every step of a text anew for this family; here it has the same cache as the others.
"""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveInt

from etymon.checkpoints.names import NameMap
from etymon.checkpoints.settings import Field, SettingsMap
from etymon.families import decoders, summary
from etymon.families.family import Family, Head, Recipe, TokenizerChoice, classes
from etymon.families.shape import Sizes, shape_class
from etymon.nn.blocks import Block, Body
from etymon.nn.heads import Projection
from etymon.nn.initialise import normal_weights
from etymon.text import framing


@shape_class
class Shape(summary.ChoiceShape):
    vocabulary: PositiveInt = 40478
    positions: PositiveInt = 512
    activation: Literal["gelu_tanh", "relu", "silu", "swish"] = "gelu_tanh"


SIZES: Sizes = {"pocket": decoders.SMALL_POCKET, "base": {}}


# No last norm: the norm after the last sum is it.
def body(shape: Shape, heads: frozenset[str]) -> Body:
    places = decoders.positions(shape)

    def layer(number: int) -> Block:
        return decoders.block(shape, norm_first=False, **places.attention())

    return decoders.decoder(shape, layer, places=places, norm=False)


# With the dropout that GPT-1 was fine-tuned with, which Transformers leaves out.
CLASSIFICATION = Head(
    lambda s, body, labels: Projection(s.dim, labels, bias=False, dropout=s.head_dropout), at="last"
)


def names(shape: Shape) -> NameMap:
    tables = {
        "body.embeddings.words.weight": decoders.BODY + "tokens_embed.weight",
        "body.embeddings.positions.weight": decoders.BODY + "positions_embed.weight",
    }
    return decoders.name_map(shape, tables, decoders.FUSED)


SETTINGS = SettingsMap(
    names=decoders.KEYS,
    fields=[
        # Their "gelu" is the approximation by tanh, in this family alone.
        Field("activation", "afn", {"gelu_tanh": "gelu", "relu": "relu", "silu": "silu", "swish": "swish"}),
        *summary.SCORE_FIELDS,
    ],
    constants=summary.SCORE,
    ignored=decoders.IGNORED,
)


FAMILY = Family(
    name="gpt1",
    title="GPT-1",
    model_type="openai-gpt",
    shape=Shape,
    sizes=SIZES,
    body=body,
    heads={**decoders.HEADS, "classification": CLASSIFICATION, "choice": summary.CHOICE},
    architectures=classes("OpenAIGPT", "LMHeadModel", "DoubleHeadsModel", "ForSequenceClassification"),
    names=names,
    settings=SETTINGS,
    initial=normal_weights,
    capabilities=decoders.CAPABILITIES,
    objective="causal",
    recipe=Recipe(learning_rate=2.5e-4, weight_decay=0.01, schedule="cosine", warmup_steps=2000),
    size_recipes={"pocket": decoders.pocket_recipe(4e-3)},
    tuning=Recipe(
        learning_rate=6.25e-5,
        warmup=0.002,
        options={"language_model": 0.5, "regress": {"symmetric": True}},
    ),
    # One token begins a text and so ends the one before it; the others serve tasks. None was there in the
    # published pretraining, which knew no texts, only books on end.
    tokenizer=TokenizerChoice(
        "word-bpe",
        {
            "unknown": "<unk>",
            "begin": "_start_",
            "end": "_start_",
            "separator": "_delimiter_",
            "class": "_classify_",
        },
        lowercase=True,
        strip_accents=True,
    ),
    framing=framing.EXTRACT_LAST,
)
