"""Tiny models with tokenizers trained on the spot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from etymon.families import get_family
from etymon.families.model import Model
from etymon.text.tokenizer import Tokenizer
from etymon.text.tokenizer_training import train_tokenizer
from tests.generation.reference import our_model, reference_model

TEXTS = [
    "The cat sat on the mat, as cats do. The naïve dog ate 日本語 soup — and a façade.",
    "Paris is the capital of France, and Rome is the capital of Italy. 🙂 Ça va?",
] * 10
SHAPES: dict[str, dict[str, Any]] = {
    "gpt2": {"dim": 24, "layers": 2, "heads": 3, "positions": 48},
    "bert": {"dim": 24, "layers": 2, "heads": 3, "inner_dim": 40, "positions": 48},
    "t5": {"dim": 24, "layers": 2, "heads": 3, "head_dim": 8, "inner_dim": 40},
}
SHAPES["rnn"] = {"word_dim": 20, "dim": 24, "encoder_dim": 10, "layers": 2, "readout_dim": 20}
SHAPES["transformer"] = {"dim": 24, "layers": 2, "heads": 3, "inner_dim": 40}
SHAPES["transformer-xl"] = {
    "dim": 24, "layers": 2, "heads": 3, "head_dim": 8, "inner_dim": 40, "memory": 64, "clamp": 0,
    "same_length": False, "zero_start": False, "cutoffs": (30, 100), "divisor": 2,
}  # fmt: skip
SHAPES |= {
    "gpt1": SHAPES["gpt2"],
    "gpt3": {**SHAPES["gpt2"], "band": 5},
    "gptj": {**SHAPES["gpt2"], "rotary_dim": 4},
}
SHAPES |= dict.fromkeys(("roberta", "distilbert", "bart"), SHAPES["bert"])
SHAPES |= {name: {**SHAPES["bert"], "embedding_dim": 16} for name in ("albert", "electra")}
SPARE = 9
"""Word vectors beyond the tokenizer's ids, as in published T5 folders."""


def tiny_tokenizer(family: str) -> Tokenizer:
    choice = get_family(family).tokenizer
    return train_tokenizer(
        choice.kind,
        TEXTS,
        330 if choice.kind == "byte-bpe" else 150,
        lowercase=choice.lowercase,
        strip_accents=choice.strip_accents,
        specials=choice.specials,
        sentinels=min(choice.sentinels, 6),
        framing=get_family(family).framing,
    )


def remembering(memory: int) -> Model:
    """A Transformer-XL that sees so many tokens back."""
    return tiny_model("transformer-xl", memory=memory)


def tiny_model(family: str, seed: int = 0, **changed: Any) -> Model:
    known, tokenizer = get_family(family), tiny_tokenizer(family)
    shape = known.shape(**{"vocabulary": tokenizer.size + SPARE, **SHAPES[family], **changed})
    model = Model(known, shape, {"vocabulary"}).initialise(seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
        for head in model.heads.values():
            if isinstance(bias := getattr(head, "bias", None), torch.Tensor):
                bias.copy_(torch.randn(bias.shape, generator=generator))
    model.tokenizer = tokenizer
    return model.eval()


def two_tongues() -> Model:
    """A Transformer whose source has a tokenizer of its own, which knows more words than the target's."""
    source, target = tiny_tokenizer("bart"), tiny_tokenizer("transformer")
    source.framing = target.framing
    model = tiny_model("transformer", source_vocabulary=source.size, vocabulary=target.size)
    model.tokenizer, model.source_tokenizer = target, source
    return model


@pytest.fixture(scope="session")
def tiny() -> Callable[[str], Model]:
    made: dict[str, Model] = {}

    def model(family: str) -> Model:
        if family not in made:
            made[family] = tiny_model(family)
        return made[family]

    return model


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Any, Model]]:
    """A model of Transformers and the same model opened by us."""
    made: dict[str, tuple[Any, Model]] = {}

    def models(family: str) -> tuple[Any, Model]:
        if family not in made:
            reference = reference_model(family)
            made[family] = reference, our_model(reference, tmp_path_factory.mktemp(family))
        return made[family]

    return models
