"""A small world for tests of training: made-up sentences, a tokenizer and a tiny shape for every family."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from etymon.families import get_family
from etymon.families.loading import shape_of
from etymon.families.model import Model
from etymon.objectives import get_objective
from etymon.objectives.objective import Objective
from etymon.text.reading import Document
from etymon.text.store import TokenStore
from etymon.text.store_building import build_store
from etymon.text.tokenizer import Tokenizer
from etymon.text.tokenizer_training import train_tokenizer

NOUNS = "river mountain letter garden winter captain window morning village question bridge answer".split()
VERBS = "crossed remembered followed painted wanted carried opened answered".split()
VOCABULARY = 420  # of which T5's sentinels are 100
CASES = [("gpt2", "causal"), ("bert", "masked"), ("bert", "masked-next-sentence"), ("t5", "span-corruption")]
ENCODER = {"dim": 32, "layers": 2, "heads": 2, "inner_dim": 64, "positions": 64}
SHAPES: dict[str, dict[str, Any]] = {
    "gpt2": {"dim": 32, "layers": 2, "heads": 2, "positions": 64},
    "gpt1": {"dim": 32, "layers": 2, "heads": 2, "positions": 64},
    "gpt3": {"dim": 32, "layers": 2, "heads": 2, "positions": 64, "band": 8},
    "gptj": {"dim": 32, "layers": 2, "heads": 2, "positions": 64, "rotary_dim": 8},
    "bert": ENCODER,
    "roberta": ENCODER,
    "albert": {**ENCODER, "embedding_dim": 16},
    "distilbert": ENCODER,
    "electra": {**ENCODER, "embedding_dim": 16},
    "bart": ENCODER,
    "rnn": {"word_dim": 32, "dim": 32, "layers": 2, "readout_dim": 32},
    "transformer": {"dim": 32, "layers": 2, "heads": 2, "inner_dim": 64},
    "transformer-xl": {
        "dim": 32,
        "embedding_dim": 32,
        "layers": 2,
        "heads": 2,
        "head_dim": 16,
        "inner_dim": 64,
        "memory": 16,
        "cutoffs": [],
        "divisor": 1,
        "clamp": 0,
        "same_length": False,
        "zero_start": False,
    },
    "xlnet": {"dim": 32, "layers": 2, "heads": 2, "inner_dim": 64, "memory": 16},
    "elmo": {"dim": 12, "cells": 20, "letter_dim": 5, "filters": "1x4 2x6 3x8", "targets": 20},
    "t5": {"dim": 32, "layers": 2, "heads": 2, "head_dim": 8, "inner_dim": 48, "feed_forward": "gated-gelu"},
}
DROPOUTS = {
    **dict.fromkeys(
        ("gpt1", "gpt2", "gpt3", "gptj"), ("embedding_dropout", "attention_dropout", "residual_dropout")
    ),
    **dict.fromkeys(("bert", "roberta", "albert", "distilbert", "electra"), ("dropout", "attention_dropout")),
    **dict.fromkeys(("bart", "transformer"), ("dropout", "attention_dropout", "inner_dropout")),
    "transformer-xl": ("dropout", "attention_dropout"),
    "elmo": ("dropout",),
    **dict.fromkeys(("t5", "rnn", "xlnet"), ("dropout",)),
}


def texts(count: int = 60, seed: int = 0) -> list[str]:
    """Documents of three to nine sentences that follow a simple rule, so that there is something to learn."""
    draw = random.Random(seed)

    def sentence() -> str:
        return f"The {draw.choice(NOUNS)} {draw.choice(VERBS)} the {draw.choice(NOUNS)}."

    return [" ".join(sentence() for _ in range(draw.randint(3, 9))) for _ in range(count)]


def shape(family: str, dropout: float = 0.0) -> dict[str, Any]:
    return {**SHAPES[family], **dict.fromkeys(DROPOUTS[family], dropout)}


def generator_shape(family: str) -> dict[str, Any]:
    """What makes a generator tiny as well."""
    return {"layers": 1} if family == "roberta" else {"dim": 8, "heads": 2, "inner_dim": 16, "layers": 1}


@cache
def tokenizer(family: str) -> Tokenizer:
    known = get_family(family)
    choice = known.tokenizer
    return train_tokenizer(
        choice.kind,
        texts(),
        VOCABULARY,
        lowercase=choice.lowercase,
        strip_accents=choice.strip_accents,
        specials=choice.specials,
        sentinels=choice.sentinels,
        framing=known.framing,
    )


def store(family: str, folder: Path, given: Sequence[str] | None = None) -> TokenStore:
    documents = [Document(text) for text in (texts() if given is None else given)]
    build_store(documents, tokenizer(family), folder, validation=0.2)
    return TokenStore.open(folder, tokenizer(family))


def model(
    family: str, objective: Any, dropout: float = 0.0, seed: int = 0, labels: Sequence[str] = ("0", "1")
) -> Model:
    """With the heads of an objective, or with those of these names."""
    known = get_family(family)
    chosen = shape_of(known, None, **{**shape(family, dropout), "vocabulary": tokenizer(family).size})
    heads = objective if isinstance(objective, frozenset) else objective.heads
    made = Model(known, chosen, heads, labels).initialise(seed)
    made.tokenizer = tokenizer(family)
    return made


def objective(family: str, name: str, length: int = 24) -> Objective:
    return get_objective(name, tokenizer(family), length)
