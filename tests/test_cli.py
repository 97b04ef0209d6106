"""The command line is made from declarations; these stand-in verbs try every kind of option and ending."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import pytest

import etymon
from etymon import cli
from etymon.errors import EtymonError
from etymon.families import REGISTRY as FAMILIES
from etymon.settings import JsonOptions, ModelLike, Notify, Words, argument, option, settings
from etymon.tasks import REGISTRY as TASKS
from etymon.verbs.verb import verb

calls: list[dict[str, Any]] = []


@settings
class LookOptions(JsonOptions):
    model: ModelLike = argument("a folder")
    texts: Words = argument("what to look at")
    kind: Literal["heads", "layers"] = option("heads", "what to show")
    max_depth: int | None = option(None, "how deep")
    rate: float = option(0.5, "how fast")
    verbose: bool = option(False, "say more")
    tied: bool = option(True, "keep ties")
    layer: tuple[int, ...] = option((), "one layer, repeatable")
    name: tuple[str, ...] | None = option(None, "one name, repeatable")
    out: Path | None = option(None, "where to write")
    on_text: Notify | None = option(None, "is told texts", seen_by="python")
    on_step: Callable[[int], None] | None = option(None, "is told steps", seen_by="python")


@verb(LookOptions)
def look(options: LookOptions) -> str:
    """The second paragraph appears only in the verb's own help."""
    given = {name: value for name, value in asdict(options).items() if not name.startswith("on_")}
    calls.append({name: value for name, value in given.items() if name != "json"})
    assert options.on_step is None
    if options.on_text:
        options.on_text("streamed")
    return "the result"


@settings
class FailOptions:
    reason: str = argument("what to say")


@verb(FailOptions)
def fail_politely(options: FailOptions) -> None:
    """No details."""
    if options.reason == "interrupt":
        raise KeyboardInterrupt
    if options.reason == "bug":
        raise ZeroDivisionError("our mistake")
    raise EtymonError(options.reason)


VERBS = {"look": "Look inside a model.", "fail_politely": "Refuse."}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    looking: Any = ModuleType("stand_in_look")
    looking.look = look
    looking.on_text = lambda piece: print(f"<{piece}>")

    def present(result: str, options: LookOptions) -> None:
        print(f"{result} {options.kind} {options.json}")

    looking.present = present
    failing: Any = ModuleType("stand_in_fail")
    failing.fail_politely = fail_politely
    monkeypatch.setitem(sys.modules, "etymon.verbs.look", looking)
    monkeypatch.setitem(sys.modules, "etymon.verbs.fail_politely", failing)
    monkeypatch.delenv("ETYMON_DEBUG", raising=False)
    calls.clear()

    def run_command(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as exit_info:
            cli.main(arguments, VERBS)
        captured = capsys.readouterr()
        return int(exit_info.value.code or 0), captured.out, captured.err

    return run_command


def test_defaults_are_those_of_the_declaration(run):
    code, out, err = run("look", "folder", "one", "two")
    assert (code, err) == (0, "")
    assert out == "<streamed>\nthe result heads False\n"
    defaults = asdict(LookOptions(model="folder", texts=("one", "two")))
    assert calls == [{name: value for name, value in defaults.items() if name in calls[0]}]


def test_every_kind_of_option(run):
    code, out, _ = run(
        *[
            "look",
            "--kind",
            "layers",
            "--max-depth",
            "3",
            "--rate",
            "1e-3",
            "--verbose",
            "--no-tied",
            "--layer",
            "1",
            "--layer",
            "2",
        ],
        *["--name", "a", "--name", "b", "--out", "some/where", "--json", "folder", "text"],
    )
    assert code == 0
    assert out.endswith("the result layers True\n")
    assert calls[0] == {
        "model": "folder",
        "texts": ("text",),
        "kind": "layers",
        "max_depth": 3,
        "rate": 1e-3,
        "verbose": True,
        "tied": False,
        "layer": (1, 2),
        "name": ("a", "b"),
        "out": Path("some/where"),
    }


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "folder --train a b --metric f1 accuracy",
            "folder --train a --train b --metric f1 --metric accuracy",
        ),
        ("folder --train=a b --seed -1", "folder --train=a --train b --seed -1"),
        (
            "--batch 8 --no-baselines folder --train a b",
            "--batch 8 --no-baselines folder --train a --train b",
        ),
        ("--train a folder --seeds 3 5", "--train a folder --seeds 3 --seeds 5"),
        ("--train a --train b -- folder", "--train a --train b -- folder"),
        ("folder --resume", "folder --resume=yes"),
        ("--resume folder --train a b", "--resume=yes folder --train a --train b"),
        ("folder --resume auto --seeds 3 5", "folder --resume auto --seeds 3 --seeds 5"),
        ("--resume=auto folder", "--resume=auto folder"),
        ("folder --no-resume", "folder --resume=no"),
        ("--out --resume folder", "--out --resume folder"),
    ],
)
def test_words_behind_an_option_are_its_own_once_the_arguments_are_there(line, expected):
    assert cli.spread(["finetune", *line.split()]) == ["finetune", *expected.split()]


