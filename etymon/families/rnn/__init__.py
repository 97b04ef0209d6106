"""Recurrent sequence-to-sequence models: with Bahdanau's attention (2014), with Luong's (2015), or with none.

There is no published class of them: their folders are for etymon alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from pydantic import ConfigDict, NonNegativeInt, PositiveInt
from pydantic.dataclasses import dataclass

from etymon.checkpoints.names import NameMap, rows
from etymon.checkpoints.settings import Field, SettingsMap
from etymon.families.family import Architecture, Family, Recipe, TokenizerChoice
from etymon.families.rnn.encoder import RecurrentEncoder
from etymon.families.rnn.encoder_decoder import RecurrentDecoder, RecurrentEncoderDecoder
from etymon.families.seq2seq import SPECIALS, heads
from etymon.nn.blocks import EncoderDecoder
from etymon.nn.initialise import Filler, constant, normal, orthogonal, uniform, xavier
from etymon.nn.layers import Embedding, Rate
from etymon.text import framing


@dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
class Shape:
    vocabulary: PositiveInt = 30000
    source_vocabulary: PositiveInt | None = None
    """Of a source with words of its own; unless told, both sides have one vocabulary and one table."""
    word_dim: PositiveInt = 620
    dim: PositiveInt = 1000
    """Of the decoder's states."""
    encoder_dim: PositiveInt | None = None
    """Of the encoder's, in each direction: as the decoder's unless told."""
    layers: PositiveInt = 1
    """Of the encoder."""
    decoder_layers: PositiveInt | None = None
    """As many as the encoder's unless told."""
    cell: Literal["gru", "lstm"] = "gru"
    bidirectional: bool = True
    backwards: bool = False
    """The source is read from its end (Sutskever et al. 2014)."""
    attention: Literal["bahdanau", "luong", "none"] = "bahdanau"
    """Before a step, after it, or not at all: then one fixed vector stands for the source."""
    score: Literal["dot", "general", "concat"] = "concat"
    alignment_dim: PositiveInt | None = None
    """Of concat's hidden layer: as the decoder's states unless told."""
    alignment_bias: bool = False
    """Whether the three maps of a concat score have biases."""
    window: NonNegativeInt = 0
    """Tokens to both sides of a predicted place that are looked at (local-p); 0: all of them."""
    feed: bool = False
    """What was read out goes into the next step (Luong's input feeding)."""
    readout: Literal["maxout", "tanh", "linear"] = "maxout"
    readout_dim: PositiveInt = 500
    output_bias: bool = False
    """Whether the scores of words have a bias."""
    copied: bool = False
    """The decoder begins with the encoder's last states, layer by layer, and not with a map of them."""
    bridge: Literal["backward", "both", "states"] | None = None
    """What that map reads: the backward direction's last hidden state (Bahdanau's, unless told), both
    directions' (the others'), or both directions' hidden state for the hidden state and their cells for the
    cells."""
    dropout: Rate = 0.0
    head_dropout: Rate = 0.0
    tied: bool = False
    """The output matrix is the table of the target's words."""

    def __post_init__(self) -> None:
        if self.attention != "luong" and (self.feed or self.window):
            raise ValueError("feed and window belong to Luong's attention: say attention luong")
        if self.attention == "bahdanau" and self.score != "concat":
            raise ValueError(f"score is {self.score!r}, and Bahdanau's attention has concat alone")
        if self.attention == "luong" and self.score == "dot" and self.annotation_dim != self.dim:
            raise ValueError(
                "the score dot needs annotations as wide as states, "
                f"and they are {self.annotation_dim} and {self.dim}"
            )
        if self.copied and (self.bidirectional or self.encoder_width != self.dim):
            raise ValueError("copied states need an encoder of one direction that is as wide as the decoder")
        if self.copied and (self.decoder_layers or self.layers) != self.layers:
            raise ValueError("copied states need as many layers in the decoder as in the encoder")
        if self.copied and self.bridge is not None:
            raise ValueError("copied states go through no map: leave bridge out, or copied")
        if self.alignment_bias and (self.attention == "none" or self.score != "concat"):
            raise ValueError("alignment_bias belongs to the score concat")
        # One matrix is both the words' table and the output.
        if self.tied and self.readout_dim != self.word_dim:
            raise ValueError(
                f"tied words need a readout_dim of {self.word_dim}, and it is {self.readout_dim}"
            )

    @property
    def encoder_width(self) -> int:
        """Of one direction of the encoder."""
        return self.encoder_dim or self.dim

    @property
    def annotation_dim(self) -> int:
        """Of what the encoder gives for a token: both directions side by side."""
        return (2 if self.bidirectional else 1) * self.encoder_width

    @property
    def first_state(self) -> str:
        """Where the decoder's first state comes from."""
        if self.copied:
            return "copied"
        return self.bridge or ("backward" if self.attention == "bahdanau" else "both")


