"""Runs that were stopped, killed or damaged go on bit for bit."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import etymon
from etymon import cli
from etymon.config import load_yaml
from etymon.errors import EtymonError
from etymon.runs.result import Pretrained
from etymon.runs.run_file import RunFile
from etymon.text.sources import Texts
from etymon.training.loop import Trainer
from etymon.training.state import RunFolder
from tests import tiny
from tests.verbs.small_runs import FAMILIES, crash, metrics, pretrain, resume, weight_files


def same_weights(one: Path, two: Path) -> bool:
    files = weight_files(one)
    assert files and files == weight_files(two)
    return all(
        (one / name).read_bytes() == (two / name).read_bytes()
        for name in (*files, "checkpoints/step-00000012/optimiser.safetensors")
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_a_crashed_run_goes_on_bit_for_bit(
    family: str, straight: Callable[[str], Pretrained], tmp_path: Path, at_step: Callable[..., None]
) -> None:
    expected = straight(family)
    at_step(8, crash)
    with pytest.raises(ConnectionAbortedError):
        pretrain(family, tmp_path / "run")
    assert RunFolder(tmp_path / "run").checkpoints() == [5]
    with open(tmp_path / "run" / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write('{"step": 9, "lo')  # and the last line is torn
    result = resume(family, tmp_path / "run")
    assert metrics(result.folder) == metrics(expected.folder)
    assert result.metrics == expected.metrics and result.samples == expected.samples
    assert same_weights(result.folder, expected.folder)
    assert result.model.history == expected.model.history


@pytest.mark.skipif(
    threading.current_thread() is not threading.main_thread(), reason="signals need the main thread"
)
def test_sigterm_saves_and_the_run_goes_on_bit_for_bit(
    straight: Callable[[str], Pretrained], tmp_path: Path, at_step: Callable[..., None]
) -> None:
    expected = straight("gpt2")
    at_step(7, lambda: os.kill(os.getpid(), signal.SIGTERM))
    stopped = pretrain("gpt2", tmp_path / "run")
    assert (stopped.steps, stopped.stopped) == (7, True)
    assert stopped.command == f"etymon pretrain gpt2 --out {tmp_path}/run --resume"
    assert RunFolder(stopped.folder).checkpoints() == [5, 7]
    etymon.load(stopped.folder)
    result = resume("gpt2", stopped.folder)
    assert not result.stopped
    assert metrics(result.folder) == metrics(expected.folder)
    assert same_weights(result.folder, expected.folder)
    # A finished run has nothing to go on with, and loses nothing either.
    again = resume("gpt2", stopped.folder)
    assert again.metrics == expected.metrics and metrics(again.folder) == metrics(expected.folder)


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_command_says_so_by_its_exit_code(
    number: int, code: int, tmp_path: Path, at_step: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.txt").write_text("\n".join(tiny.texts()), encoding="utf-8")
    words = ["pretrain", "gpt2", "--size", "test", "--out", str(tmp_path / "run"), "--progress", "silent"]
    at_step(2, lambda: os.kill(os.getpid(), number))
    for more, expected in (
        (["--data", str(tmp_path / "text.txt"), "--steps", "3", "--length", "32", "--resume", "auto"], code),
        (["--resume"], 0),
    ):
        with pytest.raises(SystemExit) as left:
            cli.main([*words, *more])
        assert left.value.code == expected
        assert ("stopped at step 2 and saved" in capsys.readouterr().out) == (expected > 0)


@pytest.mark.parametrize("damage", ["flip", "truncate"])
def test_a_broken_checkpoint_is_passed_over(
    damage: str, straight: Callable[[str], Pretrained], tmp_path: Path, at_step: Callable[..., None]
) -> None:
    at_step(11, crash)
    with pytest.raises(ConnectionAbortedError):
        pretrain("gpt2", tmp_path / "run")
    file = RunFolder(tmp_path / "run").checkpoint(10) / "model" / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-9] ^= 1
    file.write_bytes(data if damage == "flip" else data[:-9])
    result = resume("gpt2", tmp_path / "run")
    assert metrics(result.folder) == metrics(straight("gpt2").folder)
    assert same_weights(result.folder, straight("gpt2").folder)


def test_a_run_without_a_checkpoint_starts_again(
    straight: Callable[[str], Pretrained], tmp_path: Path, at_step: Callable[..., None]
) -> None:
    at_step(2, crash)
    with pytest.raises(ConnectionAbortedError):
        pretrain("gpt2", tmp_path / "run")
    result = resume("gpt2", tmp_path / "run")
    assert metrics(result.folder) == metrics(straight("gpt2").folder)


def test_the_same_call_begins_goes_on_and_finds_that_all_is_done(
    straight: Callable[[str], Pretrained], tmp_path: Path, at_step: Callable[..., None]
) -> None:
    with pytest.raises(EtymonError, match=r"there is no run in .* to resume"):
        pretrain("electra", tmp_path / "run", resume=True)
    at_step(8, crash)
    with pytest.raises(ConnectionAbortedError):
        pretrain("electra", tmp_path / "run", resume="auto")
    for _ in range(2):
        result = pretrain("electra", tmp_path / "run", resume="auto")
        assert metrics(result.folder) == metrics(straight("electra").folder)
        assert same_weights(result.folder, straight("electra").folder)
    with pytest.raises(EtymonError, match=r"resume is .perhaps., expected true or false or 'auto'"):
        pretrain("electra", tmp_path / "run", resume="perhaps")


def test_what_was_measured_once_is_not_measured_again(
    tmp_path: Path, at_step: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trainer, "seconds_per_step", lambda trainer, seconds: 0.1)
    at_step(3, crash)
    with pytest.raises(ConnectionAbortedError):
        pretrain("gpt2", tmp_path / "run", steps=None, budget="2s", resume="auto")
    monkeypatch.setattr(Trainer, "seconds_per_step", lambda trainer, seconds: pytest.fail("it is known"))
    fixed = load_yaml(tmp_path / "run" / "run.yaml", RunFile).training
    assert fixed is not None and fixed.steps > 3
    result = pretrain("gpt2", tmp_path / "run", steps=None, budget="2s", resume="auto")
    after = load_yaml(result.folder / "run.yaml", RunFile).training
    assert not result.stopped and after is not None and after.time == fixed.time


def test_resume_needs_no_text_but_refuses_another(
    tmp_path: Path, at_step: Callable[..., None], straight: Callable[[str], Pretrained]
) -> None:
    file = tmp_path / "text.txt"
    file.write_text("\n".join(tiny.texts()), encoding="utf-8")
    at_step(6, crash)
    with pytest.raises(ConnectionAbortedError):
        pretrain("bert", tmp_path / "run", data=[str(file)], documents="line")
    file.write_text("Something else.", encoding="utf-8")
    with pytest.raises(EtymonError, match="the text is not the one"):
        resume("bert", tmp_path / "run", data=Texts(["Something else."]))
    with pytest.raises(EtymonError, match=r"began with data .*text\.txt, not other\.txt"):
        resume("bert", tmp_path / "run", data=["other.txt"])
    result = resume("bert", tmp_path / "run", data=[str(file)])
    assert metrics(result.folder) == metrics(straight("bert").folder)


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"steps": 50}, "began with budget 12steps, not 50steps: it goes on as it began"),
        ({"batch": 4}, "began with batch 8, not 4"),
        ({"seed": 3}, "began with seed 0, not 3"),
        ({"learning_rate": 1.0}, "began with learning_rate 0.005, not 1.0"),
    ],
)
def test_resume_refuses_other_settings(
    changes: dict[str, Any], reason: str, straight: Callable[[str], Pretrained]
) -> None:
    with pytest.raises(EtymonError, match=reason):
        resume("gpt2", straight("gpt2").folder, **changes)


def test_run_file_is_strict(straight: Callable[[str], Pretrained], tmp_path: Path) -> None:
    content = (straight("gpt2").folder / "run.yaml").read_text(encoding="utf-8")
    file = tmp_path / "run.yaml"
    for text, reason in (
        (
            content.replace("slices:", "slcies:", 1),
            "unknown key 'slcies' in .*run.yaml: did you mean 'slices'",
        ),
        (content.replace("  schedule:", "  schedul:"), "section training: did you mean 'schedule'"),
        (content + "\n- [", "cannot read .*run.yaml"),
        ("", "missing key 'family'"),
    ):
        file.write_text(text, encoding="utf-8")
        with pytest.raises(EtymonError, match=reason):
            resume("gpt2", tmp_path)


def test_checkpoints_without_their_run_file_are_not_taken_for_a_new_run_s(tmp_path: Path) -> None:
    pretrain("gpt2", tmp_path / "run", steps=4)
    (tmp_path / "run" / "run.yaml").unlink()
    for resumed in (False, "auto"):
        with pytest.raises(EtymonError, match="checkpoints of a run, but no run"):
            pretrain("gpt2", tmp_path / "run", steps=3, resume=resumed)


def test_a_run_file_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    pretrain("gpt2", tmp_path / "run", steps=4)
    file = tmp_path / "run" / "run.yaml"
    text = file.read_text(encoding="utf-8")
    file.write_text(text[: text.index("training:")], encoding="utf-8")
    with pytest.raises(EtymonError, match="is not whole"):
        resume("gpt2", tmp_path / "run")
