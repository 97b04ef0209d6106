from __future__ import annotations

from typing import Any

import yaml

from etymon.checkpoints.card import model_card

BASE: dict[str, Any] = {
    "title": "Мала модель: a | b",
    "family": "bert",
    "parameters": 1_234_567,
    "shape": {"layers": 2, "width": 128, "tied": True},
    "objective": "masked",
    "data": "One book.",
    "training": {"learning_rate": 0.0003, "steps": 10000, "betas": (0.9, 0.98)},
    "metrics": {"bits per target": 3.14159265, "odd|name": "a\nb"},
    "tokenizer": {"kind": "wordpiece", "size": 8000},
    "usage": 'import etymon\n\nmodel = etymon.load("folder")',
    "transformers_class": "BertForMaskedLM",
}


def front_matter(card: str) -> dict[str, Any]:
    assert card.startswith("---\n")
    front: dict[str, Any] = yaml.safe_load(card.split("---\n")[1])
    return front


def test_a_full_card() -> None:
    card = model_card(**BASE)
    assert front_matter(card) == {"library_name": "etymon", "tags": ["etymon", "bert"]}
    for piece in (
        "# Мала модель: a | b\n",
        "1,234,567 parameters",
        'etymon.load("folder")',
        "BertForMaskedLM.from_pretrained",
        "| learning rate | 0.0003 |",
        "| betas | 0.9, 0.98 |",
        "| bits per target | 3.1416 |",
        "| odd\\|name | a b |",
        "| tied | yes |",
        "| size | 8,000 |",
    ):
        assert piece in card, piece


def test_what_was_not_given_is_said_to_be_missing() -> None:
    card = model_card(**{**BASE, "data": "", "metrics": {}, "training": {}, "transformers_class": None})
    assert set(front_matter(card)) == {"library_name", "tags"}
    assert "Nothing was measured" in card
    assert "Licence: not stated" in card
    assert "## Data\n\nNot stated." in card
    assert "Transformers has no class for this model" in card


def test_code_with_fences_stays_inside_its_block() -> None:
    card = model_card(**{**BASE, "usage": 'print("```")'})
    assert '````python\nprint("```")\n````' in card


def test_the_hub_library_reads_the_card() -> None:
    from huggingface_hub import ModelCard

    read = ModelCard(model_card(**BASE)).data.to_dict()
    assert (read["tags"], read["library_name"]) == (["etymon", "bert"], "etymon")
