"""From a plan to the slices of a step: which samples a step sees is a function of (seed, position) alone."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from etymon.data.plans import key
from etymon.data.store import Split
from etymon.errors import EtymonError
from etymon.objectives.objective import Objective, Prepared


@dataclass(frozen=True)
class Position:
    """The next sample to be read: its epoch, and its place in that epoch's plan."""

    epoch: int = 0
    offset: int = 0


@dataclass
class Step:
    """The slices of one step, and where the next one begins."""

    slices: list[Prepared]
    after: Position


class Feed:
    """Endless steps of `slices` slices with `rows` samples each, from any position on."""

    def __init__(self, objective: Objective, split: Split, seed: int, *, slices: int, rows: int) -> None:
        self.objective, self.split, self.seed = objective, split, seed
        self.slices, self.rows = slices, rows
        self._plan = lru_cache(maxsize=2)(lambda epoch: objective.plan(split, seed, epoch))
        if not len(self._plan(0)):
            raise EtymonError("the training text is too short for a single sample: give more text")

    def step(self, position: Position) -> Step:
        slices = []
        for _ in range(self.slices):
            examples = []
            for _ in range(self.rows):
                plan: np.ndarray = self._plan(position.epoch)
                while position.offset >= len(plan):  # of a text of two tokens, an epoch's plan may be empty
                    position = Position(position.epoch + 1, 0)
                    plan = self._plan(position.epoch)
                rng = key(self.seed, "sample", position.epoch, position.offset)
                examples.append(self.objective.prepare(self.split, plan[position.offset], rng))
                position = Position(position.epoch, position.offset + 1)
            slices.append(self.objective.collate(examples))
        return Step(slices, position)

    def steps(self, position: Position, count: int) -> Iterator[Step]:
        """`count` steps, each prepared by a thread while the one before it is computed."""
        ready: queue.Queue[Step | BaseException] = queue.Queue(maxsize=2)
        stopped = threading.Event()

        def hand_over(item: Step | BaseException) -> None:
            while not stopped.is_set():  # never wait for a reader who has left
                try:
                    return ready.put(item, timeout=0.2)
                except queue.Full:
                    continue

        def work() -> None:
            here = position
            try:
                for _ in range(count):
                    if stopped.is_set():
                        return
                    step = self.step(here)
                    here = step.after
                    hand_over(step)
            except BaseException as error:  # handed over: the thread has nobody to tell
                hand_over(error)

        thread = threading.Thread(target=work, name="etymon-feed", daemon=True)
        thread.start()
        try:
            for _ in range(count):
                item = ready.get()
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            stopped.set()
            thread.join()


def validation_slices(
    objective: Objective, split: Split, seed: int, *, rows: int, most: int | None = None
) -> list[Prepared]:
    """The validation text as slices, in order and the same every time; at most `most` samples, evenly spread."""
    plan = objective.plan(split, seed, 0, shuffle=False)
    if most is not None and len(plan) > most:
        plan = plan[np.linspace(0, len(plan) - 1, most).astype(int)]
    examples = [
        objective.prepare(split, row, key(seed, "validation", number)) for number, row in enumerate(plan)
    ]
    return [objective.collate(examples[start : start + rows]) for start in range(0, len(examples), rows)]
