"""`etymon sweep`: cells are ordinary runs on one text, ranked where they can be compared, and nothing is done twice."""

from __future__ import annotations

import json
import os
import shlex
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import etymon
from etymon import cli
from etymon.config import load_yaml
from etymon.errors import EtymonError
from etymon.lab import sweep as sweeping
from etymon.lab.sweep import Swept
from etymon.runs.run_file import RunFile
from etymon.text.sources import Texts
from etymon.text.store import TokenStore
from etymon.text.tokenizer import Tokenizer
from etymon.training.state import RunFolder
from etymon.verbs import sweep as verb
from etymon.verbs.sweep import SweepOptions
from tests import tiny
from tests.verbs.pretraining.conftest import at_step  # noqa: F401
from tests.verbs.small_runs import metrics, pretrain, with_test_sizes

SETTINGS = ["batch=8", "length=32", "validation=0.2", "validate_every=2", "save_every=2"]


@pytest.fixture(scope="module", autouse=True)
def sizes() -> Iterator[None]:
    with with_test_sizes():
        yield


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("text") / "text.txt"
    file.write_text("\n".join(tiny.texts()), encoding="utf-8")
    return file


def sweep(family: str, out: Path, text: Path, **changes: Any) -> Swept:
    arguments: dict[str, Any] = {
        "data": [text], "size": "test", "budget": "4steps", "out": out, "progress": "silent",
        "grid": ["learning_rate=1e-3,5e-3"], "set": [*SETTINGS, "documents=line", *changes.pop("also", ())],
    }  # fmt: skip
    return etymon.sweep(family, **{**arguments, **changes})


def names(swept: Swept) -> list[list[str]]:
    return [[cell.name for cell in ranking.cells] for ranking in swept.rankings]


def test_cells_are_ordinary_runs_on_one_text(text: Path, tmp_path: Path) -> None:
    swept = sweep(
        "gpt2", tmp_path / "sweep", text, grid={"learning_rate": [1e-3, 5e-3], "warmup": [0.5]}, seeds=2
    )
    assert swept.runs == swept.done == 4 and swept.exit_code == 0 and not swept.failed
    (ranking,) = swept.rankings
    assert ranking.unit == "bits per byte" and ranking.shared == ""
    folders = {path.name for path in (tmp_path / "sweep").iterdir() if path.is_dir()}
    assert folders == {
        f"learning_rate={rate},warmup=0.5,seed={seed}" for rate in (0.001, 0.005) for seed in (0, 1)
    }
    # The same as the runs alone: the first seed's split serves them all.
    for cell in ranking.cells:
        assert cell.settings["warmup"] == 0.5
        for run in cell.runs:
            file = load_yaml(swept.folder / run.folder / "run.yaml", RunFile)
            assert (file.learning_rate, file.seed) == (cell.settings["learning_rate"], run.seed)
            assert file.data == (str(text),) and file.text == str(text)
            last = [
                each for each in metrics(swept.folder / run.folder) if "validation_bits_per_byte" in each
            ][-1]
            assert run.figures is not None and run.steps == last["step"] == 4
            assert run.figures["bits_per_byte"] == last["validation_bits_per_byte"]
    assert [cell.mean for cell in ranking.cells] == sorted(cell.mean for cell in ranking.cells)
    first = swept.folder / "learning_rate=0.001,warmup=0.5,seed=0"
    stores = {TokenStore.open(swept.folder / name / "store").folder for name in folders}
    assert stores == {first / "store"}, "prepared once"
    alone = pretrain(
        "gpt2", tmp_path / "alone", data=[text], steps=4, documents="line", learning_rate=1e-3, warmup=0.5,
        slices=1, save_every=2, validate_every=2,
    )  # fmt: skip
    assert metrics(alone.folder) == metrics(first)
    best, cells = ranking.cells[0], {cell.name: cell for cell in ranking.cells}
    a, b = (cells["learning_rate=0.001,warmup=0.5"].figures[i] for i in (0, 1))
    assert cells["learning_rate=0.001,warmup=0.5"].mean == pytest.approx((a + b) / 2)
    assert cells["learning_rate=0.001,warmup=0.5"].spread == pytest.approx(abs(a - b) / 2**0.5)
    # It is written down, drawn, and the winner can be repeated.
    note = json.loads((swept.folder / "sweep.json").read_text(encoding="utf-8"))
    assert note["rankings"][0]["cells"][0] == [best.name, best.mean, best.spread]
    assert note["grid"] == [["learning_rate", [1e-3, 5e-3]], ["warmup", [0.5]]] and note["seeds"] == 2
    page = swept.report.read_text(encoding="utf-8")
    assert all(cell.name in page for cell in ranking.cells) and page.count("<svg") == 1
    words = shlex.split(ranking.repeat)
    assert words[:3] == ["etymon", "pretrain", "gpt2"] and words[words.index("--budget") + 1] == "40steps"
    again = etymon.pretrain(
        "gpt2", config=Path(words[words.index("--config") + 1]), budget="5steps", out=tmp_path / "best", progress="silent"
    )  # fmt: skip
    assert (
        again.steps == 5
        and load_yaml(again.folder / "run.yaml", RunFile).learning_rate == best.settings["learning_rate"]
    )


