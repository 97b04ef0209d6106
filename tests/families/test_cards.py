from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from etymon.families.cards import card
from etymon.families.model import Model
from tests import tiny

SHAPE = {"layers": 2, "width": 128, "tied": True}
ENTRY = {
    "objective": "masked",
    "data": "One book.",
    "training": {"learning_rate": 0.0003, "steps": 10000, "betas": (0.9, 0.98)},
    "metrics": {"bits per target": 3.14159265, "odd|name": "a\nb"},
}


@pytest.fixture(scope="module")
def model() -> Model:
    return tiny.model("bert", frozenset({"vocabulary"}))


def full(model: Model, *entries: Mapping[str, Any]) -> str:
    return card(model, SHAPE, "BertForMaskedLM", entries, "")


def front_matter(text: str) -> dict[str, Any]:
    assert text.startswith("---\n")
    front: dict[str, Any] = yaml.safe_load(text.split("---\n")[1])
    return front


def test_a_full_card(model: Model) -> None:
    text = full(model, ENTRY)
    assert front_matter(text) == {"library_name": "etymon", "tags": ["etymon", "bert"]}
    assert model.tokenizer is not None
    for piece in (
        "# BERT by etymon\n",
        f"{model.parameter_count():,} parameters",
        "objective *masked*",
        "etymon.load(",
        "BertForMaskedLM.from_pretrained",
        "## Data\n\nOne book.",
        "| learning rate | 0.0003 |",
        "| steps | 10,000 |",
        "| betas | 0.9, 0.98 |",
        "| bits per target | 3.1416 |",
        "| odd\\|name | a b |",
        "| tied | yes |",
        f"| size | {model.tokenizer.size} |",
    ):
        assert piece in text, piece


def test_what_is_not_known_is_said_to_be_missing(model: Model) -> None:
    text = card(model, SHAPE, None, [], "")
    assert set(front_matter(text)) == {"library_name", "tags"}
    assert "Nothing was measured" in text
    assert "Licence: not stated" in text
    assert "## Data\n\nNot stated." in text
    assert "Transformers has no class for this model" in text


def test_the_hub_library_reads_the_card(model: Model) -> None:
    from huggingface_hub import ModelCard

    read = ModelCard(full(model, ENTRY)).data.to_dict()
    assert (read["tags"], read["library_name"]) == (["etymon", "bert"], "etymon")
