"""`--dry-run`: each stage of a run is tried once, and nothing is left behind."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, overload

from etymon.families.model import Model
from etymon.nn.precision import require_precision
from etymon.runs.folder import Job, join_processes
from etymon.runs.model import models_of, save_models
from etymon.runs.result import Finetuned, Pretrained
from etymon.runs.run import USUAL_BUDGET, build_stream, measure_pace, prepare, seconds_per_step
from etymon.runs.task_file import TaskFile
from etymon.runs.training_settings import VALIDATIONS, training_settings
from etymon.training.budgets import parse_budget
from etymon.training.distributed import World
from etymon.training.progress import Progress, format_bytes, format_count, format_seconds
from etymon.training.speed import memory_in_use

if TYPE_CHECKING:
    from etymon.runs.table_data import TableData
    from etymon.runs.text_data import TextData


@overload
def rehearse(job: Job, data: TextData) -> Pretrained: ...
@overload
def rehearse(job: Job, data: TableData) -> Finetuned: ...
def rehearse(job: Job, data: TextData | TableData) -> Pretrained:
    """Returns the result of a run that was not trained, with a `plan` of what would be done, by name."""
    file, plan = data.file, data.model_plan
    asked_budget = file.budget or USUAL_BUDGET
    budget = parse_budget(asked_budget)
    with join_processes(job) as joined, TemporaryDirectory(prefix="etymon-") as place:
        device = joined.world.device
        data.require_memory(joined.world, job.recompute)
        if file.precision != "auto":
            require_precision(file.precision, device)
        # Each process tries on its own: there is nothing to share.
        job = replace(job, world=World(device=device))
        trial = replace(job, folder=Path(place), progress=Progress())
        unit, phases, _ = prepare(trial, data)
        file = data.file  # by now with a precision
        model: Model = unit.model  # type: ignore[assignment]
        # No seconds: two steps of each phase, of which the first warms up.
        times = seconds_per_step(trial, data, unit, phases, 0.0)
        each = sum(phase.share * seconds for phase, seconds in zip(phases, times, strict=True))
        resident = memory_in_use(device)
        pace, share = measure_pace(unit, phases, budget.unit), data.share_read()
        # Where only the beginning of a text was read, a pass over all of it is so many times longer.
        pace = replace(pace, epochs=pace.epochs * share)
        is_timed = budget.unit == "seconds"
        steps = max(1, int(budget.amount / each)) if is_timed else pace.steps(budget)
        data.build_validator(trial, unit, phases, lambda record: None).try_few()
        save_models(models_of(unit, plan.folder), Path(place), history=[])
        build_stream(trial, data, phases, steps)  # refuses phases that would get no step
        described, footprint = data.describe(phases), data.footprint(unit, phases, device)
    settings = training_settings(plan.recipe, file, steps=steps, validations=VALIDATIONS)
    optimiser, schedule = settings.optimiser, settings.schedule
    # Rows of a table are of any length, so their steps are an estimate, too.
    about = "about " if is_timed or share < 1 or isinstance(file, TaskFile) else ""
    tokens = format_count(steps * pace.tokens)
    lines = {
        "model": f"{plan.title}, {model.parameter_count():,} parameters, {file.precision}",
        **described,
        "steps": f"{about}{steps:,} ({asked_budget}), about {tokens} tokens",
        "learning rate": f"{optimiser.learning_rate:g} at its peak, {schedule.name}, "
        f"{schedule.warmup:,} steps of warm-up, {optimiser.name}",
        "memory": f"{footprint}; {format_bytes(resident)} after a step",
        "time": f"about {format_seconds(steps * each)}, {each * 1000:.0f} ms a step",
        "folder": str(job.folder),
    }
    kind = Finetuned if isinstance(file, TaskFile) else Pretrained
    return kind(
        folder=job.folder,
        model_folder=job.folder / plan.folder,
        report=None,
        model=model,
        metrics={},
        steps=0,
        stopped=False,
        plan=lines,
        quiet=not joined.world.first,
    )
