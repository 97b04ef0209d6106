"""From plans to the slices of a step: which samples a step sees is a function of (seed, position) alone.

Ranks, workers and prefetching only place the work: a slice is made from the positions of its samples,
wherever that happens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, cast

import numpy as np
from torch.utils.data import DataLoader, Dataset

from etymon.errors import EtymonError
from etymon.objectives.objective import MicroBatch, Objective, Streaming
from etymon.sampling.plans import key
from etymon.text.store import Split


@dataclass(frozen=True)
class Position:
    """A sample: its epoch, and its place in that epoch's plan."""

    epoch: int = 0
    offset: int = 0


@dataclass
class Step:
    """The slices of one step that are computed here, by number, and where the next step begins."""

    slices: dict[int, MicroBatch]
    after: Position
    feed: Feed
    resets_streams: bool = False
    """It begins a phase with other samples: streams of the phase before have ended."""


class Feed:
    """Steps of `slices` slices with `rows` samples each, from any position on."""

    def __init__(
        self,
        objective: Objective,
        split: Split,
        seed: int,
        *,
        slices: int,
        rows: int,
        goes_on: bool = False,
    ) -> None:
        self.objective, self.split, self.seed = objective, split, seed
        self.goes_on = goes_on
        """Its samples are those of the phase before, of which another objective asks."""
        self.slices, self.rows = slices, rows
        self.batch_size = slices * rows
        self._plans: dict[int, np.ndarray] = {}
        self.samples = len(self.plan(0))
        """Samples of the first epoch; of the others there are about as many."""
        if not self.samples and objective.streaming:
            raise EtymonError(
                f"the training text is too short for {self.batch_size} streams side by side: give more "
                "text, or make --batch or --length smaller",
                code="too-little-text",
            )
        if not self.samples:
            raise EtymonError(
                "the training text is too short for a single sample: give more text", code="too-little-text"
            )
        self.readings = objective.readings(split, self.plan(0))
        """How often an epoch reads a word of the text."""

    def plan(self, epoch: int) -> np.ndarray:
        """The epoch's plan; a batch may cross into the next epoch, so the newest two are kept."""
        plan = self._plans.get(epoch)
        if plan is None:
            plan = sample_plan(self.objective, self.split, self.seed, epoch, self.batch_size)
            neighbours = {old: table for old, table in list(self._plans.items()) if abs(old - epoch) == 1}
            self._plans = {**neighbours, epoch: plan}  # replaced as a whole: a thread may be reading it
        return plan

    @cached_property
    def epochs_per_step(self) -> float:
        return self.batch_size / self.samples

    @cached_property
    def words_per_step(self) -> float:
        """Words of the text, each once an epoch, as the rules of small-data challenges (BabyLM) count."""
        return self.epochs_per_step * float(self.split.words.sum())

    @property
    def words_read_per_step(self) -> float:
        """Words of its samples: more than `words_per_step` where an epoch reads a part of the text several
        times."""
        return self.words_per_step * self.readings

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_plans": {}}  # a worker makes the plans that it needs

    def addresses(self, position: Position) -> tuple[list[tuple[Position, ...]], Position]:
        """The samples of every slice of the step that begins at `position`, and where the next one begins."""
        # Steps cross the border of epochs: no sample is dropped to make an epoch a whole number of steps.
        samples = []
        for _ in range(self.batch_size):
            while position.offset >= len(self.plan(position.epoch)):  # a tiny text may have empty plans
                position = Position(position.epoch + 1, 0)
            samples.append(position)
            position = Position(position.epoch, position.offset + 1)
        slices = [tuple(samples[first : first + self.rows]) for first in range(0, self.batch_size, self.rows)]
        return slices, position

    def slice(self, samples: Sequence[Position]) -> MicroBatch:
        """One slice, as a function of its samples' positions."""
        prepare, split = self.objective.prepare, self.split
        # Every sample has a random key of its own: nothing depends on which samples were made before it.
        examples = [
            prepare(split, self.plan(at.epoch)[at.offset], key(self.seed, "sample", at.epoch, at.offset))
            for at in samples
        ]
        return self.objective.collate(examples)

    def require_targets(self, steps: int = 10) -> None:
        """Refuses an objective that has nothing to predict in the first steps: at a loss of 0, nothing is
        learnt."""
        # Usually the first slice has targets. A step may have none by chance, ten in a row have a reason.
        position = Position()
        for _ in range(steps):
            slices, position = self.addresses(position)
            if any(any(self.slice(samples).counts.values()) for samples in slices):
                return
        options = ", ".join(part.name for part in fields(self.objective.Options))
        raise EtymonError(
            f"{self.objective.name} leaves nothing to predict in the first {steps} steps, so nothing would "
            f"be learnt: look at its options ({options or 'it has none'}), the length of samples and the data"
        )

    @cached_property
    def mean_tokens(self) -> float:
        """Tokens a sample, by an even look at the first epoch."""
        chosen = np.linspace(0, self.samples - 1, min(256, self.samples)).astype(int)
        return self.slice([Position(0, int(offset)) for offset in chosen]).tokens / len(chosen)


