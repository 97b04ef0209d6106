"""`etymon tokenizer`: every kind from the command line, and what it reports."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import etymon
from etymon.text.tokenizer import Tokenizer
from tests.text.conftest import story

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "a.txt").write_text("\n".join(story(number, 20) for number in range(60)), encoding="utf-8")
    rows = (json.dumps({"text": story(number, 5)}) for number in range(30))
    (folder / "b.jsonl").write_text("\n".join(rows))
    return folder


@pytest.mark.parametrize("kind", ["byte-bpe", "bpe", "wordpiece", "unigram", "word", "character", "byte"])
def test_every_kind(kind: str, corpus: Path, tmp_path: Path, run: Run) -> None:
    code, out, err = run(
        "tokenizer", "--kind", kind, "--data", corpus, "--size", 400, "--out", tmp_path / "t"
    )
    assert (code, "reading: " in err) == (0, True), err
    made = Tokenizer.load(tmp_path / "t")
    assert made.kind == kind and made.size <= 400
    assert f"{kind} tokenizer of {made.size:,} tokens" in out and "on held-out text" in out
    code, out, _ = run(
        "tokenizer", "--show", tmp_path / "t", "--data", corpus, "--json", "--progress", "silent"
    )
    figures = json.loads(out)
    size = sum(len(story(number, 20).encode()) + 1 for number in range(60)) - 1
    size += sum(len(story(number, 5).encode()) for number in range(30))
    assert code == 0 and figures["bytes"] == size
    assert figures["bytes_per_token"] == pytest.approx(size / figures["tokens"])
    assert 0.9 < figures["bytes_per_token"] < 8 and figures["unknown_rate"] < 0.1


def test_families(corpus: Path, tmp_path: Path) -> None:
    data = [corpus / "a.txt"]
    made = {
        name: etymon.tokenizer(
            data=data, family=name, size=400, out=tmp_path / name, progress="silent"
        ).tokenizer
        for name in ("gpt2", "bert", "t5")
    }
    assert {name: tokenizer.kind for name, tokenizer in made.items()} == {
        "gpt2": "byte-bpe", "bert": "wordpiece", "t5": "unigram",
    }  # fmt: skip
    assert (
        made["bert"].decode(made["bert"].encode("Café")) == "cafe"
        and made["bert"].framing.name == "class-first"
    )
    assert len(made["t5"].sentinels) == 100 and made["t5"].framing.name == "text-end"
    plain = etymon.tokenizer(
        data=data, kind="wordpiece", size=400, out=tmp_path / "p", progress="silent"
    ).tokenizer
    assert plain.decode(plain.encode("Café")) == "Café" and plain.roles == made["bert"].roles
    mixed = etymon.tokenizer(
        data=data, kind="unigram", family="bert", size=400, out=tmp_path / "m", progress="silent"
    ).tokenizer
    assert mixed.kind == "unigram" and mixed.framing.name == "class-first" and mixed.id("mask") is not None
    accents = etymon.tokenizer(
        data=data, family="bert", strip_accents=False, size=400, out=tmp_path / "a", progress="silent"
    ).tokenizer
    assert accents.decode(accents.encode("Café")) == "café"
    characters = etymon.tokenizer(
        data=data, kind="character", family="gpt2", size=400, out=tmp_path / "c", progress="silent"
    ).tokenizer
    assert characters.id("end") is not None and characters.id("unknown") is not None


def test_bytes_need_no_text(tmp_path: Path, run: Run) -> None:
    code, out, _ = run("tokenizer", "--kind", "byte", "--out", tmp_path / "t")
    assert code == 0 and "byte tokenizer of 260 tokens" in out
    assert Tokenizer.load(tmp_path / "t").encode("é").tolist() == [0xC3, 0xA9]


def test_a_limit_spreads(tmp_path: Path, corpus: Path) -> None:
    (tmp_path / "a.txt").write_text("aaaa " * 100_000 + "zzzz " * 100_000)
    made = etymon.tokenizer(
        data=[tmp_path / "a.txt"], kind="character", limit="50kB", out=tmp_path / "t", progress="silent"
    )
    assert made.tokenizer.tokens[-3:] == [" ", "a", "z"] or set(made.tokenizer.tokens[-3:]) == {" ", "a", "z"}
    small = etymon.tokenizer(data=[corpus / "b.jsonl"], kind="word", out=tmp_path / "s", progress="silent")
    assert "trained on" in small.judged_by


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "say where the tokenizer goes: --out"),
        (["--out", "t"], "say which tokenizer: --kind"),
        (["--out", "t", "--kind", "bpe"], "there is no text: give --data"),
        (["--out", "t", "--kind", "bpe", "--data", "nowhere.txt"], "no such file"),
        (["--out", "t", "--family", "palm", "--data", "x"], "there is no family 'palm'"),
        (
            ["--out", "t", "--kind", "bpe", "--data", "{corpus}", "--limit", "lots"],
            "cannot read 'lots' as a size",
        ),
        (
            ["--out", "t", "--kind", "bpe", "--data", "{corpus}", "--size", "0"],
            "size is 0, expected at least 1",
        ),
        (
            ["--out", "t", "--kind", "byte-bpe", "--data", "{corpus}", "--size", "99"],
            "is too small: beside special tokens",
        ),
        (["--out", "t", "--kind", "byte-bpe", "--data", "{corpus}", "--lowercase"], "is lossless"),
        (
            ["--out", "{corpus}", "--kind", "bpe", "--data", "{corpus}"],
            "holds something that is not a tokenizer",
        ),
        (["--show", "t", "--no-lowercase", "--data", "{corpus}"], "leave out what says how to train"),
        (["--show", "t", "--kind", "bpe", "--data", "{corpus}"], "leave out what says how to train"),
    ],
)
def test_mistakes(
    arguments: list[str], reason: str, corpus: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = run("tokenizer", *(argument.format(corpus=corpus) for argument in arguments))
    assert code == 2 and reason in err and "Traceback" not in err
    assert list(tmp_path.iterdir()) == []
