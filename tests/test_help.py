"""`--help` as a page to work from: examples that can be typed, and options in groups."""

from __future__ import annotations

import re
import shlex

import pytest

import etymon
from etymon import cli
from etymon.verbs.help_contents import EXAMPLES, NEEDED, OPTION_GROUPS, VERB_GROUPS, grouped_options

LONGEST_EXAMPLE = 108
"""Characters: wider than that, a terminal breaks them."""


def test_every_verb_has_an_example_and_a_group():
    assert EXAMPLES.keys() == etymon.VERBS.keys() and all(EXAMPLES.values())
    names = " ".join(VERB_GROUPS.values()).split()
    assert sorted(names) == sorted(etymon.VERBS)


@pytest.mark.parametrize("verb", EXAMPLES)
def test_examples_parse_and_their_values_are_allowed(verb):
    for line, purpose in EXAMPLES[verb]:
        words = shlex.split(line)
        assert words[0] == verb and purpose and len(f"etymon {line}") <= LONGEST_EXAMPLE
        _, *words = cli.spread(words)
        context = cli.command(verb).make_context(verb, words)
        given = {name: value for name, value in context.params.items() if value not in (None, ())}
        # Types, ranges and choices of all settings, as when the verb is called.
        getattr(cli.module_of(verb), verb).read(given)


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


def test_a_page_shows_examples_then_what_everybody_needs(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit):
        cli.main(["pretrain", "--help"])
    page = capsys.readouterr().out
    headings = re.findall(r"^(\S.*):$", page, re.MULTILINE)
    assert headings[:3] == ["Examples", "Positional arguments", "Options"] and len({*headings}) == len(
        headings
    )
    assert page.index("--data") < page.index("--budget TEXT") < page.index("--layer-decay")
    for line, _ in EXAMPLES["pretrain"]:
        assert f"  etymon {line}\n" in page, "an example is never broken"
