"""A model to go on from whose tokenizer lacks the special tokens that its family reads texts by: GPT-1 as it was published."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import etymon
from etymon.errors import EtymonError
from etymon.families.loading import load
from etymon.nn.batch import Batch
from etymon.runs import run as run_module
from etymon.text.tokenizer_growing import with_roles
from etymon.text.tokenizer_training import train_tokenizer
from tests import tiny

ROWS = [{"text": text[:60], "label": "ab"[number % 2]} for number, text in enumerate(tiny.texts(30))]
ADDED = ["_start_", "_delimiter_", "_classify_"]


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """As on the hub: a word-bpe tokenizer that only knows `<unk>`, and as many word vectors."""
    transformers = pytest.importorskip("transformers")
    tokenizer = train_tokenizer(
        "word-bpe", tiny.texts(60), 200, specials={"unknown": "<unk>"}, lowercase=True, strip_accents=True
    )
    tokenizer.save(tmp_path / "hub")
    torch.manual_seed(0)
    shape = {"vocab_size": tokenizer.size, "n_positions": 64, "n_embd": 128, "n_layer": 2, "n_head": 2}
    transformers.OpenAIGPTLMHeadModel(transformers.OpenAIGPTConfig(**shape)).save_pretrained(tmp_path / "hub")
    return tmp_path / "hub"


def finetune(start: Path, out: Path, **changes: Any) -> Any:
    usual = {
        "task": "classify", "train": ROWS, "out": out, "steps": 2, "validate_every": 2, "length": 48, "progress": "silent",
    }  # fmt: skip
    return etymon.finetune(start, **{**usual, **changes})


def test_what_is_missing_is_added_told_and_opened_by_transformers(
    published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import transformers

    old = load(published)
    assert old.tokenizer is not None and set(old.tokenizer.roles) == {"unknown"}
    known, first = old.tokenizer.size, []
    complete = run_module.complete_model

    def complete_model(*arguments: Any) -> Any:
        model = complete(*arguments)
        first.append(model.stored_tensors()["body.embeddings.words.weight"].clone())  # before the first step
        return model

    monkeypatch.setattr(run_module, "complete_model", complete_model)
    done = finetune(published, tmp_path / "run", progress="plain")
    (told,) = [line for line in capsys.readouterr().err.splitlines() if "_start_" in line]
    assert "has no _start_ and no _delimiter_ and no _classify_" in told
    (words,) = (each.detach() for each in first)
    assert torch.equal(words[:known], old.stored_tensors()["body.embeddings.words.weight"])
    new = words[known:]
    assert new.shape == (3, 128) and 0.017 < float(new.std()) < 0.023 and not torch.equal(new[0], new[1])
    assert done.model.history[-1]["grown"] == {"from": known, "to": known + 3}

    again = load(done.folder)
    assert again.tokenizer is not None and again.tokenizer.tokens[known:] == ADDED
    assert again.tokenizer.id("begin") == again.tokenizer.id("end") == known
    assert again.tokenizer.framing.frame([5, 6]).ids.tolist() == [known, 5, 6, known + 2]
    for text in tiny.texts(5):
        assert again.tokenizer.encode(text).tolist() == old.tokenizer.encode(text).tolist()
    theirs = transformers.AutoTokenizer.from_pretrained(done.model_folder)
    assert theirs("the river").input_ids == [
        known, *old.tokenizer.encode("the river").tolist(), known + 2
    ]  # fmt: skip
    opened = transformers.OpenAIGPTModel.from_pretrained(done.model_folder).eval()
    assert opened.config.vocab_size == known + 3
    ids = torch.tensor([[known, 5, 6, known + 2]])
    with torch.no_grad():
        expected = opened(ids).last_hidden_state[0]
        assert torch.allclose(again.hidden(Batch.of([ids[0].numpy()]))[0], expected, atol=1e-5)


def test_a_model_that_has_them_is_left_alone(published: Path, tmp_path: Path) -> None:
    first = finetune(published, tmp_path / "first")
    second = finetune(first.folder, tmp_path / "second")
    assert "grown" not in second.model.history[-1] and second.model.shape == first.model.shape


def test_a_stopped_run_goes_on_with_them(published: Path, tmp_path: Path) -> None:
    straight = finetune(published, tmp_path / "run", steps=4)
    for lost in ("step-*4", "step-*"):  # from its first checkpoint, and from the published model once more
        for checkpoint in (tmp_path / "run" / "checkpoints").glob(lost):
            shutil.rmtree(checkpoint)
        resumed = etymon.finetune(published, train=ROWS, out=tmp_path / "run", resume=True, progress="silent")
        for name, tensor in straight.model.stored_tensors().items():
            assert torch.equal(tensor, resumed.model.stored_tensors()[name]), name


def test_adapters_need_a_base_with_the_same_words(published: Path, tmp_path: Path) -> None:
    with pytest.raises(EtymonError, match="fine-tune it without --lora first"):
        finetune(published, tmp_path / "run", lora=2)


@pytest.mark.parametrize("family", ["gpt1", "bert", "t5", "gpt2"])
def test_special_tokens_are_added_behind_all_others(family: str) -> None:
    old = tiny.tokenizer(family)
    new = with_roles(old, {"mask": "<hidden>", "separator": old.tokens[7]})
    assert new.size == old.size + 1 and new.id("mask") == old.size and new.id("separator") == 7
    assert {**old.roles, "mask": "<hidden>", "separator": old.tokens[7]} == new.roles
    assert new.encode("<hidden>").tolist() == [old.size] and old.size in new.special_ids
    for text in tiny.texts(5):
        plain = text.replace(old.tokens[7], "")
        assert np.array_equal(new.encode(plain), old.encode(plain))
    assert old.roles.get("mask") != "<hidden>", "the old one is left alone"
