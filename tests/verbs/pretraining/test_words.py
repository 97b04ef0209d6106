"""Runs on text without spaces: whole words by a segmenter, or a clear word that there are none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import etymon
from etymon import plugins
from etymon.text.sources import Texts
from tests.verbs.small_runs import crash, metrics, pretrain, resume

SENTENCES = [
    "我们在北京大学学习自然语言处理。",
    "酒店的服务员态度非常好，房间也很干净！",
    "研究生命的起源是一个困难的问题。",
    "明天下午三点在图书馆开会，请准时参加。",
]
CHINESE = [
    "".join(SENTENCES[(number + step) % 4] for step in range(1 + number % 3)) + str(number)
    for number in range(60)
]
MASKING: dict[str, Any] = {"objective": "masked", "set": ["options.masking=whole-words"]}


def test_whole_words_that_nobody_knows_are_refused_and_said_of_families_that_hide_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(etymon.EtymonError, match=r"whole words were asked for, but .*--words jieba"):
        pretrain("bert", tmp_path / "refused", data=Texts(CHINESE), **MASKING)
    assert not (tmp_path / "refused" / "run.yaml").exists()
    options: dict[str, Any] = {"steps": 1, "progress": "plain"}
    pretrain("albert", tmp_path / "albert", data=Texts(CHINESE), **options)
    assert "scripts without spaces, where nothing shows which tokens are a word" in "".join(
        capsys.readouterr()
    )
    made = pretrain("bert", tmp_path / "tokens", data=Texts(CHINESE), words="tokens", **MASKING, **options)
    assert "without spaces" not in "".join(capsys.readouterr())
    assert made.model.history[-1]["words"] == {"way": "tokens"}
    pretrain("bert", tmp_path / "english", **MASKING, **options)
    assert "without spaces" not in "".join(capsys.readouterr())


def test_a_run_with_words_resumes_exactly_without_its_segmenter(
    tmp_path: Path, at_step: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"data": Texts(CHINESE), "words": "jieba", **MASKING}
    straight = pretrain("bert", tmp_path / "straight", **options)
    entry = straight.model.history[-1]
    assert entry["words"] == {"way": "jieba", "version": "0.42.1"}
    history = json.loads((straight.model_folder / "history.json").read_text(encoding="utf-8"))
    assert history["history"][-1]["words"] == entry["words"]
    at_step(7, crash)
    with pytest.raises(ConnectionAbortedError):
        pretrain("bert", tmp_path / "stopped", **options)
    monkeypatch.setattr("etymon.text.segmenters._open_jieba", crash)
    again = resume("bert", tmp_path / "stopped")
    assert again.model.history[-1]["words"] == entry["words"]
    assert metrics(again.folder) == metrics(straight.folder)
    first, second = (load_file(made.model_folder / "model.safetensors") for made in (straight, again))
    assert all(np.array_equal(first[name], second[name]) for name in first)
    with pytest.raises(etymon.EtymonError, match="began with words jieba"):
        resume("bert", tmp_path / "stopped", words="spaces")


def test_a_prepared_text_brings_its_words(tmp_path: Path) -> None:
    (tmp_path / "zh.txt").write_text("\n".join(CHINESE), encoding="utf-8")
    files: dict[str, Any] = {
        "data": [tmp_path / "zh.txt"],
        "documents": "line",
        "words": "jieba",
        "progress": "silent",
    }
    etymon.tokenizer(**files, family="bert", size=200, out=tmp_path / "tokenizer")
    made = etymon.prepare(**files, tokenizer=tmp_path / "tokenizer", out=tmp_path / "store")
    assert made.summary.words == {"way": "jieba", "version": "0.42.1"}
    options: dict[str, Any] = {"data": [tmp_path / "store"], "steps": 1, "validation": 0.05, **MASKING}
    trained = pretrain("bert", tmp_path / "run", **options)
    assert trained.model.history[-1]["words"]["way"] == "jieba"
    with pytest.raises(etymon.EtymonError, match="prepared with words by jieba, not by tokens"):
        pretrain("bert", tmp_path / "other", words="tokens", **options)


def test_surprisal_of_words_adds_up_to_that_of_the_text(folder: Callable[[str], Path]) -> None:
    text = "The old captain crossed 北京大学 in winter."
    for family, way in (("gpt2", "jieba"), ("gpt2", "tokens"), ("bert", "jieba")):
        (score,) = etymon.score(folder(family), [text], words=way)
        assert score.words is not None
        assert "".join(word.word for word in score.words) == text.replace(" ", "")
        total = sum(word.surprisal for word in score.words) * np.log(2)
        assert total == pytest.approx(-score.log_likelihood, rel=1e-6)
        assert sum(word.tokens for word in score.words) == score.tokens
    (cut,) = etymon.score(folder("gpt2"), ["我们 在 北京大学"], words="spaces")
    (plain,) = etymon.score(folder("gpt2"), ["我们在北京大学"])
    assert cut.log_likelihood == plain.log_likelihood and plain.words is None
    assert cut.words is not None and [word.word for word in cut.words] == ["我们", "在", "北京大学"]


def test_what_is_no_way_to_find_words_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(plugins.NAMED, "")  # "a:b:c" names a module
    for way in ("nonsense", "a:b:c", lambda text: [text]):
        with pytest.raises(etymon.EtymonError, match="words are found by jieba, spaces"):
            pretrain("bert", tmp_path / "run", words=way)
