"""One mechanism for everything with a name: what is built in, registered, named as a file, or installed."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import etymon
from etymon import plugin_settings, plugins, registry
from etymon.errors import EtymonError
from etymon.registry import LOGGERS, MASKING, METRICS, OBJECTIVES, SCHEDULES, TABLES, TOKENIZERS, load_plugin
from tests.plugins.files import EVERY_THIRD, FAMILY, REVERSE, TASK, write


def test_every_built_in_name_stands_for_something() -> None:
    for table in TABLES.values():
        for name in () if table is METRICS else table:
            if table is not LOGGERS or name == "tensorboard":
                assert table[name] is not None, (table.kind, name)
            assert table.kind in ("masking", "tokenizer", "optimiser", "schedule") or table[name].__module__
        if table.home:
            module, _, name = table.home.partition(":")
            assert list(getattr(__import__(module, fromlist=[name]), name)) == list(table), table.kind
        assert len(table) == len(table.places) and list(table) == list(table.places)


def test_metrics_of_tasks_are_reserved() -> None:
    from etymon.registry import TASKS

    named = {metric for task in TASKS.values() for metric in task.metrics}
    assert named | {"loss"} <= set(METRICS.places)


def test_help_and_registering_load_no_torch() -> None:
    program = "import etymon, sys; etymon.register('masking', print, name='mine'); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(etymon.__file__).parents[1])


def test_a_program_registers_by_call_and_by_decorator() -> None:
    @etymon.register("schedule")
    def half_way(step: float, steps: int, choice: Any) -> float:
        return 0.5

    class Kept(OBJECTIVES["causal"]):  # type: ignore[misc]
        name = "kept"

    assert etymon.register("objective", Kept) is Kept
    assert SCHEDULES["half-way"] is half_way and OBJECTIVES.find("kept") is Kept
    assert "half-way" in list(SCHEDULES) and "kept" not in OBJECTIVES.places
    (record,) = plugin_settings.records_in({"objective": "causal=0.5,kept=0.5", "text": "half-way"})
    assert (record.kind, record.name, record.source) == ("objective", "kept", __name__)
    assert record.digest == plugins.digest_of(Path(__file__))
    # A cell of a notebook that is run again replaces what it registered.
    etymon.register("objective", Kept)


@pytest.mark.parametrize(
    ("kind", "text", "reference", "name"),
    [
        ("objective", REVERSE, "Reverse", "reverse"),
        ("family", FAMILY, "FAMILY", "gpt-mine"),
        ("task", TASK, "Mood", "mood"),
        ("masking", EVERY_THIRD, "every_third", "every-third"),
        ("metric", "def words(predictions, references):\n    return 1.0\n", "words", "words"),
        ("tokenizer", "def mine(texts, size, specials):\n    return None\n", "mine", "mine"),
        ("schedule", "def mine(step, steps, choice):\n    return 1.0\n", "mine", "mine"),
        ("optimiser", "import torch\n\nclass mine(torch.optim.SGD):\n    pass\n", "mine", "mine"),
        (
            "logger",
            "from etymon.training.loggers import Logger\n\nclass Mine(Logger):\n    name = 'mine'\n"
            "    def start(self, folder, settings, step): ...\n    def log(self, step, metrics): ...\n"
            "    def finish(self): ...\n",
            "Mine",
            "mine",
        ),
    ],
)
def test_a_file_gives_its_object_by_reference_and_by_name(
    kind: str, text: str, reference: str, name: str
) -> None:
    write("some/mine.py", text)
    assert plugin_settings.resolve(kind, f"some/mine.py:{reference}") == name
    assert TABLES[kind].find(name) is getattr(load_plugin("some/mine.py"), reference)
    # Without the reference, by the file alone.
    registry.registered_plugins.clear()
    assert name in TABLES[kind] and TABLES[kind].find(name) is getattr(load_plugin("some/mine.py"), reference)
    assert plugin_settings.record_of(kind, name) == plugins.PluginRecord(
        kind, name, "some/mine.py", plugins.digest_of(Path("some/mine.py"))
    )
    assert not list(Path("some").glob("__pycache__")), "nothing is left beside a user's file"


def test_names_stay_names_and_mixtures_are_resolved_part_by_part() -> None:
    write("mine.py", REVERSE)
    for text in (
        "masked",
        "gpt2",
        "bert:pocket",
        "org/tokenizer",
        "https://example.org/a.txt",
        "C:",
        "a.b.c",
    ):
        assert plugin_settings.resolve("objective", text) == text
    assert (
        plugin_settings.resolve_setting("objective", "causal=0.5,mine.py:Reverse=0.5")
        == "causal=0.5,reverse=0.5"
    )
    assert plugin_settings.resolve_setting("data", "mine.py:Reverse") == "mine.py:Reverse"
    assert plugin_settings.resolve_override("objective=causal,mine.py:Reverse") == "objective=causal,reverse"
    assert plugin_settings.resolve_override("shape.layers=2") == "shape.layers=2"


def test_folders_are_packages_and_files_of_one_name_are_two_plugins() -> None:
    write("pack/__init__.py", "from .inner import Reverse\n")
    write("pack/inner.py", REVERSE)
    write("a/mine.py", REVERSE.replace('"reverse"', '"first"'))
    write("b/mine.py", REVERSE.replace('"reverse"', '"second"'))
    for source in ("pack/", "a/mine.py", "b/mine.py"):
        load_plugin(source)
    assert {OBJECTIVES.find(name).__name__ for name in ("reverse", "first", "second")} == {"Reverse"}
    before = plugins.digest_of(Path("pack"))
    write("pack/inner.py", REVERSE + "\n")
    assert plugins.digest_of(Path("pack")) != before


def test_a_changed_file_is_opened_anew() -> None:
    write("mine.py", REVERSE)
    load_plugin("mine.py")
    first = OBJECTIVES.find("reverse")
    assert load_plugin("mine.py") and OBJECTIVES.find("reverse") is first
    write("mine.py", REVERSE.replace("Text from its end", "TEXT FROM ITS END"))  # as long, in the same second
    plugin_settings.resolve("objective", "mine.py:Reverse")
    assert OBJECTIVES.find("reverse").__doc__ == "TEXT FROM ITS END."


def test_the_environment_and_the_users_config_name_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    write("one.py", REVERSE)
    write("config/etymon/two.py", EVERY_THIRD)
    write("config/etymon/config.yaml", "plugins: [two.py]\n")
    monkeypatch.setenv(plugins.NAMED, os.pathsep.join(["one.py", ""]))
    assert "reverse" in OBJECTIVES and "every-third" in MASKING
    write("config/etymon/config.yaml", "plugin: two.py\n")
    with pytest.raises(EtymonError, match="holds one key, plugins"):
        plugins.named_plugins()


class Entry(importlib.metadata.EntryPoint):
    """As `entry_points` gives them, of a package that is not installed."""

    dist = type("Distribution", (), {"name": "etymon-extra"})()


def test_installed_packages_declare_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    write("site/installed_extra.py", REVERSE)
    monkeypatch.syspath_prepend("site")
    declared = {
        "etymon.objectives": [
            Entry("reverse", "installed_extra:Reverse", "etymon.objectives"),
            Entry("gone", "installed_extra:Gone", "etymon.objectives"),
            Entry("twice", "installed_extra:Reverse", "etymon.objectives"),
            Entry("twice", "another:Reverse", "etymon.objectives"),
        ]
    }
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: declared.get(group, []))
    assert "installed_extra" not in sys.modules and "causal" in OBJECTIVES
    assert OBJECTIVES.find("reverse").__name__ == "Reverse"
    assert plugin_settings.record_of("objective", "reverse").source == "etymon-extra"  # type: ignore[union-attr]
    with pytest.raises(
        EtymonError, match="'gone' of the package etymon-extra cannot be imported: AttributeError"
    ):
        OBJECTIVES.find("gone")
    with pytest.raises(EtymonError, match="both install the objective 'twice'"):
        OBJECTIVES.find("twice")
    with pytest.raises(EtymonError, match="did you mean 'reverse'"):
        OBJECTIVES.find("revers")


BAD = [
    ("import nothing_like_that\n", "mine.py:X", r"cannot be imported: ModuleNotFoundError.*\(line 1\)"),
    ("\n\nraise ValueError('no')\n", "mine.py:X", r"cannot be imported: ValueError, no \(line 3\)"),
    ("def f(:\n", "mine.py:X", r"cannot be imported: SyntaxError.*line 1"),
    ("import sys\nsys.exit(3)\n", "mine.py:X", r"cannot be imported: SystemExit, 3 \(line 2\)"),
    ("import helper\n", "mine.py:X", r"ModuleNotFoundError.*a folder with an __init__.py"),
    (REVERSE, "mine.py:Revers", r"the plugin mine.py has no Revers: it has Reverse"),
    (
        REVERSE,
        "gone.py:Reverse",
        r"there is no plugin gone.py \(looked for in .*\): give the path of its file",
    ),
    (REVERSE, "there/:Reverse", r"there is no plugin there/"),
    (REVERSE, "no_such.module:Reverse", r"there is no plugin module 'no_such.module' here: install it"),
    (
        REVERSE.replace('"reverse"', '"causal"'),
        "mine.py:Reverse",
        r"has the name of the built-in objective 'causal'",
    ),
    (
        REVERSE.replace('    name = "reverse"\n', ""),
        "mine.py:Reverse",
        r"has the name of the built-in objective",
    ),
    (
        REVERSE.replace('"reverse"', '"a,b=c"'),
        "mine.py:Reverse",
        r"needs a name of letters, digits and hyphens",
    ),
]


@pytest.mark.parametrize(("text", "reference", "message"), BAD)
def test_what_cannot_be_opened_is_one_line(text: str, reference: str, message: str) -> None:
    write("mine.py", text)
    write("helper.py", "")
    with pytest.raises(EtymonError, match=message) as raised:
        plugin_settings.resolve("objective", reference)
    assert "\n" not in str(raised.value)
    assert not registry.registered_plugins, "nothing of it is left"


def test_a_class_that_lacks_a_method_is_refused_with_its_name() -> None:
    text = "from etymon.objectives.objective import Objective\n\nclass Mine(Objective):\n    name = 'mine'\n"
    write(
        "mine.py",
        text
        + "    heads = requires = frozenset()\n    def plan(self, split, seed, epoch, *, shuffle=True): ...\n",
    )
    plugin_settings.resolve("objective", "mine.py:Mine")
    with pytest.raises(
        EtymonError, match=r"'mine' of mine.py lacks prepare, collate, loss: add that to its class"
    ):
        OBJECTIVES.find("mine")
    write("task.py", "from etymon.tasks.task import Task\n\nclass Mine(Task):\n    name = 'mine'\n")
    plugin_settings.resolve("task", "task.py:Mine")
    with pytest.raises(
        EtymonError, match=r"the task 'mine' of task.py lacks Options, metrics, fit, bind, encode"
    ):
        TABLES["task"].find("mine")
    write("family.py", "FAMILY = 3\n")
    with pytest.raises(EtymonError, match="needs a name"):
        plugin_settings.resolve("family", "family.py:FAMILY")
    write("masks.py", "every = 'third'\n")
    with pytest.raises(EtymonError, match="needs a name"):
        plugin_settings.resolve("masking", "masks.py:every")
    etymon.register("masking", 7, name="seven")
    with pytest.raises(EtymonError, match=r"'seven' of .* is no function, but int"):
        MASKING.find("seven")


def test_two_plugins_of_one_name_are_refused() -> None:
    write("a.py", REVERSE)
    write("b.py", REVERSE)
    plugin_settings.resolve("objective", "a.py:Reverse")
    with pytest.raises(EtymonError, match=r"b.py and a.py both have"):
        plugin_settings.resolve("objective", "b.py:Reverse")
    with pytest.raises(EtymonError, match="there is no kind of plugin 'objectiv'"):
        etymon.register("objectiv", print)


def test_a_tokenizer_that_gives_none_is_refused() -> None:
    from etymon.text.tokenizer_training import train_tokenizer

    write("mine.py", "def mine(texts, size, specials):\n    return 3\n")
    plugin_settings.resolve("tokenizer", "mine.py:mine")
    assert "mine" in TOKENIZERS
    with pytest.raises(EtymonError, match="'mine' gives int: it has to be a Tokenizer"):
        train_tokenizer("mine", ["a"], 10, specials={"unknown": "<unk>"})
