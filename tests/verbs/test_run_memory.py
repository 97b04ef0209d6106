"""Runs ask for memory before they take it: what does not fit is refused in one line, at once, and leaves nothing behind."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import etymon
from etymon.errors import EtymonError
from etymon.families import REGISTRY, get_family
from etymon.families.loading import shape_of
from etymon.runs import memory as run_memory
from etymon.runs.memory import PROGRAM, Plan, Samples, usual_plan
from etymon.text.sources import Texts
from tests import tiny
from tests.verbs.small_runs import pretrain, with_test_sizes


@pytest.fixture(scope="module", autouse=True)
def sizes() -> Iterator[None]:
    with with_test_sizes():
        yield


def leave(free: float, patch: pytest.MonkeyPatch) -> None:
    """Lets the machine have so many bytes for training; opening a model is asked for elsewhere."""
    patch.setattr(run_memory, "available_memory", lambda device: free)


@pytest.mark.parametrize(
    ("family", "asked", "refusal"),
    [
        ("gpt3", {"size": "175B"}, r"GPT-3 175B needs about 2\.\d+ TB \(weights 698 GB, .*: --size .* would fit"),
        ("gpt2", {"size": "xl"}, r"GPT-2 xl needs about .* \(weights 6\.23 GB, .*: --size .* would fit"),
        ("gpt2", {"set": ["shape.dim=200000"]}, r"weights 3\.\d+ TB"),
        ("gpt2", {"set": ["shape.layers=1000000"]}, r"weights 50\.8 GB"),
        ("gpt2", {"batch": 100_000_000, "slices": 1}, r"about \S+ samples fit at a time; take more --slices, or a --batch"),
        ("transformer-xl", {"length": 10**7}, r"not even one sample of this length fits; take a smaller --length"),
    ],
)  # fmt: skip
def test_a_run_that_does_not_fit_is_refused_before_anything_is_made(
    family: str, asked: dict[str, Any], refusal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave(8e9, monkeypatch)
    monkeypatch.setattr("etymon.runs.model.build", None)
    with pytest.raises(EtymonError, match=refusal) as found:
        pretrain(family, tmp_path / "run", **asked)
    assert "this machine has 8 GB free" in str(found.value) and "\n" not in str(found.value)
    assert not (tmp_path / "run").exists()


def test_the_batch_that_is_advised_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leave(4e8, monkeypatch)
    with pytest.raises(EtymonError) as found:
        pretrain("gpt2", tmp_path / "run", batch=10**6, slices=1)
    advised = re.search(r"a --batch of ([\d,]+) or less", str(found.value))
    assert advised is not None
    family = get_family("gpt2")
    shape, rows = shape_of(family, "test"), int(advised[1].replace(",", ""))
    choice = run_memory.OptimiserChoice(name=family.recipe.optimiser)
    fits = Plan(family, shape, [Samples("causal", {}, 32, rows)], choice).footprint()
    assert 0.8 * 4e8 < fits.total <= 4e8


def test_every_cell_of_a_sweep_is_asked_before_the_first_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave(8e9, monkeypatch)
    with pytest.raises(EtymonError, match=r"weights .* TB"):
        etymon.sweep(
            "gpt2", data=Texts(tiny.texts()), size="test", out=tmp_path / "sweep", budget="2steps",
            grid=["shape.dim=32,200000"], progress="silent",
        )  # fmt: skip
    assert not (tmp_path / "sweep").exists()


def table(folder: Path) -> Path:
    path = folder / "rows.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(
            [["text", "label"], *([text, str(n % 2)] for n, text in enumerate(tiny.texts()))]
        )
    return path


def test_fine_tuning_is_refused_by_its_model_and_then_by_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def finetune(**asked: Any) -> Any:
        return etymon.finetune(
            "bert", train=[str(table(tmp_path))], size="test", from_scratch=True, out=tmp_path / "run", steps=1,
            task="classify", progress="silent", **asked,
        )  # fmt: skip

    leave(1e6, monkeypatch)
    with pytest.raises(EtymonError, match=r"to train BERT test needs about .*a smaller model"):
        finetune()
    leave(PROGRAM, monkeypatch)
    with pytest.raises(EtymonError, match=r"on these rows needs about .*activations.*smaller --batch"):
        finetune(batch=60)
    assert not (tmp_path / "run").exists()


def test_a_dry_run_and_show_tell_what_memory_is_needed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = pretrain("gpt2", tmp_path / "run", dry_run=True).plan
    assert re.match(
        r"about [\d.]+ MB \(weights .*, gradients .*, optimiser .*, activations .*\); ", plan["memory"]
    )
    shown = etymon.show("gpt2", size="xl")
    assert shown.parameters == 1_557_611_200
    assert shown.memory["opening"] == 4 * shown.parameters
    assert 20e9 < shown.memory["training"]["total"] < 60e9
    from etymon.verbs.show import ShowOptions, present

    present(shown, ShowOptions(folder="gpt2"))
    assert "6.23 GB to open, about" in capsys.readouterr().out


@pytest.mark.parametrize("name", sorted(set(REGISTRY) - {"elmo", "rnn"}))  # whose loops take longer
def test_every_family_can_be_asked(name: str) -> None:
    family = get_family(name)
    usual = usual_plan(family, shape_of(family, "test"))
    samples = Samples(family.objective, usual.samples[0].options, 32, 2)
    found = replace(usual, samples=[samples]).footprint()
    assert found.gradients > 0 and found.optimiser > 0 and found.activations > 0
    assert found.total < 1e9
