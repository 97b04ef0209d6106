"""`--ignore-config-key` is there wherever a model is opened, and runs remember it."""

from __future__ import annotations

import inspect
import json
from importlib import import_module
from pathlib import Path

import pytest

import etymon
from etymon import EtymonError, cli
from etymon.config import load_yaml
from etymon.families.loading import load
from etymon.families.saving import save
from etymon.runs.run_file import RunFile
from tests import tiny
from tests.verbs.small_runs import pretrain, with_test_sizes

KEY = "sliding_window"
VOCABULARY = frozenset({"vocabulary"})
MODELS = {
    "gpt2": ("gpt2", VOCABULARY),
    "bert": ("bert", VOCABULARY),
    "t5": ("t5", VOCABULARY),
    "electra": ("electra", frozenset({"replaced"})),
    "classifier": ("bert", frozenset({"classification"})),
}
TEXT = "The river crossed the letter."
RUN = "--steps 1 --batch 4 --validate-every 1 --progress silent --out OUT".split()
COMMANDS: dict[str, list[str]] = {
    "generate": ["gpt2", TEXT, "--max-new-tokens", "2"],
    "score": ["gpt2", TEXT],
    "context": ["gpt2", "--data", "TEXT", "--longest", "4", "--targets", "4"],
    "prompt": ["gpt2", "TASK", "--limit", "2"],
    "fill": ["bert", "The [MASK] crossed."],
    "embed": ["bert", TEXT, "--out", "OUT.npy"],
    "probe": ["bert", "--data", "TABLE", "--examples", "12", "--no-twin"],
    "attention": ["bert", TEXT, "--out", "OUT.html"],
    "replaced": ["electra", TEXT],
    "explain": ["bert", TEXT, "--objective", "masked"],
    "surprisal": ["gpt2", TEXT],
    "pairs": ["gpt2", "--data", "PAIRS"],
    "translate": ["t5", TEXT, "--max-new-tokens", "2"],
    "summarize": ["t5", TEXT, "--max-new-tokens", "2"],
    "predict": ["classifier", TEXT, "--task", "classify"],
    "evaluate": ["classifier", "--data", "TABLE", "--task", "classify"],
    "convert": ["gpt2", "OUT"],
    "export": ["gpt2", "--to", "torch", "--out", "OUT"],
    "push": ["gpt2", "somebody/model", "--license", "mit", "--dry-run"],
    "show": ["gpt2"],
    "pretrain": ["gpt2", "--from", "gpt2", "--data", "TEXT", "--length", "16", *RUN],
    "sweep": ["gpt2", "--from", "gpt2", "--data", "TEXT", "--length", "16", "--grid", "batch=4", "--budget", "1steps",
              "--progress", "silent", "--out", "OUT"],
    "distill": ["gpt2", "--data", "TEXT", "--length", "16", "--budget", "1steps", "--batch", "4", "--progress", "silent",
                "--out", "OUT"],
    "finetune": ["bert", "--task", "classify", "--train", "TABLE", *RUN],
}  # fmt: skip
OTHERS = {"demo", "tokenizer", "prepare", "plan", "tasks", "new"}
"""The verbs that open no model."""
ELSEWHERE = {"serve", "compare"}
"""Those that go on, or take minutes: their options are read by the same code."""


def spoil(folder: Path) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), KEY: 7}))
    return folder


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the words of a command stand for."""
    folder = tmp_path_factory.mktemp("models")
    for name, (family, heads) in MODELS.items():
        save(tiny.model(family, heads, labels=("no", "yes")), folder / name)
        spoil(folder / name)
    (folder / "text.txt").write_text("\n".join(tiny.texts()))
    rows = [f"{text},{['no', 'yes'][n % 2]}" for n, text in enumerate(tiny.texts(40))]
    (folder / "table.csv").write_text("\n".join(["text,label", *rows]))
    task = {
        "template": "{text} {label}",
        "label": "label",
        "choices": ["no", "yes"],
        "queries": str(folder / "table.csv"),
    }
    (folder / "task.yaml").write_text(json.dumps(task))
    (folder / "pairs.csv").write_text(
        "good,bad\nThe river crossed the letter.,The river letter the crossed.\n"
    )
    files = {"TEXT": "text.txt", "TABLE": "table.csv", "TASK": "task.yaml", "PAIRS": "pairs.csv"}
    return {word: str(folder / name) for word, name in {**dict(zip(MODELS, MODELS)), **files}.items()}


def test_every_verb_that_opens_a_model_has_the_option() -> None:
    having = {
        verb
        for verb in etymon.VERBS
        if "ignore_config_key"
        in inspect.signature(getattr(import_module(f"etymon.verbs.{verb}"), verb)).parameters
    }
    assert having - ELSEWHERE == COMMANDS.keys() == {*etymon.VERBS} - OTHERS - ELSEWHERE


def outcome(command: list[str]) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main(command)
    return int(ended.value.code or 0)


@pytest.mark.parametrize("verb", COMMANDS)
def test_every_verb_advises_the_option_and_takes_it(
    verb: str, places: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, *rest = COMMANDS[verb]
    # Of a verb that begins with a family, that word is no folder.
    words = [first if verb in ("pretrain", "sweep") else places[first]]
    words += [places.get(word, word.replace("OUT", str(tmp_path / "out"))) for word in rest]
    assert outcome([verb, *words]) == 2
    assert f"--ignore-config-key {KEY}" in capsys.readouterr().err
    assert outcome([verb, *words, "--ignore-config-key", KEY]) == 0, capsys.readouterr().err


def test_python_has_it_too_and_only_for_that_call(places: dict[str, str]) -> None:
    assert etymon.show(places["gpt2"], ignore_config_key=[KEY]).family == "GPT-2"
    with pytest.raises(EtymonError, match=KEY):
        etymon.show(places["gpt2"])


def test_a_run_keeps_it_and_goes_on_with_it(places: dict[str, str], tmp_path: Path) -> None:
    with with_test_sizes():
        options = {"from_": places["gpt2"], "size": None, "ignore_config_key": [KEY]}
        run = pretrain("gpt2", tmp_path / "run", steps=2, **options)
        assert load_yaml(tmp_path / "run" / "run.yaml", RunFile).ignore_config_key == (KEY,)
        assert KEY not in json.loads((run.model_folder / "config.json").read_text())
        again = etymon.pretrain("gpt2", config=tmp_path / "run" / "run.yaml", out=tmp_path / "again",
                                data=[Path(places["TEXT"])], progress="silent")  # fmt: skip
    assert load(again.model_folder).shape == run.model.shape


def test_a_resumed_run_opens_its_teacher_again(places: dict[str, str], tmp_path: Path) -> None:
    options = {
        "data": [places["TEXT"]],
        "length": 16,
        "batch": 4,
        "progress": "silent",
        "out": tmp_path / "run",
    }
    etymon.distill(places["gpt2"], budget="2steps", ignore_config_key=[KEY], **options)
    again = etymon.pretrain("gpt2", out=tmp_path / "run", resume=True, progress="silent")
    assert again.steps == 2
