"""ELMo (Peters et al. 2018): two language models, one ahead and one back, over words that are read by their
letters.

There is no Hugging Face layout. Folders are ours, with AllenNLP's names of the parameters; `bilm.py` reads
and writes the published `options.json` and HDF5 files.
"""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any, Literal

import torch
from pydantic import ConfigDict, NonNegativeInt, PositiveInt
from pydantic.dataclasses import dataclass
from torch import nn

from etymon.checkpoints.names import NameMap, Row, rows
from etymon.checkpoints.settings import Field, SettingsMap
from etymon.families.elmo import bilm
from etymon.families.elmo.characters import Characters
from etymon.families.elmo.lstm import LstmState, TwoWayStack
from etymon.families.family import Architecture, Family, Head, Recipe, TokenizerChoice
from etymon.families.shape import check_cutoffs, check_divisor
from etymon.nn.adaptive import AdaptiveEmbedding, AdaptiveVocabulary, SampledVocabulary
from etymon.nn.blocks import Body
from etymon.nn.features import FeatureSettings, ScalarMix
from etymon.nn.initialise import Filler, constant, normal, open_forget_gates, uniform, with_zero_row
from etymon.nn.layers import Rate
from etymon.text.framing import Framing

# Together 2,048 features of a word, as in bilm-tf's published options.
FILTERS = "1x32 2x32 3x64 4x128 5x256 6x512 7x1024"


@dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
class Shape:
    vocabulary: PositiveInt = 793471
    """Words of the tokenizer. Their letters are read, so that none of them has a vector of its own."""
    targets: PositiveInt | None = None
    """Words that can be predicted: the first ones, which are the most frequent. All others are unknown
    where they are asked for."""
    cutoffs: tuple[PositiveInt, ...] = ()
    """Where the bins of an adaptive softmax end; none: one softmax over all words, which training samples."""
    divisor: PositiveInt = 1
    """How many times narrower each of its bins is than the one before."""
    letter_dim: PositiveInt = 16
    filters: str = FILTERS
    """Over characters: width x number."""
    activation: Literal["relu", "tanh"] = "relu"
    """Of the filters; highways always have the first."""
    highways: NonNegativeInt = 2
    word_length: PositiveInt = 50
    """Bytes of a word, with the marks of its beginning and end."""
    dim: PositiveInt = 512
    """Of a word and of what a direction says."""
    cells: PositiveInt = 4096
    layers: PositiveInt = 2
    cell_clip: float | None = 3.0
    projection_clip: float | None = 3.0
    skip_connections: bool = True
    """What goes into an LSTM is added to what comes out of it, in all layers but the first."""
    mix_norm: bool = False
    """In the head `mix`, every layer is first brought to mean 0 and variance 1 over all of a batch
    (AllenNLP's `do_layer_norm`)."""
    dropout: Rate = 0.1

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[1-9]\d*x[1-9]\d*( [1-9]\d*x[1-9]\d*)*", self.filters):
            raise ValueError(f"filters are widths and numbers such as '1x32 2x64', not {self.filters!r}")
        check_divisor(self)
        # Bins cut the words that can be predicted, not all that can be read.
        check_cutoffs(self, self.output_words)

    @property
    def convolutions(self) -> list[tuple[int, int]]:
        pairs = (pair.split("x") for pair in self.filters.split())
        return [(int(width), int(number)) for width, number in pairs]

    @property
    def output_words(self) -> int:
        return min(self.targets or self.vocabulary, self.vocabulary)


SMALL: dict[str, Any] = {
    "vocabulary": 65536,
    "targets": 8192,
    "filters": "1x16 2x16 3x32 4x64 5x64",
    "highways": 1,
}
# The two largest are one shape: only the text that they were trained on differs.
SIZES: dict[str, dict[str, Any]] = {
    "pocket": {**SMALL, "dim": 128, "cells": 512},
    "tiny": {**SMALL, "dim": 32, "cells": 64, "filters": "1x8 2x8 3x16"},
    "small": {"dim": 128, "cells": 1024, "highways": 1},
    "medium": {"dim": 256, "cells": 2048, "highways": 1},
    "original": {},
    "5.5B": {},
}


class TwoWayBody(Body):
    def remember(self, rows: int, length: int | None = None) -> LstmState:
        """What both directions carry from segment to segment, whatever the length."""
        stack: Any = self.stack
        return stack.start(rows)


def body(shape: Shape, heads: frozenset[str]) -> Body:
    parts: Any = Characters(shape), TwoWayStack(shape)
    return TwoWayBody(*parts)


def _vocabulary(shape: Shape, body: nn.Module, labels: int) -> nn.Module:
    """One for both directions: each brings its half of the hidden states."""
    if not shape.cutoffs:
        return SampledVocabulary(torch.empty(shape.output_words, shape.dim), bias=True)
    with torch.device("meta"):  # only the sizes of the bins are wanted: words have no vectors of their own
        bins = AdaptiveEmbedding(shape.output_words, shape.dim, shape.cutoffs, divisor=shape.divisor)
    return AdaptiveVocabulary(bins, shape.cutoffs, tied=False)


