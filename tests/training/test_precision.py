"""Runs in half precision: resumed bit for bit, `auto` settled once, losses scaled in fp16, and refusals."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import etymon
from etymon.errors import EtymonError
from etymon.nn import precision
from etymon.training.distributed import World
from etymon.training.feeding import Feed, Phase, StepStream
from etymon.training.loop import Diverged, Trainer
from etymon.training.progress import Progress
from etymon.training.settings import TrainingSettings
from etymon.training.state import SMALLEST_SCALE, STEPS_AT_SCALE, RunFolder, TrainingState
from etymon.training.unit import TrainingUnit
from tests import tiny

SMALL = ["shape.dim=32", "shape.layers=2", "shape.heads=2"]


@pytest.fixture(autouse=True)
def every_precision(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Any processor computes in any precision, if slowly: what is measured is set by the test."""
    speeds = {"bf16": 3.0, "fp16": 1.0}
    monkeypatch.setattr(precision, "products_speed", lambda name, *rest, **others: speeds[name])
    return speeds


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("\n\n".join(tiny.texts(80)), encoding="utf-8")
    return path


def pretrain(text: Path, out: Path, family: str = "gpt2", **more: Any) -> Any:
    options = {"data": [text], "steps": 6, "batch": 8, "length": 24, "vocabulary": 300, "set": SMALL}
    return etymon.pretrain(family, out=out, progress="silent", **{**options, **more})


def weights(run: Any) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in run.model.state_dict().items()}


@pytest.mark.parametrize(("family", "name"), [("gpt2", "bf16"), ("gpt2", "fp16"), ("transformer-xl", "bf16")])
def test_a_stopped_run_goes_on_bit_for_bit(text: Path, tmp_path: Path, family: str, name: Any) -> None:
    shape = SMALL if family == "gpt2" else [*SMALL, "shape.embedding_dim=32", "shape.head_dim=16"]
    common: dict[str, Any] = {"family": family, "precision": name, "set": shape, "save_every": 3, "keep": 9}
    whole = pretrain(text, tmp_path / "whole", **common)
    pretrain(text, tmp_path / "parts", **common)
    for step in (tmp_path / "parts" / "checkpoints").iterdir():
        if step.name != "step-00000003":
            for file in sorted(step.rglob("*"), reverse=True):
                file.unlink() if file.is_file() else file.rmdir()
            step.rmdir()
    again = etymon.pretrain(family, out=tmp_path / "parts", resume=True, progress="silent")
    first, second = weights(whole), weights(again)
    assert all(torch.equal(first[part], second[part]) for part in first)
    assert {value.dtype for value in first.values()} == {torch.float32}, "master weights are float32"


def test_auto_is_settled_by_the_first_start_and_kept(
    text: Path, tmp_path: Path, every_precision: dict[str, float]
) -> None:
    pretrain(text, tmp_path / "run", precision="auto")
    file = yaml.safe_load((tmp_path / "run" / "run.yaml").read_text(encoding="utf-8"))
    assert file["precision"] == file["training"]["precision"] == "bf16"
    every_precision["bf16"] = 0.9  # another machine, on which auto would choose otherwise
    again = etymon.pretrain("gpt2", out=tmp_path / "run", resume=True, precision="auto", progress="silent")
    assert again.model.history[-1]["training"]["precision"] == "bf16"


def test_another_precision_is_no_resume(text: Path, tmp_path: Path) -> None:
    pretrain(text, tmp_path / "run", precision="bf16")
    with pytest.raises(EtymonError, match="precision"):
        etymon.pretrain("gpt2", out=tmp_path / "run", resume=True, precision="fp16", progress="silent")


def test_a_processor_that_only_emulates_it_is_refused_before_anything_is_written(
    text: Path, tmp_path: Path, every_precision: dict[str, float]
) -> None:
    every_precision["fp16"] = 0.02
    with pytest.raises(EtymonError, match=r"no precision fp16 here: .*50 times slower.*float32, or auto"):
        pretrain(text, tmp_path / "run", precision="fp16")
    assert not (tmp_path / "run").exists()


