"""`etymon compare`: equal budgets, decided on validation, tested once, and nothing claimed that is not sure."""

from __future__ import annotations

import errno
import json
import os
import pickle
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import etymon
from etymon import cli, plugins
from etymon.config import load_yaml
from etymon.errors import EtymonError
from etymon.executors import LocalExecutor
from etymon.lab import compare as comparing
from etymon.lab import compare_jobs
from etymon.lab.compare_jobs import KILLED
from etymon.lab.compare_plan import count_kept, read_arms, round_shares, split_name
from etymon.lab.compare_results import Compared
from etymon.lab.compare_text import read_passages, read_task
from etymon.lab.sweep_jobs import RunEnd, RunTrainer
from etymon.runs.run_file import RunFile
from etymon.settings.reading import EncodingSettings
from etymon.verbs import compare as verb
from tests import tiny
from tests.conftest import forget_plugins
from tests.lab.small_comparisons import compare, small_comparisons, write_pairs, write_table, write_text
from tests.plugins.files import REVERSE, write

ARMS = ["gpt2", "fast=gpt2@learning_rate=0.01", "bert", "roberta"]


@pytest.fixture(scope="module", autouse=True)
def sizes() -> Iterator[None]:
    with small_comparisons():
        yield


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def compared(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Compared:
    return compare(ARMS, tmp_path_factory.mktemp("story") / "out", text)


@pytest.fixture(scope="module")
def with_task(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Compared:
    folder = tmp_path_factory.mktemp("task")
    return compare(
        ["gpt2", "bert", "t5"],
        folder / "out",
        text,
        tasks=[write_table(folder)],
        pairs=[write_pairs(folder)],
        task_budget="12steps",
        order=3,
    )


@pytest.fixture
def own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In a folder for plugins, which are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(plugins.NAMED, "")
    forget_plugins()
    yield
    forget_plugins()


def test_bits_are_ranked_within_a_kind_and_never_across(compared: Compared) -> None:
    groups = {result.criterion.group: set(result.scores) for result in compared.primary}
    assert groups["likelihood"] == {"gpt2", "fast"}
    kinds = [result.criterion.name for result in compared.primary]
    assert kinds.count("bits per byte") == 1 and set(kinds) == {"bits per byte", "pseudo bits per byte"}
    assert not any({"gpt2", "bert"} <= set(result.scores) for result in compared.results)
    page = compared.report.read_text(encoding="utf-8")
    assert "not ranked against each other" in page.replace("\n", " ")


def test_all_arms_have_the_same_budget_text_and_test(compared: Compared) -> None:
    folder = compared.folder
    finals = sorted((folder / "runs").glob("*/seed-*"))
    assert {path.name for path in finals} == {"seed-1", "seed-2", "seed-3"}
    tokens = {entry.arm: entry.cost["tokens"] for entry in compared.entries if entry.round == 0}
    assert max(tokens.values()) < 1.2 * min(tokens.values())
    for path in finals:
        file = load_yaml(path / "run.yaml", RunFile)
        assert file.data == (str(folder / "text" / "train.jsonl"),) and file.budget == "1.5ktokens"
        assert file.seed == int(path.name[-1])
        for part in ("validation", "test"):
            assert (path / f"scores-{part}.json").is_file()
    # Rounds have seen the validation part alone.
    assert not list((folder / "runs").glob("*/round-*/scores-test.json"))
    parts = {
        part: set(read_passages(folder / "text" / f"{part}.jsonl"))
        for part in ("train", "validation", "test")
    }
    assert not parts["train"] & parts["test"] and not parts["validation"] & parts["test"]
    assert not parts["train"] & parts["validation"], "copies of a text are in one part"


def test_the_results_say_what_is_sure_and_what_it_cost(compared: Compared) -> None:
    results = json.loads((compared.folder / "results.json").read_text(encoding="utf-8"))
    by_group = {criterion["group"]: criterion for criterion in results["criteria"]}
    causal = by_group["likelihood"]
    (difference,) = causal["differences"]
    scores = causal["scores"]
    means = {name: np.mean(each["by_seed"]) for name, each in scores.items()}
    assert difference["value"] == pytest.approx(means[difference["first"]] - means[difference["second"]])
    assert difference["low"] < difference["value"] < difference["high"]
    assert causal["leader"] == min(means, key=lambda name: means[name])
    assert causal["winner"] in (None, causal["leader"])
    # Ten times the rate learns much more of so little text.
    assert causal["leader"] == "fast" and all(len(each["by_seed"]) == 3 for each in scores.values())
    for name in scores:
        low, high = scores[name]["interval"]
        assert low < means[name] < high
    assert set(causal["baselines"]) == {"xz", "5-grams, Kneser-Ney"}
    counts = causal["baselines"]["5-grams, Kneser-Ney"]
    for name, mixed in causal["mixed_with_ngrams"].items():
        assert mixed <= counts + 0.05 and mixed < means[name], "the better of both, or better than both"
    for run in results["runs"]:
        assert all(run["cost"][axis] > 0 for axis in ("operations", "words", "tokens", "time"))
    page = compared.report.read_text(encoding="utf-8")
    for axis in ("operations", "words", "tokens", "time"):
        assert f"Validation by {axis} (likelihood)" in page
    assert "http://" not in page.replace("http://www.w3.org", "") and "<script src" not in page
    assert "Kneser-Ney" in (compared.folder / "table.md").read_text(encoding="utf-8")
    latex = (compared.folder / "table.tex").read_text(encoding="utf-8")
    assert (
        r"\begin{tabular}" in latex
        and latex.count(r"\\") == len((compared.folder / "table.md").open().readlines()) - 1
    )


def test_the_command_for_the_winner_trains_it_with_ten_times_the_budget(
    compared: Compared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = compared.primary[0]
    command = shlex.split(compared.continue_command(result.leader))
    assert command[0] == "etymon"
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        cli.main([*command[1:], "--progress", "silent"])
    assert end.value.code == 0
    out = Path(command[command.index("--out") + 1])
    before = load_yaml(compared.folder / "runs" / "fast" / "seed-1" / "run.yaml", RunFile)
    after = load_yaml(out / "run.yaml", RunFile)
    assert after.training is not None and before.training is not None
    assert after.training.steps == pytest.approx(10 * before.training.steps, rel=0.1)
    assert after.learning_rate == before.learning_rate == 0.01 and (out / "model" / "config.json").is_file()


def test_a_finished_comparison_is_only_written_again(
    compared: Compared, capsys: pytest.CaptureFixture[str]
) -> None:
    times = {path: path.stat().st_mtime_ns for path in (compared.folder / "runs").rglob("*")}
    again = compare(ARMS, compared.folder, None, resume=True)
    assert {path: path.stat().st_mtime_ns for path in (compared.folder / "runs").rglob("*")} == times
    assert again.record()["criteria"] == compared.record()["criteria"]
    options: Any = None
    verb.present(again, options)
    shown = capsys.readouterr().out
    assert "wins at this budget" in shown or "No winner at this budget" in shown
    assert "fast with ten times the budget:" in shown
    with pytest.raises(EtymonError, match="began with seeds 3, not 4"):
        compare(ARMS, compared.folder, None, resume=True, seeds=4)
    with pytest.raises(EtymonError, match="began with the arms gpt2"):
        compare(["gpt2", "bert"], compared.folder, None, resume=True)
    with pytest.raises(EtymonError, match="holds a comparison already"):
        compare(ARMS, compared.folder, None)


def test_tasks_decide_across_kinds_beside_their_baselines(with_task: Compared) -> None:
    (primary,) = with_task.primary
    assert primary.criterion.name == "accuracy, reviews" and not primary.criterion.falls
    assert set(primary.baselines) == {"majority", "tf-idf + logistic regression"}
    rows = len(
        (with_task.folder / "tasks" / "reviews" / "test.jsonl").read_text(encoding="utf-8").splitlines()
    )
    for scores in primary.scores.values():
        assert scores.values_SM.shape == (3, rows) and set(np.unique(scores.values_SM)) <= {0.0, 100.0}
    (pairs,) = [result for result in with_task.results if result.criterion.kind == "pairs"]
    assert not pairs.criterion.is_primary and set(pairs.scores) == set(primary.scores)
    for scores in pairs.scores.values():
        assert scores.values_SM.shape == (3, 12) and set(np.unique(scores.values_SM)) <= {0.0, 50.0, 100.0}
    # Two of three go on, whatever they are; the third had no test.
    assert len(primary.scores) == 2
    out = ({"gpt2", "bert", "t5"} - set(primary.scores)).pop()
    assert not list((with_task.folder / "runs" / out).glob("seed-*"))
    assert "round 1" in (with_task.folder / "table.md").read_text(encoding="utf-8")


SUITE = """
parts:
  - {name: order, kind: pairs, data: [pairs.csv]}
  - {name: kind, kind: probe, data: [kinds.txt]}
  - {name: prose, kind: text, data: [prose.txt]}
"""


def write_suite(folder: Path) -> Path:
    """A file of parts with its data beside it; `kinds.txt` is also a probe of its own."""
    texts = [text.split(". ")[0] for text in tiny.texts(60)]
    splits = ["tr"] * 30 + ["va"] * 12 + ["te"] * 18
    lines = [f"{split}\t{'AB'[n % 2]}\t{text}" for n, (split, text) in enumerate(zip(splits, texts))]
    (folder / "kinds.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "prose.txt").write_text(". ".join(texts[:5]), encoding="utf-8")
    write_pairs(folder)
    (folder / "suite.yaml").write_text(SUITE, encoding="utf-8")
    return folder / "suite.yaml"


def test_probes_decide_a_suite_is_opened_at_the_end_and_sizes_are_chosen_once(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sklearn")
    suite = write_suite(tmp_path)
    asked: dict[str, Any] = {
        "probes": [tmp_path / "kinds.txt"], "suite": str(suite), "order": 0, "size": "auto", "vocabulary": 300,
        "budget": "400tokens", "length": 16, "batch": 4,
    }  # fmt: skip
    compared = compare(["gpt2", "bert"], tmp_path / "out", text, **asked)
    assert [result.criterion.name for result in compared.primary] == ["accuracy, probes"]
    names = {result.criterion.name: result for result in compared.results}
    assert {"mean over the suite", "order", "kind"} <= names.keys()
    assert set(names["mean over the suite"].scores) == {"gpt2", "bert"}
    # Bits of a part are never ranked across kinds.
    prose = [result for result in compared.results if result.criterion.name == "bits per byte, prose"]
    assert sorted(name for result in prose for name in result.scores) == ["bert", "gpt2"] and len(prose) == 2
    # A published suite has nothing to validate on: no round has seen it.
    rounds = [json.loads(path.read_text()) for path in (tmp_path / "out").rglob("scores-validation.json")]
    assert rounds and not any("suite" in scores for scores in rounds)
    finals = [json.loads(path.read_text()) for path in (tmp_path / "out").rglob("scores-test.json")]
    assert len(finals) == 6 and all(set(scores["suite"]) == {"order", "kind", "prose"} for scores in finals)
    # Sizes are those of the final's budget, in every run and when it goes on.
    files = [load_yaml(path, RunFile) for path in (tmp_path / "out" / "runs").glob("gpt2/*/run.yaml")]
    assert len({json.dumps(file.sizing, sort_keys=True) for file in files}) == 1 and files[0].sizing["shape"]
    page = compared.report.read_text(encoding="utf-8")
    assert "What --size auto chose" in page and "mean over the suite" in page
    assert "--size auto" in compared.continue_command(compared.primary[0].leader)
    monkeypatch.setattr(comparing, "choose_size", lambda *_, **__: pytest.fail("it was chosen before"))
    again = compare(["gpt2", "bert"], tmp_path / "out", None, **{**asked, "resume": True})
    assert again.record()["criteria"] == compared.record()["criteria"]


@pytest.mark.cluster
def test_a_comparison_on_a_real_cluster_ends(tmp_path: Path) -> None:
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        with small_comparisons(in_this_process=False):
            compared = etymon.compare(
                ["gpt2", "fast=gpt2@learning_rate=0.01"],
                data=[write_text(tmp_path)],
                documents="line",
                budget="600tokens",
                length=16,
                batch=4,
                vocabulary=300,
                order=0,
                validation=0.15,
                test=0.15,
                set=["shape.dim=32", "shape.layers=1", "shape.heads=2"],
                out=tmp_path / "out",
                on="ray",
                progress="silent",
            )
        assert len(compared.primary[0].scores) == 2 and compared.report.is_file()
        assert len(list((tmp_path / "out" / "runs").glob("*/seed-*/scores-test.json"))) == 6
    finally:
        ray.shutdown()


def test_an_arm_that_fails_is_out_and_the_others_go_on(text: Path, tmp_path: Path, own_files: None) -> None:
    write("back.py", REVERSE)
    write(
        "bad.py",
        REVERSE.replace("Reverse", "Bad")
        .replace('"reverse"', '"bad"')
        .replace("return", "1 / 0\n        return"),
    )
    arms = ["gpt2", "back=gpt2@back.py:Reverse", "bad=gpt2@bad.py:Bad", "worse=gpt2@learning_rate=1e30"]
    compared = compare(arms, tmp_path / "out", text)
    reasons = {arm.name: arm.reason for arm in compared.failed}
    assert set(reasons) == {"bad", "worse"}
    assert reasons["bad"].startswith("ZeroDivisionError: division by zero (bad.py:")
    assert "is not finite: lower the learning rate" in reasons["worse"]
    assert "Traceback" in (tmp_path / "out" / "runs" / "bad" / "round-1.error.txt").read_text(
        encoding="utf-8"
    )
    assert set(compared.primary[0].scores) == {"gpt2", "back"}
    page = compared.report.read_text(encoding="utf-8")
    assert "Arms that failed" in page and "division by zero" in page
    # An objective of the user's is in the table like any other, and is known again.
    results = json.loads((tmp_path / "out" / "results.json").read_text(encoding="utf-8"))
    assert [arm["objective"] for arm in results["arms"] if arm["name"] == "back"] == ["reverse"]
    compare(arms, tmp_path / "out", None, resume=True)
    write("back.py", REVERSE + "\n# another\n")
    with pytest.raises(EtymonError, match=r"back.py is not as it was .* say --changed-plugins"):
        compare(arms, tmp_path / "out", None, resume=True)
    compare(arms, tmp_path / "out", None, resume=True, changed_plugins=True)


def test_a_full_disk_is_no_fault_of_an_arm(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full, plain = [True], compare_jobs.score_run

    def score(job: Any) -> Any:
        if full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return plain(job)

    monkeypatch.setattr(compare_jobs, "score_run", score)
    with pytest.raises(
        EtymonError, match="make room, then go on with: etymon compare gpt2 fast=gpt2"
    ) as error:
        compare(["gpt2", "fast=gpt2@learning_rate=0.01"], tmp_path / "out", text)
    assert "No space left" in str(error.value)
    full.clear()
    compared = compare(["gpt2", "fast=gpt2@learning_rate=0.01"], tmp_path / "out", None, resume=True)
    assert not compared.failed and len(compared.primary[0].scores) == 2


def test_trials_are_equal_and_the_best_goes_on(text: Path, tmp_path: Path) -> None:
    compared = compare(["gpt2", "gptj"], tmp_path / "out", text, trials=2, order=0)
    for arm in compared.arms:
        tried = [entry for entry in compared.entries if entry.arm == arm.name and entry.round == 1]
        rates = [load_yaml(entry.folder / "run.yaml", RunFile).learning_rate for entry in tried]
        assert rates == [arm.rate, 2 * arm.rate]
        final = load_yaml(compared.folder / "runs" / arm.folder / "seed-1" / "run.yaml", RunFile)
        (kept,) = [entry for entry in tried if not entry.is_dropped]
        assert final.learning_rate == rates[kept.trial]
    assert set(compared.primary[0].baselines) == {"xz"}


def test_a_learning_rate_that_fails_costs_an_arm_that_trial_alone(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = RunTrainer.__call__

    def train(self: RunTrainer, job: Any) -> RunEnd:
        # All rates of one arm, and the first and the second of the other.
        number = int(job.folder.name.rpartition("-")[2]) if "trial" in job.folder.name else 1
        if "round-1" in job.folder.name and (job.file.family == "gptj" or number < 3):
            return RunEnd(reason="the loss is not finite", diverged=True)
        return plain(self, job)

    monkeypatch.setattr(RunTrainer, "__call__", train)
    arms = ["gpt2", "gptj"]
    compared = compare(arms, tmp_path / "out", text, trials=3, order=0)
    assert [(arm.name, arm.reason) for arm in compared.failed] == [("gptj", "the loss is not finite")]
    (arm,) = [arm for arm in compared.arms if not arm.reason]
    assert [*arm.lost] == [0, 1] and arm.file.learning_rate == 0.5 * arm.rate
    final = load_yaml(compared.folder / "runs" / arm.folder / "seed-1" / "run.yaml", RunFile)
    assert final.learning_rate == arm.file.learning_rate
    # What failed is not tried again.
    monkeypatch.setattr(RunTrainer, "__call__", lambda self, job: pytest.fail(str(job.folder)))
    compare(arms, tmp_path / "out", None, resume=True)


def test_tables_and_pairs_are_read_in_their_encoding_now_and_on_resume(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [f"这家店的{'服务' if n % 2 else '早餐'}第{n}次,{'好' if n % 2 else '差'}" for n in range(60)]
    (tmp_path / "评论.csv").write_bytes("\n".join(["评论,评价", *rows]).encode("gb18030"))
    task = tmp_path / "情感.yaml"
    settings = {"train": str(tmp_path / "评论.csv"), "options": {"text": "评论", "label": "评价"}}
    task.write_text(json.dumps(settings | {"encoding": "gb18030"}), encoding="utf-8")
    how = EncodingSettings()
    table, read = read_task(str(task), tmp_path / "tasks", how)
    assert read.rows[1] == {"评论": "这家店的服务第1次", "评价": "好"} and "encoding" not in table.settings
    task.write_text(json.dumps(settings), encoding="utf-8")
    chinese = EncodingSettings(encoding="gb18030")
    assert read_task(str(task), tmp_path / "tasks", chinese)[1].rows == read.rows
    with pytest.raises(EtymonError, match="it reads as gb18030"):
        compare(["gpt2", "bert"], tmp_path / "out", text, tasks=[task])
    # The text of the tests is ASCII, which GB18030 has as well.
    pairs = tmp_path / "句对.csv"
    lines = [f"第{n}家店很好。,很好第{n}家店。" for n in range(12)]
    pairs.write_bytes("\n".join(["good,bad", *lines]).encode("gb18030"))
    monkeypatch.setattr(comparing.Tournament, "_compete", lambda tournament: signal.SIGTERM)
    given: dict[str, Any] = {"tasks": [task], "pairs": [pairs]}
    compare(["gpt2", "bert"], tmp_path / "out", text, **given, encoding="gb18030")
    assert "第0家店很好。" in (tmp_path / "out" / "pairs" / "validation.jsonl").read_text(encoding="utf-8")
    assert "这家店的服务" in (tmp_path / "out" / "tasks" / "情感" / "train.jsonl").read_text(encoding="utf-8")
    compare(["gpt2", "bert"], tmp_path / "out", None, **given, resume=True)


def test_times_become_steps_once_an_arm(text: Path, tmp_path: Path) -> None:
    compared = compare(["gpt2", "gptj"], tmp_path / "out", text, budget="0.4s", order=0)
    for arm in compared.arms:
        files = {
            path.parent.name: load_yaml(path, RunFile)
            for path in (compared.folder / "runs" / arm.folder).glob("*/run.yaml")
        }
        first = files.pop("round-1")
        assert first.budget == "0.2s" and first.training is not None
        assert {file.budget for file in files.values()} == {f"{2 * first.training.steps}steps"}


def test_a_worker_that_is_killed_takes_one_arm_with_it(text: Path, tmp_path: Path) -> None:
    """With real workers: the second is killed in the middle, and another one does the rest."""

    class KilledOnce(compare_jobs.IsolatedExecutor):
        def _submit(self, job: Any) -> Any:
            future = super()._submit(job)
            if "victim" in job.folder.parent.name and self.pool is not None:
                (process,) = self.pool._processes.values()
                os.kill(process.pid, signal.SIGKILL)
            return future

    shape = "shape.dim=16,shape.layers=1,shape.heads=2,vocabulary=300"
    arms = [f"one=gpt2@{shape}", f"victim=gpt2@{shape},warmup=0.2", f"two=gpt2@{shape},learning_rate=0.01"]
    with small_comparisons(in_this_process=False), pytest.MonkeyPatch.context() as patch:
        patch.setattr(compare_jobs, "IsolatedExecutor", KilledOnce)
        patch.setattr(comparing, "open_arm_executor", compare_jobs.open_arm_executor)
        compared = compare(arms, tmp_path / "out", text, size="pocket", order=0, budget="600tokens")
    assert [(arm.name, arm.reason) for arm in compared.failed] == [("victim", KILLED)]
    assert set(compared.primary[0].scores) == {"one", "two"}


@pytest.mark.parametrize(
    ("arms", "changes", "message"),
    [
        (["gpt2"], {}, "name two arms or more"),
        (["gpt2", "gpt7"], {}, "there is no family 'gpt7'"),
        (["gpt2", "gpt2"], {}, "gpt2 is named twice"),
        (["gpt2", "bert@causal"], {}, "causal"),
        (["gpt2", "bert@shape.colour=3"], {}, "colour"),
        (["gpt2", "t5"], {}, "nothing compares t5 with others"),
        (["gpt2", "bert"], {"budget": "100steps"}, "steps do not cost all arms the same"),
        (["gpt2", "bert"], {"tasks": ["nowhere.csv"]}, "no such file: nowhere.csv"),
        (["gpt2", "bert"], {"data": ["nowhere.txt"]}, "no such file or folder: nowhere.txt"),
        (["gpt2", "bert"], {"data": None}, "no text to train on"),
        (["gpt2", "bert"], {"set": ["documents=line"]}, "give --documents"),
        (["gpt2", "bert"], {"trials": 9}, "7 trials at most"),
        (["gpt2", "bert"], {"resume": True}, "no comparison in"),
        (["gpt2", "bert"], {"suite": "nosuch"}, "there is no suite 'nosuch'"),
        (["gpt2", "bert"], {"suite_data": "here"}, "say --suite NAME"),
        (["gpt2", "bert"], {"probes": ["nowhere.txt"]}, "nowhere.txt"),
    ],
)  # fmt: skip
def test_mistakes_are_named_before_anything_is_written(
    arms: list[str], changes: dict[str, Any], message: str, text: Path, tmp_path: Path
) -> None:
    with pytest.raises(EtymonError, match=message) as error:
        compare(arms, tmp_path / "out", text, **changes)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


def test_empty_texts_and_tables_without_columns_leave_nothing(text: Path, tmp_path: Path) -> None:
    empty, table = tmp_path / "empty.txt", tmp_path / "table.csv"
    empty.write_text("too little\n", encoding="utf-8")
    table.write_text("sentence,label\nOne.,a\n", encoding="utf-8")
    with pytest.raises(EtymonError, match="too little text"):
        compare(["gpt2", "bert"], tmp_path / "out", empty)
    with pytest.raises(EtymonError, match="no column 'text'"):
        compare(["gpt2", "bert"], tmp_path / "out", text, tasks=[table])
    table.write_text(
        "text,label\n" + "".join(f"Row {n}.,{'ab'[n % 2]}\n" for n in range(9)), encoding="utf-8"
    )
    with pytest.raises(EtymonError, match="9 rows, of which"):
        compare(["gpt2", "bert"], tmp_path / "out", text, tasks=[table])
    assert not (tmp_path / "out").exists()


def test_arms_share_a_tokenizer_only_where_each_would_train_the_same(tmp_path: Path) -> None:
    specs = [
        "bart",
        "bart@learning_rate=0.01",
        "bart@span-corruption",
        "bart@sentinels=9",
        "bart@normalise=nfc",
    ]
    arms = read_arms(specs, {"size": "pocket"}, (), tmp_path, lambda name, file: file)
    keys = [arm.text_key for arm in arms]
    assert keys[0] == keys[1] and len(set(map(str, keys))) == 4


def test_rounds_halve_the_arms_and_double_the_budget() -> None:
    assert round_shares(2, 2) == [0.5] and round_shares(16, 2) == [0.125, 0.25, 0.5]
    assert [count_kept(number, 2) for number in (1, 2, 3, 6, 7)] == [1, 2, 2, 3, 4]
    assert split_name("mine=bert@my.py:Mine") == ("mine", "bert@my.py:Mine")
    assert split_name("bert@options.density=0.2") == ("bert@options.density=0.2",) * 2
    assert split_name("arms/mine.yaml") == ("mine", "arms/mine.yaml")


def test_words_behind_an_option_are_its_own_and_not_arms() -> None:
    line = "compare gpt2 bert --data a.txt b.txt --tasks a.csv b.csv --seeds 3"
    expected = "compare gpt2 bert --data a.txt --data b.txt --tasks a.csv --tasks b.csv --seeds 3"
    assert cli.spread(line.split()) == expected.split()
    assert "compare" in etymon.VERBS


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked here")
def test_a_comparison_that_is_killed_in_every_part_of_it_ends_the_same(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(root)}
    command = [sys.executable, "-m", "tests.lab.compare_crashes", str(tmp_path)]
    done = subprocess.run(
        command, cwd=root, env=environment, text=True, capture_output=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    happened = json.loads(done.stdout.splitlines()[-1])
    assert happened["straight"] == happened["finished"] == 0 and set(happened["killed"]) == {-9}
    straight, crashed = (
        json.loads((tmp_path / name / "results.json").read_text(encoding="utf-8"))
        for name in ("straight", "crashed")
    )
    assert crashed["criteria"] == straight["criteria"], "every score, to the last digit"
    for one, other in zip(straight["runs"], crashed["runs"], strict=True):
        assert one["validation"] == other["validation"]
        # The clock runs on while a process is dead.
        assert {**one["cost"], "time": 0} == {**other["cost"], "time": 0}
    assert list((tmp_path / "crashed").rglob("*.partial")) == []


def test_on_a_cluster_jobs_go_through_its_executor(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an executor of this process in Ray's place: jobs are what its workers get, by pickle."""
    asked = []

    class Cluster(LocalExecutor):
        def run(self, make: Any, arguments: Any, jobs: Any, **options: Any) -> Any:
            return super().run(make, arguments, (pickle.loads(pickle.dumps(job)) for job in jobs), **options)

    @contextmanager
    def open_cluster(on: str, *rest: Any) -> Iterator[Cluster]:
        asked.append((on, *rest))
        yield Cluster(1)

    monkeypatch.setattr(compare_jobs, "open_executor", open_cluster)
    monkeypatch.setattr(comparing, "open_arm_executor", compare_jobs.open_arm_executor)
    compared = compare(["gpt2", "fast=gpt2@learning_rate=0.01"], tmp_path / "out", text, on="ray", order=0)
    assert asked == [("ray", None, 1, 0)] and len(compared.primary[0].scores) == 2
