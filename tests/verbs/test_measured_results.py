"""`etymon push`: what evaluations have kept of a run stands in its card, and in the hub's `model-index`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

import etymon
from etymon.errors import EtymonError
from etymon.runs.publication import CardStatements, prepare_publication
from tests import tiny

NAME = "ada/tiny-gpt2"
PAIRS = [{"good": "the river was slow", "bad": "the river slow was", "field": "order"}] * 4


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run that was evaluated by three verbs, its milestone by one of them."""
    place = tmp_path_factory.mktemp("work")
    (place / "text.txt").write_text("\n\n".join(tiny.texts(60)), encoding="utf-8")
    (place / "suite.yaml").write_text(
        "parts:\n  - {name: news, kind: text, data: [text.txt], characters: 400}\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        etymon.pretrain(
            "gpt2", data=["text.txt"], documents="blank", out="runs/mine", vocabulary=300, steps=4, batch=2, length=16,
            save_at=["40words"], progress="silent",
            set=("shape.dim=16", "shape.layers=1", "shape.heads=2", "shape.positions=32", "license=cc-by-4.0"),
        )  # fmt: skip
        etymon.pairs("runs/mine", data=PAIRS, milestones=True, out="runs/mine/pairs")
        etymon.context(["runs/mine"], data="text.txt", longest=8, targets=20, out="runs/mine/context")
        etymon.evaluate("runs/mine", suite="suite.yaml", suite_data=".", out="runs/suite")
    return place


def cards(folder: Path, *results: Path) -> dict[str, str]:
    """README.md by revision."""
    made = prepare_publication(folder, NAME, CardStatements(), results=results).revisions
    texts = {}
    for revision in made:
        content = revision.files["README.md"]
        assert isinstance(content, bytes)
        texts[revision.name] = content.decode()
    return texts


def results_of(card: str) -> dict[str, tuple[str, float]]:
    """Metric and value by the name of the data."""
    (index,) = yaml.safe_load(card.split("---\n")[1])["model-index"]
    return {
        result["dataset"]["name"]: (metric["name"], metric["value"])
        for result in index["results"]
        for metric in result["metrics"]
    }


def test_what_was_measured_is_in_the_index_and_in_the_table(
    evaluated: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(evaluated)
    texts = cards(Path("runs/mine"), Path("runs/suite"))
    found = results_of(texts["main"])

    def read(name: str) -> Any:
        return json.loads((evaluated / "runs" / name / "results.json").read_text())

    first, last = read("mine/pairs")["models"]
    overall = last["overall"]["sum"]
    assert found["minimal pairs"] == (f"accuracy by {last['method']}", overall["value"])
    assert found["minimal pairs: order"][1] == last["fields"]["order"]["sum"]["value"]
    context = read("mine/context")["models"][0]
    assert found["text behind 8 tokens"] == ("bits per byte", context["bits_per_byte"][-1])
    score = read("suite")["rows"][0]["scores"]["news"]
    assert found["suite: news"] == (score["metric"], score["value"])
    assert f"| minimal pairs | {overall['value']:.5g} ({overall['low']:.5g} to" in texts["main"]
    # The milestone has its own figures, and none of the whole run's.
    assert results_of(texts["40words"])["minimal pairs"][1] == first["overall"]["sum"]["value"]
    assert "suite: news" not in texts["40words"]


def test_results_of_another_model_stay_out(
    evaluated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # A run that was moved has another name, and what was evaluated under the old one may be another model.
    moved = Path(shutil.copytree(evaluated / "runs" / "mine", tmp_path / "yours"))
    assert "minimal pairs" not in cards(moved)["main"]
    for given, message in (
        (
            evaluated / "runs" / "suite",
            "has no scores of this model, but of runs/mine: evaluate what you push",
        ),
        (tmp_path / "nowhere.json", "no such file"),
        (evaluated / "suite.yaml", "suite.yaml"),
        (moved / "model" / "config.json", "is no results.json of evaluate --suite, pairs, probe or context"),
    ):
        with pytest.raises(EtymonError, match=message) as error:
            cards(moved, given)
        assert "\n" not in str(error.value)


def test_two_figures_of_the_same_data_are_both_in_the_table(
    evaluated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(evaluated)
    record = json.loads(Path("runs/mine/pairs/results.json").read_text())
    for model in record["models"]:
        model["method"] = "another method"
    (tmp_path / "results.json").write_text(json.dumps(record))
    rows = [
        line
        for line in cards(Path("runs/mine"), tmp_path)["main"].splitlines()
        if "| minimal pairs |" in line
    ]
    assert len(rows) == 2 and sum("accuracy by another method" in row for row in rows) == 1


def test_a_probe_is_its_best_layer(tmp_path: Path) -> None:
    from etymon.runs.measured import read_results

    layers = [{"layer": number, "accuracy": share} for number, share in enumerate((0.5, 0.75))]
    task = {"task": "tense", "reading": "mean", "best_layer": 1, "margin": 0.05, "layers": layers}
    (tmp_path / "results.json").write_text(json.dumps({"model": str(tmp_path), "tasks": [task]}))
    (result,) = read_results(tmp_path, {tmp_path.resolve(): "main"}, ())["main"]
    assert result.text() == "75 (70 to 80), accuracy of a probe of layer 1"


def test_damaged_results_in_the_run_are_passed_over(tmp_path: Path) -> None:
    from etymon.runs.measured import read_results

    (tmp_path / "results.json").write_text('{"suite": "mine", "rows": [{"name": 3}]}')
    assert read_results(tmp_path, {tmp_path.resolve(): "main"}, ()) == {}
