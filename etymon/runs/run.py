"""The story of a run, from its settings to the saved model.

`pretrain`, `distill` and `finetune`, with one task or a mixture, all go this way: they differ in the data
that they hand in.
"""

from __future__ import annotations

import shlex
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, overload

from etymon.errors import EtymonError
from etymon.families.model import Model
from etymon.files import some
from etymon.nn.lora import merge
from etymon.nn.precision import DTYPES, Precision, choose_precision, require_precision, set_precision
from etymon.runs.folder import Job, join_processes, lock_folder
from etymon.runs.model import (
    StartModel,
    complete_model,
    open_start,
    restore_models,
    save_models,
)
from etymon.runs.model_writer import ModelWriter
from etymon.runs.report import compare_with_xz, write_run_report
from etymon.runs.result import Finetuned, Pretrained
from etymon.runs.run_file import CommonFile, plain
from etymon.runs.task_file import TaskFile
from etymon.runs.training_settings import VALIDATIONS, steps_within, training_settings
from etymon.runs.validation import Evaluation, PhasePlan, Validator
from etymon.training.budgets import Pace, TimeBudget, mean_pace, parse_budget, parse_milestones
from etymon.training.feeding import Phase, StepStream
from etymon.training.loggers import OpenLoggers
from etymon.training.loop import Trainer
from etymon.training.optimisers import parameters_by_name
from etymon.training.settings import TrainingSettings
from etymon.training.sharding import place
from etymon.training.state import RunFolder, TrainingState, read_state
from etymon.training.unit import TrainingUnit

if TYPE_CHECKING:
    from etymon.runs.mixture_data import MixtureData
    from etymon.runs.table_data import TableData
    from etymon.runs.text_data import TextData

    # Made from the settings before any work: it checks them, reads tables, and knows which model is to be
    # trained. The run then asks it for the tokenizer, the objectives with their samples, a validator, and
    # what to write of it all. It never calls back, and pretraining does not import what tasks need.
    TrainingData: TypeAlias = TextData | TableData | MixtureData

USUAL_BUDGET = "10m"
FEW_STEPS = 10
"""Below this many a run says that its budget is short: the schedule has hardly begun."""
clock = time.perf_counter