def test_only_what_can_be_compared_is(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    swept = sweep(
        "bert", tmp_path / "targets", text, grid=["options.density=0.15,0.3", "learning_rate=1e-3,5e-3"],
        also=["objective=masked"], budget="2steps",
    )  # fmt: skip
    assert [ranking.shared for ranking in swept.rankings] == ["options.density=0.15", "options.density=0.3"]
    assert [ranking.unit for ranking in swept.rankings] == ["bits per target"] * 2
    assert [sorted(each) for each in names(swept)] == [
        [f"density={density},learning_rate={rate}" for rate in (0.001, 0.005)] for density in (0.15, 0.3)
    ]
    verb.present(swept, SweepOptions(family="gpt2"))
    shown = capsys.readouterr().out
    assert "validation bits per target (options.density=0.15), the best first:" in shown
    assert "cannot be compared" in shown and "runs/targets-best-2" in shown
    # Bytes are bytes, whatever the tokens; each tokenizer has its own text.
    swept = sweep("gpt2", tmp_path / "bytes", text, grid=["vocabulary=300,400"], budget="2steps")
    assert [sorted(each) for each in names(swept)] == [["vocabulary=300", "vocabulary=400"]]
    assert {TokenStore.open(swept.folder / f"vocabulary={size}" / "store").folder.parent.name for size in (300, 400)} == {
        "vocabulary=300", "vocabulary=400",
    }  # fmt: skip
    assert load_yaml(swept.folder / "vocabulary=300" / "run.yaml", RunFile).vocabulary == 300
    # What follows a prefix is not the whole text.
    swept = sweep("gpt2", tmp_path / "prefix", text, grid=["objective=causal,prefix"], budget="2steps")
    assert len(swept.rankings) == 2 and {ranking.unit for ranking in swept.rankings} == {"bits per byte"}
    swept = sweep("t5", tmp_path / "tokens", text, grid=["vocabulary=150,160"], budget="2steps")
    assert len(swept.rankings) == 2, "bits per target of different tokens"


def test_cells_share_a_tokenizer_only_where_each_would_train_the_same(text: Path, tmp_path: Path) -> None:
    for family, grid, counts in (
        ("bart", "objective=denoising,span-corruption", [0, 100]),
        ("t5", "sentinels=10,20", [10, 20]),
    ):
        swept = sweep(family, tmp_path / family, text, grid=[grid], budget="1step")
        assert swept.done == 2 and not swept.failed
        tokenizers = [Tokenizer.load(place) for place in sorted(swept.folder.glob("*/tokenizer"))]
        assert [len(tokenizer.sentinels) for tokenizer in tokenizers] == counts
    swept = sweep("bert", tmp_path / "forms", text, grid=["normalise=nfc,nfkc"], budget="1step")
    assert swept.done == 2 and not swept.failed


def test_a_run_whose_patience_ends_is_a_run(text: Path, tmp_path: Path) -> None:
    swept = sweep(
        "gpt2", tmp_path / "sweep", text, grid=["learning_rate=1e-3,30"], budget="12steps",
        also=["patience=1", "validate_every=1", "optimiser=adamw"],
    )  # fmt: skip
    (ranking,) = swept.rankings
    assert swept.done == 2 and not swept.failed and min(cell.runs[0].steps for cell in ranking.cells) < 12


def test_a_cell_that_diverges_comes_last(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "sweep"
    swept = sweep("gpt2", out, text, grid=["learning_rate=1e30,1e-3"], also=["optimiser=adamw"])
    assert names(swept) == [["learning_rate=0.001"]] and [cell.name for cell in swept.failed] == [
        "learning_rate=1e+30"
    ]
    assert "is not finite: lower the learning rate" in swept.failed[0].reason and swept.done == 2
    verb.present(swept, SweepOptions(family="gpt2"))
    shown = capsys.readouterr().out
    assert shown.index("learning_rate=0.001") < shown.index("-  learning_rate=1e+30: the ")
    assert "is not finite" in swept.report.read_text(encoding="utf-8")
    # It is not tried again: it would diverge again.
    monkeypatch.setattr(sweeping.Sweep, "_make_job", None)
    again = sweep("gpt2", out, text, resume=True, grid=[])
    assert again.failed == swept.failed and again.rankings == swept.rankings


def test_ctrl_c_and_on(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], at_step: Callable[..., None],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    expected = sweep("gpt2", tmp_path / "straight", text)
    at_step(3, lambda: os.kill(os.getpid(), signal.SIGINT))
    words = [
        "sweep", "gpt2", "--data", str(text), "--size", "test", "--budget", "4steps", "--progress", "plain",
        "--grid", "learning_rate=1e-3,5e-3", *(part for each in SETTINGS for part in ("--set", each)),
        "--set", "documents=line", "--out", str(tmp_path / "sweep"),
    ]  # fmt: skip

    def run(words: list[str]) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            cli.main(words)
        shown = capsys.readouterr()
        return int(left.value.code or 0), shown.out, shown.err

    code, out, err = run(words)
    assert code == 130 and "2 runs of 4steps each" in err and "run 1 of 2: learning_rate=0.001" in err
    on = f"etymon sweep gpt2 --out {tmp_path / 'sweep'} --resume"
    assert f"stopped after 0 of 2 runs; go on with: {on}" in out
    assert RunFolder(tmp_path / "sweep" / "learning_rate=0.001").checkpoints() == [2, 3]
    code, _, err = run(words)
    assert code == 2 and "holds a sweep already: go on with --resume" in err
    code, out, err = run(shlex.split(on)[1:])
    assert code == 0 and "the best one with ten times the budget" in out
    for name in ("learning_rate=0.001", "learning_rate=0.005"):
        assert metrics(tmp_path / "sweep" / name) == metrics(tmp_path / "straight" / name), "exactly"
    # What is finished is read, not run; and a sweep may be told again what it began with, but nothing else.
    monkeypatch.setattr(sweeping.Sweep, "_make_job", None)
    again = sweep("gpt2", tmp_path / "sweep", text, resume="auto")
    assert names(again) == names(expected) and again.rankings[0].cells == expected.rankings[0].cells
    for changes in ({"grid": ["learning_rate=1"]}, {"seeds": 2}, {"budget": "5steps"}):
        with pytest.raises(
            EtymonError, match=r"began with another .*: leave that out, or give another --out"
        ):
            sweep("gpt2", tmp_path / "sweep", text, resume=True, **changes)


def test_a_sweep_goes_on_from_a_model_with_more_words(
    text: Path,
    tmp_path: Path,
    at_step: Callable[..., None],  # noqa: F811
) -> None:
    start = pretrain("gpt2", tmp_path / "start", steps=2)
    size = start.model.shape.vocabulary + 20
    (tmp_path / "new.txt").write_text("zyxo zyxo qwu zyxoqwu\n" * 200, encoding="utf-8")
    at_step(1, lambda: os.kill(os.getpid(), signal.SIGINT))
    stopped = sweep(
        "gpt2", tmp_path / "sweep", text, data=[tmp_path / "new.txt"], from_=start.model_folder, size=None,
        also=[f"vocabulary={size}", "length=null"], budget="2steps",
    )  # fmt: skip
    assert stopped.done == 0
    swept = etymon.sweep("gpt2", out=stopped.folder, resume=True, progress="silent")
    assert swept.done == 2
    for cell in swept.rankings[0].cells:
        model = etymon.load(swept.folder / cell.name)
        assert model.shape.vocabulary > start.model.shape.vocabulary and "grown" in model.history[-1]


def test_a_time_is_the_same_number_of_steps_where_it_costs_the_same(text: Path, tmp_path: Path) -> None:
    swept = sweep(
        "gpt2", tmp_path / "sweep", text, grid=["learning_rate=1e-3,5e-3", "batch=4,8"], budget="0.3s",
        also=["save_every=1000", "validate_every=1000"],
    )  # fmt: skip
    for batch in (4, 8):
        settings = [
            load_yaml(swept.folder / run.folder / "run.yaml", RunFile).training
            for cell in swept.rankings[0].cells if cell.settings["batch"] == batch for run in cell.runs
        ]  # fmt: skip
        assert len(settings) == 2
        assert len({(each.steps, each.validate_every) for each in settings if each is not None}) == 1
    assert " --budget 3s " in swept.rankings[0].repeat
    # Validations were chosen by the sweep for its few steps: a longer run chooses its own.
    assert "validate_every=null" not in swept.rankings[0].repeat
    chosen = sweep("gpt2", tmp_path / "chosen", text, budget="0.3s", also=["validate_every=null"])
    assert " --set validate_every=null " in chosen.rankings[0].repeat


def test_texts_of_a_program(text: Path, tmp_path: Path) -> None:
    swept = sweep("gpt2", tmp_path / "sweep", text, data=Texts(tiny.texts()), budget="2steps")
    assert swept.done == 2 and " --data ... " in swept.rankings[0].repeat


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"grid": []}, "there is nothing to compare: give --grid"),
        ({"grid": ["learning_rate"]}, "cannot read the grid 'learning_rate': write it as key=value,value"),
        ({"grid": ["learning_rat=1,2"]}, "unknown key 'learning_rat'.*did you mean 'learning_rate'"),
        ({"grid": ["learning_rate=fast,slow"]}, "learning_rate is \"fast\", expected a valid number"),
        ({"grid": ["options.densty=0.1,0.2"]}, "unknown key 'densty'"),
        ({"grid": ["shape.layer=1,2"]}, "unknown key 'layer'.*did you mean 'layers'"),
        ({"grid": ["batch=4,4"]}, r"needs different values for batch, and it has \[4, 4\]"),
        ({"grid": ["batch=4", "batch=5"]}, "names batch twice"),
        ({"grid": ["batch="]}, "needs different values for batch"),
        ({"grid": ["budget=4steps,8steps"]}, "budget cannot be swept: it is the same for all cells"),
        ({"grid": ["training.steps=1,2"]}, "training.steps cannot be swept"),
        ({"grid": ["seed=1,2"], "seeds": 2}, "or sweep over seed, not both"),
        ({"grid": ["batch=4,-1"]}, "batch is -1, expected at least 1"),
        ({"grid": ["length=16,65"]}, "samples of 65 tokens do not fit GPT-2 test"),
        ({"also": ["validation=0"]}, "without held-out text nothing can be ranked"),
        ({"data": None}, "there is no text to train on"),
        ({"data": ["nowhere.txt"]}, "nowhere.txt"),
        ({"resume": True}, "there is no sweep in .* to resume"),
    ],
)  # fmt: skip
def test_mistakes_are_named_before_anything_is_written(
    changes: dict[str, Any], reason: str, text: Path, tmp_path: Path
) -> None:
    family = "bert" if "densty" in str(changes) else "gpt2"
    with pytest.raises(EtymonError, match=reason) as error:
        sweep(family, tmp_path / "sweep", text, **changes)
    assert "\n" not in str(error.value) and not (tmp_path / "sweep").exists()


def test_neither_torchrun_nor_a_folder_of_something_else(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(EtymonError, match="holds something else"):
        sweep("gpt2", tmp_path, text)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(EtymonError, match="a sweep runs in one process: start it without torchrun"):
        sweep("gpt2", tmp_path / "sweep", text)
