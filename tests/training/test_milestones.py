"""Models that are kept on the way, by words: each once, exactly, also after a kill."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file

import etymon
from etymon.errors import EtymonError
from etymon.runs.milestones import list_milestones
from etymon.training.budgets import Budget, parse_milestones
from etymon.training.state import RunFolder
from tests.verbs.small_runs import metrics, pretrain, resume, with_test_sizes


def test_babylm_is_what_the_challenge_keeps() -> None:
    names = list(parse_milestones(["babylm"]))
    millions = [*range(1, 11), *range(20, 101, 10), *range(200, 1001, 100)]
    assert names == [f"chck_{count}M" for count in millions] and len(names) == 28
    assert parse_milestones(["babylm"])["chck_30M"] == Budget(30e6, "words")


def test_other_amounts() -> None:
    assert parse_milestones(["1M", "1000k", "2500", "500steps", "0.5epochs"]) == {
        "chck_1M": Budget(1e6, "words"),
        "chck_2500": Budget(2500, "words"),
        "500steps": Budget(500, "steps"),
        "0.5epochs": Budget(0.5, "epochs"),
    }
    for text, message in (
        ("10m", "not '10m'"),
        ("3h", "not '3h'"),
        ("1Tflops", "save-at takes"),
        ("0", "first word"),
    ):
        with pytest.raises(EtymonError, match=message):
            parse_milestones([text])


def test_milestones_of_words_are_kept_once_and_survive_a_kill(tmp_path: Path) -> None:
    with with_test_sizes():
        # As many words as its steps are worth, so that the last milestone lies at the end.
        trial = pretrain("bert", tmp_path / "trial", validate_every=12)
        words = [
            row["words"] for row in RunFolder(trial.folder).metrics() if "loss" in row or "masked" in row
        ]
        amounts = [str(words[4]), str(words[8] - 1), str(words[-1] + 1)]
        run = pretrain("bert", tmp_path / "run", save_at=amounts, keep=9)
        kept = list_milestones(run.folder)
        assert [model.steps for model in kept] == [5, 9, 12], (
            "the last one lies less than a step behind the end"
        )
        assert [model.words for model in kept] == [words[4], words[8], words[11]]
        assert all(model.words_read > model.words for model in kept), "pairs of texts read words twice"
        # A row of every kind has both counts.
        assert all(
            {"words", "words_read", "tokens"} <= set(row)
            for row in metrics(run.folder)
            if "sample" not in row
        )

        before = {model.name: load_file(model.folder / "model.safetensors") for model in kept}
        # Killed after the second milestone, and in the middle of writing the third.
        for step in RunFolder(run.folder).checkpoints():
            if step > 5:
                shutil.rmtree(RunFolder(run.folder).checkpoint(step))
        shutil.rmtree(kept[2].folder)
        (run.folder / "milestones" / f".{kept[2].name}.1-0.partial").mkdir()
        resume("bert", run.folder)
    again = list_milestones(run.folder)
    assert again == kept and len(list((run.folder / "milestones").iterdir())) == 3
    for model in again:
        weights = load_file(model.folder / "model.safetensors")
        assert all((weights[name] == value).all() for name, value in before[model.name].items()), model.name
        seen = json.loads((model.folder / "history.json").read_text())["history"][-1]["seen"]
        assert (seen["words"], seen["words_read"]) == (model.words, model.words_read)
    shown = etymon.show(run.folder).milestones
    assert [row["name"] for row in shown] == [model.name for model in kept]
    assert etymon.fill(kept[0].folder, "the [MASK]")


def test_a_run_says_once_what_it_will_not_reach(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with with_test_sizes():
        pretrain("gpt2", tmp_path / "run", save_at="babylm", steps=2, progress="plain")
    shown = capsys.readouterr()
    assert (shown.out + shown.err).count(
        "nothing will be kept at chck_1M, chck_2M, chck_3M, chck_4M, chck_5M and 23 more"
    ) == 1
    assert not (tmp_path / "run/milestones").exists()