def test_help_lists_verbs_and_options(run):
    code, out, _ = run("--help")
    assert code == 0
    assert "Look inside a model." in out
    assert "fail-politely" in out
    assert "second paragraph" not in out
    code, out, _ = run("look", "--help")
    assert code == 0
    for expected in ("second paragraph", "--max-depth", "how deep", "--no-tied", "heads", "layers", "--json"):
        assert expected in out
    assert "--on-text" not in out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["lok"], "look"),
        (["look", "folder", "text", "--kin", "heads"], "--kind"),
        (["look", "folder", "text", "--kind", "neither"], "layers"),
        (["look", "folder", "text", "--max-depth", "deep"], "--max-depth"),
        (["look", "folder"], "texts"),
    ],
)
def test_usage_mistakes_are_explained(run, arguments, expected):
    code, out, err = run(*arguments)
    assert code == 2
    assert expected in err.lower()
    assert "Traceback" not in err
    assert (out, calls) == ("", [])


def test_user_mistake_is_one_line(run, monkeypatch):
    code, out, err = run("fail-politely", "no such folder")
    assert (code, out, err) == (2, "", "etymon: error: no such folder\n")
    monkeypatch.setenv("ETYMON_DEBUG", "1")
    with pytest.raises(EtymonError):
        cli.main(["fail-politely", "no such folder"], VERBS)


def test_interrupt_is_quiet(run):
    assert run("fail-politely", "interrupt") == (130, "", "")


def test_bug_keeps_a_short_traceback(run):
    code, _, err = run("fail-politely", "bug")
    assert code == 1
    assert "ZeroDivisionError: our mistake" in err
    assert "in fail_politely" in err
    assert "click" not in err


def test_version(run):
    assert run("--version") == (0, f"etymon {etymon.__version__}\n", "")


def test_what_no_command_line_can_express_is_left_to_programs(run):
    @settings
    class TableOptions:
        table: dict[str, int] = option(dict, "numbers by name")

    @verb(TableOptions)
    def tabulate(options: TableOptions) -> None: ...

    assert [option.kind for option in tabulate.options] == [None]


def in_a_process(code: str, **options: Any) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(etymon.__file__).parents[1])}
    return subprocess.Popen(
        [sys.executable, "-c", code], env=environment, text=True, stdout=-1, stderr=subprocess.PIPE, **options
    )


def test_closed_pipe_is_quiet():
    code = """
import sys, types
from etymon import cli
from etymon.settings import settings
from etymon.verbs.verb import verb
module = types.ModuleType("flood")
@settings
class FloodOptions:
    pass
@verb(FloodOptions)
def flood(options) -> None:
    "No details."
    for line in range(100_000):
        print(line)
module.flood = flood
sys.modules["etymon.verbs.flood"] = module
cli.main(["flood"], {"flood": "Print more than a pipe holds."})
"""
    process = in_a_process(code)
    assert process.stdout is not None
    assert process.stdout.readline() == "0\n"
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    assert process.wait() == 1


def test_every_verb_has_a_command_with_help_for_every_option():
    for name, summary in etymon.VERBS.items():
        command = cli.command(name)
        assert command.help and command.help.startswith(summary)
        for parameter in command.params:
            assert getattr(parameter, "help", ""), f"{name}: {parameter.name} has no help text"


def test_help_lists_every_family_and_every_task():
    for name, parameter_name, table in (("pretrain", "family", FAMILIES), ("finetune", "task", TASKS)):
        parameter: Any = next(each for each in cli.command(name).params if each.name == parameter_name)
        assert ", ".join(table) in parameter.help


def test_mistakes_in_a_command_line_are_one_line(run):
    for line in (
        ["lok"],
        ["look", "folder"],
        ["look", "a", "b", "--kin", "c"],
        ["look", "a", "b", "--kind", "c"],
    ):
        code, out, err = run(*line)
        assert (code, out) == (2, "") and err.startswith("etymon: error: ") and err.count("\n") == 1
        assert "--help" in err


