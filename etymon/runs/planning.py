"""A run on paper: what it would take of memory, operations and time on given devices, before it costs anything.

Memory and operations are counted (`runs/memory.py`). Time is the operations by the devices' peak and the
share of it that is reached, which is measured on a processor and assumed elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from tempfile import gettempdir
from typing import TYPE_CHECKING, get_args
from uuid import uuid4

import torch

from etymon.config import parse_count
from etymon.errors import EtymonError
from etymon.families.memory import count_parameters
from etymon.families.model import Model
from etymon.nn.footprint import Footprint, available_memory
from etymon.nn.precision import Precision
from etymon.objectives import get_objective
from etymon.objectives.objective import weighted_loss
from etymon.report.inline import Inline
from etymon.report.page import Code, Figures
from etymon.runs.device_memory import Cluster, DeviceMemory, MemoryTable, Sharding
from etymon.runs.folder import Job
from etymon.runs.memory import (
    SAFE,
    Plan,
    matching_choice,
    stand_in_slices,
    stand_in_tokenizer,
    with_vocabulary,
)
from etymon.runs.run import USUAL_BUDGET
from etymon.runs.run_file import RunFile
from etymon.runs.text_data import TextData
from etymon.training.budgets import Budget, parse_budget
from etymon.training.optimisers import build_optimiser
from etymon.training.progress import format_count, format_seconds

if TYPE_CHECKING:
    from etymon.report.page import Section

UTILISATION = 0.4
"""Of a device's peak, where nothing was measured: what well-kept runs on A100s report (MFU of 0.3 to 0.5)."""
TOKENS_A_WORD = 1.33
"""Assumed where a text is given by its words: 0.75 English words a token are usual."""
DIRECT_SECONDS = 2.0
"""A slice of so many seconds at the peak is timed as it is; a longer one by a few of its layers."""
TIMED_STEPS, TIMED_SECONDS = 6, 8.0
"""Steps that are timed at most; after these seconds three of them are enough."""


@dataclass
class TrainingPlan(Inline):
    """A run on paper."""

    model: str
    parameters: int
    devices: str
    device_memory: float
    """Bytes that a run may take of each."""
    length: int
    """Tokens of a sample."""
    batch: int
    """Samples a step."""
    slices: int
    """Parts that a step is computed in, all devices together."""
    memory: list[DeviceMemory]
    """Under each precision and sharding that these devices can do."""
    chosen: DeviceMemory | None
    """What the command asks for; None: nothing fits."""
    operations_a_token: float
    tokens: float
    steps: int
    operations: float
    peak: float
    """Operations a second of a device in the precision that was chosen."""
    utilisation: float
    utilisation_source: str
    seconds: float
    """Of the steps alone: validations and checkpoints come on top."""
    device_hours: float
    price: float | None = None
    watts: float | None = None
    """Of a device."""
    kilowatt_hours: float | None = None
    notes: list[str] = field(default_factory=list)
    command: str | None = None

    def __repr__(self) -> str:
        chosen = "nothing fits" if self.chosen is None else str(self.chosen)
        return (
            f"TrainingPlan({self.model}, {self.parameters:,} parameters, on {self.devices}: {chosen}; "
            f"{format_count(self.tokens)} tokens, {self.operations:.3g} operations, "
            f"{format_seconds(self.seconds)})"
        )

    def inline_sections(self) -> Iterator[Section]:
        yield Figures(
            {
                "model": self.model,
                "parameters": f"{self.parameters:,}",
                "on": self.devices,
                "chosen": "nothing fits" if self.chosen is None else str(self.chosen),
                "tokens": format_count(self.tokens),
                "operations": f"{self.operations:.3g}",
                "time": format_seconds(self.seconds),
            }
        )
        if self.command is not None:
            yield Code(self.command)


