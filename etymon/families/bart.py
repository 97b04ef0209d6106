"""BART (Lewis et al. 2019): the encoder and decoder of 2017 over learned positions, taught to undo noise.

Embeddings have a norm of their own, positions are counted from the third row of their table, and the words
that the decoder writes have a bias that nobody trains.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

from etymon.checkpoints.names import NameMap, Row, rows
from etymon.checkpoints.settings import Constant, Field, SettingsMap
from etymon.families.encoders import MASKED_BPE
from etymon.families.family import Family, Recipe, classes
from etymon.families.positions import PositionKind, check_positions, matching_rules
from etymon.families.seq2seq import POCKET_RECIPE, TASK_NAMES, heads, layer_names, stack
from etymon.families.shape import ACTIVATION_NAMES, ActivationName, Sizes, check_heads, shape_class
from etymon.nn.blocks import Body, EncoderDecoder
from etymon.nn.embeddings import Embeddings
from etymon.nn.initialise import COMMON, Filler, normal, with_zero_row
from etymon.nn.layers import Embedding, LayerNorm, Rate
from etymon.text import framing


@shape_class
class Shape:
    vocabulary: PositiveInt = 50265
    positions: PositiveInt = 1024
    position_kind: PositionKind = "learned"
    """How tokens of either side know their places: by a learned table that is added to the word vectors, or
    in every layer by rotation (`rotary`), by learned vectors of distances (`relative_key`,
    `relative_key_query`) or by T5's biases (`relative_bias`)."""
    dim: PositiveInt = 1024
    layers: PositiveInt = 12
    heads: PositiveInt = 16
    inner_dim: PositiveInt = 4096
    decoder_layers: PositiveInt | None = None
    decoder_heads: PositiveInt | None = None
    decoder_inner_dim: PositiveInt | None = None
    """Of the decoder, each as the encoder's unless told."""
    activation: ActivationName = "gelu"
    dropout: Rate = 0.1
    attention_dropout: Rate = 0.0
    inner_dropout: Rate = 0.0
    head_dropout: Rate = 0.0
    scaled: bool = False
    """Word vectors are multiplied by sqrt(dim)."""
    deviation: NonNegativeFloat = 0.02
    pad: int = 1
    """The id of the padding token, whose word vector starts at zero."""
    tied: bool = True
    neighbours: NonNegativeFloat = 0.0
    """How strongly attention begins at a token's neighbours; 0: as published (`nn/neighbours.py`)."""
    matches: NonNegativeFloat = 0.0
    """The first score of equal words in cross-attention; 0: drawn, as published."""
    residual_scale: PositiveFloat = 1.0
    """What a layer's part adds is multiplied by it. Transformers has no such thing: saving folds it into the
    weights."""

    def __post_init__(self) -> None:
        check_heads(self.dim, self.heads, self.decoder_heads)
        for count in (self.heads, self.decoder_heads or self.heads):
            check_positions(self.position_kind, self.dim // count)


POCKET = {
    "vocabulary": 4096,
    "positions": 256,
    "dim": 256,
    "layers": 3,
    "heads": 4,
    "inner_dim": 1024,
    "dropout": 0.0,
}
SIZES: Sizes = {
    "pocket": POCKET,
    "tiny": {**POCKET, "dim": 128, "layers": 2, "heads": 2, "inner_dim": 512},
    "base": {"dim": 768, "layers": 6, "heads": 12, "inner_dim": 3072},
    "large": {},
}  # fmt: skip
# fairseq kept the first two rows of the table of positions for its padding; nobody uses them.
OFFSET, EPSILON = 2, 1e-5


def side(shape: Shape, words: Embedding, *, decoder: bool) -> Body:
    is_learned = shape.position_kind == "learned"
    embeddings = Embeddings(
        words,
        positions=Embedding(shape.positions + OFFSET, shape.dim) if is_learned else None,
        longest=shape.positions,
        position_offset=OFFSET,
        norm=LayerNorm(shape.dim, EPSILON),
        scale=shape.dim**0.5 if shape.scaled else 1.0,
        dropout=shape.dropout,
    )
    return Body(embeddings, stack(shape, decoder=decoder, norm_epsilon=EPSILON))


def body(shape: Shape, heads: frozenset[str]) -> EncoderDecoder:
    words = Embedding(shape.vocabulary, shape.dim)
    return EncoderDecoder(words, side(shape, words, decoder=False), side(shape, words, decoder=True))


def names(shape: Shape) -> NameMap:
    table = {"body.words.weight": "model.shared.weight"}
    for part in ("encoder", "decoder"):
        ours, theirs = f"body.{part}.embeddings.", f"model.{part}."
        table[ours + "positions.weight"] = theirs + "embed_positions.weight"
        table[ours + "norm.*"] = theirs + "layernorm_embedding.*"
    table |= {
        **layer_names(lambda part: f"model.{part}."),
        "heads.vocabulary.weight": "lm_head.weight",
        **TASK_NAMES,
    }
    ties = {f"model.{part}.embed_tokens.weight": "model.shared.weight" for part in ("encoder", "decoder")}
    return NameMap(
        [Row(("heads.vocabulary.bias",), "final_logits_bias", lifted=True), *rows(table)],
        prefix="model.",
        ties=ties | ({"lm_head.weight": "model.shared.weight"} if shape.tied else {}),
        ignored=[r"model\.(encoder|decoder)\.version"],
    )


def after_read(ours: dict[str, Any], carried: dict[str, Any], keys: Mapping[str, Any]) -> None:
    ours["pad"] = keys["pad_token_id"]
    if keys.get("force_bos_token_to_be_generated") and keys.get("forced_bos_token_id") is None:
        carried["forced_bos_token_id"] = keys["bos_token_id"]  # as old files say it
    # A decoder like its encoder is left None, so that a size is recognised again.
    for name in DECODER_FIELDS:
        if name in ours and ours[name] == ours.get(name.removeprefix("decoder_")):
            ours[name] = None


def after_write(shape: Mapping[str, Any]) -> dict[str, Any]:
    sizes = {key: shape[name] or shape[name.removeprefix("decoder_")] for name, key in DECODER_FIELDS.items()}
    return {**sizes, "pad_token_id": shape["pad"], "is_encoder_decoder": True}


DECODER_FIELDS = {
    "decoder_layers": "decoder_layers",
    "decoder_heads": "decoder_attention_heads",
    "decoder_inner_dim": "decoder_ffn_dim",
}
SETTINGS = SettingsMap(
    names={
        "vocabulary": "vocab_size",
        "positions": "max_position_embeddings",
        "dim": "d_model",
        "layers": "encoder_layers",
        "heads": "encoder_attention_heads",
        "inner_dim": "encoder_ffn_dim",
        **DECODER_FIELDS,
        "dropout": "dropout",
        "attention_dropout": "attention_dropout",
        "inner_dropout": "activation_dropout",
        "head_dropout": "classifier_dropout",
        "scaled": "scale_embedding",
        "deviation": "init_std",
        "tied": "tie_word_embeddings",
    },
    fields=[
        Field("activation", "activation_function", ACTIVATION_NAMES),
    ],
    constants=[
        Constant("is_decoder", False, "a decoder without its encoder is not BART"),
        Constant("add_final_layer_norm", False, "stacks with a last norm are mBART's"),
        Constant("normalize_before", False, "norms before the parts are mBART's"),
        Constant("normalize_embedding", True, "embeddings without a norm are Marian's"),
        Constant("static_position_embeddings", False, "positions that are not learned are Marian's"),
        Constant("extra_pos_embeddings", OFFSET, "positions are counted from the third row"),
        Constant("add_bias_logits", False, "the bias of the words is not trained"),
    ],
    # What their class takes for granted.
    usual={
        "bos_token_id": 0,
        "pad_token_id": 1,
        "eos_token_id": 2,
        "decoder_start_token_id": 2,
        "forced_eos_token_id": 2,
    },
    after_read=after_read,
    after_write=after_write,
    # Layers that training drops at random make no difference to what a model computes.
    ignored=[
        "encoder_layerdrop", "decoder_layerdrop", "is_encoder_decoder", "num_hidden_layers",
    ],
)  # fmt: skip


def initial(shape: Shape) -> list[tuple[str, Filler]]:
    plain = normal(shape.deviation)
    width = shape.dim // shape.heads
    matching = matching_rules(shape, width, scale=width**-0.5)
    return [*matching, *COMMON, ("body.words.weight", with_zero_row(plain, shape.pad)), ("*.weight", plain)]


OPTIONS = {"noise": "bart"}
FAMILY = Family(
    name="bart",
    title="BART",
    model_type="bart",
    shape=Shape,
    sizes=SIZES,
    body=body,
    heads=heads(bias=lambda shape: "fixed"),
    architectures=classes(
        "Bart", "ForConditionalGeneration", "ForSequenceClassification", "ForQuestionAnswering"
    ),
    names=names,
    settings=SETTINGS,
    initial=initial,
    capabilities=frozenset({"encoder-decoder", "state"}),
    objective="denoising",
    # Only the batch (8,000) and the steps (500,000) were published: the rest is RoBERTa's, whose text it was
    # trained on.
    recipe=Recipe(
        learning_rate=4e-4,
        betas=(0.9, 0.98),
        epsilon=1e-6,
        schedule="linear",
        warmup=0.06,
        options=OPTIONS,
    ),
    # As published for its summaries.
    tuning=Recipe(learning_rate=3e-5, clip=0.1, warmup=0.025, options={"text2text": {"smoothing": 0.1}}),
    size_recipes=dict.fromkeys(
        ("pocket", "tiny"),
        replace(
            POCKET_RECIPE,
            shape={**POCKET_RECIPE.shape, "deviation": 0.06},
            weight_decay=0.01,
            options=OPTIONS,
        ),
    ),
    tokenizer=MASKED_BPE,
    # The decoder reads `</s> <s> A`, and so writes the same `<s> A </s>` that the encoder reads.
    framing=replace(framing.DOUBLE_SEPARATOR, name="bart", start="end"),
    special_ids={"begin": 0, "pad": 1, "end": 2},
    # Transformers 5 gives an untied model three tables of words: such a folder is for etymon alone.
    fits_transformers=lambda shape: bool(shape.tied),
)
