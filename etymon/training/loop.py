"""The training loop: steps of slices, each term divided by the count of the whole step."""

from __future__ import annotations

import hashlib
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass as strict_dataclass

from etymon.errors import EtymonError
from etymon.objectives.objective import Prepared, weighted_loss
from etymon.training.feeding import Feed, Step
from etymon.training.optimisers import adamw, optimiser_tensors, restore_optimiser
from etymon.training.progress import Progress
from etymon.training.runs import JUDGED, Run, TrainingState
from etymon.training.schedules import rate
from etymon.training.speed import matmul_peak, memory, step_operations
from etymon.training.unit import TrainingUnit


@strict_dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class TrainingSettings:
    """How a run trains. `rows` samples a slice, `slices` slices a step."""

    steps: int
    rows: int
    slices: int = 1
    learning_rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    weight_decay: float = 0.01
    undecayed: tuple[str, ...] = ("*bias", "*norm.weight")
    clip: float | None = 1.0
    schedule: str = "cosine"
    warmup: int = 0
    final: float = 0.0
    seed: int = 0
    validate_every: int = 100
    save_every: int = 1000
    keep: int = 2

    def rate(self, step: int) -> float:
        return self.learning_rate * rate(self.schedule, step, self.steps, self.warmup, self.final)


@dataclass
class TrainingResult:
    state: TrainingState
    metrics: dict[str, float]
    """The last validation."""
    stopped: bool
    """Ended early because somebody asked (Ctrl-C, SIGTERM)."""


Validate = Callable[[int], dict[str, Any]]


