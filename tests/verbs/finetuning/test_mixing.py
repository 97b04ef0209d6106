"""Runs of mixtures: three settings of one file, resumed exactly."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import etymon
from etymon.config import load_yaml
from etymon.errors import EtymonError
from etymon.families import get_family
from etymon.runs import mixture_data
from etymon.runs.folder import Job
from etymon.runs.mixture_data import MixtureData
from etymon.runs.result import Finetuned
from etymon.runs.task_file import TaskFile
from etymon.tasks.task import value_to_minimise
from etymon.training.state import RunFolder
from tests import tiny
from tests.verbs.small_runs import crash, metrics, pretrain, with_test_sizes


@pytest.fixture(autouse=True)
def small() -> Iterator[None]:
    with with_test_sizes():
        yield


@pytest.fixture
def mixture(tmp_path: Path) -> Path:
    texts = tiny.texts(60)
    (tmp_path / "text.txt").write_text("\n".join(texts), encoding="utf-8")
    rows = [{"de": text, "en": text[:20]} for text in texts[:40]]
    (tmp_path / "pairs.jsonl").write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    tree = {
        "rates": "temperature",
        "members": [
            {"name": "text", "objective": "span-corruption", "data": [str(tmp_path / "text.txt")], "documents": "line", "length": 32},
            {"name": "pairs", "task": "text2text", "data": [str(tmp_path / "pairs.jsonl")], "options": {"source": "de", "target": "en"}},
        ],
    }  # fmt: skip
    (tmp_path / "mixture.yaml").write_text(yaml.safe_dump(tree), encoding="utf-8")
    return tmp_path / "mixture.yaml"


def mix(family: str, mixture: Path, out: Path, **changes: Any) -> Finetuned:
    arguments: dict[str, Any] = {
        "from_scratch": True, "size": "test", "mixture": mixture, "out": out, "steps": 6, "batch_tokens": 128, "slices": 2,
        "validate_every": 3, "length": 48, "vocabulary": 300, "progress": "silent",
    }  # fmt: skip
    return etymon.finetune(family, **{**arguments, **changes})


def test_a_mixture_that_was_killed_goes_on_exactly(
    mixture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    straight = mix("t5", mixture, tmp_path / "straight")
    reached = RunFolder.save

    def save(self: RunFolder, *arguments: Any, **named: Any) -> Path:
        made = reached(self, *arguments, **named)
        if self.folder.name == "broken" and made.name.endswith("3"):
            crash()
        return made

    monkeypatch.setattr(RunFolder, "save", save)
    with pytest.raises(ConnectionAbortedError):
        mix("t5", mixture, tmp_path / "broken", resume="auto")
    monkeypatch.undo()
    tokens = tmp_path / "broken" / "store-text" / "train" / "tokens.bin"
    whole = tokens.read_bytes()
    tokens.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with with_test_sizes():
        with pytest.raises(EtymonError, match=r"cannot go on: .*tokens\.bin is damaged"):
            mix("t5", mixture, tmp_path / "broken", resume="auto")
        tokens.write_bytes(whole)
        again = mix("t5", mixture, tmp_path / "broken", resume="auto")  # the same command as before
    assert metrics(tmp_path / "broken") == metrics(tmp_path / "straight")
    for name, tensor in straight.model.stored_tensors().items():
        assert torch.equal(tensor, again.model.stored_tensors()[name]), name
    trained = {key for record in metrics(tmp_path / "straight") for key in record if "/" in key}
    assert {"text/spans", "pairs/loss", "validation_text/bits", "validation_pairs/bits"} <= trained
    assert etymon.load(tmp_path / "straight").history[-1]["tasks"]["pairs"]["options"]["source"] == "de"


@pytest.mark.parametrize("setting, kept", [("data-driven", "text"), ("task-driven", "pairs")])
def test_a_setting_chooses_the_members(setting: str, kept: str, mixture: Path, tmp_path: Path) -> None:
    done = mix("t5", mixture, tmp_path / "run", steps=1, set=[f"mixture.setting={setting}"])
    assert {key.split("/")[0] for key in done.metrics if "/" in key} == {kept}
    page = (done.folder / "report.html").read_text(encoding="utf-8")
    assert f"{kept}: " in page and ("rows to train on" in page) is (kept == "pairs")


def test_a_tokenizer_of_a_mixture_has_the_sentinels_that_its_objectives_show(
    mixture: Path, tmp_path: Path
) -> None:
    done = mix("bart", mixture, tmp_path / "run", steps=1, vocabulary=420)
    assert done.model.tokenizer is not None and len(done.model.tokenizer.sentinels) == 100


def test_a_decoder_mixes_its_own_objective_with_a_task(mixture: Path, tmp_path: Path) -> None:
    tree = yaml.safe_load(mixture.read_text(encoding="utf-8"))
    tree["members"][0]["objective"] = "causal"
    mixture.write_text(yaml.safe_dump(tree), encoding="utf-8")
    done = mix("gpt2", mixture, tmp_path / "run", steps=2, metric="pairs/exact", hold_out=0.5)
    assert {"text/bits_per_byte", "pairs/exact"} <= set(done.metrics)
    score = done.scores["pairs/exact"]
    assert score.rows == 20 and score.low is not None, "all held-out rows are answered, with an interval"
    assert done.metrics["pairs/exact"] == score.value


@pytest.mark.parametrize(
    "override, reason",
    [
        ("mixture.members=[{name: a, data: [x]}]", "needs a task or an objective, and data"),
        ("mixture.setting=both", "setting is"),
        ("mixture.temperature=0", "temperature is 0, expected above 0"),
        ("teacher=x", "leave teacher out"),
        ("features.source=mix", "leave features out"),
        ("options.source=de", "have options of their own: say source there"),
        ("columns=[a, b]", "have options of their own: say columns there"),
        ("metrics=[text/bleu]", "those of a task such as NAME/bleu, not 'text/bleu'"),
    ],
)
def test_mistakes_are_named(override: str, reason: str, mixture: Path, tmp_path: Path) -> None:
    with pytest.raises(EtymonError, match=reason):
        mix("t5", mixture, tmp_path / "run", set=[override])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("family", ["bert", "t5"])
def test_tasks_with_labels_have_outputs_of_their_own(family: str, tmp_path: Path) -> None:
    texts = tiny.texts(40)
    moods = [{"text": text[:30], "label": "long" if len(text) > 150 else "short"} for text in texts]
    kinds = [{"text": text[:30], "label": text.split()[1]} for text in texts]
    words = [{"tokens": text.split()[:5], "tags": [word[0] for word in text.split()[:5]]} for text in texts]
    members: list[dict[str, Any]] = []
    for name, task, rows in (
        ("mood", "classify", moods),
        ("kind", "classify", kinds),
        ("letters", "tag", words),
    ):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
        members.append({"name": name, "task": task, "data": [str(tmp_path / f"{name}.jsonl")]})
    (tmp_path / "text.txt").write_text("\n".join(texts), encoding="utf-8")
    objective = "masked" if family == "bert" else "span-corruption"
    members.append(
        {
            "name": "text",
            "objective": objective,
            "data": [str(tmp_path / "text.txt")],
            "documents": "line",
            "length": 32,
        }
    )
    (tmp_path / "mixture.yaml").write_text(yaml.safe_dump({"members": members}), encoding="utf-8")
    done = mix(family, tmp_path / "mixture.yaml", tmp_path / "run", slices=1, metric="mood/accuracy")
    assert {"mood/accuracy", "kind/bits", "letters/bits", "text/bits"} <= set(done.metrics)
    for asked in (None, "classify"):  # of which there are two
        with pytest.raises(EtymonError, match="several tasks"):
            etymon.predict(done.folder, "The river.", task=asked)
    (one,) = etymon.predict(done.folder, "The river crossed the bridge.", task="mood")
    if family == "bert":
        assert set(one.answer["probabilities"]) == {"long", "short"}
        assert sum(one.answer["probabilities"].values()) == pytest.approx(1.0, abs=1e-5)
        (other,) = etymon.predict(done.folder, "The river crossed the bridge.", task="kind")
        assert set(other.answer["probabilities"]) == {row["label"] for row in kinds}
    (tagged,) = etymon.predict(done.folder, "The river crossed", task="letters")
    assert len(tagged.prediction) == 3


def test_the_loss_of_a_member_is_to_fall() -> None:
    assert value_to_minimise("pairs/loss")({"pairs/bits": 2.0, "pairs/loss": 1.4}) == 2.0


def test_a_pretrained_model_is_mixed_by_the_way_it_is_fine_tuned(mixture: Path, tmp_path: Path) -> None:
    start = pretrain("t5", tmp_path / "start", steps=1).folder
    own = {
        "from_scratch": False,
        "size": None,
        "vocabulary": None,
        "steps": 1,
        "set": ["mixture.setting=task-driven"],
    }
    done = mix(str(start), mixture, tmp_path / "run", **own)
    kept = yaml.safe_load((tmp_path / "run" / "run.yaml").read_text(encoding="utf-8"))["training"]
    assert (kept["optimiser"]["name"], kept["schedule"]["name"]) == ("adafactor", "constant")
    assert etymon.translate(done.folder, "The dog.", max_new_tokens=2)
    file = load_yaml(tmp_path / "run" / "run.yaml", TaskFile)
    # And with more words.
    larger = MixtureData(Job(tmp_path / "larger", replace(file, vocabulary=9999, rows=None)))
    plan = larger.model_plan
    assert plan.recipe == plan.family.tuning_for(plan.size) != plan.family.recipe_for(plan.size)


def test_a_prepared_store_is_no_member(mixture: Path, tmp_path: Path) -> None:
    tiny.tokenizer("t5").save(tmp_path / "tokenizer")
    etymon.prepare(data=[tmp_path / "text.txt"], tokenizer=tmp_path / "tokenizer", out=tmp_path / "store")
    tree = yaml.safe_load(mixture.read_text(encoding="utf-8"))
    tree["members"][0]["data"] = [str(tmp_path / "store")]
    mixture.write_text(yaml.safe_dump(tree), encoding="utf-8")
    with pytest.raises(EtymonError, match="is text, not a prepared store: name the files"):
        mix("t5", mixture, tmp_path / "run")


def test_text_is_hidden_as_the_family_does(
    mixture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, Any]] = []
    made = mixture_data.get_objective

    def get_objective(name: str, *arguments: Any, **options: Any) -> Any:
        seen.append(options)
        return made(name, *arguments, **options)

    monkeypatch.setattr(mixture_data, "get_objective", get_objective)
    tree = yaml.safe_load(mixture.read_text(encoding="utf-8"))
    tree["members"][0] |= {"objective": "masked", "options": {"density": 0.2}}
    (tmp_path / "labels.jsonl").write_text('{"text": "a river", "label": "x"}\n{"text": "b", "label": "y"}\n')
    tree["members"][1] = {"name": "labels", "task": "classify", "data": [str(tmp_path / "labels.jsonl")]}
    mixture.write_text(yaml.safe_dump(tree), encoding="utf-8")
    mix("roberta", mixture, tmp_path / "run", steps=1)
    assert seen == [{**get_family("roberta").recipe.options, "density": 0.2}]
