"""`--help` as a page to work from: examples that can be typed, and options in groups."""

from __future__ import annotations

import re
import shlex

import pytest

import etymon
from etymon import cli
from etymon.verbs.help_contents import (
    CHINESE_PAGES,
    EXAMPLES,
    FIRST_EXAMPLES,
    NEEDED,
    OPTION_GROUPS,
    PAGES,
    VALUES,
    VERB_GROUPS,
    grouped_options,
)
from tests.pages import DOCS

LONGEST_EXAMPLE = 108
"""Characters: wider than that, a terminal breaks them."""


def test_every_verb_has_an_example_and_a_group():
    assert EXAMPLES.keys() == etymon.VERBS.keys() and all(EXAMPLES.values())
    names = " ".join(VERB_GROUPS.values()).split()
    assert sorted(names) == sorted(etymon.VERBS)


def test_every_verb_has_a_page_that_shows_how_to_use_it():
    assert PAGES.keys() == etymon.VERBS.keys()
    for verb, page in PAGES.items():
        assert f"etymon {verb}" in (DOCS / f"{page}.md").read_text(encoding="utf-8"), (verb, page)


def test_a_chinese_page_shows_the_verbs_that_name_it():
    named = [(verb, CHINESE_PAGES[page]) for verb, page in PAGES.items() if page in CHINESE_PAGES]
    assert {page for _, page in named} == {*CHINESE_PAGES.values()}
    for verb, page in named:
        assert f"etymon {verb}" in (DOCS / f"{page}.md").read_text(encoding="utf-8"), (verb, page)


@pytest.mark.parametrize("verb", [*EXAMPLES, None])
def test_examples_parse_and_their_values_are_allowed(verb):
    for line, purpose in FIRST_EXAMPLES if verb is None else EXAMPLES[verb]:
        words = shlex.split(line)
        assert words[0] == (verb or words[0]) and purpose and len(f"etymon {line}") <= LONGEST_EXAMPLE
        if "--help" in words:
            continue
        _, *words = cli.spread(words)
        name = shlex.split(line)[0]
        context = cli.command(name).make_context(name, words)
        given = {name: value for name, value in context.params.items() if value not in (None, ())}
        # Types, ranges and choices of all settings, as when the verb is called.
        getattr(cli.module_of(name), name).read(given)


@pytest.mark.parametrize("verb", etymon.VERBS)
def test_every_option_stands_in_one_group(verb):
    options = [option.name for option in cli.command_options(verb) if not option.is_argument] + ["help"]
    groups = grouped_options(verb, options)
    assert sorted(name for names in groups.values() for name in names) == sorted(options)
    assert next(iter(groups)) == "Options", "what everybody needs comes first"


def test_groups_name_options_that_there_are():
    names = {
        verb: {option.name.removesuffix("_") for option in cli.command_options(verb)} for verb in etymon.VERBS
    }
    for verb, words in NEEDED.items():
        assert not {*words.split()} - names[verb], verb
    grouped = [name for words in OPTION_GROUPS.values() for name in words.split()]
    assert len({*grouped}) == len(grouped) and not {*grouped} - {"help"} - {*set().union(*names.values())}


def test_values_are_named_for_options_that_there_are():
    names = {verb: {option.name for option in cli.command_options(verb)} for verb in etymon.VERBS}
    known = {each.removesuffix("_") for each in set().union(*names.values())}
    for word in " ".join(VALUES.values()).split():
        verb, _, name = word.rpartition(".")
        assert name in (names[verb] if verb else known), word


def test_values_are_shown_in_words_and_flags_that_are_off_by_one_name(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit):
        cli.main(["finetune", "--help"])
    page = capsys.readouterr().out
    for shown in ("--train FILE ...", "--text COLUMN", "--lora N", "--epochs NUMBER", "--set NAME=VALUE ..."):
        assert f"  {shown} " in page, shown
    assert not re.search(r" (INTEGER|FLOAT)\b", page)
    assert "--no-dry-run" not in page and "--verify / --no-verify" in page


def test_the_first_page_begins_with_what_to_type(capsys):
    with pytest.raises(SystemExit):
        cli.main([])
    page = capsys.readouterr().out
    assert "  etymon demo\n" in page and page.index("Examples:") < page.index("Options:") < page.index(
        "Begin:"
    )


def test_a_page_shows_examples_then_what_everybody_needs(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit):
        cli.main(["pretrain", "--help"])
    page = capsys.readouterr().out
    headings = re.findall(r"^(\S.*):$", page, re.MULTILINE)
    assert headings[:3] == ["Examples", "Positional arguments", "Options"] and len({*headings}) == len(
        headings
    )
    assert page.index("--data") < page.index("--budget BUDGET") < page.index("--layer-decay")
    for line, _ in EXAMPLES["pretrain"]:
        assert f"  etymon {line}\n" in page, "an example is never broken"