def plan_run(
    file: RunFile,
    cluster: Cluster,
    *,
    precision: Precision | None = None,
    shard: Sharding | None = None,
    recompute: bool = False,
    utilisation: float | None = None,
    words: str | None = None,
) -> TrainingPlan:
    """A run of `etymon pretrain` with these settings on these devices. Precision and sharding are those that
    fit, the fastest precision and the least communication first, unless they are given."""
    _check_choice(cluster, precision, shard)
    # Read before anything is counted: a mistyped budget is refused at once.
    budget = parse_budget(file.budget or USUAL_BUDGET)
    text_tokens = None if words is None else parse_count(words) * TOKENS_A_WORD
    if budget.unit == "epochs" and text_tokens is None:
        raise EtymonError("a budget of epochs needs the size of the text: give --words, such as --words 100M")
    # Nothing is written: a folder that nobody has, so that no earlier run stands in the way.
    nowhere = Path(gettempdir()) / f"etymon-plan-{uuid4().hex}"
    data = TextData(Job(nowhere, file), None)
    # Of a growing batch the largest, with which most tokens are read.
    samples = max(data.phases, key=lambda phase: phase.rows * phase.length)
    memory_plan = replace(data.memory_plan(), samples=[samples], recompute=recompute)
    batch = samples.rows * file.slices * (1 if file.batch else cluster.size)
    for name, amount in (("--batch", batch), ("--slices", file.slices if file.slices > 1 else 0)):
        if amount % cluster.size:
            raise EtymonError(
                f"{name} {amount:,} cannot be shared by {cluster.size:,} devices: give a multiple of "
                f"{cluster.size:,}"
            )
    # Every device computes a slice at least.
    slices, device = max(file.slices, cluster.size), cluster.device

    table = MemoryTable(replace(memory_plan, slices=slices // cluster.size), cluster)
    shardings = [each for each in get_args(Sharding) if cluster.can_shard(each)]
    rows = [
        table.row(each, sharding, batch // slices)
        for each in ([precision] if precision else device.peaks)
        for sharding in ([shard] if shard else shardings)
    ]
    # In the order of `rows`: the least communication first.
    preferred = precision or device.best_precision
    fitting = [row for row in rows if row.largest_rows]
    chosen = next((row for row in fitting if row.precision == preferred), next(iter(fitting), None))
    notes = []
    if chosen is None:
        notes.append(_what_would_fit(table, preferred))
    else:
        preferred = chosen.precision
        if not chosen.fits:  # but in more slices it does, which then hold gradients between them
            table = MemoryTable(replace(memory_plan, slices=2), cluster)
            chosen = table.row(preferred, chosen.shard, batch // slices)
            slices = _fewest_slices(batch, cluster.size, chosen.largest_rows)
            chosen = table.row(preferred, chosen.shard, batch // slices)

    measured = table.footprint(batch // slices, preferred)
    operations_a_token, peak = measured.operations / measured.tokens, device.peaks[preferred]
    source = "given"
    if utilisation is None and device.is_processor and chosen is not None:
        timed = replace(
            memory_plan, samples=[replace(samples, rows=chosen.rows)], slices=slices, precision=preferred
        )
        # One process is timed with all cores, of which each device has an equal part.
        utilisation = measured_utilisation(timed, measured, peak * cluster.per_node)
        source = "measured here"
        if utilisation is not None and utilisation > 1:
            notes.append("steps were faster than the peak: it was measured while the machine was busy")
    if utilisation is None:
        utilisation, source = UTILISATION, "assumed: say --utilisation"
    tokens_a_step = measured.tokens * slices
    seconds_a_token = operations_a_token / (cluster.size * peak * utilisation)
    tokens = _tokens(budget, tokens_a_step, operations_a_token, seconds_a_token, text_tokens)
    if text_tokens is not None or budget.unit == "words":
        notes.append(f"{TOKENS_A_WORD} tokens a word are assumed")
    return TrainingPlan(
        model=data.model_plan.title,
        parameters=count_parameters(memory_plan.family, memory_plan.shape, memory_plan.heads),
        devices=str(cluster),
        device_memory=device.memory,
        length=samples.length,
        batch=batch,
        slices=slices,
        memory=rows,
        chosen=chosen,
        operations_a_token=operations_a_token,
        tokens=tokens,
        steps=max(1, round(tokens / tokens_a_step)),
        operations=tokens * operations_a_token,
        peak=peak,
        utilisation=utilisation,
        utilisation_source=source,
        seconds=tokens * seconds_a_token,
        device_hours=tokens * seconds_a_token / 3600 * cluster.size,
        notes=notes,
    )


def _check_choice(cluster: Cluster, precision: Precision | None, shard: Sharding | None) -> None:
    device = cluster.device
    if precision is not None and precision not in device.peaks:
        raise EtymonError(
            f"{device.name} does not compute in {precision}: it does in {', '.join(device.peaks)}"
        )
    if shard is not None and not cluster.can_shard(shard):
        needed = "several nodes: say --nodes" if shard == "hybrid" else "several devices: say 8xA100-80"
        raise EtymonError(f"--shard {shard} cuts a model over {needed}, or leave it out")


def _what_would_fit(table: MemoryTable, precision: Precision) -> str:
    fewest = table.fewest_devices(precision)
    if fewest is None:
        again = "" if table.plan.recompute else ": try --recompute"
        return f"nothing fits: a sample alone is too much for such a device{again}"
    again = "" if table.plan.recompute else "; with --recompute, samples take less"
    return f"nothing fits: in {precision}, cut over all, it takes {fewest:,} such devices at least{again}"


def _fewest_slices(batch: int, devices: int, largest: int) -> int:
    """The fewest equal parts of a step that fit and are as many for each device."""
    share, largest = batch // devices, max(1, largest)
    return devices * next(
        parts for parts in range(1, share + 1) if not share % parts and share // parts <= largest
    )


def _tokens(
    budget: Budget,
    tokens_a_step: float,
    operations_a_token: float,
    seconds_a_token: float,
    text_tokens: float | None,
) -> float:
    """What a budget in any unit comes to."""
    tokens_a_unit = {
        "seconds": 1 / seconds_a_token,
        "steps": tokens_a_step,
        "tokens": 1.0,
        "epochs": text_tokens or 0.0,
        "words": TOKENS_A_WORD,
        "flops": 1 / operations_a_token,
    }
    return budget.amount * tokens_a_unit[budget.unit]


def measured_utilisation(plan: Plan, footprint: Footprint, peak: float) -> float | None:
    """The share of this processor's peak that real steps reach, each with its share of the optimiser; None
    where not even a few layers would fit. `footprint` is of one slice. It is above 1 where the peak was
    measured at a busy moment: time, which follows from the steps, is right all the same."""
    room = SAFE * available_memory()
    if footprint.operations / peak > DIRECT_SECONDS or footprint.total > room:
        # A few layers reach about the share that many do.
        plan = plan.shallow()
        footprint = plan.footprint()
        if footprint.operations / peak > 10 * DIRECT_SECONDS or footprint.total > room:
            return None
    (samples,) = plan.samples
    tokenizer = stand_in_tokenizer(plan.family, plan.shape.vocabulary)
    objective = get_objective(samples.objective, tokenizer, samples.length, **samples.options)
    earlier, first, later = stand_in_slices(objective, tokenizer, samples.length, samples.rows, TIMED_STEPS)
    times: list[float] = []
    # Whoever plans from a program keeps the random numbers that would have come next.
    with torch.random.fork_rng():
        # The stand-in may have more words than a tiny vocabulary.
        shape = with_vocabulary(plan.shape, max(plan.shape.vocabulary, tokenizer.size))
        unit = plan.build_unit(shape, objective, tokenizer)
        for part in (unit.model, *unit.companions.values(), unit.teacher):
            if isinstance(part, Model):
                part.initialise()
        for value in unit.bridges.parameters():
            torch.nn.init.normal_(value, std=0.02)
        optimiser = build_optimiser(unit, matching_choice(plan.optimiser, unit), plan.precision)
        unit.train()
        start = time.perf_counter()
        for batch in (*earlier, first, *later):
            begin = time.perf_counter()
            if len(times) > 3 and begin - start > TIMED_SECONDS:
                break
            weighted_loss(unit(batch), batch.counts).backward()
            passed = time.perf_counter()
            # As the loop does: on a small model, clipping is a measurable part of a step.
            torch.nn.utils.clip_grad_norm_(unit.parameters(), 1.0)
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
            # The optimiser moves once a step, whatever the number of slices.
            step = passed - begin + (time.perf_counter() - passed) / plan.slices
            times.append(step * footprint.tokens / batch.tokens)
    # The first one warms caches up; of a stream, the first ones remember less than later ones. Whoever else
    # uses the machine makes steps longer and never shorter, so the faster half tells.
    usual = sorted(times[max(1, len(earlier)) :])
    return footprint.operations / median(usual[: (len(usual) + 1) // 2]) / peak
