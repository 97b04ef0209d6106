"""`etymon demo`: works twice, reads the standard library once, and spares what is not its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import etymon
from etymon import cli
from etymon.errors import EtymonError
from etymon.text import prose
from etymon.text.reading import Document
from etymon.training.loop import Trainer
from tests import tiny
from tests.verbs.small_runs import metrics, pretrain, resume, with_test_sizes


@pytest.fixture(autouse=True)
def sizes() -> Iterator[None]:
    with with_test_sizes():
        yield


@pytest.fixture
def little_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for the standard library's prose, which takes seconds to read."""
    monkeypatch.setattr(prose, "stdlib_documents", lambda: [Document(text) for text in tiny.texts()])


def demo(out: Path) -> int:
    with pytest.raises(SystemExit) as exit_info:
        cli.main(["demo", "--steps", "3", "--size", "test", "--out", str(out), "--progress", "plain"])
    code = exit_info.value.code
    assert isinstance(code, int)
    return code


def test_twice_and_the_second_time_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], little_library: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "demo"
    assert demo(out) == 0
    captured = capsys.readouterr()
    assert "training a tokenizer" in captured.err
    assert "validation bits per byte" in captured.out and f"etymon generate {out}" in captured.out
    first = metrics(out)

    def unread() -> None:
        raise AssertionError("the standard library was read again")

    monkeypatch.setattr(prose, "stdlib_documents", unread)
    assert demo(out) == 0
    assert "training a tokenizer" not in capsys.readouterr().err
    assert metrics(out) == first
    assert etymon.load(out).history[0]["data"] == prose.StandardLibrary.description


def test_a_stopped_demonstration_goes_on_as_it_says(
    tmp_path: Path, little_library: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Trainer.train_step

    def failing(trainer: Trainer, *arguments: Any, **options: Any) -> Any:
        if trainer.state.step == 2:
            raise ConnectionAbortedError
        return plain(trainer, *arguments, **options)

    monkeypatch.setattr(Trainer, "train_step", failing)
    with pytest.raises(ConnectionAbortedError):
        etymon.demo(out=tmp_path / "demo", steps=3, size="test", progress="silent")
    monkeypatch.setattr(Trainer, "train_step", plain)
    result = resume("gpt2", tmp_path / "demo")  # the command that a stopped run prints
    assert result.steps == 3 and result.model.history[0]["data"] == prose.StandardLibrary.description


def test_other_runs_and_folders_are_spared(tmp_path: Path) -> None:
    run = pretrain("gpt2", tmp_path / "run", steps=1)
    with pytest.raises(EtymonError, match="holds a run on other text"):
        etymon.demo(out=run.folder, steps=1, size="test", progress="silent")
    assert etymon.load(run.folder).history == run.model.history
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("mine", encoding="utf-8")
    with pytest.raises(EtymonError, match="holds something else"):
        etymon.demo(out=tmp_path / "mine", steps=1, size="test", progress="silent")
    with pytest.raises(EtymonError, match="is a file"):
        etymon.demo(out=tmp_path / "mine" / "thesis.tex", steps=1, size="test", progress="silent")
