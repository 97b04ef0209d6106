"""A family's recipe and what the user asked for, made into the settings of a run."""

from __future__ import annotations

from dataclasses import fields
from typing import TypeVar

from etymon.errors import EtymonError
from etymon.families.family import Recipe
from etymon.runs.run_file import CommonFile
from etymon.settings.training import Hyperparameters, LoopSettings, PhaseFile
from etymon.training.optimisers import OptimiserChoice
from etymon.training.schedules import ScheduleChoice
from etymon.training.settings import TrainingSettings

Value = TypeVar("Value")

VALIDATIONS = 10
"""As many as a run has, if it is long enough for them."""


def training_settings(recipe: Recipe, file: CommonFile, *, steps: int, validations: int) -> TrainingSettings:
    """The recipe for so many steps, with everything that was asked for otherwise."""
    # A rate means the same to every kind of Adam, and to no two others.
    chosen = or_default(file.optimiser, recipe.optimiser)
    is_alike = chosen == recipe.optimiser or {chosen, recipe.optimiser} <= {"adamw", "adam-bert"}
    if file.learning_rate is None and not is_alike:
        raise EtymonError(
            f"the rate of the recipe, {recipe.learning_rate:g}, is one for {recipe.optimiser}: give "
            f"--learning-rate with {file.optimiser}"
        )
    every = file.validate_every or max(1, -(-steps // validations))
    warmup = max(1, round(or_default(file.warmup, recipe.warmup) * steps))
    if file.warmup is None and file.schedule is None and recipe.warmup_steps is not None:
        # A short run would end on the way up; T5's, which is at the full rate at once, may.
        rises = recipe.schedule != "inverse-square-root"
        warmup = min(recipe.warmup_steps, max(1, steps // 2)) if rises else recipe.warmup_steps
    # Users cannot ask for all hyperparameters: the file has no betas.
    hyperparameters = {
        part.name: or_default(getattr(file, part.name, None), getattr(recipe, part.name))
        for part in fields(Hyperparameters)
    }
    return TrainingSettings(
        **{part.name: getattr(file, part.name) for part in fields(LoopSettings)},
        steps=steps,
        optimiser=OptimiserChoice(name=chosen, frozen=file.frozen, **hyperparameters),
        schedule=ScheduleChoice(
            name=or_default(file.schedule, recipe.schedule),
            warmup=warmup,
            final=recipe.final,
            end=recipe.decay_end if file.schedule is None else 1.0,
        ),
        clip=or_default(file.clip, recipe.clip) or None,
        validate_every=every,
        # A checkpoint with every validation, so that the best one is there to be kept.
        save_every=file.save_every or every,
        paced="samples" if file.grows(recipe.ramp) else "steps",
        precision="float32" if file.precision == "auto" else file.precision,
    )


STAGES = 8
"""Of a growing batch."""


def ramp_phases(share: float, batch: int, slices: int) -> tuple[PhaseFile, ...]:
    """The phases of a run whose batch grows from a sixteenth to `batch` over a share of its samples,
    by equal steps of samples."""
    sizes = [batch * (1 + 15 * (number + 0.5) / STAGES) / 16 for number in range(STAGES)]
    whole = [max(slices, round(size / slices) * slices) for size in sizes]
    parts: dict[int, float] = {}
    for size, samples in [*((size, share / STAGES) for size in whole), (batch, 1 - share)]:
        parts[size] = parts.get(size, 0.0) + samples / size  # in steps
    total = sum(parts.values())
    return tuple(PhaseFile(share=steps / total, batch=size) for size, steps in parts.items() if steps)


def steps_within(budget: float, step: float, validation: float, every: int | None) -> tuple[int, int]:
    """How many steps fit into a budget of seconds, and how many validations beside the one before the first
    step.

    Validating takes a tenth of the time at most, but for the two at the ends, or as often as was asked for.
    """
    if every is not None:
        steps = max(1, int((budget - 2 * validation) / (step + validation / every)))
        return steps, -(-steps // every)
    validations = VALIDATIONS if validation <= 0 else max(1, min(VALIDATIONS, int(budget / 10 / validation)))
    return max(1, int((budget - (validations + 1) * validation) / step)), validations


def or_default(given: Value | None, usual: Value) -> Value:
    return usual if given is None else given
