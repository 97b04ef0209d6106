"""Verbs and the special tokens that a folder names: training keeps and uses them, and those that cannot be are said once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import etymon
from etymon.families.special_tokens import START_KEY, start_id
from etymon.nn.batch import Batch
from etymon.nn.lora import merge
from etymon.objectives.denoising import Seq2SeqBatch
from etymon.text.sources import Texts
from etymon.text.tokenizer_training import train_tokenizer
from tests import tiny

PAIRS = [{"source": text[:40], "target": text[-20:]} for text in tiny.texts(12)]
START, GENERATION = 5, {START_KEY: 6, "eos_token_id": [7, 1], "num_beams": 3, "max_length": 11}


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.mark.parametrize("verb", ["finetune", "finetune with adapters", "pretrain"])
def test_a_trained_model_starts_as_the_folder_that_it_went_on_from_said(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, out = tmp_path / "source", tmp_path / "run"
    etymon.save(tiny.model("t5", frozenset({"vocabulary"})), source)
    change(source / "config.json", **{START_KEY: START}, length_penalty=2.0)
    (source / "generation_config.json").write_text(json.dumps(GENERATION))
    starts: set[int] = set()
    inputs_of = Seq2SeqBatch.inputs

    def inputs(prepared: Seq2SeqBatch, model: Any) -> Batch:
        found = inputs_of(prepared, model)
        starts.update(found.ids[found.layout.first].tolist())
        return found

    monkeypatch.setattr(Seq2SeqBatch, "inputs", inputs)
    usual: dict[str, Any] = {"out": out, "steps": 2, "length": 32, "progress": "silent"}
    if verb == "pretrain":
        done: Any = etymon.pretrain("t5", from_=source, data=Texts(tiny.texts(20)), batch=4, **usual)
    else:
        usual |= {"lora": 2} if "adapters" in verb else {}
        done = etymon.finetune(source, task="text2text", train=PAIRS, validate_every=2, **usual)
    assert starts == {START}
    etymon.save(merge(etymon.load(done.model_folder)), tmp_path / "saved")
    for folder in (done.model_folder, tmp_path / "saved"):
        model = etymon.load(folder)
        assert (model.decoder_start, start_id(model, generating=True)) == (START, 6)
    config = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert (config[START_KEY], config["length_penalty"]) == (START, 2.0)
    assert json.loads((tmp_path / "saved" / "generation_config.json").read_text()) == GENERATION


@pytest.mark.parametrize(
    "command",
    [
        ["score", "{folder}", "The cat"],
        ["generate", "{folder}", "The cat", "--max-new-tokens", "3"],
        ["show", "{folder}"],
        ["convert", "{folder}", "{out}"],
        ["embed", "{folder}", "The cat", "--out", "{out}.npy"],
    ],
    ids=lambda command: command[0],
)
def test_ids_outside_the_vocabulary_are_one_note_in_every_verb(
    command: list[str], run: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    """Seen in a published GPT-2, whose vocabulary is smaller than that of its configuration."""
    model, stale = tiny.model("gpt2", frozenset({"vocabulary"})), tmp_path / "stale"
    model.tokenizer = train_tokenizer("byte-bpe", tiny.texts(), 300, specials={"unknown": "<unk>"})
    etymon.save(model, stale)
    for file in ("config.json", "generation_config.json"):
        change(stale / file, bos_token_id=50256, eos_token_id=50256)
    code, _, err = run(*(word.format(folder=stale, out=tmp_path / "out") for word in command))
    assert code == 0, err
    (note,) = [line for line in err.splitlines() if "50256" in line]
    assert note.startswith(f"etymon: note: {stale} names special tokens outside its vocabulary")
    if command[0] == "convert":
        for file in ("config.json", "generation_config.json"):
            assert "50256" not in (tmp_path / "out" / file).read_text()