HEADS = {
    "vocabulary": Head(_vocabulary),
    "mix": Head(lambda shape, body, labels: ScalarMix(shape.layers + 1, shape.mix_norm)),
}
# The classes are bilm-tf's and AllenNLP's, and only tell which heads go together.
ARCHITECTURES = [
    Architecture("LanguageModel", frozenset({"vocabulary"})),
    Architecture("Elmo", frozenset({"mix"})),
    Architecture("_ElmoBiLm", frozenset()),
]
WAYS = {"ahead": "forward", "back": "backward"}


def names(shape: Shape) -> NameMap:
    words, layers = "_elmo_lstm._token_embedder.", "_elmo_lstm._elmo_lstm."
    table = {
        "body.embeddings.letters.weight": f"{words}_char_embedding_weights",
        "body.embeddings.convolutions.{}.*": f"{words}char_conv_{{}}.*",
        "body.embeddings.projection.*": f"{words}_projection.*",
        "heads.vocabulary.*": "softmax.*",
        "heads.mix.gamma": "scalar_mix_0.gamma",
        "heads.mix.scalars.{}": "scalar_mix_0.scalar_parameters.{}",
    }
    for ours, theirs in WAYS.items():
        lstm, layer = f"body.stack.layers.{{}}.{ours}.", f"{layers}{theirs}_layer_{{}}."
        table |= {
            f"{lstm}input.weight": f"{layer}input_linearity.weight",
            f"{lstm}state.*": f"{layer}state_linearity.*",
            f"{lstm}projection.weight": f"{layer}state_projection.weight",
        }
    highway = "body.embeddings.highways.{}."
    # AllenNLP keeps both maps of a highway in one matrix.
    highways = [
        Row((f"{highway}transform.{part}", f"{highway}carry.{part}"), f"{words}_highways._layers.{{}}.{part}")
        for part in ("weight", "bias")
    ]
    return NameMap([*rows(table), *highways])


def initial(shape: Shape) -> list[tuple[str, Filler]]:
    """Those of bilm-tf. There, one is added to the forget gates when they are used, and the sign of what is
    carried is the other."""
    filters = sum(number for _, number in shape.convolutions)
    # Both matrices of a layer's gates are one in TensorFlow, and Glorot's bound is that one's.
    gates = (6 / (2 * shape.dim + 4 * shape.cells)) ** 0.5
    filled: dict[str, Filler] = {"*convolutions.*.weight": uniform(0.05)}
    if shape.activation == "tanh":
        filled = {
            f"*convolutions.{number}.weight": normal((width * shape.letter_dim) ** -0.5)
            for number, (width, _) in enumerate(shape.convolutions)
        }
    return [
        # Row 0 is no word at all: bilm-tf's files leave it out.
        ("*letters.weight", with_zero_row(uniform(1.0), 0)),
        *filled.items(),
        # There -2, on the gate of what is transformed: at first most of a word is carried past.
        ("*highways.*.carry.bias", constant(2.0)),
        ("*highways.*.weight", normal(filters**-0.5)),
        ("body.embeddings.projection.weight", normal(filters**-0.5)),
        ("*state.bias", open_forget_gates),
        ("*.input.weight", uniform(gates)),
        ("*.state.weight", uniform(gates)),
        ("body.stack.*.projection.weight", uniform((6 / (shape.dim + shape.cells)) ** 0.5)),
        ("heads.vocabulary.*weight", normal(shape.dim**-0.5)),
        ("heads.mix.gamma", constant(1.0)),
        ("heads.mix.scalars.*", constant(0.0)),
        ("*bias", constant(0.0)),
    ]


FAMILY = Family(
    name="elmo",
    title="ELMo",
    model_type="elmo",
    shape=Shape,
    sizes=SIZES,
    body=body,
    heads=HEADS,
    architectures=ARCHITECTURES,
    names=names,
    settings=SettingsMap(fields=[Field(field.name, field.name) for field in fields(Shape)]),
    initial=initial,
    capabilities=frozenset({"two directions", "letters", "memory"}),
    objective="bidirectional",
    # bilm-tf's: truncated back-propagation over 20 tokens, the states of the LSTMs carried on.
    recipe=Recipe(
        learning_rate=0.2,
        optimiser="adagrad",
        weight_decay=0.0,
        clip=10.0,
        schedule="constant",
        warmup=0.0,
        length=20,
    ),
    size_recipes=dict.fromkeys(
        ("pocket", "tiny"),
        Recipe(
            name="pocket",
            why="AdamW instead of Adagrad, for minutes.",
            learning_rate=2e-3,
            weight_decay=0.0,
            clip=10.0,
            warmup=0.05,
            length=20,
        ),
    ),
    tokenizer=TokenizerChoice("word", {"begin": "<S>", "end": "</S>", "unknown": "<UNK>"}, min_frequency=1),
    # Marks before and behind every text; what is read of it are its words.
    framing=Framing("elmo", ("begin", 0, "end"), ("begin", 0, "end", "begin", 1, "end"), apart=True),
    special_ids={"begin": 0, "end": 1},
    fits_transformers=lambda shape: False,
    layout=bilm,
    layers=lambda shape: (shape.layers + 1, 2 * shape.dim),
).with_features(FeatureSettings())  # tasks read it in no other way
