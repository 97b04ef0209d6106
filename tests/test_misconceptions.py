"""The pages about common mistakes: what their commands show is what they say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.test_readme import block, commands, run

DOCS = Path(__file__).parents[1] / "docs"
PAGES = {
    name: (DOCS / name).read_text(encoding="utf-8") for name in ("misconceptions.md", "misconceptions.zh.md")
}
BLOCKS = [
    (page, name) for page, text in PAGES.items() for name in re.findall(r"<!-- run: ([\w-]+) -->", text)
]
# What a reader of the page must find in the output.
SHOWN = {
    ("misconceptions.md", "myths"): "■ · ·",
    ("misconceptions.md", "electra"): "discriminator reads",
    ("misconceptions.md", "t5"): "who sees whom (decoder sees encoder): all see all",
    ("misconceptions.md", "xl"): "sample 2 of 2",
    ("misconceptions.md", "xlnet"): "query stream",
    ("misconceptions.md", "tasks"): "native",
    ("misconceptions.md", "prefix"): "rows see columns",
    ("misconceptions.md", "xlnet-tasks"): "native",
    ("misconceptions.zh.md", "myths"): "查询流",
    ("misconceptions.md", "elmo"): "back reads",
    ("misconceptions.md", "bart"): "decoder reads",
}


@pytest.mark.parametrize("page, name", BLOCKS)
def test_commands_show_what_the_page_says(page, name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ETYMON_LANGUAGE", "zh" if ".zh" in page else "en")
    shown = "".join(run(words, capsys) for words in commands(block(name, "sh", PAGES[page])))
    assert SHOWN[page, name] in shown


@pytest.mark.parametrize("page", ["history.md", "history.zh.md"])
def test_the_history_is_run_and_its_pictures_are_there(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ETYMON_LANGUAGE", "zh" if ".zh" in page else "en")
    text = (DOCS / page).read_text(encoding="utf-8")
    for name in re.findall(r"<!-- run: ([\w-]+) -->", text):
        for words in commands(block(name, "sh", text)):
            run(words, capsys)
            assert (tmp_path / words[-1]).stat().st_size > 1000
    pictures = re.findall(r"\]\((pictures/[\w.-]+)\)", text)
    assert len(pictures) == 10 and all((DOCS / picture).is_file() for picture in pictures)


def test_a_prefix_is_a_square_in_the_triangle(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (words,) = commands(block("prefix", "sh", PAGES["misconceptions.md"]))
    rows = [line for line in run(words, capsys).splitlines() if "■" in line]
    assert rows[0].count("■") > 1, "its first token sees others"


def test_bert_is_refused_as_a_writer(tmp_path, capsys):
    from etymon import cli
    from etymon.families.saving import save
    from tests.generation.conftest import tiny_model

    save(tiny_model("bert"), tmp_path / "bert")
    with pytest.raises(SystemExit) as leaving:
        cli.main(["generate", str(tmp_path / "bert"), "Once upon a time"])
    assert leaving.value.code == 2 and capsys.readouterr().err.count("\n") == 1