@dataclass(frozen=True)
class Phase:
    """From step `first` on, samples come from `feed`."""

    first: int
    feed: Feed


def check_streams(batches: Sequence[tuple[Objective | type[Objective], int]]) -> None:
    """Refuses phases, each given as (objective, batch size), whose streams could not go on from one to the
    next."""
    streams = {batch for objective, batch in batches if objective.streaming}
    if len(streams) > 1:
        raise EtymonError(
            f"a batch that changes ({', '.join(map(str, sorted(streams)))} samples a step) would change "
            "the number of streams, and what they remember: give all phases one batch, and leave ramp out"
        )


class StepStream(Dataset[MicroBatch]):
    """The phases of a run, as steps. `rank` of `ranks` computes the slices rank, rank + ranks, ..."""

    def __init__(self, phases: Sequence[Phase], *, rank: int = 0, ranks: int = 1, workers: int = 0) -> None:
        self.phases = list(phases)
        self.rank, self.ranks, self.workers = rank, ranks, workers
        check_streams([(phase.feed.objective, phase.feed.batch_size) for phase in self.phases])
        for phase in self.phases:
            if phase.feed.slices % ranks:
                raise EtymonError(
                    f"a step of {phase.feed.slices} slices cannot be shared by {ranks} processes: "
                    f"make --slices a multiple of {ranks}"
                )

    def phase(self, step: int) -> Phase:
        """The phase that step `step` (from 0) belongs to."""
        return next(phase for phase in reversed(self.phases) if phase.first <= step)

    def phase_number_after(self, steps: int) -> int:
        """The number of the phase that has trained last when `steps` steps are done."""
        return self.phases.index(self.phase(max(0, steps - 1)))

    def steps_by_phase(self, first: int, last: int) -> list[tuple[Phase, int]]:
        """How many of the steps from `first` up to `last` belong to each phase."""
        ends = [*(phase.first for phase in self.phases[1:]), last]
        return [
            (phase, max(0, min(end, last) - max(phase.first, first))) for phase, end in zip(self.phases, ends)
        ]

    def samples(self, steps: int) -> int:
        """Samples of the first `steps` steps."""
        return sum(count * phase.feed.batch_size for phase, count in self.steps_by_phase(0, steps))

    def words_read(self, steps: int) -> float:
        """Words that the samples of the first `steps` steps hold."""
        return sum(count * phase.feed.words_read_per_step for phase, count in self.steps_by_phase(0, steps))

    def stretch(self, step: int, factor: float) -> None:
        """Phases that begin after `step` steps begin so much later or earlier; iterators of `steps` are
        outdated."""
        self.phases = [
            phase if phase.first <= step else Phase(step + round((phase.first - step) * factor), phase.feed)
            for phase in self.phases
        ]

    def steps(self, first: int, position: Position, count: int) -> Generator[Step]:
        """Steps `first` to `first + count`, prepared ahead by a thread, or by `workers` processes."""
        if count <= 0:
            return
        # Filled in ahead of the slices, by whoever makes them.
        planned: deque[tuple[Phase, Position, bool]] = deque()
        addresses = self._addresses(first, position, count, planned)
        slices: Generator[MicroBatch]
        if self.workers:
            # Spawned, not forked: a fork of a process with threads may hang.
            loader = DataLoader(
                self, None, sampler=addresses, num_workers=self.workers, multiprocessing_context="spawn"
            )
            slices = (batch for batch in loader)
        else:
            slices = _ahead(self[address] for address in addresses)
        try:
            for _ in range(count):
                step_slices = {self.rank: next(slices)}
                phase, after, resets_streams = planned.popleft()
                for number in range(self.rank + self.ranks, phase.feed.slices, self.ranks):
                    step_slices[number] = next(slices)
                yield Step(step_slices, after, phase.feed, resets_streams)
        finally:
            slices.close()

    def __getitem__(self, address: tuple[int, tuple[Position, ...]]) -> MicroBatch:
        number, samples = address
        return self.phases[number].feed.slice(samples)

    def _addresses(
        self, first: int, position: Position, count: int, planned: deque[tuple[Phase, Position, bool]]
    ) -> Iterator[tuple[int, tuple[Position, ...]]]:
        """(phase, samples) of every slice that this rank computes, in order; each step is also put into
        `planned`."""
        for step in range(first, first + count):
            phase, resets_streams = self.phase(step), step == 0
            if phase.first == step > 0:
                # A phase with other samples begins a new epoch; one that only takes more a step goes on.
                before, now = self.phase(step - 1).feed, phase.feed
                is_same = before.objective is now.objective or now.goes_on
                resets_streams = not (is_same and before.split is now.split)
                if resets_streams:
                    position = Position(position.epoch + 1, 0)
            slices, position = phase.feed.addresses(position)
            planned.append((phase, position, resets_streams))
            for samples in slices[self.rank :: self.ranks]:
                yield self.phases.index(phase), samples