def test_distilling_fine_tuning_and_asking_in_bf16(text: Path, tmp_path: Path) -> None:
    small = [*SMALL, "shape.inner_dim=48"]
    pretrain(text, tmp_path / "bert", family="bert", set=small, precision="bf16")
    student = etymon.distill(
        tmp_path / "bert", data=[text], out=tmp_path / "student", steps=4, precision="bf16", progress="silent"
    )
    assert math.isfinite(student.metrics["bits_per_target"])
    rows = "".join(f"{text},{number % 2}\n" for number, text in enumerate(tiny.texts(40)))
    (tmp_path / "rows.csv").write_text("text,label\n" + rows, encoding="utf-8")
    tuned = etymon.finetune(
        tmp_path / "bert", task="classify", train=[tmp_path / "rows.csv"], out=tmp_path / "tuned", steps=4,
        precision="bf16", lora=2, adversarial="fgm", progress="silent",
    )  # fmt: skip
    assert tuned.model.history[-1]["training"]["precision"] == "bf16"
    question = ["The river crossed the garden."]
    whole, half = (
        etymon.predict(tmp_path / "tuned", question, precision=name)[0].answer for name in ("float32", "bf16")
    )
    assert half["probabilities"] == pytest.approx(whole["probabilities"], abs=0.02)


def test_a_given_model_is_not_rounded_behind_its_owner(text: Path, tmp_path: Path) -> None:
    run = pretrain(text, tmp_path / "run")
    with pytest.raises(EtymonError, match="as a model is read"):
        etymon.generate(run.model, ["The"], precision="bf16")


# --- the loss scale of fp16


def trainer(tmp_path: Path, state: TrainingState) -> Trainer:
    objective = tiny.objective("gpt2", "causal")
    unit = TrainingUnit(tiny.model("gpt2", objective), objective)
    precision.set_precision(unit, "fp16")
    feed = Feed(objective, tiny.store("gpt2", tmp_path / "store").train, 0, slices=1, rows=4)
    return Trainer(
        unit,
        StepStream([Phase(0, feed)]),
        TrainingSettings(steps=5, precision="fp16"),
        RunFolder(tmp_path),
        validate=lambda *rest: {},
        save_members=lambda folder: None,
        progress=Progress(),
        state=state,
        world=World(),
    )


def take_step(trained: Trainer) -> dict[str, float]:
    steps = trained.stream.steps(0, trained.state.position, 1)
    record = trained.train_step(next(steps))
    steps.close()
    return record


def test_a_step_that_overflows_is_left_out_and_the_scale_falls(tmp_path: Path) -> None:
    trained = trainer(tmp_path, TrainingState(loss_scale=2.0**40, scale_steps=7))
    before = {name: value.clone() for name, value in trained.unit.state_dict().items()}
    record = take_step(trained)
    assert not math.isfinite(record["gradient_norm"]) and record["loss_scale"] == 2.0**40
    assert all(torch.equal(value, before[name]) for name, value in trained.unit.state_dict().items())
    assert (trained.state.loss_scale, trained.state.scale_steps) == (2.0**39, 0)


def test_the_scale_rises_after_many_good_steps_and_changes_no_gradient(tmp_path: Path) -> None:
    records = []
    for number, scale in enumerate((256.0, 1024.0)):
        trained = trainer(
            tmp_path / str(number), TrainingState(loss_scale=scale, scale_steps=STEPS_AT_SCALE - 1)
        )
        records.append(take_step(trained))
        assert (trained.state.loss_scale, trained.state.scale_steps) == (2 * scale, 0)
    assert records[0]["gradient_norm"] == pytest.approx(records[1]["gradient_norm"], rel=1e-3)


def test_a_loss_that_no_scale_saves_has_diverged(tmp_path: Path) -> None:
    trained = trainer(tmp_path, TrainingState(loss_scale=SMALLEST_SCALE))
    with torch.no_grad():
        next(iter(trained.unit.parameters())).fill_(math.nan)
    with pytest.raises(Diverged, match="not finite"):
        take_step(trained)


def test_the_scale_is_part_of_a_checkpoint(text: Path, tmp_path: Path) -> None:
    pretrain(text, tmp_path / "run", precision="fp16")
    (newest,) = sorted((tmp_path / "run" / "checkpoints").iterdir())[-1:]
    state = json.loads((newest / "state.json").read_text(encoding="utf-8"))
    assert state["loss_scale"] > 0 and state["scale_steps"] == 6
