"""`--recipe`: what a run does with one, what it writes down of it, and that it goes on by it."""

from __future__ import annotations

import html
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import etymon
from etymon.config import load_yaml
from etymon.errors import EtymonError
from etymon.families import get_family
from etymon.runs.model import plan_model
from etymon.runs.run_file import RunFile
from etymon.runs.task_file import TaskFile
from etymon.runs.text_phases import text_phases
from tests.verbs.small_runs import crash, metrics, pretrain, resume, weight_files

SMALL: dict[str, Any] = {"learning_rate": None, "length": None, "batch": None, "steps": 6}
"""What the recipe is to decide."""


def settled(folder: Path) -> RunFile:
    return load_yaml(folder / "run.yaml", RunFile)


def test_the_pocket_recipe_of_bert(tmp_path: Path) -> None:
    result = pretrain("bert", tmp_path, recipe="pocket", **SMALL)
    file, recipe = settled(tmp_path), get_family("bert").recipe_for("pocket")
    assert file.recipe == "pocket" and file.shape == dict(recipe.shape) and file.objective == "masked"
    assert file.training is not None and file.training.optimiser.name == "muon"
    assert file.training.optimiser.learning_rate == recipe.learning_rate
    assert result.model.shape.position_kind == "rotary"
    config = json.loads((tmp_path / "model" / "config.json").read_text(encoding="utf-8"))
    assert config["model_type"] == "roformer"
    assert result.model.history[-1]["recipe"] == "pocket"
    report = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Recipe: pocket" in report and recipe.why in html.unescape(report)


@pytest.mark.parametrize(
    ("family", "phases", "kind"),
    [
        ("t5", ["denoising", "span-corruption"], "t5"),
        ("bart", [], "etymon-bart"),
        ("xlnet", [], "xlnet"),
        ("albert", [], "etymon-albert"),
    ],
)
def test_pocket_recipes_begin_at_neighbours_and_say_so(
    family: str, phases: list[str], kind: str, tmp_path: Path
) -> None:
    asked = {**SMALL, "length": 32, "batch": 4} if family == "xlnet" else SMALL
    result = pretrain(family, tmp_path, recipe="pocket", **asked)
    assert [phase.objective for phase in settled(tmp_path).phases] == phases
    config = json.loads((tmp_path / "model" / "config.json").read_text(encoding="utf-8"))
    assert config["model_type"] == kind
    assert config["etymon_neighbours"] == get_family(family).recipe_for("pocket").shape["neighbours"]
    assert etymon.load(tmp_path).shape == result.model.shape
    assert "neighbours" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_sizes_have_their_recipe_and_options_beat_it(tmp_path: Path) -> None:
    small = ["shape.dim=16", "shape.heads=2", "shape.inner_dim=32", "shape.layers=1"]
    plain = pretrain("bert", tmp_path / "pocket", size="pocket", vocabulary=200, set=small, **SMALL)
    assert settled(plain.folder).recipe == "pocket" and plain.model.shape.position_kind == "rotary"
    asked = [*small, "shape.position_kind=learned", "options.density=0.4"]
    other = pretrain(
        "bert",
        tmp_path / "other",
        size="pocket",
        vocabulary=200,
        set=asked,
        **{**SMALL, "learning_rate": 1e-3},
    )
    file = settled(other.folder)
    assert other.model.shape.position_kind == "learned" and other.model.shape.dropout == 0.0
    assert file.options["density"] == 0.4
    assert file.training is not None and file.training.optimiser.learning_rate == 1e-3


def test_published_on_any_size_is_the_papers(tmp_path: Path) -> None:
    result = pretrain("bert", tmp_path, recipe="published", **SMALL)
    file = settled(tmp_path)
    assert file.recipe == "published" and file.objective == "masked-next-sentence" and not file.shape
    assert file.training is not None and file.training.optimiser.name == "adam-bert"
    assert result.model.shape.position_kind == "learned" and "next_sentence" in result.model.heads


