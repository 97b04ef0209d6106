"""The average of the weights: the published recurrence, what is validated, kept and handed over, and exact resume."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import etymon
from etymon.checkpoints.folder import checksums
from etymon.config import strict
from etymon.errors import EtymonError
from etymon.nn.footprint import Footprint
from etymon.objectives import get_objective
from etymon.runs.run_file import RunFile
from etymon.text.store import TokenStore
from etymon.training.feeding import validation_slices
from etymon.training.loop import Trainer
from etymon.training.memory import step_footprint, without_values
from etymon.training.optimisers import OptimiserChoice, parameters_by_name
from etymon.training.state import RunFolder
from etymon.training.unit import TrainingUnit, evaluate
from tests import tiny
from tests.training.processes import stop_at
from tests.verbs.small_runs import metrics, pretrain, resume, weight_files, with_test_sizes

DECAY = 0.7
KEPT: dict[str, Any] = {"set": [f"ema={DECAY}", "keep=99"], "save_every": 1, "validate_every": 4}
CASES = {
    "one model": ("gpt2", {}),
    "half precision": ("bert", {"precision": "bf16"}),
    "a generator beside it": ("electra", {}),
    "streams": ("transformer_xl", {}),
}


@pytest.fixture(autouse=True)
def _sizes() -> Any:
    with with_test_sizes():
        yield


def average_of(trained: list[dict[str, torch.Tensor]], decay: float = DECAY) -> dict[str, torch.Tensor]:
    """The recurrence by hand, over the weights before the first step and after each."""
    average = {name: weights.double() for name, weights in trained[0].items()}
    for step, weights in enumerate(trained[1:], 1):
        now = min(decay, (1 + step) / (10 + step))
        average = {name: now * value + (1 - now) * weights[name].double() for name, value in average.items()}
    return average


@pytest.mark.parametrize("case", CASES)
def test_the_average_is_that_of_the_weights_of_all_steps(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    family, changes = CASES[case]
    trained: list[dict[str, torch.Tensor]] = []
    plain = Trainer.train_step

    def passing(trainer: Trainer, *arguments: Any, **named: Any) -> Any:
        def look() -> None:
            weights = parameters_by_name(trainer.unit)
            trained.append({name: value.detach().clone() for name, value in weights.items()})

        if not trained:
            look()
        result = plain(trainer, *arguments, **named)
        look()
        return result

    monkeypatch.setattr(Trainer, "train_step", passing)
    done = pretrain(family, tmp_path / "run", **KEPT, **changes)
    monkeypatch.undo()
    expected = average_of(trained)
    handed_over = dict(done.model.named_parameters())
    assert len(trained) == 13 and all(value.dtype == torch.float32 for value in handed_over.values())
    for name, value in handed_over.items():
        assert torch.allclose(value.double(), expected[name], rtol=1e-5, atol=1e-6), name
    assert any(not torch.allclose(handed_over[name], trained[-1][name]) for name in handed_over)
    # A checkpoint's model is the average of then; beside the optimiser's tensors are the weights themselves.
    checkpoint = RunFolder(done.folder).checkpoint(7)
    kept = dict(etymon.load(checkpoint / done.model_folder.name).named_parameters())
    then = average_of(trained[:8])
    assert all(torch.allclose(kept[name].double(), then[name], rtol=1e-5, atol=1e-6) for name in kept)
    beside = load_file(checkpoint / "optimiser.safetensors")
    assert all(torch.equal(beside[f"weights/{name}"], trained[7][name]) for name in trained[7])


@pytest.mark.parametrize("case", CASES)
def test_a_stopped_run_goes_on_bit_for_bit(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    family, changes = CASES[case]
    settings = {**KEPT, **changes, "save_every": 5, "save_at": ["6steps"]}
    straight = pretrain(family, tmp_path / "straight", **settings)
    monkeypatch.setattr(Trainer, "_show", Trainer._show)
    stop_at(7)
    stopped = pretrain(family, tmp_path / "run", **settings)
    assert stopped.stopped and stopped.steps == 7
    done = resume(family, tmp_path / "run")
    assert not done.stopped and metrics(done.folder) == metrics(straight.folder)
    files = weight_files(straight.folder)
    assert files and files == weight_files(done.folder)
    for file in [*files, Path("milestones/6steps/model.safetensors")]:
        one, two = load_file(straight.folder / file), load_file(done.folder / file)
        assert all(torch.equal(one[name], two[name]) for name in one), file


def test_without_a_decay_nothing_changes(tmp_path: Path) -> None:
    plain = pretrain("gpt2", tmp_path / "plain")
    none = pretrain("gpt2", tmp_path / "none", set=["ema=0"])
    averaged = pretrain("gpt2", tmp_path / "averaged", set=["ema=0.9"])
    assert metrics(plain.folder) == metrics(none.folder)
    names = load_file(RunFolder(none.folder).checkpoint(12) / "optimiser.safetensors")
    assert not any(name.startswith("weights/") for name in names)
    weights = [load_file(done.model_folder / "model.safetensors") for done in (plain, none, averaged)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert not all(torch.equal(weights[0][name], weights[2][name]) for name in weights[0])
    # What trains is the same: only what is validated and kept is another model.
    losses = [
        [record["loss"] for record in metrics(done.folder) if "loss" in record] for done in (plain, averaged)
    ]
    assert losses[0] == losses[1]


def test_what_is_validated_is_what_is_handed_over(tmp_path: Path) -> None:
    done = pretrain("gpt2", tmp_path / "run", **KEPT)
    again = etymon.load(done.model_folder)
    assert again.tokenizer is not None
    objective = get_objective("causal", again.tokenizer, 32)
    split = TokenStore.open(done.folder / "store", again.tokenizer).validation
    slices = validation_slices(objective, split, 0, rows=4, slices=2)
    assert evaluate(TrainingUnit(again, objective), slices)["loss"] == pytest.approx(
        done.metrics["loss"], rel=1e-6
    )
    converted = etymon.convert(done.folder, tmp_path / "converted")
    assert converted.family == "GPT-2"
    one, two = (
        load_file(folder / "model.safetensors") for folder in (done.model_folder, tmp_path / "converted")
    )
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_the_best_model_that_comes_back_is_the_average_that_was_validated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("etymon.runs.validation.VALIDATION_SAMPLES", 2)
    done = pretrain(
        "gpt2", tmp_path / "run", learning_rate=30.0, validate_every=1, save_every=1, steps=40,
        set=["optimiser=adamw", "patience=2", "ema=0.5", "keep=99"],
    )  # fmt: skip
    best = RunFolder(done.folder).checkpoint(done.steps - 2)
    assert done.steps < 40
    one, two = (load_file(folder / "model.safetensors") for folder in (done.model_folder, best / "model"))
    assert all(torch.equal(one[name], two[name]) for name in one)
    beside = load_file(best / "optimiser.safetensors")
    assert any(not torch.equal(beside[f"weights/{name}"], value) for name, value in _by_name(best).items())


def _by_name(checkpoint: Path) -> dict[str, torch.Tensor]:
    return {
        name: value.detach() for name, value in parameters_by_name(etymon.load(checkpoint / "model")).items()
    }


def test_phases_fine_tuning_and_adapters_have_averages_too(tmp_path: Path) -> None:
    phases = [{"share": 0.5, "objective": "masked"}, {"share": 0.5, "length": 16}]
    config = tmp_path / "phases.json"
    config.write_text(json.dumps({"phases": phases, "ema": DECAY}), encoding="utf-8")
    done = pretrain("bert", tmp_path / "run", config=config)
    rows = [
        {"text": f"{word} window {number}", "label": word} for number in range(12) for word in ("good", "bad")
    ]
    tuned: dict[str, Any] = {
        "task": "classify", "train": rows, "validation": rows, "steps": 6, "validate_every": 2, "baselines": False,
        "progress": "silent",
    }  # fmt: skip
    for name, given in {"whole": {}, "adapters": {"lora": 2}, "unfreezing": {"unfreeze": 0.5}}.items():
        weights = []
        for decay in (0.0, DECAY):
            out = tmp_path / f"{name}-{decay}"
            model = etymon.finetune(done.model_folder, out=out, set=[f"ema={decay}"], **tuned, **given).model
            weights.append({key: value.detach() for key, value in model.named_parameters()})
            again = etymon.load(out / "model").state_dict()
            assert all(torch.equal(again[key], value) for key, value in weights[-1].items())
        differ = {key for key in weights[0] if not torch.equal(weights[0][key], weights[1][key])}
        assert differ and (name != "adapters" or all("lora" in key or "heads." in key for key in differ)), (
            name
        )


def test_a_checkpoint_of_another_decay_is_refused(tmp_path: Path) -> None:
    done = pretrain("gpt2", tmp_path / "run", **KEPT)
    checkpoint = RunFolder(done.folder).checkpoint(12)
    trainer_weights = {
        name: value
        for name, value in load_file(checkpoint / "optimiser.safetensors").items()
        if not name.startswith("weights/")
    }
    save_file(trainer_weights, checkpoint / "optimiser.safetensors")
    sums = checkpoint / "checksums.json"
    sums.unlink()
    sums.write_text(json.dumps(checksums(checkpoint)), encoding="utf-8")
    with pytest.raises(EtymonError, match="saved with another ema"):
        resume("gpt2", done.folder)


def test_a_decay_is_from_0_to_below_1() -> None:
    for decay in (-0.1, 1.0):
        with pytest.raises(EtymonError, match="ema is"):
            strict(RunFile, {"family": "gpt2", "ema": decay}, "x")
        with pytest.raises(EtymonError, match="ema"):
            OptimiserChoice(ema=decay)


def test_the_average_is_counted_in_the_memory_of_a_run() -> None:
    objective = tiny.objective("gpt2", "causal")

    def footprint(decay: float | None) -> Footprint:
        with without_values():
            unit = TrainingUnit(tiny.model("gpt2", objective), objective)
        return step_footprint(unit, None, OptimiserChoice(ema=decay))

    plain, averaged = footprint(None), footprint(0.9)
    assert averaged.optimiser - plain.optimiser == pytest.approx(plain.weights, rel=0.02)
