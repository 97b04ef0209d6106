"""What is shown to people cannot steer their terminal; what goes into pipes and files stays as it is."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

import etymon
from etymon import cli
from etymon.errors import EtymonError, visible
from etymon.settings import argument, option, settings
from etymon.training.progress import LiveProgress
from etymon.verbs import terminal
from etymon.verbs.verb import verb
from tests.fuzz.engine import Stream

NASTY = "a\x1b[31mb\x07\x9bc\u202ed\re\x00"
SHOWN = r"a\u001b[31mb\u0007\u009bc\u202ed\re\u0000"


@settings
class SayOptions:
    text: str = argument("what to say")
    fail: bool = option(False, "refuse it")


@verb(SayOptions)
def say(options: SayOptions) -> str:
    """No details."""
    if options.fail:
        raise EtymonError(f"no such file: {options.text}")
    return options.text


def present(result: str, options: SayOptions) -> None:
    print(f"{result}\t1\n{result}")


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[str, str]]:
    """Both outputs of a stand-in verb, on a terminal or not."""
    module = ModuleType("stand_in")
    module.say, module.present = say, present  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "etymon.verbs.say", module)

    def run(*arguments: str, is_terminal: bool) -> tuple[str, str]:
        out, err = Stream(is_terminal), Stream(is_terminal)
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", err)
        with pytest.raises(SystemExit):
            cli.main(["say", *arguments], {"say": "Say something."})
        assert sys.stdout is out and sys.stderr is err, "the streams are given back"
        return out.text(), err.text()

    return run


def test_control_characters_are_spelled_out() -> None:
    assert visible(NASTY) == SHOWN
    assert visible("a\nb\tc") == "a\nb\tc" and visible("a\nb\tc", breaks="") == r"a\nb\tc"
    assert visible("naïve 日本語 🙂 שלום") == "naïve 日本語 🙂 שלום"
    assert visible("\udc80") == r"\udc80"
    assert json.loads(visible(json.dumps(["\x9b\u202e"], ensure_ascii=False))) == ["\x9b\u202e"]


def test_results_are_made_visible_on_a_terminal_and_left_alone_in_a_pipe(
    command: Callable[..., tuple[str, str]],
) -> None:
    assert command(NASTY, is_terminal=True)[0] == f"{SHOWN}\t1\n{SHOWN}\n"
    assert command(NASTY, is_terminal=False)[0] == f"{NASTY}\t1\n{NASTY}\n"


@pytest.mark.parametrize("is_terminal", [True, False])
def test_errors_are_one_visible_line_always(
    command: Callable[..., tuple[str, str]], is_terminal: bool
) -> None:
    _, err = command(NASTY + "\nx", "--fail", is_terminal=is_terminal)
    assert err == rf"etymon: error: no such file: {SHOWN}\nx" + "\n"
    _, err = command("a" * 3000, "--fail", is_terminal=is_terminal)
    assert len(err) < 1100 and " ... " in err


def test_names_that_are_no_text_can_be_printed(command: Callable[..., tuple[str, str]]) -> None:
    assert command("\udc80", is_terminal=False)[0] == "\\udc80\t1\n\\udc80\n"


def test_notes_of_a_live_display_are_visible() -> None:
    from rich.console import Console

    file = io.StringIO()
    LiveProgress(Console(file=file, force_terminal=True, width=200)).note(NASTY)
    assert SHOWN in file.getvalue() and "\x1b[31m" not in file.getvalue()


def test_a_note_beside_a_live_display_takes_its_line_and_spells_nothing_of_our_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    err = Stream(is_terminal=True)
    monkeypatch.setattr(sys, "stderr", err)
    monkeypatch.setattr(sys, "stdout", Stream(is_terminal=True))
    monkeypatch.setenv("TERM", "xterm")
    with terminal.safe_streams():
        display = LiveProgress()
        display.start(10, f"title {NASTY}")
        terminal.on_note(NASTY)
        display.close()
    shown = err.text()
    assert SHOWN in shown.replace("\n", "") and "\x1b[2K" in shown, "rich draws, and texts are spelled out"
    assert "\\u001b[K" not in shown and "\x1b[31m" not in shown


@pytest.mark.parametrize("shown", ["LiveProgress()", "byte_progress('reading', 10, 'rich')"])
def test_live_displays_draw_on_a_real_terminal(shown, tmp_path):
    # A terminal has a stream before it that spells control characters out: those of the display itself are meant.
    # rich looks behind one stream only, and a display that runs already has put another one there.
    code = f"""
from etymon.training.progress import LiveProgress
from etymon.verbs.terminal import byte_progress, safe_streams
with safe_streams():
    running = LiveProgress()
    running.start(4, "first")
    display = {shown}
    if hasattr(display, "start"):
        display.start(4, "title")
        display.update(4, {{"loss": 1.0}})
        display.close()
    else:
        with display as done:
            done(10)
    running.close()
"""
    master, slave = pty.openpty()
    environment = {
        **os.environ,
        "TERM": "xterm-256color",
        "PYTHONPATH": str(Path(etymon.__file__).parents[1]),
    }
    process = subprocess.Popen([sys.executable, "-c", code], stdout=slave, stderr=slave, env=environment)
    os.close(slave)
    text = b""
    while True:
        try:
            data = os.read(master, 65536)
        except OSError:  # the other end is closed
            break
        if not data:
            break
        text += data
    os.close(master)
    assert process.wait() == 0
    assert b"\x1b[" in text and b"u001b" not in text and b"x1b" not in text
