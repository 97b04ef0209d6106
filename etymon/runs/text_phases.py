"""The phases of a run over text, from its file and its recipe."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

from etymon.families.family import Family
from etymon.objectives import read_options
from etymon.objectives.denoising import SENTINELS
from etymon.objectives.objective import MemoryOptions
from etymon.runs.memory import TOKENS_A_STEP, USUAL_LENGTH, Samples
from etymon.runs.model import ModelPlan
from etymon.runs.run_file import CommonFile, RunFile
from etymon.runs.task_file import MemberFile
from etymon.runs.training_settings import or_default, ramp_phases
from etymon.settings.training import PhaseFile

MEMORY = {part.name for part in fields(MemoryOptions)}


@dataclass(frozen=True)
class TextPhase(Samples):
    """A phase with everything that its run file left open filled in."""

    share: float
    """Of the run's steps."""
    data: tuple[str, ...]
    """Text of its own; none: that of the run."""

    def samples_as(self, other: TextPhase) -> bool:
        """Whether the two cut their text into the same samples: what streams remember does not matter."""

        def cut(phase: TextPhase) -> tuple[Any, ...]:
            options = {name: value for name, value in phase.options.items() if name not in MEMORY}
            return phase.objective, phase.length, options

        return cut(self) == cut(other)


def count_sentinels(file: CommonFile, family: Family, parts: Iterable[TextPhase | MemberFile] = ()) -> int:
    """How many sentinels a new tokenizer has: as the run says, the family's, or T5's number if one of the
    `parts`, phases or members of a mixture, writes behind them."""
    if file.sentinels is not None:
        return file.sentinels
    options = [read_options(part.objective, part.options) for part in parts if part.objective]
    members = [part for each in options for part in (each.values() if isinstance(each, dict) else [each])]
    is_needed = any(getattr(member, "shows_sentinels", False) for member in members)
    return family.tokenizer.sentinels or (SENTINELS if is_needed else 0)


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
