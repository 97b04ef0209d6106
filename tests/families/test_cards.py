from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from etymon.errors import EtymonError
from etymon.families.card import model_card
from etymon.families.model import Model
from tests import tiny
from tests.verbs.small_runs import pretrain, with_test_sizes

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
    return model_card(model, SHAPE, "BertForMaskedLM", entries, "")


def front_matter(text: str) -> dict[str, Any]:
    assert text.startswith("---\n")
    front: dict[str, Any] = yaml.safe_load(text.split("---\n")[1])
    return front


def test_a_full_card(model: Model) -> None:
    text = full(model, ENTRY)
    assert front_matter(text) == {
        "library_name": "etymon",
        "tags": ["etymon", "bert"],
        "license": "unknown",
        "pipeline_tag": "fill-mask",
    }
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


def test_settings_inside_of_settings_are_written_as_people_write(model: Model) -> None:
    optimiser = {"name": "muon", "betas": [0.9, 0.95], "weight_decay": 0.1, "ema": None, "frozen": []}
    text = full(model, ENTRY | {"training": {"optimiser": optimiser}})
    assert "| optimiser | name muon; betas 0.9, 0.95; weight decay 0.1 |" in text


def test_what_is_not_known_is_said_to_be_missing(model: Model) -> None:
    text = model_card(model, SHAPE, None, [], "")
    assert set(front_matter(text)) == {"library_name", "tags", "license", "pipeline_tag"}
    assert front_matter(text)["license"] == "unknown", "a licence is never guessed"
    assert "Nothing was measured" in text
    assert "Licence: not stated" in text
    assert "## Data\n\nNot stated." in text
    assert "Transformers has no class for this model" in text


def test_the_hub_library_reads_the_card(model: Model) -> None:
    from huggingface_hub import ModelCard

    read = ModelCard(full(model, ENTRY)).data.to_dict()
    assert (read["tags"], read["library_name"]) == (["etymon", "bert"], "etymon")


def test_what_the_author_states_is_in_the_front_matter(model: Model) -> None:
    before = {"license": "mit", "language": ["de"], "datasets": ["owner/corpus"]}
    after = {"license": "cc-by-4.0", "language": ["de", "en"], "datasets": ["reviews"]}
    front = front_matter(full(model, ENTRY | before, ENTRY | after))
    assert front["license"] == "cc-by-4.0" and "Licence: cc-by-4.0." in full(model, ENTRY | after)
    assert (front["language"], front["datasets"]) == (["de", "en"], ["owner/corpus", "reviews"])
    assert front_matter(full(model, ENTRY | before, ENTRY))["license"] == "unknown", (
        "another model, another licence"
    )


def test_words_and_words_read_are_on_the_card(model: Model) -> None:
    seen = {"steps": 10, "tokens": 2000, "words": 1200, "words_read": 1530, "ended": True}
    text = full(model, ENTRY | {"seen": seen})
    assert "| words | 1,200 |\n| words read | 1,530 |" in text and "ended" not in text


@pytest.mark.parametrize(
    "family, head, expected",
    [
        ("gpt2", "vocabulary", "text-generation"), ("bert", "vocabulary", "fill-mask"),
        ("t5", "vocabulary", "text2text-generation"), ("bert", "classification", "text-classification"),
        ("bert", "tagging", "token-classification"), ("bert", "span", "question-answering"),
        ("bert", "choice", "multiple-choice"), ("electra", "replaced", None),
    ],
)  # fmt: skip
def test_the_pipeline_follows_from_the_heads(family: str, head: str, expected: str | None) -> None:
    made = tiny.model(family, frozenset({head}))
    assert front_matter(model_card(made, SHAPE, None, [], "")).get("pipeline_tag") == expected


def test_what_is_stated_reaches_the_card_of_a_run(tmp_path: Path) -> None:
    with with_test_sizes():
        run = pretrain(
            "gpt2",
            tmp_path / "run",
            steps=1,
            set=["license=cc-by-4.0", "language=de", "datasets=[owner/corpus]"],
        )
        front = front_matter((run.model_folder / "README.md").read_text(encoding="utf-8"))
        assert (front["license"], front["language"], front["datasets"]) == (
            "cc-by-4.0",
            ["de"],
            ["owner/corpus"],
        )
        for wrong in ("license=CC BY 4.0", "language=German", "datasets=a/b/c"):
            with pytest.raises(EtymonError, match=wrong.split("=")[0]):
                pretrain("gpt2", tmp_path / "wrong", steps=1, set=[wrong])
