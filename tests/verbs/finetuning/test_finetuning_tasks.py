"""Fine-tuning for tasks, from a table to answers: what is learnt, kept, resumed, reported and written."""

from __future__ import annotations

import csv
import json
import os
import random
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
import yaml

import etymon
from etymon.errors import EtymonError
from etymon.families.loading import build
from etymon.families.saving import save
from etymon.runs import seeds
from etymon.runs.folder import Job
from etymon.runs.result import Finetuned
from etymon.runs.task_file import TaskFile
from etymon.runs.validation import TaskRows
from etymon.sampling.examples import Examples
from etymon.tables.table import read_table
from etymon.text.sources import Texts
from etymon.training.state import RunFolder
from etymon.verbs.finetune import FinetuneOptions, present
from tests import tiny
from tests.verbs.small_runs import metrics, pretrain, with_test_sizes

Command = Callable[..., tuple[int, str, str]]


def rows(count: int, seed: int = 0) -> list[dict[str, str]]:
    """Texts that are as good or bad as a word in them says."""
    draw = random.Random(seed)
    found = []
    for number in range(count):
        label = ("bad", "good")[number % 2]
        words = [draw.choice(tiny.NOUNS) for _ in range(draw.randint(2, 9))]
        words.insert(draw.randint(0, len(words)), label)
        found.append({"text": " ".join(words), "label": label})
    return found


TRAIN, TEST = rows(160), rows(40, seed=1)


