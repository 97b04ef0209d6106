"""`--from`: going on from a model with its shape and tokenizer."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from etymon.config import load_yaml
from etymon.errors import EtymonError
from etymon.families.loading import TOKENIZER_FILES
from etymon.runs.result import Pretrained
from etymon.runs.run_file import RunFile
from tests import tiny
from tests.verbs.small_runs import FAMILIES, crash, metrics, pretrain, resume


@pytest.mark.parametrize("family", FAMILIES)
def test_the_curve_begins_where_the_old_one_ended(
    family: str, straight: Callable[[str], Pretrained], tmp_path: Path
) -> None:
    old = straight(family)
    new = pretrain(family, tmp_path / "run", from_=old.folder, size=None, steps=3, learning_rate=1e-3)
    judged = [
        record for record in metrics(new.folder) if any(name.startswith("validation_") for name in record)
    ]
    for name, value in old.metrics.items():
        assert judged[0][f"validation_{name}"] == pytest.approx(value, rel=1e-5), (
            "the same text and objective"
        )
    assert old.model.tokenizer is not None and new.model.tokenizer is not None
    assert new.model.tokenizer.fingerprint == old.model.tokenizer.fingerprint
    assert new.model.shape == old.model.shape
    assert [entry.get("started_from") for entry in new.model.history] == [None, str(old.folder)]
    assert new.model.history[0] == old.model.history[0]
    assert load_yaml(new.folder / "run.yaml", RunFile).start == str(old.folder)


def test_new_heads_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = pretrain("bert", tmp_path / "old", objective="masked", steps=2)
    capsys.readouterr()
    new = pretrain("bert", tmp_path / "new", from_=old.model_folder, size=None, steps=2, progress="plain")
    told = capsys.readouterr().err
    assert f"{old.model_folder} has no next_sentence and no pooler head: starting anew there" in told
    assert f"BERT from {old.model_folder}" in told
    assert new.model.head_names == {"vocabulary", "next_sentence"}


def test_a_run_from_a_model_goes_on_without_it(
    straight: Callable[[str], Pretrained], tmp_path: Path, at_step: Callable[..., None]
) -> None:
    shutil.copytree(straight("gpt2").model_folder, tmp_path / "start")
    expected = pretrain("gpt2", tmp_path / "straight", from_=tmp_path / "start", size=None)
    at_step(8, crash)
    with pytest.raises(ConnectionAbortedError):
        pretrain("gpt2", tmp_path / "run", from_=tmp_path / "start", size=None)
    shutil.rmtree(tmp_path / "start")
    again = resume("gpt2", tmp_path / "run")
    assert metrics(again.folder) == metrics(expected.folder)
    assert again.model.history == expected.model.history and len(again.model.history) == 2


def test_what_does_not_belong_together_is_refused(
    straight: Callable[[str], Pretrained], tmp_path: Path
) -> None:
    start = straight("gpt2").model_folder
    bare = tmp_path / "bare"
    shutil.copytree(start, bare, ignore=shutil.ignore_patterns(*TOKENIZER_FILES, "tokenizer_config.json"))
    tiny.tokenizer("bert").save(tmp_path / "tokenizer")
    for family, changes, reason in (
        ("bert", {"from_": start}, "is GPT-2, not BERT"),
        ("gpt2", {"from_": bare}, "has no tokenizer: give its own with --tokenizer"),
        ("gpt2", {"from_": start, "tokenizer": tmp_path / "tokenizer"}, "has a tokenizer of its own"),
        ("gpt2", {"from_": start, "set": ["shape.layers=1"]}, "has its shape: leave that out"),
        ("gpt2", {"from_": start, "length": 65}, "which has 64 positions"),
        ("gpt2", {"from_": tmp_path}, "config.json"),
    ):
        with pytest.raises(EtymonError, match=reason) as error:
            pretrain(family, tmp_path / "run", **{"size": None, **changes})
        assert "\n" not in str(error.value)
        assert not (tmp_path / "run").exists()
    with_own = pretrain(
        "gpt2",
        tmp_path / "run",
        from_=bare,
        size=None,
        tokenizer=straight("gpt2").folder / "tokenizer",
        steps=1,
    )
    assert with_own.steps == 1
