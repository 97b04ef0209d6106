"""The phases of a run over text, from its file and its recipe."""

from __future__ import annotations

from dataclasses import dataclass

from etymon.runs.memory import TOKENS_A_STEP, USUAL_LENGTH, Samples
from etymon.runs.model import ModelPlan
from etymon.runs.run_file import RunFile
from etymon.runs.training_settings import or_default, ramp_phases
from etymon.settings.training import PhaseFile


@dataclass(frozen=True)
class TextPhase(Samples):
    """A phase with everything that its run file left open filled in."""

    share: float
    """Of the run's steps."""
    data: tuple[str, ...]
    """Text of its own; none: that of the run."""


def text_phases(file: RunFile, plan: ModelPlan) -> list[TextPhase]:
    """Returns the phases of a run: one unless the file or the recipe has several, or its batch grows."""
    phases = file.phases or recipe_phases(file, plan) or (PhaseFile(share=1.0),)
    if len(phases) == 1 and (share := or_default(file.ramp, plan.recipe.ramp)):
        batch = _text_phase(phases[0], file, plan).rows * file.slices
        phases = ramp_phases(share, batch, file.slices)
    return [_text_phase(phase, file, plan) for phase in phases]


def recipe_phases(file: RunFile, plan: ModelPlan) -> tuple[PhaseFile, ...]:
    """The phases of the recipe, unless the run has an objective or a ramp of its own, or a model to go on
    from: they are how to begin."""
    is_open = file.objective is None and file.ramp is None and file.start is None
    return plan.recipe.phases if is_open else ()


def _text_phase(phase: PhaseFile, file: RunFile, plan: ModelPlan) -> TextPhase:
    """What a phase does not say is as in the run; what the run does not say is as in the recipe."""
    # Options belong to an objective: those of the recipe's are of no use to another.
    recipe_objective = plan.recipe.objective or plan.family.objective
    run_objective = file.objective or recipe_objective
    objective = phase.objective or run_objective
    options = dict(plan.recipe.options) if objective == recipe_objective else {}
    if phase.options is not None:
        options |= phase.options
    elif objective == run_objective:  # another objective does not have the options of the run's
        options |= file.options
    positions = getattr(plan.shape, "positions", None) or USUAL_LENGTH
    length = phase.length or file.length or plan.recipe.length or min(positions, USUAL_LENGTH)
    batch = phase.batch or file.batch
    if batch is None:
        batch = max(1, (plan.recipe.batch_tokens or TOKENS_A_STEP) // length)
        # Each slice has as many rows.
        batch = max(file.slices, batch - batch % file.slices)
    return TextPhase(objective, options, length, batch // file.slices, phase.share, phase.data)
