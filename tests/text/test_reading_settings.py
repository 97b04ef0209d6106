"""What a tokenizer's files tell Transformers of how a model reads texts: how long, cut and padded on which side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from etymon.families import REGISTRY, get_family
from etymon.families.loading import load, shape_of
from etymon.families.model import Model
from etymon.families.saving import save
from etymon.text.framing import ReadingSettings
from etymon.text.tokenizer import Tokenizer
from tests import tiny
from tests.tasks.heads import CHOICES, NEO, TABLE, begun

NO_LIMIT = int(1e30)
PUBLISHED = {
    "xlnet": ("left", False), "bert": ("right", True), "distilbert": ("right", True), "electra": ("right", True),
}  # fmt: skip
"""The side that is padded, and whether spaces before punctuation are taken away, where that is not (right, False)."""
LOADED = {
    "gpt1",
    "gpt2",
    "gpt3",
    "gptj",
    "bert",
    "t5",
    "roberta",
    "albert",
    "distilbert",
    "electra",
    "bart",
    "xlnet",
}


def told(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))


def saved(family: str, folder: Path) -> Any:
    """A tiny model of the family's first class, as it is pretrained."""
    known, tokenizer = get_family(family), tiny.tokenizer(family)
    shape = {**tiny.SHAPES[family], "vocabulary": tokenizer.size, **(NEO if family == "gpt3" else {})}
    model = Model(known, shape_of(known, None, **shape), known.architectures[0].heads).initialise(0).eval()
    model.tokenizer = tokenizer
    save(model, folder)
    return model


@pytest.mark.parametrize("family", REGISTRY)
def test_a_text_that_is_too_long_is_cut_to_what_the_model_reads(family: str, tmp_path: Path) -> None:
    model = saved(family, tmp_path)
    side, clean = PUBLISHED.get(family, ("right", False))
    found = told(tmp_path)
    assert found["model_max_length"] == (model.positions or NO_LIMIT)
    assert (found["padding_side"], found["truncation_side"]) == (side, "right")
    assert found["clean_up_tokenization_spaces"] == clean
    if family not in LOADED:
        return
    transformers = pytest.importorskip("transformers")
    import torch

    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    opened = transformers.AutoModel.from_pretrained(tmp_path).eval()
    # Ten times the positions; without a limit all of a text is read.
    text = " ".join(" ".join(tiny.texts(60)).split()[: 640 if model.positions else 60])
    read = tokenizer(text, truncation=True, return_tensors="pt")
    whole = model.tokenizer.encode(text)
    assert read["input_ids"].shape[1] == (
        model.positions or len(whole) + tokenizer.num_special_tokens_to_add()
    )
    with torch.no_grad():
        assert opened(**read, **own_decoder(opened, read))[0].isfinite().all()


def own_decoder(model: Any, read: Any) -> dict[str, Any]:
    return {"decoder_input_ids": read["input_ids"][:, :4]} if model.config.is_encoder_decoder else {}


@pytest.mark.parametrize(("family", "offset"), [("roberta", 2), ("bart", 0)])
def test_rows_of_the_table_that_hold_no_position_are_not_counted(
    family: str, offset: int, tmp_path: Path
) -> None:
    saved(family, tmp_path)
    table = json.loads((tmp_path / "config.json").read_text())["max_position_embeddings"]
    assert (told(tmp_path)["model_max_length"], table) == (64, 64 + offset)


def test_a_task_is_cut_as_it_was_trained_and_a_choice_loses_its_question_s_beginning(tmp_path: Path) -> None:
    for name, table, side in (("classify", TABLE, "right"), ("choose", CHOICES, "left")):
        task, model = begun("bert", name, table)
        model.history = [{"task": task.describe()}]
        save(model, tmp_path / name)
        assert (told(tmp_path / name)["model_max_length"], told(tmp_path / name)["truncation_side"]) == (
            48,
            side,
        )
        # What follows from this task is not taken for the folder's own, and does not outlive it.
        again = load(tmp_path / name, heads=["vocabulary"], partial=True)
        again.history = []
        save(again, tmp_path / "later")
        assert (told(tmp_path / "later")["model_max_length"], told(tmp_path / "later")["truncation_side"]) == (
            64, "right",
        )  # fmt: skip


OWN = {
    "model_max_length": 40,
    "padding_side": "left",
    "truncation_side": "left",
    "clean_up_tokenization_spaces": True,
    "max_len": 40,
}


def test_a_folder_from_elsewhere_keeps_its_own_values(tmp_path: Path) -> None:
    saved("gpt2", tmp_path / "hub")
    path = tmp_path / "hub" / "tokenizer_config.json"
    path.write_text(json.dumps({**told(tmp_path / "hub"), **OWN}))
    for again in ("one", "two"):
        save(load(tmp_path / "hub"), tmp_path / again)
        assert told(tmp_path / again).items() >= OWN.items()
    Tokenizer.load(tmp_path / "hub").save(tmp_path / "bare")
    assert told(tmp_path / "bare").items() >= OWN.items()
    path.write_text(json.dumps({**told(tmp_path / "hub"), "model_max_length": NO_LIMIT}))
    save(load(tmp_path / "hub"), tmp_path / "three")
    assert told(tmp_path / "three")["model_max_length"] == 64, "more than it has positions for"


def test_a_tokenizer_that_is_taken_for_another_model_forgets_how_the_first_one_read(tmp_path: Path) -> None:
    tokenizer = tiny.tokenizer("gpt2")
    tokenizer.save(tmp_path / "one", ReadingSettings(positions=8, truncation_side="left"))
    taken = Tokenizer.load(tmp_path / "one")
    taken.forget_reading()
    taken.save(tmp_path / "two", ReadingSettings(positions=100))
    found = told(tmp_path / "two")
    assert (found["model_max_length"], found["truncation_side"]) == (100, "right")


def test_padding_with_the_end_of_a_text_leaves_the_tokenizer_what_it_is(tmp_path: Path) -> None:
    task, model = begun("gpt2")
    model.history = [{"task": task.describe()}]
    save(model, tmp_path)
    assert told(tmp_path)["pad_token"] == "<|endoftext|>"
    number = model.tokenizer.id("end")
    assert json.loads((tmp_path / "config.json").read_text())["pad_token_id"] == number
    again = load(tmp_path)
    assert again.tokenizer.fingerprint == model.tokenizer.fingerprint and again.token("pad") == number


def test_rows_are_filled_up_with_what_the_configuration_says(tmp_path: Path) -> None:
    """By which Transformers looks for the last token of a row."""
    _, model = begun("gpt2")
    model.carried = {"pad_token_id": 7}
    save(model, tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["pad_token_id"] == 7
    assert told(tmp_path)["pad_token"] == model.tokenizer.tokens[7]


def test_files_without_a_post_processor_are_saved_with_one(tmp_path: Path) -> None:
    """Old files have none: vocab.txt, a sentencepiece model, tokenizer.json of some."""
    transformers = pytest.importorskip("transformers")
    for family in ("bert", "xlnet", "t5"):
        tokenizer = tiny.tokenizer(family)
        description = json.loads(tokenizer.backend.to_str())
        (tmp_path / "old").mkdir(exist_ok=True)
        (tmp_path / "old" / "tokenizer.json").write_text(json.dumps({**description, "post_processor": None}))
        loaded = Tokenizer.load(tmp_path / "old")
        loaded.framing = get_family(family).framing
        loaded.save(tmp_path / family)
        theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path / family)
        framed = loaded.task_framing.frame(*loaded.encode_batch(["The river", "my winter"]))
        assert theirs("The river", "my winter")["input_ids"] == framed.ids.tolist()
