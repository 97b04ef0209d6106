"""Runs on several languages: exact on resume, validated by language, and refused where they cannot be mixed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import etymon
from tests import tiny
from tests.verbs.small_runs import crash, metrics, pretrain, resume

CHINESE = [
    "我们在北京大学学习自然语言处理。",
    "酒店的服务员态度非常好，房间也很干净！",
    "研究生命的起源是一个困难的问题。",
]


@pytest.fixture
def data(tmp_path: Path) -> list[str]:
    (tmp_path / "en.txt").write_text("\n".join(tiny.texts()), encoding="utf-8")
    lines = [CHINESE[number % 3] + CHINESE[number % 2] + str(number) for number in range(25)]
    (tmp_path / "zh.txt").write_text("\n".join(lines), encoding="utf-8")
    return [f"en={tmp_path / 'en.txt'}", f"zh={tmp_path / 'zh.txt'}"]


def test_a_run_on_two_languages_resumes_exactly_and_is_judged_by_language(
    data: list[str], tmp_path: Path, at_step: Callable[..., None]
) -> None:
    options: dict[str, Any] = {"data": data, "documents": "line", "language_temperature": 0.3}
    straight = pretrain("gpt2", tmp_path / "straight", **options)
    figures = straight.metrics
    assert figures["bits_per_byte"] == pytest.approx(
        (figures["en/bits_per_byte"] + figures["zh/bits_per_byte"]) / 2
    )
    entry = straight.model.history[-1]["languages"]
    assert entry["zh"]["passes"] > 1 > entry["en"]["passes"]
    assert entry["zh"]["share"] + entry["en"]["share"] == pytest.approx(1)
    page = (straight.folder / "report.html").read_text(encoding="utf-8")
    assert "Languages" in page and "passes an epoch" in page
    at_step(7, crash)
    with pytest.raises(ConnectionAbortedError):
        pretrain("gpt2", tmp_path / "stopped", **options)
    again = resume("gpt2", tmp_path / "stopped")
    assert metrics(again.folder) == metrics(straight.folder)
    first, second = (load_file(made.model_folder / "model.safetensors") for made in (straight, again))
    assert all(np.array_equal(first[name], second[name]) for name in first)
    with pytest.raises(etymon.EtymonError, match="language_temperature"):
        resume("gpt2", tmp_path / "stopped", language_temperature=0.5)


def test_a_prepared_store_of_languages_gives_the_same_run(data: list[str], tmp_path: Path) -> None:
    files: dict[str, Any] = {"data": data, "documents": "line", "progress": "silent"}
    made = etymon.tokenizer(**files, family="bert", size=300, out=tmp_path / "tok", language_temperature=0.3)
    assert set(made.languages) == {"en", "zh"} and made.languages["zh"].alone > 0
    words = {"words": ["zh=jieba"]}
    stored = etymon.prepare(
        **files, **words, tokenizer=tmp_path / "tok", out=tmp_path / "store", validation=0.2
    )
    assert stored.languages["zh"].summary.words is not None and stored.languages["en"].summary.words is None
    options: dict[str, Any] = {
        "objective": "masked", "set": ["options.masking=whole-words"], "steps": 4, "language_temperature": 0.3,
    }  # fmt: skip
    prepared = pretrain("bert", tmp_path / "prepared", data=[str(tmp_path / "store")], **options)
    direct = pretrain(
        "bert",
        tmp_path / "direct",
        data=data,
        documents="line",
        tokenizer=str(tmp_path / "tok"),
        **words,
        **options,
    )
    assert metrics(prepared.folder) == metrics(direct.folder)
    assert prepared.model.history[-1]["words"] == {"zh": {"way": "jieba", "version": "0.42.1"}}
    with pytest.raises(etymon.EtymonError, match="store of several languages"):
        etymon.prepare(
            data=data[0].removeprefix("en="),
            tokenizer=tmp_path / "tok",
            out=tmp_path / "store",
            progress="silent",
        )


def test_what_cannot_be_mixed_is_refused(data: list[str], tmp_path: Path) -> None:
    with pytest.raises(etymon.EtymonError, match="in which languages cannot be mixed"):
        pretrain("transformer-xl", tmp_path / "stream", data=data)
    with pytest.raises(etymon.EtymonError, match="needs languages"):
        pretrain("gpt2", tmp_path / "plain", language_temperature=0.3)
    with pytest.raises(etymon.EtymonError, match="has no language"):
        pretrain("gpt2", tmp_path / "half", data=[data[0], str(tmp_path / "zh.txt")])
    with pytest.raises(etymon.EtymonError, match="at most 1"):
        pretrain("gpt2", tmp_path / "hot", data=data, language_temperature=3)


def test_a_dry_run_reads_every_language(data: list[str], tmp_path: Path) -> None:
    plan = pretrain("gpt2", tmp_path / "dry", data=data, documents="line", dry_run=True).plan
    assert plan is not None and "en:" in plan["text"] and "zh:" in plan["text"]
