"""The training loop: steps of slices, each term divided by the count of the whole step."""

from __future__ import annotations

import hashlib
import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass as strict_dataclass
from torch.nn.parallel import DistributedDataParallel

from etymon.errors import EtymonError
from etymon.objectives.objective import MicroBatch, Term, weighted_loss
from etymon.training.adversarial import AdversarialSettings, Back, back_propagate
from etymon.training.budgets import Budget, Revision, StepPlan, TimeBudget
from etymon.training.distributed import World
from etymon.training.feeding import Step, StepStream
from etymon.training.optimisers import (
    OptimiserChoice,
    build_optimiser,
    gradient_norms,
    gradual_unfreezing,
    optimiser_tensors,
    restore_optimiser,
    set_rate,
)
from etymon.training.progress import Progress
from etymon.training.schedules import ScheduleChoice
from etymon.training.speed import flops_per_token, matmul_peak, memory
from etymon.training.state import VALIDATION_PREFIX, RunFolder, TrainingState
from etymon.training.stopping import stop_requested
from etymon.training.unit import TOKENS, StreamMemories, TrainingUnit, add_counts, add_terms, averages, shown


@strict_dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class TrainingSettings:
    """How a run trains."""

    steps: int
    optimiser: OptimiserChoice = OptimiserChoice()
    schedule: ScheduleChoice = ScheduleChoice()
    clip: float | None = 1.0
    seed: int = 0
    validate_every: int = 100
    patience: int | None = None
    """Validations without a better one after which the run ends."""
    save_every: int = 1000
    log_layers_every: int = 50
    keep: int = 2
    paced: Literal["steps", "samples"] = "steps"
    """What the schedule goes by: samples where the batch grows, so that warm-up and decay are counted in text."""
    adversarial: AdversarialSettings | None = None
    unfreeze: float | None = None
    """Share of the steps after which everything trains: at first it is the top alone, then layer by layer from above."""
    time: TimeBudget | None = None
    """What the steps were measured for; they are revised as the run goes. None: they are fixed."""
    revisions: tuple[Revision, ...] = ()
    """Those that were made, the last of which says how many steps the run has."""

    def __post_init__(self) -> None:
        for name in ("steps", "validate_every", "save_every", "log_layers_every", "keep", "patience"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise EtymonError(f"training.{name} must be at least 1, not {value}")

    def rate(self, step: float) -> float:
        return self.optimiser.learning_rate * self.schedule.share(step, self.steps)


BRIDGE, MEMORY = "bridge/", "memory/"
"""What the names of tensors begin with that are saved beside the optimiser's."""


class Diverged(EtymonError):
    """The loss or its gradient is no number any more."""


@dataclass
class TrainingResult:
    state: TrainingState
    metrics: dict[str, float]
    """The last validation."""
    stopped: bool
    """Ended early because somebody asked (Ctrl-C, SIGTERM)."""
    signal: int | None = None
    """What it was asked by, if it was stopped."""


Validate = Callable[[int], dict[str, Any]]
Criterion = Callable[[Mapping[str, Any]], float | None]
"""The figure of a validation that is to fall. Where one is given, there is a checkpoint of every model that is the best yet."""


def bits(figures: Mapping[str, Any]) -> float | None:
    """Bits per byte where there are such, else per target."""
    return figures.get("bits_per_byte", figures.get("bits_per_target"))


@dataclass(frozen=True)
class Milestone:
    """Something to do when a run has used up an amount (of anything but time) for the first time."""

    amount: Budget
    act: Callable[[], None]


class Trainer:
    """Drives a unit over a course. The same settings, seed and position always give the same curve."""

    def __init__(
        self,
        unit: TrainingUnit,
        course: StepStream,
        settings: TrainingSettings,
        run: RunFolder,
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
        self.unit, self.course, self.settings, self.run = unit, course, settings, run
        self.validate, self.save_members, self.progress = validate, save_members, progress
        self.milestones = list(milestones)
        self.criterion = criterion or bits
        self.keeps_best = criterion is not None or settings.patience is not None
        self.world = world or World()
        self.wrapped: torch.nn.Module = unit
        self.device = next(unit.parameters()).device
        self.state = state or TrainingState()
        self.optimiser = build_optimiser(unit, settings.optimiser)
        if optimiser_state is not None:
            unit.bridges.load_state_dict(_taken(optimiser_state, BRIDGE))
            unit.memories = StreamMemories(_taken(optimiser_state, MEMORY))
            restore_optimiser(self.optimiser, unit, optimiser_state)
        self.metrics: dict[str, float] = {}
        self.plan = StepPlan(
            course, settings.steps, settings.paced, settings.time, settings.revisions, record_revisions
        )
        self.plan.start(self.state.step, self.state.seconds)
        self.clock = clock
        if self.state.step and not self.state.words_read:  # a checkpoint of a version that did not count them
            self.state.words_read = course.words_read(self.state.step)

    def train(self, title: str) -> TrainingResult:
        """All remaining steps. Ctrl-C or SIGTERM finishes the step, saves, and returns."""
        self._begin = self.clock() - self.state.seconds
        with stop_requested() as asked:
            if self.state.step == 0:
                self._validate()
            else:
                self.metrics = self.run.last_validation()
            self.progress.start(self.plan.steps, title)
            try:
                self._steps(asked)
            finally:
                self.progress.close()
        stopped = self.state.step < self.plan.steps and not self._over
        # Without a signal here, another process of this run was asked, and this one ends as if terminated.
        by = (asked.signal or signal.SIGTERM) if stopped else None
        return TrainingResult(self.state, self.metrics, stopped, by)

    def _steps(self, asked: threading.Event) -> None:
        settings, state = self.settings, self.state
        if state.step >= self.plan.steps or self._over:
            return
        passes = 1.0 if settings.adversarial is None else settings.adversarial.cost
        operations = [passes * flops_per_token(self.unit, phase.feed) for phase in self.course.phases]
        peak = matmul_peak(self.device)
        self._wrap()
        self.plan.start(state.step, self.clock() - self._begin)
        while self._steps_until_revised(asked, operations, peak):
            pass

    def _steps_until_revised(self, asked: threading.Event, operations: Sequence[float], peak: float) -> bool:
        """Steps up to the run's end, or until its phases have been moved; whether there are more."""
        settings, state = self.settings, self.state
        # A run whose number of steps may grow does not say how many samples to make ahead.
        left = self.plan.steps - state.step if settings.time is None else sys.maxsize // 2
        started = time.perf_counter()
        with closing(self.course.steps(state.step, state.position, left)) as steps:
            for step in steps:
                record = self._step(step)
                elapsed = time.perf_counter() - started  # with the time that it waited for its samples
                passed = self._pass(step, int(record.pop("step_tokens")))
                tokens, counted = passed["tokens"][1] - passed["tokens"][0], operations[self._phase]
                state.seconds = self.clock() - self._begin
                record |= {
                    "tokens_per_second": tokens / elapsed,
                    "utilisation": counted * tokens / self.world.size / elapsed / peak,
                    "memory": memory(self.device),
                    "seconds": state.seconds,
                    "tokens": state.tokens,
                    "words": round(state.words),
                    "words_read": round(state.words_read),
                }
                self._log({"step": state.step, **record})
                self.progress.update(state.step, shown(record, self.metrics))
                stop = self.world.any(asked.is_set())
                last = state.step == self.plan.steps
                if last or state.step % settings.validate_every == 0:
                    self._validate()
                # Before the checkpoint: what is done after it would be lost for good if the run died in between.
                self._reach(passed)
                over, better = self._over, self.keeps_best and state.best_step == state.step
                if last or stop or over or better or state.step % settings.save_every == 0:
                    state.seconds = self.clock() - self._begin
                    self.save()
                if last or stop or over:
                    return False
                if self.plan.revise(state.step, self.clock() - self._begin, self.world):
                    self.progress.expect(self.plan.steps)
                    if len(self.course.phases) > 1:
                        return True
                started = time.perf_counter()
        return False

    def _wrap(self) -> None:
        """From now on processes add up their gradients."""
        heads = {phase.feed.objective.heads for phase in self.course.phases}
        some = len(heads) > 1 or any(phase.feed.objective.skips_heads for phase in self.course.phases)
        self.wrapped = self.world.wrap(self.unit, find_unused=some or self.settings.unfreeze is not None)

    @property
    def _over(self) -> bool:
        """Whether the run's patience is at an end; a function of the state, so that a resumed run does not go on."""
        patience, best = self.settings.patience, self.state.best_step
        if patience is None or best is None:
            return False
        return self.state.step - best >= patience * self.settings.validate_every

    @property
    def _phase(self) -> int:
        """The number of the phase that has trained last."""
        return self.course.phase_number_after(self.state.step)

    def _pass(self, step: Step, tokens: int) -> dict[str, tuple[float, float]]:
        """Moves the state behind a step; says how much of each unit was and is used up."""
        state, feed = self.state, step.feed
        before = replace(state)
        state.step, state.position, state.tokens = state.step + 1, step.after, state.tokens + tokens
        state.words, state.epochs = state.words + feed.words_per_step, state.epochs + feed.epochs_per_step
        state.words_read += feed.words_read_per_step
        names = {"steps": "step", "tokens": "tokens", "words": "words", "epochs": "epochs"}
        return {unit: (getattr(before, name), getattr(state, name)) for unit, name in names.items()}

    def _reach(self, passed: dict[str, tuple[float, float]]) -> None:
        """Does what was to be done at the amounts that the step has reached."""
        for milestone in self.milestones:
            # Shares of an epoch add up to it but for rounding.
            amount = milestone.amount.amount * (1 - 1e-9)
            before, after = passed[milestone.amount.unit]
            if before < amount <= after:
                with self.world.first_alone() as mine:
                    if mine:
                        milestone.act()

    def save(self) -> None:
        """Writes a checkpoint (the first process does; the others wait)."""
        memory = self.world.gather(self.unit.memories.tensors())
        with self.world.first_alone() as mine:
            if mine:
                tensors = optimiser_tensors(self.optimiser, self.unit)
                tensors |= {BRIDGE + name: value for name, value in self.unit.bridges.state_dict().items()}
                tensors |= {MEMORY + name: value for name, value in memory.items()}
                self.run.save(self.state, tensors, self.save_members, self.settings.keep)

    def seconds_per_step(self, seconds: float = 4.0) -> float:
        """The measured time of a step here: real steps at rate 0, after which optimiser and gradients start anew."""
        times: list[float] = []
        self._wrap()
        begin = self.clock()
        ahead = self.course.steps(self.state.step, self.state.position, 200)
        with closing(ahead) as steps, self.unit.isolated_memory():
            for step in steps:
                self._step(step, learning_rate=0.0)
                # From end to end: a step that waits for its samples takes that long as well.
                times.append(self.clock() - begin)
                begin += times[-1]
                # Four steps at least, or two where these took far longer than is to be spent on it.
                if self.world.any(
                    sum(times) > (seconds if len(times) > 3 else 10 * seconds) and len(times) > 1
                ):
                    break
        self.optimiser.state.clear()
        # The first steps warm allocators and caches up; the median forgives a busy moment.
        median = sorted(times[1:] or times)[len(times[1:] or times) // 2]
        return self.world.add({"median": median})["median"] / self.world.size

    def _step(self, step: Step, learning_rate: float | None = None) -> dict[str, float]:
        """One step of the optimiser, at the schedule's rate unless told."""
        settings, world, objective = self.settings, self.world, step.feed.objective
        counts = world.add(add_counts(step.slices.values()))
        totals: dict[str, float] = {}
        late: dict[str, float] = {}
        self.unit.train()
        self.unit.objective = objective
        if step.anew:
            self.unit.memories = StreamMemories()
        # Where steps are only measured everything trains: later ones take as long.
        gradually = settings.unfreeze is not None and learning_rate is None
        position = self.plan.position(self.state.step)
        share = position / (settings.steps * (settings.unfreeze or 1.0))
        with gradual_unfreezing(self.unit, share) if gradually else nullcontext():
            for number, prepared in step.slices.items():
                ends = number == next(reversed(step.slices))
                once = partial(self._pass_over, prepared.to(self.device), number, counts, ends)
                attack = settings.adversarial
                terms = once() if attack is None else back_propagate(attack, self.unit, once)
                add_terms(terms, totals, late)
        totals, counts = world.add(totals), counts | world.add(late)
        logged = (self.state.step + 1) % settings.log_layers_every == 0
        layers = gradient_norms(self.unit) if logged else {}
        norm = torch.nn.utils.clip_grad_norm_(self.unit.parameters(), settings.clip or math.inf)
        if not math.isfinite(float(norm)):
            raise self._diverged(f"the gradient at step {self.state.step + 1}")
        if learning_rate is None:
            learning_rate = settings.rate(position)
        set_rate(self.optimiser, learning_rate)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        record = averages(totals, counts, objective.likelihood)
        record |= {
            "learning_rate": learning_rate,
            "gradient_norm": float(norm),
            "step_tokens": counts[TOKENS],
        }
        return {**record, **{f"gradient_norm/{name}": value for name, value in layers.items()}}

    def _pass_over(
        self, prepared: MicroBatch, number: int, counts: Mapping[str, float], ends: bool,
        back: Back = torch.Tensor.backward, last: bool = True,
    ) -> dict[str, Term]:  # fmt: skip
        """One pass over slice `number`; in the last one over the slice that ends a step, processes add up their gradients."""
        # Dropout depends on (seed, step, slice) alone: neither on what ran before nor on where it runs.
        seed_device(self.settings.seed, self.state.step, number)
        silent = isinstance(self.wrapped, DistributedDataParallel) and not (ends and last)
        with self.wrapped.no_sync() if silent else nullcontext():  # type: ignore[operator]
            terms: dict[str, Term] = self.wrapped(prepared)
            # The wrapper takes the mean over the processes; the sum is wanted.
            back(weighted_loss(terms, counts) * self.world.size)
        return terms

    def _diverged(self, what: str) -> Diverged:
        return Diverged(
            f"{what} is not finite: lower the learning rate (it is {self.settings.optimiser.learning_rate:g}); "
            "the last checkpoint is untouched"
        )

    def _log(self, record: dict[str, Any]) -> None:
        if self.world.first:
            self.run.log(record)

    def _validate(self) -> None:
        self.metrics = self.validate(self.state.step)
        if not self.metrics:
            return
        judged = self.criterion(self.metrics)
        if judged is not None and not math.isfinite(judged):
            raise self._diverged(f"the validation loss after step {self.state.step}")
        state = self.state
        # Figures of different phases are figures of different things.
        comparable = (
            state.best_step is not None and self.course.phase_number_after(state.best_step) == self._phase
        )
        better = not comparable or state.best is None or judged is None or judged < state.best
        # Before the first step there is no checkpoint that could be kept.
        if judged is not None and better and (state.step or not self.keeps_best):
            state.best, state.best_step = float(judged), state.step
        numbers = {VALIDATION_PREFIX + name: value for name, value in self.metrics.items()}
        self._log({"step": self.state.step, "seconds": self.state.seconds, **numbers})


def seed_device(seed: int, step: int, part: int) -> None:
    """Sets the device's generator from (seed, step, slice)."""
    digest = hashlib.blake2b(f"{seed}/{step}/{part}".encode(), digest_size=8).digest()
    torch.manual_seed(int.from_bytes(digest, "little") >> 1)


def _taken(tensors: dict[str, torch.Tensor], begin: str) -> dict[str, torch.Tensor]:
    """Takes those out whose names begin so, under the rest of their names."""
    names = [name for name in tensors if name.startswith(begin)]
    return {name.removeprefix(begin): tensors.pop(name) for name in names}
