"""Scripts of many letters, and without spaces, from a text to a picture: tokenizer, store, ten steps, a filled blank, attention drawn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import etymon
from tests.text.test_large_alphabets import SENTENCES, texts_of
from tests.verbs.small_runs import with_test_sizes


@pytest.fixture(scope="module", autouse=True)
def small() -> Iterator[None]:
    with with_test_sizes():
        yield


@pytest.mark.parametrize("script", SENTENCES)
def test_a_script_from_its_text_to_a_picture(script: str, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("\n\n".join(texts_of(script)), encoding="utf-8")
    made = etymon.tokenizer(
        family="bert", size=420, data=tmp_path / "text.txt", out=tmp_path / "tokenizer", progress="silent"
    )
    assert made.report is not None and made.report.unknown == 0
    prepared = etymon.prepare(
        data=tmp_path / "text.txt",
        documents="blank",
        tokenizer=tmp_path / "tokenizer",
        out=tmp_path / "store",
        progress="silent",
    )
    assert prepared.summary.train.documents > 40
    run = etymon.pretrain(
        "bert",
        size="test",
        data=tmp_path / "store",
        steps=10,
        batch=4,
        length=24,
        out=tmp_path / "run",
        progress="silent",
    )
    assert run.steps == 10 and run.report is not None
    (filled,) = etymon.fill(tmp_path / "run", f"{SENTENCES[script][:8]} [MASK]")
    assert len(filled.blanks[0]) > 0 and "[MASK]" not in filled.filled
    etymon.attention(tmp_path / "run", SENTENCES[script][:12], out=tmp_path / "map.png")
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")
