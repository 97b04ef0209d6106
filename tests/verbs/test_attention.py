from __future__ import annotations

import base64
import json
import re

import numpy as np
import pytest

import etymon
from etymon.errors import EtymonError
from etymon.families import get_family
from etymon.families.loading import shape_of
from etymon.families.model import Model
from etymon.report.page import attention_page
from etymon.report.plots import AttentionMap
from etymon.text.readable import readable_tokens
from etymon.text.tokenizer_training import train_tokenizer
from tests import tiny

SOURCE = "The cat sat on the mat."


def made(family):
    tokenizer = tiny.tokenizer(family)
    shape = shape_of(get_family(family), None, **tiny.shape(family), vocabulary=tokenizer.size)
    model = Model(get_family(family), shape, {"vocabulary"}).initialise()
    model.tokenizer = tokenizer
    return model


@pytest.mark.parametrize(
    "family", ["bert", "albert", "gpt2", "transformer-xl", "xlnet", "t5", "bart", "transformer"]
)
def test_every_query_spreads_one(family):
    model = made(family)
    maps = etymon.attention(model, SOURCE, out=None).maps
    assert [one.kind for one in maps] == (
        ["cross", "encoder", "decoder"] if model.encoder_decoder else ["self"]
    )
    for one in maps:
        assert one.weights.shape[2:] == (len(one.queries), len(one.keys))
        assert one.weights.sum(-1) == pytest.approx(1, abs=1e-5)
        ahead = np.triu(np.ones(one.weights.shape[2:]), 1).astype(bool)
        if one.kind == "decoder" or "causal" in model.capabilities:
            assert not one.weights[..., ahead].any()
        elif one.kind != "cross":
            assert one.weights[..., ahead].all()


def test_tokens_stand_where_they_belong(folder):
    (one,) = etymon.attention(folder("bert"), "The cat", "on a mat", out=None).maps
    assert [one.queries[0], one.queries[-1]] == ["[CLS]", "[SEP]"] and one.queries.count("[SEP]") == 2
    (one,) = etymon.attention(folder("gpt2"), "The cat", " sat", out=None).maps
    assert "".join(one.queries) == "The cat sat"
    cross, encoder, decoder = etymon.attention(folder("t5"), "The cat", "on a mat", out=None).maps
    assert cross.keys == encoder.keys and cross.keys[-1] == "</s>"
    # What a step writes, and what it was fed: the same, one place later.
    assert cross.queries[-1] == "</s>" and decoder.queries[1:] == cross.queries[:-1]


def test_bytes_that_are_no_character_are_spelled_out():
    tokenizer = train_tokenizer("byte-bpe", ["好坏" * 20], 259, specials={"end": "</s>"})
    ids = tokenizer.encode("好 坏b")
    assert "\\n" in readable_tokens(tokenizer, tokenizer.encode("b\nb"))
    tokens = readable_tokens(tokenizer, ids)
    assert "b" in tokens and any(re.search(r"\\x[0-9a-f]{2}", token) for token in tokens)
    spelled = "".join("" if token == "␣" else token for token in tokens)
    assert all(re.fullmatch(r"(\\x[0-9a-f]{2}|[好坏b])*", token) for token in spelled.splitlines()), tokens


def test_an_alignment_of_its_own_text(folder):
    cross = etymon.attention(folder("t5"), SOURCE, out=None).maps[0]
    (written,) = etymon.generate(folder("t5"), SOURCE, log_probs=True)
    assert len(cross.queries) == len(written.ids)


def test_an_alignment_of_a_recurrent_model():
    (cross,) = etymon.attention(made("rnn"), SOURCE, "on a mat", out=None).maps
    assert cross.kind == "cross" and cross.weights.shape[:2] == (1, 1)
    assert cross.weights.sum(-1) == pytest.approx(1, abs=1e-5)


def test_what_has_no_attention_is_refused():
    with pytest.raises(EtymonError, match="no attention"):
        etymon.attention(made("elmo"), SOURCE, out=None)


def test_rollout():
    weights = np.array([[[[1.0, 0.0], [0.5, 0.5]]], [[[1.0, 0.0], [0.0, 1.0]]]])
    one = AttentionMap("self", ["a", "b"], ["a", "b"], weights)
    assert one.rollout() == pytest.approx(np.array([[1.0, 0.0], [0.25, 0.75]]))
    assert one.rollout().sum(-1) == pytest.approx(1)


def test_a_page_holds_every_weight():
    weights = np.random.default_rng(0).dirichlet(np.ones(3), (2, 4, 3))
    tokens = ["</script>", "&", "日"]
    page = attention_page("<title>", "a → b", [AttentionMap("self", tokens, tokens, weights)])
    data = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    (record,) = json.loads(data[0])
    assert record["queries"] == tokens
    stored = np.frombuffer(base64.b64decode(record["weights"]), "<u2").reshape(record["shape"]) / 65535
    assert stored == pytest.approx(weights, abs=1e-5)
    assert "<title>&lt;title&gt;</title>" in page and not re.search(r"(src|href)=", page)


def test_files(folder, run, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    code, out, _ = run("attention", folder("t5"), SOURCE, "on a mat", "--out", tmp_path / "a.html")
    assert code == 0 and "cross: " in out and "a.html has the picture" in out
    for name, begin in (("a.svg", b"<?xml"), ("a.png", b"\x89PNG")):
        flags = ("--out", tmp_path / name, "--layer", 1, "--head", 2, "--kind", "encoder")
        assert run("attention", folder("t5"), "costs $5 and $6", *flags)[0] == 0
        assert (tmp_path / name).read_bytes().startswith(begin)
    assert "encoder attention, layer 1, head 2" in (tmp_path / "a.svg").read_text()
    records = [json.loads(line) for line in run("attention", folder("bert"), "x", "--json")[1].splitlines()]
    assert records[0]["kind"] == "self" and (tmp_path / "attention.html").is_file()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("bert", "x", "--out", "a.pdf"), "ends in .pdf"),
        (("bert", "x", "--layer", "1"), "a page has every kind"),
        (("bert", "x", "--out", "a.png", "--layer", "9"), "there are 2"),
        (("bert", "x", "--out", "a.png", "--kind", "cross"), "there is self"),
        (("gpt2", ""), "no tokens"),
        (("gpt2", "cat " * 100), "shorten it"),
        (("t5", "a", "b", "c"), "quotation marks"),
    ],
)
def test_refusals(folder, run, monkeypatch, tmp_path, arguments, expected):
    monkeypatch.chdir(tmp_path)
    code, _, err = run("attention", folder(arguments[0]), *arguments[1:])
    assert code == 2 and expected in err
    assert not list(tmp_path.iterdir())
