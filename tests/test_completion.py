"""Tab completion: shells are answered, and what is installed is said, done once and can be undone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import etymon
from etymon import cli
from etymon.verbs.completion import SHELLS


def answers(line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What bash is told may stand at the end of a line, a kind and a value each."""
    for name, value in (
        ("_ETYMON_COMPLETE", "bash_complete"),
        ("COMP_WORDS", line),
        ("COMP_CWORD", str(line.count(" "))),
    ):
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit):
        cli.main([])
    return capsys.readouterr().out.split()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("etymon pre", ["plain,prepare", "plain,pretrain", "plain,predict"]),
        ("etymon pretrain be", ["plain,bert"]),
        ("etymon finetune alb", ["plain,albert"]),
        ("etymon fill alb", ["file,alb"]),
        ("etymon pretrain bert --vocab", ["plain,--vocabulary"]),
        ("etymon pretrain bert --data a b --budg", ["plain,--budget"]),
        ("etymon pretrain bert --precision b", ["plain,bf16"]),
        ("etymon pretrain bert --data my", ["file,my"]),
        ("etymon frobnicate --da", []),
        ("etymon --install", ["plain,--install-completion"]),
    ],
)
def test_a_shell_is_told_what_may_come_next(line, expected, monkeypatch, capsys):
    found = answers(line, monkeypatch, capsys)
    assert sorted(found) == sorted(expected)


def run(*words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as leaving:
        cli.main(words)
    shown = capsys.readouterr()
    return int(leaving.value.code or 0), shown.out, shown.err


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "ZDOTDIR"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.mark.parametrize("shell", SHELLS)
def test_installing_writes_a_script_once_and_says_where(shell, home, capsys, monkeypatch):
    monkeypatch.setenv("SHELL", f"/usr/bin/{shell}")
    start = home / f".{shell}rc"
    if shell != "fish":
        start.write_text("alias l=ls", encoding="utf-8")
        start.chmod(0o600)
    code, out, _ = run("--install-completion", capsys=capsys)
    (script,) = (
        (path for path in home.rglob("*etymon*/**/*") if path.is_file())
        if shell != "fish"
        else home.rglob("etymon.fish")
    )
    assert code == 0 and str(script) in out and "undo" in out
    assert script.read_text(encoding="utf-8") == run("--show-completion", shell, capsys=capsys)[1]
    assert "_ETYMON_COMPLETE" in script.read_text(encoding="utf-8")
    if shell == "fish":
        return
    first, second = start.read_text(encoding="utf-8").splitlines()
    assert first == "alias l=ls" and str(script) in second and start.stat().st_mode & 0o777 == 0o600
    assert run("--install-completion", shell, capsys=capsys)[0] == 0
    assert start.read_text(encoding="utf-8").count(str(script)) == second.count(str(script)), "twice is once"


def test_another_shell_is_refused_and_nothing_is_written(home, capsys, monkeypatch):
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    for words in (["--install-completion"], ["--install-completion", "powershell"]):
        code, _, err = run(*words, capsys=capsys)
        assert code == 2 and "bash, zsh or fish" in err and err.count("\n") == 1
    assert not list(home.iterdir())


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_a_verb_by_the_script(home, tmp_path):
    # A command of this name that is this very library.
    command = tmp_path / "bin" / "etymon"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m etymon "$@"\n', encoding="utf-8")
    command.chmod(0o755)
    path = f"{command.parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(Path(etymon.__file__).parents[1])}
    asked = """eval "$(etymon --show-completion bash)"
COMP_WORDS=(etymon tokeniz); COMP_CWORD=1; _etymon_completion etymon; echo "${COMPREPLY[@]}" """
    shown = subprocess.run(["bash", "-c", asked], env=environment, capture_output=True, text=True)
    assert shown.stdout.strip() == "tokenizer", shown.stderr