class Trainer:
    """Drives a unit over a feed. The same settings, seed and position always give the same curve."""

    def __init__(
        self,
        unit: TrainingUnit,
        feed: Feed,
        settings: TrainingSettings,
        run: Run,
        *,
        validate: Validate,
        save_model: Callable[[Path], None],
        progress: Progress,
        state: TrainingState | None = None,
        optimiser_state: dict[str, torch.Tensor] | None = None,
    ) -> None:
        self.unit, self.feed, self.settings, self.run = unit, feed, settings, run
        self.validate, self.save_model, self.progress = validate, save_model, progress
        self.device = next(unit.parameters()).device
        self.state = state or TrainingState()
        self.optimiser = adamw(
            unit.model,
            learning_rate=settings.learning_rate,
            betas=settings.betas,
            epsilon=settings.epsilon,
            weight_decay=settings.weight_decay,
            undecayed=settings.undecayed,
        )
        if optimiser_state is not None:
            restore_optimiser(self.optimiser, unit.model, optimiser_state)
        self.metrics: dict[str, float] = {}

    def train(self, title: str) -> TrainingResult:
        """All remaining steps. Ctrl-C or SIGTERM finishes the step, saves, and returns."""
        with stop_requested() as asked:
            if self.state.step == 0:
                self._validate()
            else:
                self.metrics = self.run.last_validation()
            self.progress.start(self.settings.steps, title)
            try:
                self._steps(asked)
            finally:
                self.progress.close()
        return TrainingResult(self.state, self.metrics, stopped=self.state.step < self.settings.steps)

    def _steps(self, asked: threading.Event) -> None:
        settings, state = self.settings, self.state
        operations, begin, seconds = None, time.perf_counter(), state.seconds
        for step in self.feed.steps(state.position, settings.steps - state.step):
            if operations is None:
                self.unit.train()
                operations = step_operations(self.unit, step.slices[0].to(self.device)) * len(step.slices)
                begin = time.perf_counter()
            started = time.perf_counter()
            record = self._step(step)
            elapsed = time.perf_counter() - started
            tokens = sum(part.tokens for part in step.slices)
            state.step, state.position = state.step + 1, step.after
            state.tokens += tokens
            state.seconds = seconds + time.perf_counter() - begin
            record |= {
                "tokens_per_second": tokens / elapsed,
                "utilisation": operations / elapsed / matmul_peak(),
                "memory": memory(),
                "seconds": state.seconds,
                "tokens": state.tokens,
            }
            self.run.log({"step": state.step, **record})
            self.progress.update(state.step, self._shown(record))
            last = state.step == settings.steps
            if last or state.step % settings.validate_every == 0:
                self._validate()
            if last or asked.is_set() or state.step % settings.save_every == 0:
                self.save()
            if asked.is_set():
                break

    def save(self) -> Path:
        tensors = optimiser_tensors(self.optimiser, self.unit.model)
        return self.run.save(self.state, tensors, self.save_model, self.settings.keep)

    def seconds_per_step(self, seconds: float = 4.0) -> float:
        """The measured time of a step here: real steps at rate 0, after which optimiser and gradients start anew."""
        times: list[float] = []
        begin = time.perf_counter()
        for step in self.feed.steps(self.state.position, 200):
            self._step(step, learning_rate=0.0)
            # From end to end: a step that waits for its samples takes that long as well.
            times.append(time.perf_counter() - begin)
            begin += times[-1]
            if len(times) > 3 and sum(times) > seconds:
                break
        self.optimiser.state.clear()
        # The first steps warm allocators and caches up; the median forgives a busy moment.
        return sorted(times[1:] or times)[len(times[1:] or times) // 2]

    def _step(self, step: Step, learning_rate: float | None = None) -> dict[str, float]:
        """One step of the optimiser, at the schedule's rate unless told."""
        settings = self.settings
        counts = add_counts(step.slices)
        totals: dict[str, float] = {}
        self.unit.train()
        for number, prepared in enumerate(step.slices):
            # Dropout depends on (seed, step, slice) alone: neither on what ran before nor on where it runs.
            seed_device(settings.seed, self.state.step, number)
            terms = self.unit(prepared.to(self.device))
            weighted_loss(terms, counts).backward()
            for name, term in terms.items():
                totals[name] = totals.get(name, 0.0) + float(term.sum.detach())
        norm = torch.nn.utils.clip_grad_norm_(self.unit.parameters(), settings.clip or math.inf)
        if not math.isfinite(float(norm)):
            raise EtymonError(
                f"the gradient at step {self.state.step + 1} is not finite: lower the learning rate "
                f"(it is {settings.learning_rate:g}); the last checkpoint is untouched"
            )
        if learning_rate is None:
            learning_rate = settings.rate(self.state.step)
        for group in self.optimiser.param_groups:
            group["lr"] = learning_rate
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        record = averages(
            totals, counts, self.feed.objective.likelihood, sum(part.bytes for part in step.slices)
        )
        return {**record, "learning_rate": learning_rate, "gradient_norm": float(norm)}

    def _validate(self) -> None:
        self.metrics = self.validate(self.state.step)
        if not self.metrics:
            return
        judged = self.metrics.get("bits_per_byte", self.metrics.get("bits_per_target"))
        if judged is not None and not math.isfinite(judged):
            raise EtymonError(
                f"the validation loss after step {self.state.step} is not finite: lower the learning rate "
                f"(it is {self.settings.learning_rate:g}); the last checkpoint is untouched"
            )
        if judged is not None and (self.state.best is None or judged < self.state.best):
            self.state.best, self.state.best_step = float(judged), self.state.step
        numbers = {JUDGED + name: value for name, value in self.metrics.items()}
        self.run.log({"step": self.state.step, "seconds": self.state.seconds, **numbers})

    def _shown(self, record: dict[str, float]) -> dict[str, float | str]:
        judged = "bits_per_byte" if "bits_per_byte" in record else "bits_per_target"
        shown: dict[str, float | str] = {
            judged: record[judged],
            "tokens_per_second": record["tokens_per_second"],
            "mfu": record["utilisation"],
            "memory": record["memory"],
        }
        if judged in self.metrics:
            shown["validation"] = self.metrics[judged]
        return shown


def add_counts(slices: Sequence[Prepared]) -> dict[str, float]:
    """The denominators of the whole step, before any backward."""
    counts: dict[str, float] = {}
    for prepared in slices:
        for name, count in prepared.counts.items():
            counts[name] = counts.get(name, 0.0) + count
    return counts


def averages(
    totals: dict[str, float], counts: dict[str, float], likelihood: str | None, count_bytes: float
) -> dict[str, float]:
    """Each term's mean; bits per byte for likelihoods of the text, else bits per target of the first term."""
    means = {name: total / max(counts[name], 1.0) for name, total in totals.items()}
    if likelihood is not None and count_bytes:
        return {**means, "bits_per_byte": totals[likelihood] / math.log(2) / count_bytes}
    return {**means, "bits_per_target": next(iter(means.values())) / math.log(2)}


@torch.no_grad()
def evaluate(unit: TrainingUnit, slices: Sequence[Prepared]) -> dict[str, float]:
    """The objective's terms over prepared slices, in evaluation mode."""
    was_training, device = unit.training, next(unit.parameters()).device
    unit.eval()
    totals: dict[str, float] = {}
    counts = add_counts(slices)
    for prepared in slices:
        for name, term in unit(prepared.to(device)).items():
            totals[name] = totals.get(name, 0.0) + float(term.sum)
    unit.train(was_training)
    return averages(totals, counts, unit.objective.likelihood, sum(part.bytes for part in slices))


def seed_device(seed: int, step: int, part: int) -> None:
    """Sets the device's generator from (seed, step, slice)."""
    digest = hashlib.blake2b(f"{seed}/{step}/{part}".encode(), digest_size=8).digest()
    torch.manual_seed(int.from_bytes(digest, "little") >> 1)


@contextmanager
def stop_requested() -> Iterator[threading.Event]:
    """An event that Ctrl-C and SIGTERM set; a second Ctrl-C interrupts at once. Only in the main thread."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def ask(number: int, frame: Any) -> None:
        if asked.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked.set()

    previous = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: not set from Python