POCKET = {
    "vocabulary": 4096,
    "word_dim": 256,
    "dim": 256,
    "encoder_dim": 128,
    "readout_dim": 256,
    "readout": "tanh",
    "tied": True,
}
LUONG = {
    "vocabulary": 50000,
    "word_dim": 1000,
    "layers": 4,
    "cell": "lstm",
    "bidirectional": False,
    # Reading the source from its end was worth 1.3 BLEU there (11.3 to 12.6, English to German).
    "backwards": True,
    "attention": "luong",
    "score": "general",
    "feed": True,
    "readout": "tanh",
    "readout_dim": 1000,
    "copied": True,
    "dropout": 0.2,
}
SIZES: dict[str, dict[str, Any]] = {
    "pocket": POCKET,
    "tiny": {**POCKET, "word_dim": 128, "dim": 128, "encoder_dim": 64, "readout_dim": 128},
    "bahdanau": {},
    # The paper's baseline, whose BLEU falls with the length of sentences.
    "fixed": {"attention": "none", "bidirectional": False},
    "luong": LUONG,
    "luong-local": {**LUONG, "window": 10},
}


def body(shape: Shape, heads: frozenset[str]) -> EncoderDecoder:
    # One table for both sides, unless the source is of another language with words of its own.
    words = Embedding(shape.vocabulary, shape.word_dim)
    source = words if shape.source_vocabulary is None else Embedding(shape.source_vocabulary, shape.word_dim)
    return RecurrentEncoderDecoder(words, RecurrentEncoder(source, shape), RecurrentDecoder(words, shape))


HEADS = heads("readout_dim", bias=lambda shape: shape.output_bias)
ARCHITECTURES = [
    Architecture("RecurrentSeq2Seq", frozenset({"vocabulary"})),
    Architecture("RecurrentSeq2SeqBody", frozenset()),
]


def names(shape: Shape) -> NameMap:
    # Nobody else has such folders, so their names are ours without `body.`.
    kept = ["body.*", *(f"heads.{name}.*" for name in HEADS)]
    return NameMap(rows({name: name.removeprefix("body.") for name in kept}))


SETTINGS = SettingsMap(fields=[Field(name, name) for name in Shape.__dataclass_fields__])


def initial(shape: Shape) -> list[tuple[str, Filler]]:
    """As published: Bahdanau's small and recurrent maps orthogonal, Luong's uniform. Of such small values
    minutes make little, so sizes that nobody published, whose words are tied, begin with maps that keep the
    size of what they map."""
    if shape.tied:
        return [
            ("*bias*", constant(0.0)),
            ("*.weight_hh_l0*", orthogonal),
            ("*words.weight", normal(0.2)),
            ("body.*", xavier),
            ("*", normal(0.01)),
        ]
    # Luong's models draw everything, biases included, from one small range.
    if shape.attention == "luong":
        return [("*", uniform(0.1))]
    return [
        ("*bias*", constant(0.0)),
        ("*.weight_hh_l0*", orthogonal),
        # v is 0, so that attention begins uniform, and W and U are nearly so.
        ("*.alignment.energy.weight", constant(0.0)),
        ("*.alignment.*", normal(0.001)),
        ("*", normal(0.01)),
    ]


def _layers(shape: Shape) -> tuple[int, int]:
    """The encoder's number of layers and their width; words count as a layer if they are as wide."""
    return shape.layers + (shape.word_dim == shape.annotation_dim), shape.annotation_dim


# Adadelta and a plain gradient descent that halves its rate, as published, need days: Adam and a falling
# rate do not.
RECIPE = Recipe(
    learning_rate=1e-3,
    weight_decay=0.0,
    undecayed=("*bias*",),
    schedule="cosine",
    warmup=0.05,
    final=0.05,
)
FAMILY = Family(
    name="rnn",
    title="RNN with attention",
    model_type="rnn",
    shape=Shape,
    sizes=SIZES,
    body=body,
    heads=HEADS,
    architectures=ARCHITECTURES,
    names=names,
    settings=SETTINGS,
    initial=initial,
    capabilities=frozenset({"encoder-decoder", "state"}),
    objective="denoising",
    recipe=RECIPE,
    size_recipes=dict.fromkeys(
        ("pocket", "tiny"),
        replace(
            RECIPE,
            name="pocket",
            why="Eight times the rate, for minutes.",
            learning_rate=8e-3,
            betas=(0.9, 0.98),
        ),
    ),
    tokenizer=TokenizerChoice("bpe", SPECIALS),
    framing=framing.BEGIN_END,
    special_ids={"pad": 0, "begin": 1, "end": 2},
    fits_transformers=lambda shape: False,
    layers=_layers,
)
