"""The command line is made from signatures; these stand-in verbs try every kind of parameter and ending."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pytest

import etymon
from etymon import cli
from etymon.errors import EtymonError

if TYPE_CHECKING:
    from somewhere_else import Model

calls: list[dict[str, Any]] = []


def look(
    model: Annotated[str | Path | Model, "a folder"],
    texts: Annotated[list[str], "what to look at"],
    *,
    kind: Annotated[Literal["heads", "layers"], "what to show"] = "heads",
    max_depth: Annotated[int | None, "how deep"] = None,
    rate: Annotated[float, "how fast"] = 0.5,
    verbose: Annotated[bool, "say more"] = False,
    tied: Annotated[bool, "keep ties"] = True,
    layer: Annotated[Sequence[int], "one layer, repeatable"] = (),
    name: Annotated[list[str] | None, "one name, repeatable"] = None,
    out: Annotated[Path | None, "where to write"] = None,
    on_text: Callable[[str], None] | None = None,
    on_step: Callable[[int], None] | None = None,
) -> str:
    """Look inside a model.

    The second paragraph appears only in the verb's own help.
    """
    calls.append({key: value for key, value in locals().items() if not key.startswith("on_")})
    assert on_step is None
    if on_text:
        on_text("streamed")
    return "the result"


def fail_politely(reason: Annotated[str, "what to say"]) -> None:
    """Refuse."""
    if reason == "interrupt":
        raise KeyboardInterrupt
    if reason == "bug":
        raise ZeroDivisionError("our mistake")
    raise EtymonError(reason)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    looking = ModuleType("stand_in_look")
    looking.look = look
    looking.on_text = lambda piece: print(f"<{piece}>")

    def present(result: str, kind: str, json: Annotated[bool, "print JSON"] = False) -> None:
        print(f"{result} {kind} {json}")

    looking.present = present
    failing = ModuleType("stand_in_fail")
    failing.fail_politely = fail_politely
    monkeypatch.setitem(sys.modules, "stand_in_look", looking)
    monkeypatch.setitem(sys.modules, "stand_in_fail", failing)
    monkeypatch.delenv("ETYMON_DEBUG", raising=False)
    calls.clear()

    def run_command(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as exit_info:
            cli.main(arguments, {"look": "stand_in_look", "fail_politely": "stand_in_fail"})
        captured = capsys.readouterr()
        return int(exit_info.value.code or 0), captured.out, captured.err

    return run_command


def test_defaults_are_those_of_the_function(run):
    code, out, err = run("look", "folder", "one", "two")
    assert (code, err) == (0, "")
    assert out == "<streamed>\nthe result heads False\n"
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(look).parameters.items()
        if not name.startswith("on_") and parameter.default is not parameter.empty
    }
    assert calls == [{"model": "folder", "texts": ["one", "two"], **defaults, "layer": []}]


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
        "texts": ["text"],
        "kind": "layers",
        "max_depth": 3,
        "rate": 1e-3,
        "verbose": True,
        "tied": False,
        "layer": [1, 2],
        "name": ["a", "b"],
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
        cli.main(["fail-politely", "no such folder"], {"fail_politely": "stand_in_fail"})


def test_interrupt_is_quiet(run):
    assert run("fail-politely", "interrupt") == (130, "", "")


def test_bug_keeps_a_short_traceback(run):
    code, _, err = run("fail-politely", "bug")
    assert code == 1
    assert "ZeroDivisionError: our mistake" in err
    assert "in fail_politely" in err
    assert "typer" not in err


def test_version(run):
    assert run("--version") == (0, f"etymon {etymon.__version__}\n", "")


def test_inexpressible_parameter_is_refused_when_the_command_is_built():
    def verb(table: dict[str, int]) -> None: ...

    with pytest.raises(TypeError, match="table"):
        cli.adapt(verb, ModuleType("stand_in"))


def in_a_process(code: str, **options: Any) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(etymon.__file__).parents[1])}
    return subprocess.Popen(
        [sys.executable, "-c", code], env=environment, text=True, stdout=-1, stderr=subprocess.PIPE, **options
    )


def test_closed_pipe_is_quiet():
    code = """
import sys, types
from etymon import cli
module = types.ModuleType("flood")
def flood() -> None:
    "Print more than a pipe holds."
    for line in range(100_000):
        print(line)
module.flood = flood
sys.modules["flood"] = module
cli.main(["flood"], {"flood": "flood"})
"""
    process = in_a_process(code)
    assert process.stdout is not None
    assert process.stdout.readline() == "0\n"
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    assert process.wait() == 1


def test_every_registered_verb_can_be_adapted_and_has_help():
    for name, path in cli.VERBS.items():
        module = __import__(path, fromlist=[name])
        assert inspect.getdoc(getattr(module, name)), f"{name} has no docstring"
        command = cli.adapt(getattr(module, name), module)
        for parameter in inspect.signature(command).parameters.values():
            described = parameter.annotation.__metadata__[0]
            assert described.help, f"{name}: {parameter.name} has no help text"


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
    def train(
        model: Annotated[str, "what"],
        *,
        resume: Annotated[bool | Literal["auto"], "go on"] = False,
        steps: Annotated[int, "how many"] = 1,
    ) -> None:
        """Train."""
        print((model, resume, steps))

    training = ModuleType("stand_in_train")
    training.train = train
    monkeypatch.setitem(sys.modules, "stand_in_train", training)
    for line in (["gpt2", *words, "--steps", "2"], [*words, "gpt2", "--steps", "2"]):
        with pytest.raises(SystemExit) as end:
            cli.main(["train", *line], {"train": "stand_in_train"})
        assert not end.value.code and capsys.readouterr().out == f"{('gpt2', expected, 2)}\n"
    with pytest.raises(SystemExit):
        cli.main(["train", "--help"], {"train": "stand_in_train"})
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