def _ahead(items: Iterator[MicroBatch], most: int = 3) -> Generator[MicroBatch]:
    """The same items, made by a thread while the reader is busy; an error is raised in its item's place."""
    # A single thread: items come in order, and no generator may be run by two.
    maker = ThreadPoolExecutor(1, "etymon-feed")
    try:
        ready = deque(maker.submit(next, items, None) for _ in range(most))
        while (item := ready.popleft().result()) is not None:
            ready.append(maker.submit(next, items, None))
            yield item
    finally:
        maker.shutdown(cancel_futures=True)  # a reader who leaves waits for one item at most


@dataclass(eq=False)
class ValidationSlices(Sequence[MicroBatch]):
    """The slices of a plan, made when they are read: all of a large text would not fit into memory."""

    objective: Objective
    split: Split
    seed: int
    rows: int
    plan: np.ndarray

    def __len__(self) -> int:
        return -(-len(self.plan) // self.rows)

    def __getitem__(self, number: Any) -> Any:
        if not 0 <= number < len(self):
            raise IndexError(number)
        first = number * self.rows
        return self.objective.collate(
            [
                self.objective.prepare(self.split, row, key(self.seed, "validation", first + place))
                for place, row in enumerate(self.plan[first : first + self.rows])
            ]
        )


def validation_slices(
    objective: Objective, split: Split, seed: int, *, rows: int, slices: int = 1, most: int | None = None
) -> Sequence[MicroBatch]:
    """The validation text as slices, in order and the same every time.

    With `most`, at most so many samples, evenly spread, which are read again and again and so made once.
    There are as many streams as in a step of `slices` slices, so that processes which share the slices keep
    their streams; `most` are their beginnings.
    """
    # A plan of streams depends on how many run side by side; other plans do not.
    streams = slices * rows
    plan = sample_plan(objective, split, seed, 0, streams, shuffle=False)
    if most is None:
        return ValidationSlices(objective, split, seed, rows, plan)
    if len(plan) > most and objective.streaming:
        plan = plan[: max(1, most // streams) * streams]
    elif len(plan) > most:
        plan = plan[np.linspace(0, len(plan) - 1, most).astype(int)]
    return list(ValidationSlices(objective, split, seed, rows, plan))


def sample_plan(
    objective: Objective, split: Split, seed: int, epoch: int, streams: int, *, shuffle: bool = True
) -> np.ndarray:
    """The samples that an objective makes of a text; of streams, so many side by side."""
    if objective.streaming:
        return cast(Streaming, objective).plan(split, seed, epoch, shuffle=shuffle, streams=streams)
    return objective.plan(split, seed, epoch, shuffle=shuffle)
