"""GPT-J (Wang and Komatsuzaki 2021): attention and feed-forward part side by side, and positions by
rotation."""

from __future__ import annotations

from pydantic import PositiveInt

from etymon.checkpoints.names import NameMap
from etymon.checkpoints.settings import Constant, SettingsMap
from etymon.families import decoders
from etymon.families.family import Family, Recipe, classes
from etymon.families.shape import Sizes, shape_class
from etymon.nn.blocks import Body, ParallelBlock
from etymon.nn.embeddings import Rotary
from etymon.nn.initialise import COMMON, Filler, normal, truncated_normal
from etymon.nn.layers import Rate
from etymon.text import framing


@shape_class
class Shape(decoders.DecoderShape):
    vocabulary: PositiveInt = 50400
    """143 of them have no token: the number was rounded up for the machine."""
    positions: PositiveInt = 2048
    dim: PositiveInt = 4096
    layers: PositiveInt = 28
    heads: PositiveInt = 16
    inner_dim: PositiveInt | None = None
    """Of the feed-forward part; four times the width unless told."""
    rotary_dim: int = 64
    """So many numbers of every head are turned by their position."""
    embedding_dropout: Rate = 0.0
    attention_dropout: Rate = 0.0
    residual_dropout: Rate = 0.0
    tied: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rotary_dim % 2 or not 0 <= self.rotary_dim <= self.dim // self.heads:
            raise ValueError(
                f"rotary_dim {self.rotary_dim} must be even and at most the width of a head, "
                f"{self.dim // self.heads}"
            )


SIZES: Sizes = {
    "pocket": {**decoders.SMALL_POCKET, "rotary_dim": 16},
    "6B": {},
}


def body(shape: Shape, heads: frozenset[str]) -> Body:
    # One table of sines for all layers, and no table of positions: any layer can turn its queries and keys.
    rotary = Rotary(shape.rotary_dim)

    def layer(number: int) -> ParallelBlock:
        return ParallelBlock(
            decoders.attention(shape, bias=False, rotary=rotary),
            decoders.feed_forward(shape),
            decoders.layer_norm(shape),
            dropout=shape.residual_dropout,
            residual_scale=shape.residual_scale,
        )

    return decoders.decoder(shape, layer)


def names(shape: Shape) -> NameMap:
    return decoders.name_map(
        shape,
        {
            "body.embeddings.words.weight": decoders.BODY + "wte.weight",
            # One norm a layer, `ln_1`: both parts read it, and there is no `ln_2`.
            **decoders.separate("attn."),
            decoders.LAYER + "feed_forward.inner.*": decoders.THEIRS + "mlp.fc_in.*",
            decoders.LAYER + "feed_forward.outer.*": decoders.THEIRS + "mlp.fc_out.*",
        },
    )


SETTINGS = SettingsMap(
    names={**decoders.KEYS, "inner_dim": "n_inner", "rotary_dim": "rotary_dim"},
    fields=[decoders.ACTIVATION],
    constants=[
        Constant("rotary", True, "positions that are not told by rotation are not GPT-J's"),
        Constant("scale_attn_weights", True, "scores without scaling are not GPT-J's"),
    ],
    ignored=decoders.IGNORED,
)


def initial(shape: Shape) -> list[tuple[str, Filler]]:
    """The authors' own: by the width of what comes in, and smaller the more layers add to the residual
    path."""
    usual = truncated_normal(shape.dim**-0.5)
    residual = truncated_normal(2 / shape.layers * shape.dim**-0.5)
    return [
        ("*.attention.output.weight", residual),
        ("*.feed_forward.outer.weight", residual),
        ("body.embeddings.words.weight", truncated_normal(shape.vocabulary**-0.5)),
        *COMMON,
        ("heads.vocabulary.weight", usual),
        ("heads.*", normal(shape.deviation)),
        ("*.weight", usual),
    ]


FAMILY = Family(
    name="gptj",
    title="GPT-J",
    model_type="gptj",
    shape=Shape,
    sizes=SIZES,
    body=body,
    # Alone among the GPTs, its output has a bias of its own and is not tied to the word vectors.
    heads={**decoders.HEADS, "vocabulary": decoders.vocabulary_head(bias=True)},
    architectures=classes("GPTJ", "ForCausalLM", "ForSequenceClassification", "ForQuestionAnswering"),
    names=names,
    settings=SETTINGS,
    initial=initial,
    capabilities=decoders.CAPABILITIES,
    objective="causal",
    # As Mesh Transformer JAX was run: the rate falls to a tenth by step 300,000 of 350,000, and a small
    # penalty keeps the softmax's normaliser near 1 (z_loss).
    recipe=Recipe(
        learning_rate=1.2e-4,
        weight_decay=0.1,
        schedule="cosine",
        warmup_steps=3000,
        final=0.1,
        decay_end=300 / 350,
        options={"z_loss": 1e-4},
    ),
    size_recipes={"pocket": decoders.pocket_recipe(4e-3)},
    tokenizer=decoders.BYTE_BPE,
    framing=framing.PLAIN,
    special_ids={"begin": 50256, "end": 50256},
)