def test_a_table_may_be_several_files_where_texts_may_be_arguments():
    given = ["predict", "folder", "--data", "a.csv", "b.csv", "--choices", "one", "two"]
    assert cli.spread(given) == [
        *["predict", "folder", "--data", "a.csv", "--data", "b.csv", "--choices", "one", "--choices", "two"]
    ]
    for line in (
        "score folder --target mat -- text --target it", "score folder --target mat text", "score folder --target mat -",
        "generate folder one --stop x two", "generate folder one --report page --data a b", "context one --data a two",
    ):  # fmt: skip
        assert cli.spread(line.split()) == line.split(), "texts and models stay what they are"


def test_help_imports_nothing_heavy():
    code = """
import sys
from etymon import cli
try:
    cli.main(["--help"])
except SystemExit as leaving:
    heavy = {"torch", "numpy", "transformers", "tokenizers", "pydantic", "rich", "matplotlib", "pyarrow"}
    print("heavy:", sorted(heavy & set(sys.modules)))
    sys.exit(leaving.code)
"""
    out, err = in_a_process(code).communicate()
    assert err == ""
    assert "pretrain" in out
    assert out.endswith("heavy: []\n")


@pytest.mark.parametrize(
    ("words", "expected"),
    [([], False), (["--resume"], True), (["--resume", "auto"], "auto"), (["--no-resume"], False)],
)
def test_a_flag_may_have_a_value(words, expected, monkeypatch, capsys):
    @settings
    class TrainingOptions:
        model: str = argument("what")
        resume: bool | Literal["auto"] = option(False, "go on")
        steps: int = option(1, "how many")

    @verb(TrainingOptions)
    def train(options: TrainingOptions) -> None:
        """No details."""
        print((options.model, options.resume, options.steps))

    training: Any = ModuleType("stand_in_train")
    training.train = train
    monkeypatch.setitem(sys.modules, "etymon.verbs.train", training)
    for line in (["gpt2", *words, "--steps", "2"], [*words, "gpt2", "--steps", "2"]):
        with pytest.raises(SystemExit) as end:
            cli.main(["train", *line], {"train": "Train."})
        assert not end.value.code and capsys.readouterr().out == f"{('gpt2', expected, 2)}\n"
    with pytest.raises(SystemExit):
        cli.main(["train", "--help"], {"train": "Train."})
    assert "--resume [auto]" in capsys.readouterr().out


@pytest.mark.parametrize("value", ["inf", "-inf", "nan", "1e309"])
def test_infinite_numbers_are_refused_for_any_option(run, value):
    assert run("look", "here", "text", f"--rate={value}") == (
        2, "", f"etymon: error: --rate is {float(value)}: expected a finite number, and a whole one of at most 64 bits\n",
    )  # fmt: skip


def test_whole_numbers_fit_into_64_bits_in_any_option(run):
    code, _, err = run("look", "here", "text", "--layer", "1", "--layer", "99999999999999999999")
    assert code == 2 and err.startswith("etymon: error: --layer is 99999999999999999999: expected")


@pytest.mark.parametrize(
    "line",
    [["show", "{}"], ["score", "{}", "a"], ["prepare", "--data", "{}", "--tokenizer", "x", "--out", "y"]],
)
def test_a_name_of_3000_characters_is_a_mistake_like_any_other(line, capsys):
    name = "a" * 3000
    with pytest.raises(SystemExit) as leaving:
        cli.main([word.replace("{}", name) for word in line])
    err = capsys.readouterr().err
    assert (
        leaving.value.code == 2
        and err.startswith("etymon: error: ")
        and err.count("\n") == 1
        and len(err) < 1200
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["finetune", "m", "--data", "t.csv"], "No such option '--data': here it is --train"),
        (["pretrain", "bert", "--train", "t.txt"], "No such option '--train': here it is --data"),
        (["tokenizer", "--vocabulary", "400"], "No such option '--vocabulary': here it is --size"),
        (
            ["pretrain", "bert", "--learning_rate", "1"],
            "No such option '--learning_rate': here it is --learning-rate",
        ),
        (["pretrain", "bert", "--epochs", "3"], "No such option '--epochs': here it is --budget 3epochs"),
        (["generate", "--model", "m"], "the model comes first"),
        (["pretrain", "bert", "--buget", "1m"], "No such option '--buget'. Did you mean --budget?"),
        (["pretrain", "bert", "--xyzzy", "1m"], "No such option '--xyzzy' (see"),
        (["pretrain", "bert", "my.txt"], "(my.txt): files are given with --data"),
        (["pretrain", "bert", "no-such-file.txt"], "Got unexpected extra argument (no-such-file.txt) (see"),
    ],
)
def test_a_wrong_option_is_answered_with_the_right_one(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.txt").write_text("A text.")
    with pytest.raises(SystemExit) as leaving:
        cli.main(arguments)
    error = capsys.readouterr().err
    assert leaving.value.code == 2 and message in error and error.count("\n") == 1, error
