"""The training loop. A step is a batch in slices (micro-batches); each loss term is divided by its count
in the batch."""

from __future__ import annotations

import math
import signal
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from etymon.errors import EtymonError
from etymon.nn.precision import DTYPES
from etymon.objectives.objective import MicroBatch, Term, weighted_loss
from etymon.training.adversarial import Backward, run_passes
from etymon.training.budgets import Milestone, Revision, StepPlan
from etymon.training.checkpoint_writer import CheckpointWriter
from etymon.training.distributed import StopRequest, World, seed_device, stop_on_signal
from etymon.training.feeding import Step, StepStream
from etymon.training.optimisers import (
    build_optimiser,
    clip_gradients,
    gradient_norms,
    gradual_unfreezing,
    restore_optimiser,
    set_rate,
)
from etymon.training.progress import Progress
from etymon.training.settings import TrainingSettings
from etymon.training.sharding import drop_unused_gradients
from etymon.training.shards import copy_values, parts
from etymon.training.speed import flops_per_token, matmul_peak, memory_in_use
from etymon.training.state import (
    BRIDGE,
    MEMORY,
    SMALLEST_SCALE,
    VALIDATION_PREFIX,
    WEIGHTS,
    RunFolder,
    TrainingState,
    take_prefixed,
)
from etymon.training.unit import (
    TOKENS,
    Sealed,
    StreamMemories,
    TrainingUnit,
    add_counts,
    add_terms,
    averages,
    bits_per_byte_or_target,
)
from etymon.training.weight_average import WeightAverage


class Diverged(EtymonError):
    """The loss or its gradient is not finite any more."""


@dataclass
class TrainingResult:
    state: TrainingState
    metrics: dict[str, float]
    """The last validation."""
    stopped: bool
    """Ended early by a signal (Ctrl-C, SIGTERM)."""
    signal: int | None = None
    """Which one, if it was stopped."""


Validate = Callable[[int, int, bool], dict[str, Any]]
"""Metrics after so many steps, by the number of the phase, and whether it is the run's last validation."""
Criterion = Callable[[Mapping[str, Any]], float | None]
"""The metric of a validation that is to fall. With one, every model that is the best yet is saved."""