@overload
def run(job: Job, data: TextData) -> Pretrained: ...
@overload
def run(job: Job, data: TableData | MixtureData) -> Finetuned: ...
def run(job: Job, data: TrainingData) -> Pretrained:
    """Trains a model as `job` asks on `data`; returns `Pretrained`, or `Finetuned` of tasks.

    The folder then holds `model/`, `report.html`, `run.yaml`, `metrics.jsonl` and checkpoints to resume from.
    """
    # `data.file` is the job's, with what the data have decided: the model's size, a body that is frozen.
    file, plan = data.file, data.model_plan
    is_task = isinstance(file, TaskFile)
    with join_processes(job) as job, lock_folder(job.folder, job.world):
        world = job.world
        if not job.resuming:
            data.require_memory(world, job.recompute)
        if file.precision != "auto":
            require_precision(file.precision, world.device)

        # The folder, and the checkpoint in it to resume from.
        folder = RunFolder(job.folder)
        with world.first_alone() as is_first:
            if is_first:
                folder.tidy()
        checkpoint = folder.latest(job.note) if job.resuming else None
        if job.resuming and checkpoint is None:
            job.note("there is no whole checkpoint yet: starting from step 0")

        # Text or tables, tokenizer, model and objectives.
        unit, phases, start = prepare(job, data, checkpoint)
        file = data.file  # by now with a precision
        model: Model = unit.model  # type: ignore[assignment]
        validator = data.build_validator(job, unit, phases, folder.log)

        # How long to train. A run file that was taken over from another run says how many steps that came to.
        settings = file.training or plan_training(job, data, unit, phases, validator)
        if file.training and not job.resuming:
            settings = replace(settings, time=None)

        # The trainer, which may refuse its settings: so nothing is written before it. Weights, optimiser,
        # position in the data and best validation all come from the checkpoint.
        state, optimiser_state = TrainingState(), None
        if checkpoint is not None:
            state, optimiser_state = read_state(checkpoint, parameters_by_name(unit))
        stream = build_stream(job, data, phases, settings.steps)
        writer = ModelWriter(job, data, unit, start)
        trainer = Trainer(
            unit,
            stream,
            settings,
            folder,
            validate=validator.validate,
            save_members=writer.save_checkpoint,
            progress=job.progress,
            state=state,
            optimiser_state=optimiser_state,
            world=world,
            milestones=writer.milestones(),
            criterion=data.criterion,
            record_revisions=writer.record_revisions,
            clock=clock,
        )
        # The trainer calls the writer, which writes down how far the trainer has come: one has to be first.
        writer.trainer = trainer
        pace = mean_pace([(phase.share, phase.feed) for phase in phases])
        out_of_reach = [
            name
            for name, amount in parse_milestones(file.save_at).items()
            if pace.exact_steps(amount) > settings.steps + 1
        ]
        if out_of_reach:
            job.note(f"nothing will be kept at {some(out_of_reach, 5)}: the run ends before it gets there")
        with world.first_alone() as is_first:
            if is_first:
                # Measuring and earlier attempts leave no metrics; a resumed run repeats those after its
                # checkpoint.
                folder.forget_after(state.step if checkpoint is not None else -1)
                if not job.resuming:
                    resolved = data.resolved_file(file.budget or USUAL_BUDGET, phases)
                    replace(resolved, training=settings, **plan.choices(file)).write(job.folder / "run.yaml")
                if file.logger_names:
                    folder.loggers = OpenLoggers(
                        file.logger_names, job.folder, plain(asdict(file)), state.step, job.note
                    )

        # Training, with a validation every so many steps.
        try:
            precision = "" if settings.precision == "float32" else f", {settings.precision}"
            result = trainer.train(f"{plan.title}, {model.parameter_count():,} parameters{precision}")
        finally:
            folder.close()
        model.eval()
        if state.step < trainer.plan.steps and not result.stopped:
            job.note(
                f"ended after {state.step:,} of {trainer.plan.steps:,} steps: no validation was better than "
                f"that of step {state.best_step:,}"
            )

        # The best model instead of the last, where the run waited for it, and its evaluation.
        # A run that came to its end keeps its last model where that is as good as can be told.
        is_restored = state.best_step not in (None, state.step) and (
            data.keeps_best or (file.patience is not None and not result.stopped)
        )
        if is_restored and state.step >= trainer.plan.steps and data.keeps_last(result.metrics, state.best):
            is_restored = False
            job.note(
                f"the model of the last step is kept: that of step {state.best_step:,} was not better by more than "
                "the standard error of the score"
            )
        if is_restored:
            restore_models(unit, folder.checkpoint(state.best_step or 0), plan.folder)
            job.note(f"the best model is that of step {state.best_step:,}")
        evaluation = None
        if not result.stopped:
            evaluation = validator.evaluate(
                stream.phase_number_after(state.step), result.metrics, is_restored
            )
        metrics = result.metrics if evaluation is None else evaluation.metrics

        # Model and report.
        # `ended` tells a sweep which of its runs need not be run again.
        history = writer.history(metrics)
        history[-1]["seen"]["ended"] = not result.stopped
        records = folder.metrics()
        samples = [(record["step"], record["sample"]) for record in records if "sample" in record]
        report = job.folder / "report.html"
        references: dict[str, float] = {}
        with writer.whole_models(folder, state.best_step if is_restored else state.step) as models:
            model = models[plan.folder]
            model.history = history
            if world.first:
                # Checkpoints keep the adapters apart: only the model that is handed over is merged.
                if isinstance(file, TaskFile) and file.merge:
                    merge(model)
                save_models(models, job.folder, history=history)
                parts = data.report_parts(job, model, evaluation, records)
                references = compare_with_xz(parts.store, model, records)
                write_run_report(report, model, records, samples, parts, references)

        name = file.start or f"{plan.family.name} --from-scratch" if is_task else plan.family.name
        verb, out = "finetune" if is_task else "pretrain", shlex.quote(str(job.folder))
        command = f"etymon {verb} {name} --out {out} --resume"
        scored = evaluation or Evaluation()
        kept_step = state.step if state.best_step is not None and not is_restored else state.best_step
        task_fields = {"best_step": kept_step, "scores": scored.scores, "beside": scored.beside}
        return (Finetuned if is_task else Pretrained)(
            folder=job.folder,
            model_folder=job.folder / plan.folder,
            report=report,
            model=model,
            metrics=metrics,
            steps=state.step,
            stopped=result.stopped,
            command=command,
            samples=samples,
            references=references,
            quiet=not world.first,
            signal=result.signal,
            **(task_fields if is_task else {}),  # type: ignore[arg-type]
        )


def prepare(
    job: Job, data: TrainingData, checkpoint: Path | None = None
) -> tuple[TrainingUnit, list[PhasePlan], StartModel]:
    """Returns what is trained, its phases, and the model that it began as."""
    start = open_start(data.model_plan, data.file, checkpoint, job.note)
    tokenizer = data.prepare(job, start.tokenizer)
    model = complete_model(data.model_plan, data.file, start, tokenizer)
    if (counts := start.replaced_tokenizer) is not None and checkpoint is None:
        job.note(
            f"word vectors of the new tokenizer: {counts['copied']:,} of pieces that both have, "
            f"{counts['composed']:,} composed of old pieces, {counts['new']:,} drawn anew"
        )
    unit, phases = data.build_unit(job, model, start, checkpoint)
    for phase in phases:
        phase.feed.require_targets()
    precision = choose_precision_once(job, data.file, unit)
    for part in (unit, unit.teacher):
        if part is not None:
            set_precision(part, precision)
    data.file = replace(data.file, precision=precision)
    place(unit, job.world, recompute=job.recompute, compile=job.compile)
    return unit, phases, start


