"""Errors with an address: every code has its section in both languages, and the examples there are what is shown."""

from __future__ import annotations

import ast
import pickle
import re
import shlex
from pathlib import Path

import pytest

import etymon
from etymon import cli
from etymon.errors import EtymonError
from etymon.verbs.error_pages import error_list, error_sections
from tests import error_examples, messages

LANGUAGES = ("en", "zh")
CONSOLE = re.compile(r"```console\n\$ (.*)\n(.*)\n```")


def raised_codes() -> set[str]:
    """The codes that the source gives to errors."""
    found = set()
    for _, tree in messages.trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("EtymonError", "Diverged"):
                values = [keyword.value for keyword in node.keywords if keyword.arg == "code"]
                found |= {value.value for value in values if isinstance(value, ast.Constant)}
    return found


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_code_has_a_section_and_every_section_a_code(language: str) -> None:
    sections = error_sections(language)
    assert sections.keys() == raised_codes() and len(sections) > 25
    assert list(sections) == sorted(sections), "a reader looks for a name"
    for name, section in sections.items():
        assert re.match(r"\*\*.+\*\*\n\n```(console|text)\n", section), name
        assert f"etymon help {name}" in section, "the example names its section"


def test_every_message_with_a_section_has_its_chinese() -> None:
    known = messages.entries("message")
    missing = [
        literals
        for _, tree in messages.trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("EtymonError", "Diverged")
        if any(keyword.arg == "code" for keyword in node.keywords)
        if (literals := messages.literals_of(node.args[0])) and len("".join(literals)) > 20
        if not any(messages.can_make(literals, text) for text in known)
    ]
    assert not missing, "write them into etymon.po"


def test_both_languages_show_the_same_examples() -> None:
    for name, section in error_sections("en").items():
        other = error_sections("zh")[name]
        assert re.findall(r"^\$ .*", section, re.MULTILINE) == re.findall(r"^\$ .*", other, re.MULTILINE), (
            name
        )


def test_commands_in_messages_name_sections_that_there_are() -> None:
    named = set(re.findall(r"etymon help ([a-z]+-[a-z0-9-]+)", messages.source_text()))
    assert named <= error_sections("en").keys() | {"no-file"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("errors")
    error_examples.prepare(folder)
    return folder


def shown_error(line: str, place: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The last line that a command of the page prints, figures of the machine left open."""
    program, *words = shlex.split(line)
    assert program == "etymon"
    before = sorted(place.rglob("*"))
    with pytest.raises(SystemExit) as leaving:
        cli.main(words)
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert leaving.value.code == 2, error
    after = [path for path in place.rglob("*") if path not in before]
    assert not [path for path in after if "runs" not in path.parts], "a refusal leaves nothing behind"
    return re.sub(r"[\d.,]+ [kMGTP]?B", "…", error.replace(str(place), "…"))


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(
    "name", [name for name, text in error_sections("en").items() if CONSOLE.search(text)]
)
def test_examples_show_what_is_printed(
    name: str, language: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = CONSOLE.search(error_sections(language)[name])
    assert found is not None, "the page in the other language has an example"
    monkeypatch.chdir(place)
    monkeypatch.setenv("ETYMON_LANGUAGE", language)
    assert shown_error(found[1], place, capsys) == found[2]
    message = re.sub(r"[(（](Expecting|if|see|参见).*", "", found[2])
    assert language == "en" or not re.search("([a-z]{2,} ){3}[a-z]{2,}", message), "English in a row"


def test_help_shows_a_section_a_verb_or_the_list(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def shown(*words: str) -> str:
        with pytest.raises(SystemExit) as leaving:
            cli.main(["help", *words])
        assert leaving.value.code == 0
        return capsys.readouterr().out

    monkeypatch.setenv("COLUMNS", "80")
    page = shown("run-exists")
    assert "--resume auto" in page and "**" not in page and "```" not in page
    assert all(len(line) <= 80 for line in page.splitlines() if not line.startswith("    "))
    assert "Usage: etymon fill" in shown("fill") and "pretrain" in shown()
    assert all(name in shown("errors") for name, _ in error_list())
    monkeypatch.setenv("ETYMON_LANGUAGE", "zh")
    assert "运行" in shown("run-exists") or "训练" in shown("run-exists")
    with pytest.raises(SystemExit) as leaving:
        cli.main(["help", "run-exist"])
    assert leaving.value.code == 2 and "'run-exists'" in capsys.readouterr().err


def test_an_error_keeps_its_code_between_processes() -> None:
    error = pickle.loads(pickle.dumps(EtymonError("no such file: a", code="no-file")))
    assert (str(error), error.code) == ("no such file: a", "no-file") and EtymonError("x").code is None


def test_python_programs_see_the_code_and_a_message_without_it(tmp_path: Path) -> None:
    with pytest.raises(EtymonError) as caught:
        etymon.pretrain("gpt2", data=tmp_path / "none.txt")
    assert caught.value.code == "no-file" and "etymon help" not in str(caught.value)