class Trainer:
    """Trains a unit on a stream of steps. The same settings, seed and position always give the same curve."""

    def __init__(
        self,
        unit: TrainingUnit,
        stream: StepStream,
        settings: TrainingSettings,
        folder: RunFolder,
        *,
        validate: Validate,
        save_members: Callable[[Path], None],
        progress: Progress,
        milestones: Sequence[Milestone] = (),
        criterion: Criterion | None = None,
        state: TrainingState | None = None,
        optimiser_state: dict[str, torch.Tensor] | None = None,
        world: World | None = None,
        record_revisions: Callable[[Sequence[Revision]], None] = lambda revisions: None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.unit, self.stream, self.settings, self.folder = unit, stream, settings, folder
        self.validate, self.save_members, self.progress = validate, save_members, progress
        self.milestones, self.clock, self.world = milestones, clock, world or World()
        self.criterion = criterion or bits_per_byte_or_target
        # Who stops early, or names a criterion, wants the best model: each new best is a checkpoint.
        self.keeps_best = criterion is not None or settings.patience is not None
        # The unit itself, or what adds up its gradients over all processes after a backward.
        self.synchronised: torch.nn.Module = unit
        self.skips_parameters = False
        """Whether a step may leave parameters out, such as heads of another phase."""
        self.device = next(unit.parameters()).device
        self.state = state or TrainingState()
        self.optimiser = build_optimiser(unit, settings.optimiser, settings.precision)
        self.average = WeightAverage(unit, settings.optimiser.ema)
        self.checkpoints = CheckpointWriter(folder, unit, self.optimiser, self.average, self.world)
        if optimiser_state is not None:
            copy_values(unit.bridges, take_prefixed(optimiser_state, BRIDGE))
            unit.memories = StreamMemories(take_prefixed(optimiser_state, MEMORY))
            self.average.restore(take_prefixed(optimiser_state, WEIGHTS))
            restore_optimiser(self.optimiser, unit, optimiser_state)
        self.metrics: dict[str, float] = {}
        self.plan = StepPlan(
            stream, settings.steps, settings.paced, settings.time, settings.revisions, record_revisions
        )
        self.plan.start(self.state.step, self.state.seconds)
        # Checkpoints of earlier versions do not have this count.
        if self.state.step and not self.state.words_read:
            self.state.words_read = stream.words_read(self.state.step)

    def train(self, title: str) -> TrainingResult:
        """Takes all remaining steps. Ctrl-C or SIGTERM finishes the step, saves, and returns."""
        state = self.state
        self._began = self.clock() - state.seconds
        with stop_on_signal() as request:
            if state.step == 0:
                self._validate()  # so that curves begin with the untrained model
            else:
                self.metrics = self.folder.last_validation()
            self.progress.start(self.plan.steps, title)
            try:
                if state.step < self.plan.steps and not self._patience_is_over:
                    self._take_steps(request)
            finally:
                self.progress.close()
        self.average.hand_over()
        stopped = state.step < self.plan.steps and not self._patience_is_over
        # Without a signal here, another process of this run got it, and this one ends as if terminated.
        number = (request.signal or signal.SIGTERM) if stopped else None
        return TrainingResult(state, self.metrics, stopped, number)

    def _take_steps(self, request: StopRequest) -> None:
        settings, state, world = self.settings, self.state, self.world
        passes = 1.0 if settings.adversarial is None else settings.adversarial.cost
        # Counted before the unit is wrapped: a backward of the wrapper would wait for the other processes.
        flops = [passes * flops_per_token(self.unit, phase.feed) for phase in self.stream.phases]
        peak = matmul_peak(self.device, DTYPES[settings.precision])
        self._synchronise()
        self.plan.start(state.step, self.clock() - self._began)
        steps = self._open_steps()
        is_over = False
        try:
            while not is_over:
                started = time.perf_counter()
                step = next(steps)
                record = self.train_step(step)
                elapsed = time.perf_counter() - started  # with the time that it waited for its samples
                before, feed, tokens = replace(state), step.feed, int(record.pop("step_tokens"))
                state.step, state.position, state.tokens = state.step + 1, step.after, state.tokens + tokens
                state.words += feed.words_per_step
                state.epochs += feed.epochs_per_step
                state.words_read += feed.words_read_per_step
                phase = self.stream.phase_number_after(state.step)
                state.seconds = self.clock() - self._began
                record |= {
                    "tokens_per_second": tokens / elapsed,
                    "utilisation": flops[phase] * tokens / world.size / elapsed / peak,
                    # Of this step: the sum over all records is what the run has computed.
                    "operations": flops[phase] * tokens,
                    "memory": memory_in_use(self.device),
                    "seconds": state.seconds,
                    **state.amounts(),
                }
                self._log({"step": state.step, **record})
                self._show(record)
                stop = world.any(request.is_set())
                last = state.step == self.plan.steps
                if last or state.step % settings.validate_every == 0:
                    self._validate()
                # Before the checkpoint: what is done after it would be lost for good if the run died in
                # between.
                self._act_on_milestones(before)
                is_over = last or stop or self._patience_is_over
                is_best = self.keeps_best and state.best_step == state.step
                if is_over or is_best or state.step % settings.save_every == 0:
                    state.seconds = self.clock() - self._began
                    self.save()
                if not is_over and self.plan.revise(state.step, self.clock() - self._began, world):
                    self.progress.expect(self.plan.steps)
                    # Phases have moved: samples that were made ahead are of the wrong phase.
                    if len(self.stream.phases) > 1:
                        steps.close()
                        steps = self._open_steps()
        finally:
            steps.close()
        self.checkpoints.wait()

    def train_step(self, step: Step, learning_rate: float | None = None) -> dict[str, float]:
        """Takes one step of the optimiser, at the schedule's learning rate unless given; returns its
        metrics."""
        settings, world, objective = self.settings, self.world, step.feed.objective
        # The denominators of the whole step, before the first backward: so the gradient does not depend on
        # how a step is cut into slices and processes.
        counts = world.add(add_counts(step.slices.values()))
        totals: dict[str, float] = {}
        late_counts: dict[str, float] = {}
        self.unit.train()
        if step.resets_streams or self.unit.objective is not objective:
            # A phase that only remembers more or less takes up what there is, as a resumed run does.
            self.unit.memories = StreamMemories({} if step.resets_streams else self.unit.memories.tensors())
        self.unit.objective = objective
        position = self.plan.position(self.state.step)
        unfreezing: Any = nullcontext()
        # Where steps are only measured (at a given rate) everything trains: later ones take as long.
        if settings.unfreeze is not None and learning_rate is None:
            share = position / (settings.steps * (settings.unfreeze or 1.0))
            unfreezing = gradual_unfreezing(self.unit, share)
        with unfreezing:
            for number, batch in step.slices.items():
                ends_step = number == next(reversed(step.slices))
                run_pass = partial(self._run_pass, batch.to(self.device), number, counts, ends_step)
                if settings.adversarial is None:
                    terms = run_pass()
                else:
                    terms = run_passes(settings.adversarial, self.unit, run_pass)
                add_terms(terms, totals, late_counts)
        totals, counts = world.add(totals), counts | world.add(late_counts)
        if self.world.is_sharded and self.skips_parameters:
            drop_unused_gradients(self.unit)
        norms = self._clip_gradients()
        is_overflown = not math.isfinite(norms["gradient_norm"])
        if learning_rate is None:
            share = settings.schedule.share(position, settings.steps)
            learning_rate = settings.optimiser.learning_rate * share
        set_rate(self.optimiser, learning_rate)
        if not is_overflown:
            self.optimiser.step()
            self.average.update(self.state.step + 1)
        self.optimiser.zero_grad(set_to_none=True)
        record = averages(totals, counts, objective.likelihood)
        if settings.precision == "fp16":
            record["loss_scale"] = self.state.loss_scale
            self.state.adapt_loss_scale(is_overflown)
        return {**record, "learning_rate": learning_rate, "step_tokens": counts[TOKENS], **norms}

    def _run_pass(
        self,
        batch: MicroBatch,
        number: int,
        counts: Mapping[str, float],
        ends_step: bool,
        backward: Backward = torch.Tensor.backward,
        last: bool = True,
    ) -> dict[str, Term]:
        """Runs slice `number` forward and backward; the last pass over the last slice adds up all
        gradients."""
        # Dropout depends on (seed, step, slice) alone: neither on what ran before nor on where it runs.
        seed_device(self.settings.seed, self.state.step, number)
        is_local = not (ends_step and last)
        is_replicated = isinstance(self.synchronised, DistributedDataParallel)
        if self.world.is_sharded:
            self.synchronised.set_requires_gradient_sync(not is_local)  # type: ignore[operator]
        local = self.synchronised.no_sync() if is_replicated and is_local else nullcontext()  # type: ignore[operator]
        with local:
            terms: dict[str, Term] = self.synchronised(Sealed(batch) if self.world.is_sharded else batch)
            # DDP takes the mean over the processes, but the counts are those of the whole step, so the sum is
            # right; sharded gradients are added up.
            loss = weighted_loss(terms, counts) * (self.world.size if is_replicated else 1)
            backward(loss * self.state.loss_scale if self.settings.precision == "fp16" else loss)
        return terms

    def _clip_gradients(self) -> dict[str, float]:
        """Clips the step's complete gradient; returns its norm, now and then by layer, too."""
        norms = {}
        if self.settings.precision == "fp16":
            gradients = [part.grad for part in self.unit.parameters() if part.grad is not None]
            torch._foreach_mul_(parts(gradients), 1 / self.state.loss_scale)
        if (self.state.step + 1) % self.settings.log_layers_every == 0:  # before clipping rescales them
            norms = {f"gradient_norm/{name}": norm for name, norm in gradient_norms(self.unit).items()}
        total = clip_gradients(self.unit, self.settings.clip or math.inf)
        # In fp16 a large gradient may overflow: the step is left out, and the loss scale falls.
        is_overflow = self.settings.precision == "fp16" and self.state.loss_scale > SMALLEST_SCALE
        if not math.isfinite(total) and not is_overflow:
            raise self._diverged(f"the gradient at step {self.state.step + 1}")
        return {"gradient_norm": total, **norms}

    def save(self) -> None:
        """Writes a checkpoint."""
        with self.average.in_place():
            self.checkpoints.save(self.state, self.save_members, self.settings.keep)

    def seconds_per_step(self, seconds: float = 4.0) -> float:
        """The measured time of a step here: real steps at rate 0, after which optimiser and gradients
        start anew."""
        times: list[float] = []
        self._synchronise()
        begin = self.clock()
        ahead = self.stream.steps(self.state.step, self.state.position, 200)
        with closing(ahead) as steps, self.unit.isolated_memory():
            for step in steps:
                self.train_step(step, learning_rate=0.0)
                # From end to end: a step that waits for its samples takes that long as well.
                times.append(self.clock() - begin)
                begin += times[-1]
                # Four steps at least, or two where these took far longer than is to be spent on it.
                enough = seconds if len(times) > 3 else 10 * seconds
                if self.world.any(sum(times) > enough and len(times) > 1):
                    break
        # At rate 0 no weight has moved, but moments and step counters have.
        self.optimiser.state.clear()
        # The first steps warm allocators and caches up; the median forgives a busy moment.
        median = sorted(times[1:] or times)[len(times[1:] or times) // 2]
        return self.world.add({"median": median})["median"] / self.world.size

    def _synchronise(self) -> None:
        """From now on processes add up their gradients."""
        # Without `find_unused`, DDP fails after a step that left a head's parameters out; with it, every step
        # walks the whole graph to find them.
        objectives = [phase.feed.objective for phase in self.stream.phases]
        varies = len({objective.heads for objective in objectives}) > 1
        skips = varies or any(objective.skips_heads for objective in objectives)
        self.skips_parameters = skips or self.settings.unfreeze is not None
        self.synchronised = self.world.wrap(self.unit, find_unused=self.skips_parameters)

    def _open_steps(self) -> Generator[Step]:
        # A run whose number of steps may grow does not say how many samples to make ahead.
        left = self.plan.steps - self.state.step if self.settings.time is None else sys.maxsize // 2
        return self.stream.steps(self.state.step, self.state.position, left)

    def _act_on_milestones(self, before: TrainingState) -> None:
        for milestone in self.milestones:
            field = "step" if milestone.amount.unit == "steps" else milestone.amount.unit
            then, now = getattr(before, field), getattr(self.state, field)
            # Shares of an epoch add up to it but for rounding.
            amount = milestone.amount.amount * (1 - 1e-9)
            # A budget of 10M words is a whole number of steps, which may end a little before them.
            reached = 2 * now - then if self.state.step == self.plan.steps else now
            if then < amount <= reached:
                with self.average.in_place():
                    milestone.act()

    def _validate(self) -> None:
        step = self.state.step
        with self.average.in_place():
            self.metrics = self.validate(step, self.stream.phase_number_after(step), step >= self.plan.steps)
        if not self.metrics:
            return
        state, score = self.state, self.criterion(self.metrics)
        if score is not None and not math.isfinite(score):
            raise self._diverged(f"the validation loss after step {state.step}")
        # Losses of different phases are losses of different things.
        phase_of = self.stream.phase_number_after
        comparable = state.best_step is not None and phase_of(state.best_step) == phase_of(state.step)
        is_better = not comparable or state.best is None or score is None or score < state.best
        # Before the first step there is no checkpoint that could be kept.
        if score is not None and is_better and (state.step or not self.keeps_best):
            state.best, state.best_step = float(score), state.step
        metrics = {VALIDATION_PREFIX + name: value for name, value in self.metrics.items()}
        self._log({"step": state.step, "seconds": state.seconds, **state.amounts(), **metrics})

    @property
    def _patience_is_over(self) -> bool:
        """A function of the state, so that a resumed run does not go on."""
        patience, best = self.settings.patience, self.state.best_step
        if patience is None or best is None:
            return False
        return self.state.step - best >= patience * self.settings.validate_every

    def _show(self, record: Mapping[str, float]) -> None:
        loss = "bits_per_byte" if "bits_per_byte" in record else "bits_per_target"
        names = (loss, "bits_per_character", "tokens_per_second", "memory")
        values = {name: record[name] for name in names if name in record} | {"mfu": record["utilisation"]}
        if loss in self.metrics:
            values["validation"] = self.metrics[loss]
        self.progress.update(self.state.step, values)

    def _log(self, record: dict[str, Any]) -> None:
        if self.world.first:
            self.folder.log(record)

    def _diverged(self, what: str) -> Diverged:
        return Diverged(
            f"{what} is not finite: lower the learning rate (it is "
            f"{self.settings.optimiser.learning_rate:g}); the last checkpoint is untouched",
            code="diverged",
        )