def choose_precision_once(job: Job, file: CommonFile, unit: TrainingUnit) -> Precision:
    """Returns the precision of a run; where that is left to measurement, the first process measures."""
    if file.precision != "auto":
        return file.precision
    names: list[Precision] = list(DTYPES)
    choice = 0
    if job.world.first:
        precision, reason = choose_precision(unit, job.world.device)
        job.note(f"precision {precision}: {reason}")
        choice = names.index(precision)
    return names[round(job.world.add({"choice": choice})["choice"])]


# --- how long to train


def plan_training(
    job: Job, data: TrainingData, unit: TrainingUnit, phases: list[PhasePlan], validator: Validator
) -> TrainingSettings:
    """Returns the family's recipe for as many steps as the budget is, or as fit into its time."""
    budget, recipe = parse_budget(data.file.budget or USUAL_BUDGET), data.model_plan.recipe
    if budget.unit != "seconds":
        steps = measure_pace(unit, phases, budget.unit).steps(budget)
        return training_settings(recipe, data.file, steps=steps, validations=VALIDATIONS)
    job.note("measuring how long a step takes")
    measured, steps, validations = measure(job, data, unit, phases, validator, budget.amount)
    settings = training_settings(recipe, data.file, steps=steps, validations=validations)
    return replace(settings, time=None if job.fixed_steps else measured)


def measure(
    job: Job,
    data: TrainingData,
    unit: TrainingUnit,
    phases: list[PhasePlan],
    validator: Validator,
    seconds: float,
) -> tuple[TimeBudget, int, int]:
    """Returns what measuring leaves of a budget, and how many steps and validations fit into it."""
    world, begin = job.world, clock()
    step_seconds = seconds_per_step(job, data, unit, phases, min(4.0, seconds / 10) / len(phases))
    before = clock()
    validator.validate(0, 0, False)
    validation = clock() - before
    # The last validation reads all of the held-out data, which may be much.
    spare = validation * validator.extra_cost()
    # Measuring is a part of the budget, but takes no more than half of it away.
    left = max(seconds - (clock() - begin), seconds / 2)
    mean = sum(phase.share * each for phase, each in zip(phases, step_seconds, strict=True))
    room = max(left - spare, seconds / 2)
    steps, validations = steps_within(room, mean, validation, data.file.validate_every)
    # Each of several processes has measured: all take the mean.
    sums = world.add({"left": left, "spare": spare + validation, "steps": steps, "validations": validations})
    means = {name: value / world.size for name, value in sums.items()}
    job.note(f"{mean * 1000:.0f} ms a step, so the budget has room for {round(means['steps']):,} steps")
    if means["steps"] < FEW_STEPS:
        job.note("a model learns little in so few steps: give it a longer --budget")
    measured = TimeBudget(means["left"], tuple(step_seconds), means["spare"])
    return measured, round(means["steps"]), round(means["validations"])


def seconds_per_step(
    job: Job, data: TrainingData, unit: TrainingUnit, phases: list[PhasePlan], seconds: float
) -> list[float]:
    """Returns how long a step of each phase takes, by real steps at learning rate 0 for about `seconds`."""
    # As many steps as no run has: the schedule is not at its end.
    settings = training_settings(data.model_plan.recipe, data.file, steps=2**20, validations=1)
    times = []
    for phase in phases:
        stream = StepStream(
            [Phase(0, phase.feed)], rank=job.world.rank, ranks=job.world.size, workers=job.workers
        )
        trainer = Trainer(
            unit,
            stream,
            settings,
            RunFolder(job.folder),
            validate=lambda *_: {},
            save_members=lambda folder: None,
            progress=job.progress,
            world=job.world,
            clock=clock,
        )
        times.append(trainer.seconds_per_step(seconds))
    return times


def build_stream(job: Job, data: TrainingData, phases: list[PhasePlan], steps: int) -> StepStream:
    """Returns the phases as a stream of steps, each with its share of them; refuses a phase without any."""
    # From the sum of shares, not from the phase before: roundings do not add up.
    share, starts = 0.0, []
    for phase in phases:
        starts.append(round(share * steps))
        share += phase.share
    for number, (first, end) in enumerate(zip(starts, [*starts[1:], steps], strict=True), 1):
        # A growing batch, and a recipe, may pass over phases where steps are few; what was asked for may not.
        if end <= first and getattr(data.file, "phases", False) and not job.resuming:
            raise EtymonError(
                f"phase {number} gets no step of {steps:,}: give the run a larger budget, or the phase a "
                "larger share"
            )
    stages = [Phase(first, phase.feed) for first, phase in zip(starts, phases, strict=True)]
    return StepStream(stages, rank=job.world.rank, ranks=job.world.size, workers=job.workers)


def measure_pace(unit: TrainingUnit, phases: list[PhasePlan], budget_unit: str) -> Pace:
    """Returns what a step uses up; floating-point operations are counted only where the budget is of them."""
    counted = unit if budget_unit == "flops" else None
    return mean_pace([(phase.share, phase.feed) for phase in phases], counted)
