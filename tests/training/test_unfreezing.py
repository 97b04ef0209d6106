"""Gradual unfreezing: which sections train at which step, what rests is left alone, and a stopped run goes on exactly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from etymon.config import load_yaml
from etymon.errors import EtymonError
from etymon.families import REGISTRY, get_family
from etymon.families.model import Model
from etymon.families.surgery import generator_for
from etymon.runs.run_file import RunFile, assemble
from etymon.settings.adversarial import AdversarialSettings
from etymon.training.feeding import Feed, Phase, Position, StepStream
from etymon.training.loop import Trainer
from etymon.training.optimisers import (
    OPTIMISERS,
    OptimiserChoice,
    build_optimiser,
    gradual_unfreezing,
    section,
)
from etymon.training.progress import make_progress
from etymon.training.settings import TrainingSettings
from etymon.training.state import RunFolder
from etymon.training.unit import TrainingUnit
from tests import tiny
from tests.verbs.small_runs import crash, metrics, pretrain, resume, weight_files, with_test_sizes

Maker = Callable[..., Trainer]


@pytest.fixture
def trainer(stores: dict[str, Any], tmp_path: Path) -> Maker:
    def make(family: str, objective_name: str, *, slices: int = 1, **settings: Any) -> Trainer:
        objective = tiny.objective(family, objective_name)
        model = tiny.model(family, objective)
        companions = {}
        if objective.companions:
            companions["generator"] = generator_for(model, tiny.generator_shape(family), 0)
        feed = Feed(objective, stores[family].train, 0, slices=slices, rows=2)
        return Trainer(
            TrainingUnit(model, objective, companions), StepStream([Phase(0, feed)]),
            TrainingSettings(**{"steps": 12, "unfreeze": 0.5, **settings}),
            RunFolder(tmp_path), validate=lambda *arguments: {}, save_members=lambda folder: None, progress=make_progress("silent"),
        )  # fmt: skip

    return make


def step_through(trainer: Trainer, count: int) -> list[set[str]]:
    """Takes steps; gives the sections that had a gradient in each."""
    seen: list[set[str]] = []

    def look(*_: Any) -> None:
        parameters = trainer.unit.named_parameters()
        seen.append({section(name) for name, parameter in parameters if parameter.grad is not None})

    hook = trainer.optimiser.register_step_pre_hook(look)
    for step in trainer.stream.steps(trainer.state.step, trainer.state.position, count):
        trainer.train_step(step)
        trainer.state.step, trainer.state.position = trainer.state.step + 1, step.after
    hook.remove()
    return seen


def test_sections_join_from_the_top_down_at_equal_intervals(trainer: Maker) -> None:
    made = trainer("gpt2", "causal")
    top, upper = {"norm"}, {"norm", "layers.1"}
    lower = {*upper, "layers.0"}
    everything = {*lower, "embeddings"}
    assert step_through(made, 8) == [top, top, upper, upper, lower, lower, everything, everything]
    assert all(parameter.requires_grad for parameter in made.unit.parameters()), "as before, between steps"


@pytest.mark.parametrize("family", REGISTRY)
def test_every_family_begins_with_its_top_and_ends_with_everything(family: str, trainer: Maker) -> None:
    made = trainer(family, get_family(family).objective, steps=4)
    first, _, last = step_through(made, 3)
    whole = {section(name) for name, _ in made.unit.named_parameters()}
    assert first and "embeddings" not in first and first < whole
    # Where the head is the embeddings themselves and no norm follows the last layer, that layer is the top.
    assert any("layers." in name for name in first) == (family in ("gpt1", "bart", "transformer"))
    assert last == whole


def test_both_stacks_begin_at_their_own_top() -> None:
    known = get_family("t5")
    shape = known.shape(**{**tiny.SHAPES["t5"], "vocabulary": 40, "decoder_layers": 3})
    model = Model(known, shape, {"vocabulary"})

    def training(share: float) -> set[str]:
        with gradual_unfreezing(model, share):
            return {section(name) for name, value in model.named_parameters() if value.requires_grad}

    tops = {"encoder.norm", "decoder.norm", "heads"} & {section(name) for name, _ in model.named_parameters()}
    assert training(0.0) == training(0.24) == tops
    assert training(0.25) == {*tops, "encoder.layers.1", "decoder.layers.2"}
    assert training(0.5) - training(0.25) == {"encoder.layers.0", "decoder.layers.1"}
    assert training(0.75) - training(0.5) == {"decoder.layers.0"}
    assert training(1.0) - training(0.75) == {"embeddings"} and training(7.0) == training(1.0)


def test_what_is_frozen_stays_so_and_is_no_level_of_its_own(trainer: Maker) -> None:
    made = trainer("gpt2", "causal", optimiser=OptimiserChoice(frozen=("*norm*", "*.layers.1.*")))
    seen = step_through(made, 7)
    assert seen[0] == {"layers.0"} and seen[-1] == {"layers.0", "embeddings"}
    frozen = [value for name, value in made.unit.named_parameters() if ".layers.1." in name]
    assert frozen and not any(value.requires_grad for value in frozen)


@pytest.mark.parametrize("name", OPTIMISERS)
def test_what_rests_does_not_move_nor_does_its_state(name: str, trainer: Maker) -> None:
    choice = OptimiserChoice(name, learning_rate=0.01, weight_decay=0.5, undecayed=())
    made = trainer("bert", "masked", optimiser=choice)
    before = {name: value.detach().clone() for name, value in made.unit.named_parameters()}
    step_through(made, 3)
    for parameter, value in made.unit.named_parameters():
        trains = section(parameter) in ("heads", "layers.1")
        assert torch.equal(value, before[parameter]) != trains, parameter
        assert bool(made.optimiser.state.get(value)) == trains, parameter


def test_the_gradient_is_clipped_over_what_trains(trainer: Maker) -> None:
    made, whole = trainer("gpt2", "causal", clip=1e-3), trainer("gpt2", "causal", clip=1e-3, unfreeze=None)
    norms = []

    def look(*_: Any) -> None:
        found = [value.grad for value in made.unit.parameters() if value.grad is not None]
        norms.append(float(torch.stack([gradient.norm() for gradient in found]).norm()))

    made.optimiser.register_step_pre_hook(look)
    (step,) = made.stream.steps(0, Position(), 1)
    assert made.train_step(step)["gradient_norm"] < whole.train_step(step)["gradient_norm"]
    assert norms == [pytest.approx(1e-3, rel=1e-2)]


def test_measured_steps_train_everything_and_leave_nothing(trainer: Maker) -> None:
    made = trainer("gpt2", "causal")
    seen = []
    made.optimiser.register_step_pre_hook(
        lambda *_: seen.append(all(value.grad is not None for value in made.unit.parameters()))
    )
    assert made.seconds_per_step(0.0) > 0 and seen and all(seen)
    held = [
        value
        for group in build_optimiser(made.unit, OptimiserChoice()).param_groups
        for value in group["params"]
    ]
    assert len(held) == len(list(made.unit.parameters()))


@pytest.mark.skipif(not torch.distributed.is_available(), reason="PyTorch has no distributed package")
@pytest.mark.parametrize("adversarial", [None, "fgm", "pgd", "freelb"])
def test_under_a_wrapper_it_is_the_same(adversarial: str | None, trainer: Maker, tmp_path: Path) -> None:
    settings = {"slices": 2, "adversarial": AdversarialSettings.of(adversarial), "steps": 8}
    plain, wrapped = trainer("gpt2", "causal", **settings), trainer("gpt2", "causal", **settings)
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        wrapped.synchronised = DistributedDataParallel(
            wrapped.unit, find_unused_parameters=True, gradient_as_bucket_view=True
        )
        assert step_through(wrapped, 6) == step_through(plain, 6)
    finally:
        torch.distributed.destroy_process_group()
    for one, two in zip(plain.unit.parameters(), wrapped.unit.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-6)


# ------------------------------------------------------------ whole runs


def test_a_crashed_run_goes_on_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of unfreezing, with noise on word vectors beside it."""
    asked: dict[str, Any] = {
        "unfreeze": 0.7, "adversarial": "freelb", "validate_every": 12, "set": ["adversarial.steps=2"],
    }  # fmt: skip
    plain = RunFolder.log

    def log(run: RunFolder, record: dict[str, Any]) -> None:
        plain(run, record)
        if record["step"] == 7 and "learning_rate" in record:
            monkeypatch.setattr(RunFolder, "log", plain)
            crash()

    with with_test_sizes():
        straight = pretrain("bert", tmp_path / "straight", **asked)
        monkeypatch.setattr(RunFolder, "log", log)
        with pytest.raises(ConnectionAbortedError):
            pretrain("bert", tmp_path / "run", **asked)
        assert RunFolder(tmp_path / "run").checkpoints() == [5]
        with pytest.raises(EtymonError, match=r"began with unfreeze 0\.7, not 0\.5"):
            resume("bert", tmp_path / "run", unfreeze=0.5)
        with pytest.raises(EtymonError, match="began with adversarial"):
            resume("bert", tmp_path / "run", adversarial="freelb")
        result = resume("bert", tmp_path / "run", **asked)
    assert metrics(result.folder) == metrics(straight.folder)
    for name in (*weight_files(straight.folder), "checkpoints/step-00000012/optimiser.safetensors"):
        assert (result.folder / name).read_bytes() == (straight.folder / name).read_bytes(), name
    begun = load_yaml(straight.folder / "run.yaml", RunFile)
    assert begun.training is not None and (begun.training.unfreeze, begun.unfreeze) == (0.7, 0.7)
    assert (
        begun.training.adversarial
        == begun.adversarial
        == AdversarialSettings(name="freelb", epsilon=0.1, step_size=0.1, steps=2)
    )