@pytest.fixture(autouse=True, scope="module")
def small() -> Iterator[None]:
    with with_test_sizes():
        yield


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a run that has hardly been pretrained."""
    made: dict[str, Path] = {}

    def path(family: str) -> Path:
        if family not in made:
            made[family] = tmp_path_factory.mktemp("start") / family
            pretrain(family, made[family], steps=2, validate_every=2)
        return made[family]

    return path


def finetune(model: str | Path, out: Path, **changes: Any) -> Finetuned:
    scratch = {"from_scratch": True, "size": "test", "vocabulary": 300} if isinstance(model, str) else {}
    arguments: dict[str, Any] = {
        "task": "classify", "train": TRAIN, "validation": TEST, "out": out, "steps": 4, "batch": 16, "validate_every": 4,
        "learning_rate": 2e-3, "progress": "silent", "length": 32, "baselines": False, **scratch,
    }  # fmt: skip
    return etymon.finetune(model, **{**arguments, **changes})


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> Finetuned:
    """A classifier that has learnt the rule."""
    out = tmp_path_factory.mktemp("learnt") / "run"
    return finetune("bert", out, steps=80, validate_every=20, baselines=True)


def same_weights(one: Any, two: Any) -> bool:
    others = two.stored_tensors()
    return all(torch.equal(tensor, others[name]) for name, tensor in one.stored_tensors().items())


# ------------------------------------------------------------ learning


def test_a_rule_is_learnt_from_scratch(learnt: Finetuned) -> None:
    assert learnt.metrics["accuracy"] > 90
    with pytest.raises(EtymonError, match="resamples is -1, expected at least 0"):
        etymon.evaluate(learnt.folder, data=TEST, resamples=-1)
    found = etymon.evaluate(learnt.folder, data=TEST, metric=["accuracy", "matthews"], resamples=50)
    assert found.scores["accuracy"].value == learnt.metrics["accuracy"]
    assert found.scores["accuracy"].value == learnt.scores["accuracy"].value
    told = etymon.predict(learnt.folder, ["the good river", "a bad winter morning"])
    assert [one.prediction for one in told] == ["good", "bad"]
    assert all(sum(one.answer["probabilities"].values()) == pytest.approx(1, abs=1e-5) for one in told)
    entry = etymon.load(learnt.folder).history[-1]
    assert entry["task"]["labels"] == ["bad", "good"] and entry["objective"] == "classify"


@pytest.mark.parametrize(
    ("family", "task"),
    [("gpt1", "classify"), ("t5", "classify"), ("t5", "regress"), ("bart", "choose")],
)
def test_other_families_and_tasks_go_all_the_way(family: str, task: str, tmp_path: Path) -> None:
    given: list[dict[str, Any]] = [dict(row) for row in TRAIN[:40]]
    if task == "regress":
        given = [{**row, "label": len(row["text"].split())} for row in given]
    if task == "choose":
        given = [
            {"text": row["text"], "choices": ["bad", "good", "winter"], "label": row["label"]}
            for row in given
        ]
    own = {"train": given, "validation": given[:12], "task": task, "baselines": True, "steps": 2}
    done = finetune(family, tmp_path / "run", **own)
    assert set(done.scores) <= set(done.metrics) and done.scores
    assert set(done.beside) == (
        set() if task == "choose" else {
            "this model, texts with typos in a tenth of their letters",
            *(("mean", "tf-idf + ridge regression") if task == "regress" else ("majority", "tf-idf + logistic regression")),
        }
    )  # fmt: skip
    assert len(etymon.predict(tmp_path / "run", data=given[:3])) == 3
    again = etymon.evaluate(tmp_path / "run", data=given[:12], beams=1, resamples=0).scores
    assert {name: one.value for name, one in again.items()} == {name: done.metrics[name] for name in again}, (
        "what was kept is what was judged"
    )


def test_a_rare_label_may_be_held_out(tmp_path: Path) -> None:
    tables = ([*TRAIN[:30], {"text": f"a strange letter {number}", "label": "rare"}] for number in range(9))
    rare = next(rows for rows in tables if rows[-1] in read_table(rows).hold_out("text", 0.5, 1000)[1].rows)
    done = finetune("bert", tmp_path / "run", train=rare, validation=None, hold_out=0.5, steps=1)
    assert done.model.labels == ("bad", "good", "rare")


# ------------------------------------------------------------ ways to train


def test_several_seeds_have_a_mean_and_a_deviation_and_go_on(tmp_path: Path, run: Command) -> None:
    table = tmp_path / "rows.jsonl"
    table.write_text("".join(json.dumps(row) + "\n" for row in TRAIN[:48]), encoding="utf-8")
    words = (
        "finetune", "bert", "--from-scratch", "--size", "test", "--vocabulary", 200, "--task", "classify", "--train", table,
        "--hold-out", 0.3, "--steps", 3, "--batch", 8, "--validate-every", 3, "--no-baselines", "--out", tmp_path / "run",
        "--progress", "silent",
    )  # fmt: skip
    code, shown, error = run(*words, "--seeds", 2)
    assert code == 0, error
    told = json.loads((tmp_path / "run" / "seeds.json").read_text(encoding="utf-8"))
    values = [told["seeds"][seed]["accuracy"] for seed in ("0", "1")]
    assert told["mean"]["accuracy"] == pytest.approx(sum(values) / 2)
    assert told["deviation"]["accuracy"] == pytest.approx(abs(values[0] - values[1]) / 2**0.5)
    assert told["best"] == int(values[1] > values[0])
    assert f"accuracy {sum(values) / 2:.2f} ± {told['deviation']['accuracy']:.2f}" in shown
    weights = {
        seed: (tmp_path / "run" / f"seed-{seed}" / "model" / "model.safetensors").read_bytes()
        for seed in (0, 1)
    }
    assert weights[0] != weights[1]
    # The second seed is lost with the summary, and comes back as it was; the first is not trained again.
    shutil.rmtree(tmp_path / "run" / "seed-1")
    (tmp_path / "run" / "seeds.json").unlink()
    code, _, error = run(*words, "--seeds", 0, 1, "--resume")
    assert code == 0, error
    assert json.loads((tmp_path / "run" / "seeds.json").read_text(encoding="utf-8")) == told
    for seed, before in weights.items():
        assert (tmp_path / "run" / f"seed-{seed}" / "model" / "model.safetensors").read_bytes() == before
    code, _, error = run(*words, "--seeds", 2)
    assert code == 2 and "holds a run already" in error


def test_a_process_that_knows_no_scores_writes_no_summary(
    learnt: Finetuned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = replace(learnt, metrics={}, quiet=True)
    monkeypatch.setattr(seeds, "TableData", lambda *_: SimpleNamespace(metrics=["accuracy"]))
    monkeypatch.setattr(seeds, "run", lambda *_: other)
    seeds.finetune_seeds(Job(tmp_path, TaskFile(family="bert")), [0, 1], None, None, resume=False)
    assert not (tmp_path / "seeds.json").exists()


def test_adapters_alone_or_merged_answer_the_same(start: Callable[[str], Path], tmp_path: Path) -> None:
    own = {"lora": 4, "steps": 6, "validate_every": 6}
    alone = finetune(start("bert"), tmp_path / "alone", **own)
    merged = finetune(start("bert"), tmp_path / "merged", merge=True, **own)
    assert (alone.model_folder / "adapter_model.safetensors").is_file()
    assert not (alone.model_folder / "model.safetensors").exists()
    assert (merged.model_folder / "model.safetensors").is_file()
    assert not (merged.model_folder / "adapter_config.json").exists()
    texts = [row["text"] for row in TEST]
    first, second = (etymon.predict(done.folder, texts) for done in (alone, merged))
    assert [one.prediction for one in first] == [one.prediction for one in second]
    for one, two in zip(first, second, strict=True):
        assert one.answer["probabilities"] == pytest.approx(two.answer["probabilities"], abs=1e-5)
    base = etymon.load(start("bert"), heads={"classification"}, labels=["bad", "good"])
    assert not same_weights(etymon.load(merged.folder), base)
    with pytest.raises(EtymonError, match="nothing to merge without adapters"):
        finetune(start("bert"), tmp_path / "none", merge=True)


def test_adapters_wider_than_their_matrices_are_refused(start: Callable[[str], Path], tmp_path: Path) -> None:
    with pytest.raises(EtymonError, match=r"rank 100,000 are larger than the matrices they are for"):
        finetune(start("bert"), tmp_path / "run", lora=100_000)
    assert not (tmp_path / "run").exists()


def test_features_of_a_frozen_elmo(start: Callable[[str], Path], tmp_path: Path) -> None:
    done = finetune(start("elmo"), tmp_path / "run", features="mix", place="both", steps=6, validate_every=3)
    before, after = etymon.load(start("elmo")), etymon.load(done.folder)
    for name, tensor in before.body.state_dict().items():
        assert torch.equal(tensor, after.body.state_dict()[name]), name
    assert after.features is not None and (after.features.source, after.features.place) == ("mix", "both")
    again = etymon.evaluate(done.folder, data=TEST, resamples=0).scores["accuracy"].value
    assert again == done.metrics["accuracy"]
    again = finetune(start("elmo"), tmp_path / "run", place="both", steps=6, validate_every=3, resume=True)
    assert same_weights(again.model, done.model)
    (tmp_path / "features.yaml").write_text("features: {source: last, words: 8}", encoding="utf-8")
    own: dict[str, Any] = {"config": tmp_path / "features.yaml", "steps": 1}
    output = finetune(start("bert"), tmp_path / "output", place="output", **own).model.features
    assert output is not None and (output.source, output.place, output.words) == ("last", "output", 8)
    tuned = finetune(start("elmo"), tmp_path / "tuned", place="both", steps=2, tune_body=True)
    changed = tuned.model.body.state_dict()
    assert any(not torch.equal(tensor, changed[name]) for name, tensor in before.body.state_dict().items())


def test_a_teacher_is_followed(learnt: Finetuned, start: Callable[[str], Path], tmp_path: Path) -> None:
    """Its labels are all wrong, so only the teacher can have taught the rule; its columns have other names."""
    wrong = {"good": "bad", "bad": "good"}
    train = [{"sentence": row["text"], "sentiment": wrong[row["label"]]} for row in TRAIN]
    test = [{"sentence": row["text"], "sentiment": row["label"]} for row in TEST]
    own = {
        "train": train,
        "validation": test,
        "text": "sentence",
        "label": "sentiment",
        "teacher": learnt.folder,
    }
    more = {"steps": 80, "validate_every": 20, "set": ["options.teaching=1.0"]}
    done = finetune(start("bert"), tmp_path / "run", **own, **more)
    assert done.metrics["accuracy"] > 80
    losses = [one["taught"] for one in metrics(done.folder) if "taught" in one]
    assert losses[-1] < losses[0] / 4
    with pytest.raises(EtymonError, match="knows the labels bad, good, and the table has bad, so-so"):
        other = [{**row, "sentiment": row["sentiment"].replace("good", "so-so")} for row in train]
        finetune(start("bert"), tmp_path / "other", **{**own, "train": other, "validation": other})
    assert not (tmp_path / "other" / "model").exists()


def test_adversarial_and_partly_frozen_training(start: Callable[[str], Path], tmp_path: Path) -> None:
    plain = finetune(start("bert"), tmp_path / "plain")
    moved = finetune(start("bert"), tmp_path / "moved", adversarial="fgm")
    assert not same_weights(plain.model, moved.model)
    frozen = finetune(start("bert"), tmp_path / "frozen", frozen=["body.embeddings.*"])
    late = finetune(start("bert"), tmp_path / "late", unfreeze=0.5)
    before = etymon.load(start("bert"), heads={"classification"}, labels=["bad", "good"])
    for name, tensor in before.named_parameters():
        now = frozen.model.get_parameter(name)
        assert torch.equal(now, tensor) == name.startswith("body.embeddings."), name
    assert not same_weights(late.model, plain.model) and late.metrics.keys() == plain.metrics.keys()
    told = [(done.folder / "run.yaml").read_text(encoding="utf-8") for done in (moved, frozen, late)]
    assert "name: fgm" in told[0] and "body.embeddings.*" in told[1] and "unfreeze: 0.5" in told[2]


def test_a_head_that_knows_the_labels_keeps_their_order(learnt: Finetuned, tmp_path: Path) -> None:
    model = etymon.load(learnt.folder)
    with torch.no_grad():
        for parameter in model.heads["classification"].parameters():
            parameter.copy_(parameter.flip(0))
    model.labels = model.labels[::-1]
    etymon.save(model, tmp_path / "turned")
    done = finetune(tmp_path / "turned", tmp_path / "run", steps=1, learning_rate=1e-7)
    assert done.model.labels == ("good", "bad")
    assert done.metrics["accuracy"] == learnt.metrics["accuracy"]
    assert done.metrics["loss"] == pytest.approx(learnt.metrics["loss"], rel=1e-3)


def test_seeds_are_judged_by_the_same_rows(tmp_path: Path) -> None:
    finetune("bert", tmp_path / "run", validation=None, hold_out=0.2, steps=1, seeds=2)
    reports = [(tmp_path / "run" / f"seed-{seed}" / "run.yaml").read_text("utf-8") for seed in (0, 1)]
    assert len({yaml.safe_load(report)["rows"] for report in reports}) == 1
    held = [read_table(TRAIN).hold_out("text", 0.2, 1000)[1].rows for _ in range(2)]
    assert held[0] == held[1] and 20 < len(held[0]) < 50


def test_a_regressor_learns_on_whatever_the_column_is_called(tmp_path: Path) -> None:
    numbers = [{"text": row["text"], "value": float(len(row["text"]))} for row in TRAIN[:24]]
    own: dict[str, Any] = {"task": "regress", "validation": None, "metric": "mse", "steps": 2}
    first = finetune("bert", tmp_path / "one", train=numbers, label="value", **own)
    again = [{"text": row["text"], "score": row["value"]} for row in numbers]
    loaded = etymon.load(first.folder, heads=["classification"], labels=["score"])
    assert loaded.new_heads == () and loaded.labels == ("score",)
    finetune(first.folder, tmp_path / "two", train=again, label="score", **own)


# ------------------------------------------------------------ stopped and resumed


def test_a_resumed_run_is_judged_by_the_rows_it_began_with(tmp_path: Path) -> None:
    finetune("bert", tmp_path / "run", steps=2, validate_every=1)
    message = "the rows to train on or to validate on are not those that the run in .* began with"
    for validation in (None, TEST[:-1]):
        with pytest.raises(EtymonError, match=message):
            finetune("bert", tmp_path / "run", steps=2, validate_every=1, validation=validation, resume=True)


@pytest.mark.parametrize(
    ("count", "share", "held"), [(40, None, 8), (160, None, 32), (300, None, 50), (40, 0.05, 2)]
)
def test_of_a_small_table_more_is_held_out(
    count: int, share: float | None, held: int, tmp_path: Path
) -> None:
    table = [{**row, "text": f"{row['text']} {number}"} for number, row in enumerate(rows(count))]
    tried = finetune("bert", tmp_path / "run", train=table, validation=None, hold_out=share, dry_run=True)
    assert tried.plan is not None
    assert f"{count - held} rows to train on, {held} to validate on" in tried.plan["task"]


def test_a_run_from_scratch_goes_on_by_the_name_of_its_family(
    start: Callable[[str], Path], tmp_path: Path
) -> None:
    first = finetune("bert", tmp_path / "run", steps=2, validate_every=1)
    again = etymon.finetune(
        "bert", train=TRAIN, validation=TEST, out=tmp_path / "run", resume=True, progress="silent"
    )
    assert same_weights(first.model, again.model)
    with pytest.raises(EtymonError, match="began from scratch, not with"):
        etymon.finetune(start("bert"), train=TRAIN, validation=TEST, out=tmp_path / "run", resume=True)


@pytest.mark.parametrize(
    ("own", "reason"),
    [
        ({"frozen": ["nothing.*"]}, "no parameter matches the frozen pattern"),
        ({"lora": 2, "set": ["lora.targets=[nothing]"]}, "no linear map of BERT is called nothing"),
    ],
)
def test_a_run_that_is_refused_leaves_nothing(
    own: dict[str, Any], reason: str, start: Callable[[str], Path], tmp_path: Path
) -> None:
    for count in (None, 2):
        with pytest.raises(EtymonError, match=reason):
            finetune(start("bert"), tmp_path / "several" / "run", seeds=count, **own)
        assert not (tmp_path / "several").exists()
    (tmp_path / "several").mkdir()
    with pytest.raises(EtymonError, match=reason):
        finetune(start("bert"), tmp_path / "several" / "run", **own)
    assert [*tmp_path.iterdir()] == [tmp_path / "several"], "what was there before stays"


@pytest.mark.parametrize(
    ("family", "own"),
    [("gpt1", {"r_drop": 1.0, "slices": 2, "class_weights": "balanced"}), ("lora", {"lora": 2})],
)
def test_a_stopped_run_goes_on_exactly(
    family: str,
    own: dict[str, Any],
    start: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = tmp_path / "rows.jsonl"
    table.write_text("".join(json.dumps(row) + "\n" for row in TRAIN), encoding="utf-8")
    model: str | Path = start("bert") if family == "lora" else family
    own = {**own, "train": table, "validation": table, "steps": 8, "validate_every": 4, "save_every": 3}
    straight = finetune(model, tmp_path / "straight", **own)
    plain = RunFolder.log

    def log(this: RunFolder, record: dict[str, Any]) -> None:
        plain(this, record)
        if record["step"] == 5 and "learning_rate" in record:
            monkeypatch.setattr(RunFolder, "log", plain)
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(RunFolder, "log", log)
    stopped = finetune(model, tmp_path / "stopped", **own, resume="auto")
    assert (stopped.stopped, stopped.steps) == (True, 5) and not stopped.scores
    with pytest.raises(EtymonError, match="began with budget 8steps, not 9steps"):
        finetune(model, tmp_path / "stopped", **{**own, "steps": 9}, resume=True)
    resumed = finetune(model, tmp_path / "stopped", **own, resume="auto")  # the same command goes on
    assert not resumed.stopped and metrics(tmp_path / "stopped") == metrics(tmp_path / "straight")
    assert same_weights(straight.model, resumed.model) and resumed.scores == straight.scores
    assert same_weights(etymon.load(straight.folder), etymon.load(resumed.folder))


def test_a_dry_run_counts_operations(tmp_path: Path) -> None:
    tried = finetune("bert", tmp_path / "run", steps=None, budget="200Mflops", dry_run=True)
    assert tried.plan is not None and "(200Mflops)" in tried.plan["steps"]
    steps = int(tried.plan["steps"].split()[1].replace(",", ""))
    done = finetune("bert", tmp_path / "run", steps=None, budget="200Mflops", validate_every=steps)
    assert done.steps == steps  # and the dry run has left nothing behind


def test_families_and_heads_that_do_not_fit_are_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        EtymonError, match="to begin with an untrained model of this family, say --from-scratch"
    ):
        etymon.finetune("bert", task="classify", train=TRAIN)
    with pytest.raises(EtymonError, match="BERT writes no text, and so no answers: leave --way text out"):
        finetune("bert", tmp_path / "run", way="text")
    with pytest.raises(
        EtymonError, match=r"was not fine-tuned for a task: say .* \(--task language-model\), or"
    ):
        etymon.predict(tiny.model("bert", frozenset({"vocabulary"})), ["a letter"])
    with pytest.raises(EtymonError, match="was not fine-tuned for a task: fine-tune it first"):
        etymon.predict(tiny.model("bert", frozenset({"pooler"})), ["a letter"])


# ------------------------------------------------------------ tables in, answers out


def test_tables_of_every_kind_and_answers_in_every_kind(
    learnt: Finetuned, tmp_path: Path, run: Command
) -> None:
    for ending in ("csv", "tsv"):
        with open(tmp_path / f"test.{ending}", "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, ["text", "label"], delimiter="," if ending == "csv" else "\t")
            writer.writeheader()
            writer.writerows(TEST)
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in TEST), encoding="utf-8")
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(TEST), tmp_path / "test.parquet")
    expected = etymon.predict(learnt.folder, data=TEST)
    for ending in ("csv", "tsv", "jsonl", "parquet"):
        code, shown, error = run(
            "evaluate", learnt.folder, "--data", tmp_path / f"test.{ending}", "--resamples", 0, "--json"
        )
        assert code == 0, error
        assert json.loads(shown)["accuracy"]["value"] == learnt.metrics["accuracy"]
        out = tmp_path / f"out.{ending}"
        code, shown, error = run("predict", learnt.folder, "--data", tmp_path / "test.csv", "--out", out)
        assert (code, shown) == (0, f"40 answers in {out}\n"), error
        written = read_table(out).rows
        assert [row["prediction"] for row in written] == [one.prediction for one in expected]
        assert [(row["text"], row["label"]) for row in written] == [
            (row["text"], row["label"]) for row in TEST
        ]
        shares = [row["probabilities"] for row in written]
        found = [json.loads(each) if isinstance(each, str) else each for each in shares]
        for one, two in zip(found, expected, strict=True):
            assert one == pytest.approx(two.answer["probabilities"], abs=1e-6)
    code, _, error = run(
        "predict", learnt.folder, "--data", tmp_path / "test.csv", "--out", tmp_path / "out.xls"
    )
    assert code == 2 and "its name must end in .jsonl, .csv, .tsv, .parquet" in error


def test_answers_on_the_command_line(learnt: Finetuned, run: Command) -> None:
    code, shown, _ = run("predict", learnt.folder, "a good river")
    label, share = shown.strip().split("\t")
    assert code == 0 and label == "good" and 0.5 < float(share) <= 1
    code, shown, _ = run("predict", learnt.folder, "a good river", "--json")
    assert code == 0 and set(json.loads(shown)) == {"text", "prediction", "probabilities"}
    code, _, error = run("predict", learnt.folder, "a good river", "--data", "rows.csv")
    assert code == 2 and "give texts or --data, not both" in error


def test_evaluated_rows_are_written_by_the_ending_of_a_name(learnt: Finetuned, tmp_path: Path) -> None:
    few = TEST[:5]
    for ending in ("csv", "tsv", "jsonl", "parquet"):
        found = etymon.evaluate(learnt.folder, data=few, out=tmp_path / f"answers.{ending}")
        written = read_table(tmp_path / f"answers.{ending}").rows
        assert [{name: row[name] for name in ("text", "label")} for row in written] == few
        assert [row["prediction"] for row in written] == [one["prediction"] for one in found.predictions]
    etymon.evaluate(learnt.folder, data=few, out=tmp_path / "answers.txt")
    lines = (tmp_path / "answers.txt").read_text(encoding="utf-8").splitlines()
    assert lines == [one["prediction"] for one in found.predictions]


def test_scores_are_told_with_their_rows(
    learnt: Finetuned, run: Command, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    present(learnt, FinetuneOptions(model="bert"))
    assert (
        f"accuracy {learnt.metrics['accuracy']:.2f} of 40 rows, 95% of resamples from"
        in capsys.readouterr().out
    )
    (tmp_path / "one.csv").write_text("text,label\na good river,good\n", encoding="utf-8")
    code, shown, _ = run("evaluate", learnt.folder, "--data", tmp_path / "one.csv")
    assert code == 0 and "95%" not in shown and "1 row: too few for an interval" in shown


def test_a_loss_is_told_like_any_score(learnt: Finetuned) -> None:
    found = etymon.evaluate(learnt.folder, data=TEST, metric=["loss", "accuracy"]).scores
    assert list(found) == ["loss", "accuracy"] and found["loss"].falls
    assert found["loss"].value == pytest.approx(learnt.metrics["bits_per_target"])
    assert found["accuracy"].value == learnt.metrics["accuracy"]


def test_the_report_holds_confusions_baselines_and_typos(learnt: Finetuned) -> None:
    page = (learnt.folder / "report.html").read_text(encoding="utf-8")
    for part in (
        "this model",
        "majority",
        "tf-idf + logistic regression",
        "texts with typos in a tenth of their letters",
    ):
        assert part in page
    assert "Which labels are taken for which" in page and "Validation accuracy" in page
    assert "classify on rows given by the program: 160 rows to train on, 40 to validate on" in page
    assert "What it answers, as it learns" in page and "What it writes" not in page
    assert "Label by label" in page and "Scores of 40 rows" in page
    assert set(learnt.beside) > {"majority"} and learnt.beside["majority"]["accuracy"].value == 50
    assert learnt.scores["accuracy"].low is not None


def test_several_labels_are_compared_whatever_their_order(tmp_path: Path) -> None:
    several = [{**row, "label": "river|" * ("river" in row["text"]) + row["label"]} for row in TRAIN]
    own = {
        "train": several,
        "validation": several[:40],
        "learning_rate": 3e-3,
        "steps": 80,
        "validate_every": 80,
    }
    done = finetune("bert", tmp_path / "run", multi_label=True, **own)
    assert done.metrics["micro_f1"] > 75
    answers = etymon.predict(done.folder, data=several[:40])
    wrong = sum(set(one.prediction) != set(row["label"].split("|")) for one, row in zip(answers, several))
    page = (done.folder / "report.html").read_text(encoding="utf-8")
    assert ("Worst errors" in page) == (wrong > 0)
    assert not wrong or f"Worst errors: {min(wrong, 20)} of {wrong}" in page
    table = page[page.find("Worst errors") :].partition("</table>")[0]
    sure = [float(one) for one in re.findall(r'class="number">([\d.]+)</td></tr>', table)]
    assert sure == sorted(sure, reverse=True) and len(sure) == min(wrong, 20)
    assert "Label by label" in page


# ------------------------------------------------------------ the matrix


def test_the_matrix_of_families_and_tasks(run: Command) -> None:
    code, shown, _ = run("tasks")
    lines = shown.split("\n\n")[0].splitlines()
    assert code == 0
    assert lines[0].split() == [
        "classify",
        "regress",
        "choose",
        "tag",
        "answer",
        "text2text",
        "language-model",
    ]
    ways = {line.split()[0]: line.split()[1:] for line in lines[1:]}
    assert ways["bert"] == ["native"] * 5 + ["refused", "native"]
    assert ways["t5"][:2] == ["text-to-text"] * 2
    assert "text2text: BERT, RoBERTa" in shown and "cannot write a text" in shown
    code, shown, _ = run("tasks", "--family", "bert", "--json")
    cells = json.loads(shown)
    assert code == 0 and {cell["family"] for cell in cells} == {"bert"} and len(cells) == 7
    (refused,) = [cell for cell in cells if cell["way"] == "refused"]
    assert refused["task"] == "text2text" and refused["reason"]
    code, _, error = run("tasks", "--family", "brt")
    assert code == 2 and "bert" in error


@pytest.mark.parametrize(
    ("shape", "size", "tuned", "gone_on"),
    [({}, "pocket", "muon", "muon"), ({"layers": 2, "inner_dim": 64}, None, "adamw", "adam-bert")],
)
def test_only_a_pocket_model_is_trained_by_a_pocket_recipe(
    shape: dict[str, int], size: str | None, tuned: str, gone_on: str, tmp_path: Path
) -> None:
    model = build("bert", "pocket", shape={"vocabulary": tiny.tokenizer("bert").size, **shape})
    model.tokenizer = tiny.tokenizer("bert")
    save(model, tmp_path / "model")
    common: dict[str, Any] = {"steps": 1, "progress": "silent", "length": 32}
    etymon.finetune(
        tmp_path / "model",
        task="classify",
        train=TRAIN[:20],
        out=tmp_path / "tuned",
        baselines=False,
        **common,
    )
    etymon.pretrain(
        "bert",
        from_=tmp_path / "model",
        data=Texts(tiny.texts()),
        out=tmp_path / "gone_on",
        batch=2,
        **common,
    )
    for folder, optimiser in (("tuned", tuned), ("gone_on", gone_on)):
        kept = yaml.safe_load((tmp_path / folder / "run.yaml").read_text(encoding="utf-8"))
        assert (kept["size"], kept["training"]["optimiser"]["name"]) == (size, optimiser)


@pytest.mark.parametrize(
    ("writes", "rows", "tokens", "expected"),
    [
        (False, 872, 25, 872),
        (False, 5000, 25, 1000),
        (False, 5000, 100, 327),
        (False, 5000, 400, 200),
        (False, 90, 400, 90),
        (True, 872, 25, 200),
    ],
)
def test_validations_on_the_way_answer_as_many_rows_as_are_cheap(
    writes: bool, rows: int, tokens: int, expected: int
) -> None:
    table = read_table([{"text": "a"}] * rows)
    examples = Examples({}, np.full(rows, tokens), np.ones(rows))
    assert TaskRows(examples, examples, table).count_during_run(writes) == expected


def test_several_seeds_of_a_pretrained_model_go_on(start: Callable[[str], Path], tmp_path: Path) -> None:
    done = finetune(start("bert"), tmp_path / "run", steps=2, seeds=[3, 5])
    shutil.rmtree(tmp_path / "run" / "seed-5")
    again = finetune(start("bert"), tmp_path / "run", steps=2, seeds=[3, 5], resume="auto")
    assert again.seeds == done.seeds and set(done.seeds) == {3, 5}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"source_vocabulary": 200}, "only text2text has a source with words of its own"),
        ({"batch": 10, "slices": 4}, "a batch of 10 rows cannot be cut into 4 equal slices"),
        ({"tune_body": True}, "leave --tune-body out"),
        *(({"seeds": count}, f"--seeds {count} asks for that many models, and a mean needs two") for count in (-1, 0, 1)),
        ({"seeds": [3, 3]}, "at least two different ones, not 3, 3"),
        ({"vocabulary": 5}, r"a vocabulary of 5 is too small: .*; the smallest has \d+"),
        ({"place": "both"}, "rnn reads no features unless told, and --place .* say --features mix too, or leave"),
        ({"multi_label": True, "smoothing": 0.1}, "leave --multi-label or --smoothing out"),
        ({"task": "text2text", "source": "text", "target": "label", "smoothing": 2.0}, "smoothing"),
        ({"task": "tag", "tokens": "text", "tags": "label", "metric": "f1", "train": [{"text": [word, "b"], "label": ["NOUN", "VERB"]} for word in "acdefghijk"]}, "say --metric accuracy"),
    ],
)  # fmt: skip
def test_what_would_be_ignored_or_fail_later_is_refused(
    changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(EtymonError, match=reason):
        finetune("rnn", tmp_path / "run", **{"validation": None, **changes})
    assert not (tmp_path / "run" / "run.yaml").exists(), "and may be tried again"


def test_words_of_a_source_are_for_one_text_out_of_another(tmp_path: Path) -> None:
    pairs = [{"source": row["text"], "target": row["label"]} for row in TRAIN[:20]]
    own = {
        "task": "text2text",
        "train": pairs,
        "validation": None,
        "source_vocabulary": 90,
        "steps": 1,
        "batch": 8,
    }
    done = finetune("rnn", tmp_path / "pairs", **own)
    for task in ("classify", "language-model"):
        with pytest.raises(EtymonError, match="fine-tune one that has a single tokenizer"):
            finetune(done.folder, tmp_path / task, task=task, batch=None)


def test_the_file_of_a_run_may_have_other_rows(tmp_path: Path) -> None:
    table = tmp_path / "rows.jsonl"
    for number, out in enumerate(("first", "second")):
        table.write_text(
            "".join(json.dumps(row) + "\n" for row in TRAIN[number * 40 :][:40]), encoding="utf-8"
        )
        more = {"config": tmp_path / "first" / "run.yaml"} if number else {}
        finetune("bert", tmp_path / out, train=[table], validation=None, steps=1, **more)
    kept = [
        yaml.safe_load((tmp_path / out / "run.yaml").read_text(encoding="utf-8"))["rows"]
        for out in ("first", "second")
    ]
    assert kept[0] != kept[1]