def test_causal_first_has_two_phases_and_goes_on_bit_for_bit(
    tmp_path: Path, at_step: Callable[[int, Callable[[], Any]], None]
) -> None:
    asked = {**SMALL, "recipe": "causal-first", "validate_every": 3, "save_every": 2, "length": 32}
    whole = pretrain("bert", tmp_path / "whole", **asked)
    file = settled(whole.folder)
    assert [phase.objective for phase in file.phases] == ["hybrid", "masked"]
    assert [phase.options for phase in file.phases] == [
        {"causal": 1.0},
        {"density": 0.4, "summary": 1.0, "shifted": True},
    ]
    trained = [record for record in metrics(whole.folder) if "learning_rate" in record]
    assert ["causal" in record for record in trained] == [True] * 3 + [False] * 3
    assert whole.model.predicts_shifted
    at_step(5, crash)
    with pytest.raises(ConnectionAbortedError):
        pretrain("bert", tmp_path / "run", **asked)
    again = resume("bert", tmp_path / "run")
    for name in weight_files(whole.folder):
        assert (again.folder / name).read_bytes() == (whole.folder / name).read_bytes()
    with pytest.raises(EtymonError, match="recipe"):
        resume("bert", tmp_path / "run", recipe="hybrid")


def test_hybrid_runs_and_fills(tmp_path: Path) -> None:
    result = pretrain("bert", tmp_path, recipe="hybrid", **SMALL)
    assert {"masked", "causal"} <= set(result.metrics) and result.model.predicts_shifted
    (filled,) = etymon.fill(tmp_path, ["the [MASK] saw"])
    assert len(filled.blanks) == 1 and filled.blanks[0]


def test_a_run_from_before_recipes_had_names_goes_on_as_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_step: Callable[[int, Callable[[], Any]], None]
) -> None:
    small = ["shape.dim=16", "shape.heads=2", "shape.inner_dim=32", "shape.layers=1"]
    asked = {**SMALL, "size": "pocket", "recipe": "muon", "vocabulary": 200, "set": small, "save_every": 2}
    whole = pretrain("bert", tmp_path / "whole", **asked)
    at_step(5, crash)
    with pytest.raises(ConnectionAbortedError):
        pretrain("bert", tmp_path / "run", **asked)
    # As the file was written then.
    path = tmp_path / "run" / "run.yaml"
    tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    del tree["recipe"], tree["settled"]
    path.write_text(yaml.safe_dump(tree, sort_keys=False), encoding="utf-8")
    again = etymon.pretrain("bert", out=tmp_path / "run", resume=True, progress="silent")
    assert again.model.shape.position_kind == "learned"
    for name in weight_files(whole.folder):
        assert (again.folder / name).read_bytes() == (whole.folder / name).read_bytes()


def test_a_model_of_no_named_size_goes_on_and_is_tuned_by_the_recipe_of_its_history(tmp_path: Path) -> None:
    trained = pretrain("electra", tmp_path, recipe="pocket", set=["shape.inner_dim=48"], **SMALL)
    assert [phase.objective for phase in settled(tmp_path).phases] == ["masked", "replaced"]
    family, start = get_family("electra"), str(trained.model_folder)
    plan = plan_model(RunFile(family="electra", start=start), False)
    assert plan.size is None and plan.recipe == family.recipe_for("pocket")
    tuned = plan_model(TaskFile(family="electra", start=start, task="classify"), False)
    assert tuned.recipe == family.tuning_for("pocket") != family.tuning
    # How to begin is no matter for a model that has begun.
    assert [phase.objective for phase in text_phases(RunFile(family="electra", start=start), plan)] == [
        "replaced"
    ]


def test_a_recipe_that_there_is_not_is_refused(tmp_path: Path) -> None:
    for recipe, told in (("pokcet", "recipe"), ("hybrid", "GPT-2 has no recipe 'hybrid'")):
        with pytest.raises(EtymonError, match=told):
            pretrain("gpt2", tmp_path, recipe=recipe)
    assert not list(tmp_path.iterdir())