def test_run_files_take_a_name_or_a_section(tmp_path: Path) -> None:
    config = tmp_path / "run.yaml"
    config.write_text("family: bert\nadversarial: pgd\nunfreeze: 0.25\n", encoding="utf-8")
    assert assemble(RunFile, {"family": "bert"}, config).adversarial == AdversarialSettings.of("pgd")
    config.write_text("family: bert\nadversarial: {name: pgd, epsilon: 0.5}\n", encoding="utf-8")
    found = assemble(RunFile, {"family": "bert"}, config, ["adversarial.steps=5"])
    assert found.adversarial == AdversarialSettings(name="pgd", epsilon=0.5, step_size=0.3, steps=5)
    for overrides, reason in (
        (["adversarial.epsilom=5"], "unknown key 'epsilom' in adversarial"),
        (["adversarial.name=fgm"], None),
        (["adversarial=3"], "adversarial must hold keys and values"),
        (["unfreeze=0"], "unfreeze is 0, expected above 0"),
        (["unfreeze=1.0"], "unfreeze is 1.0, expected below 1"),
    ):
        if reason is None:
            assert assemble(
                RunFile, {"family": "bert"}, config, overrides
            ).adversarial == AdversarialSettings.of({"name": "fgm", "epsilon": 0.5})
        else:
            with pytest.raises(EtymonError, match=reason):
                assemble(RunFile, {"family": "bert"}, config, overrides)
