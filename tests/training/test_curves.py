"""What half precision does to learning: curves of 300 steps stay within what another seed changes. `make test-curves`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from etymon.families import REGISTRY, get_family
from etymon.families.surgery import generator_for
from etymon.nn.precision import Precision, set_precision
from etymon.training.feeding import Feed, Phase, StepStream
from etymon.training.loop import Trainer
from etymon.training.optimisers import OptimiserChoice
from etymon.training.progress import Progress
from etymon.training.schedules import ScheduleChoice
from etymon.training.settings import TrainingSettings
from etymon.training.state import RunFolder, TrainingState
from etymon.training.unit import TrainingUnit
from tests import tiny

STEPS, WINDOW, SEEDS = 300, 50, 3


def curve(family: str, stores: dict[str, Any], folder: Path, seed: int, precision: Precision) -> list[float]:
    """The mean loss of every fifty steps."""
    objective = tiny.objective(family, get_family(family).objective)
    model = tiny.model(family, objective, dropout=0.1, seed=seed)
    companions = {}
    if "generator" in objective.companions:
        companions["generator"] = generator_for(model, tiny.generator_shape(family), seed)
    unit = TrainingUnit(model, objective, companions)
    set_precision(unit, precision)
    stream = StepStream([Phase(0, Feed(objective, stores[family].train, seed, slices=1, rows=8))])
    trainer = Trainer(
        unit,
        stream,
        TrainingSettings(
            steps=STEPS,
            seed=seed,
            precision=precision,
            optimiser=OptimiserChoice(learning_rate=2e-3),
            schedule=ScheduleChoice("linear", warmup=20),
        ),
        RunFolder(folder),
        validate=lambda *rest: {},
        save_members=lambda place: None,
        progress=Progress(),
        state=TrainingState(),
    )
    losses = []
    steps = stream.steps(0, trainer.state.position, STEPS)
    for number in range(STEPS):
        step = next(steps)
        losses.append(next(iter(trainer.train_step(step).values())))  # the objective's first term
        trainer.state.step, trainer.state.position = number + 1, step.after
    steps.close()
    return [sum(losses[begin : begin + WINDOW]) / WINDOW for begin in range(0, STEPS, WINDOW)]


@pytest.mark.curves
@pytest.mark.parametrize("family", list(REGISTRY))
def test_a_curve_in_bf16_is_within_the_spread_of_seeds(
    family: str, stores: dict[str, Any], tmp_path: Path
) -> None:
    whole = [curve(family, stores, tmp_path, seed, "float32") for seed in range(SEEDS)]
    half = curve(family, stores, tmp_path, 0, "bf16")
    spreads = [max(losses) - min(losses) for losses in zip(*whole, strict=True)]
    # The same seed sees the same samples and dropout: what is left is rounding. A spread of few seeds may be small by chance
    # at one point of the curve: the mean over it is compared.
    apart = [abs(mine - theirs) for mine, theirs in zip(half, whole[0], strict=True)]
    assert sum(apart) < sum(spreads), f"float32 {whole}, bf16 {half}"
    assert half[-1] < half[0], "and it learns"
