"""Tiny models of ours in folders, and ways to spoil them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import etymon
from etymon import EtymonError
from etymon.families import get_family
from etymon.families.model import Model

SHAPES: dict[str, dict[str, Any]] = {
    "gpt2": {"vocabulary": 31, "positions": 12, "dim": 16, "layers": 2, "heads": 2},
    "bert": {"vocabulary": 31, "positions": 12, "dim": 16, "layers": 2, "heads": 2, "inner_dim": 20},
    "t5": {"vocabulary": 31, "dim": 16, "head_dim": 5, "inner_dim": 20, "layers": 2, "heads": 2},
}
NEO = {"attention_bias": False, "scaled": False}
"""What makes a GPT-3 one that Transformers opens."""
SHAPES |= {
    "gpt1": SHAPES["gpt2"],
    "gpt3": {**SHAPES["gpt2"], "band": 3, **NEO},
    "gptj": {**SHAPES["gpt2"], "rotary_dim": 4},
}
SHAPES |= dict.fromkeys(("roberta", "distilbert"), SHAPES["bert"])
SHAPES |= {"bart": {**SHAPES["bert"], "decoder_heads": 4}}
SHAPES["rnn"] = {
    "vocabulary": 31,
    "word_dim": 12,
    "dim": 10,
    "layers": 2,
    "readout_dim": 12,
    "alignment_dim": 7,
}
SHAPES["transformer"] = {name: value for name, value in SHAPES["bert"].items() if name != "positions"}
SHAPES |= {name: {**SHAPES["bert"], "embedding_dim": 12} for name in ("albert", "electra")}
SHAPES["xlnet"] = SHAPES["transformer"]
PRETRAINED = {
    **{name: {"vocabulary"} for name in ("gpt1", "gpt2", "gpt3", "gptj")},
    "bert": {"vocabulary", "next_sentence"},
    "t5": {"vocabulary"},
    "bart": {"vocabulary"},
    "transformer": {"vocabulary"},
    "rnn": {"vocabulary"},
    "roberta": {"vocabulary"},
    "albert": {"vocabulary", "sentence_order"},
    "distilbert": {"vocabulary"},
    "electra": {"replaced"},
}


def tiny(family: str, heads: set[str], labels: tuple[str, ...] = ("no", "yes"), **changes: Any) -> Model:
    known = get_family(family)
    model = Model(known, known.shape(**{**SHAPES[family], **changes}), heads, labels).initialise(seed=5)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():  # so that no norm or bias is at its first value
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return model


def rewrite(folder: Path, change: Callable[[dict[str, Tensor]], Any]) -> None:
    weights = load_file(folder / "model.safetensors")
    weights = change(weights) or weights
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "etymon.json").unlink(missing_ok=True)  # whose digests are those of the old weights


def refusal(folder: Path, **options: Any) -> str:
    """The line that says why a folder was not loaded."""
    with pytest.raises(EtymonError) as caught:
        etymon.load(folder, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def assert_same(model: Model, other: Model, only: str = "") -> None:
    values = dict(other.named_parameters())
    compared = [(name, value) for name, value in model.named_parameters() if name.startswith(only)]
    assert compared
    assert all(torch.equal(value, values[name]) for name, value in compared)


def without(*names: str) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    return lambda weights: {name: value for name, value in weights.items() if name not in names}


def moved(name: str) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    """The tensor of that name is another one."""
    return lambda weights: {**weights, name: weights[name] + 1}
