"""Feeding: a step is a function of its position, and the thread behind it neither hides errors nor hangs."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from etymon.errors import EtymonError
from etymon.objectives.objective import MicroBatch, Objective
from etymon.training.feeding import Feed, Phase, Position, Step, StepStream, validation_slices


class Numbers(Objective):
    """An objective over nothing: sample n of an epoch is n itself and a number drawn for it."""

    name, likelihood, streaming = "numbers", None, False
    heads: frozenset[str] = frozenset()
    requires: frozenset[str] = frozenset()

    def __init__(
        self,
        samples: int = 10,
        fail_at: int | None = None,
        empty: Sequence[int] = (),
        targets_from: float = 0,
    ) -> None:
        self.samples, self.fail_at, self.empty, self.targets_from = samples, fail_at, empty, targets_from
        self.plans: list[int] = []

    def plan(self, split: Any, seed: int, epoch: int, *, shuffle: bool = True) -> np.ndarray:
        self.plans.append(epoch)
        return np.array([[epoch, number] for number in range(0 if epoch in self.empty else self.samples)])

    def prepare(self, split: Any, row: np.ndarray, rng: np.random.Generator) -> tuple[int, int, float]:
        if self.fail_at == row[1]:
            raise EtymonError(f"sample {row[1]} is broken")
        return int(row[0]), int(row[1]), float(rng.random())

    def collate(self, examples: Sequence[Any]) -> MicroBatch:
        targets = sum(epoch * self.samples + number >= self.targets_from for epoch, number, _ in examples)
        prepared = MicroBatch(counts={"n": targets}, tokens=len(examples), bytes=0.0)
        prepared.examples = list(examples)  # type: ignore[attr-defined]
        return prepared

    def loss(self, model: Any, prepared: Any) -> dict[str, Any]:
        raise NotImplementedError


def feed(rows: int = 3, slices: int = 2, **options: Any) -> Feed:
    return Feed(Numbers(**options), None, 0, slices=slices, rows=rows)  # type: ignore[arg-type]


def course(rows: int = 3, slices: int = 2, rank: int = 0, ranks: int = 1, **options: Any) -> StepStream:
    return StepStream([Phase(0, feed(rows, slices, **options))], rank=rank, ranks=ranks)


def steps(given: StepStream, position: Position, count: int, first: int = 0) -> list[Step]:
    return list(given.steps(first, position, count))


def read(step: Step) -> list[tuple[int, int, float]]:
    return [example for number in sorted(step.slices) for example in step.slices[number].examples]  # type: ignore[attr-defined]


def feed_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("etymon-feed")]


def test_a_step_is_a_function_of_its_position() -> None:
    straight = steps(course(), Position(), 7)
    for number in (0, 3, 6):
        position = Position() if number == 0 else straight[number - 1].after
        (step,) = steps(course(), position, 1, number)
        assert read(step) == read(straight[number])
        addresses, after = feed().addresses(position)
        assert after == straight[number].after
        made = [feed().slice(samples).examples for samples in addresses]  # type: ignore[attr-defined]
        assert [example for part in made for example in part] == read(step)
    resumed = steps(course(), straight[2].after, 4, 3)
    assert [read(step) for step in resumed] == [read(step) for step in straight[3:]]
    assert steps(course(), Position(), 0) == []


def test_steps_straddle_epochs_and_lose_nothing() -> None:
    taken = steps(course(), Position(), 5)  # 30 samples of epochs of 10
    samples = [sample for step in taken for sample in read(step)]
    assert [sample[:2] for sample in samples] == [
        (epoch, number) for epoch in range(3) for number in range(10)
    ]
    assert taken[-1].after in (Position(2, 10), Position(3, 0))
    assert len({draw for _, _, draw in samples}) == 30, "every sample of every epoch has its own draws"


def test_slices_only_divide_the_samples() -> None:
    one = [read(step) for step in steps(course(rows=6, slices=1), Position(), 4)]
    three = [read(step) for step in steps(course(rows=2, slices=3), Position(), 4)]
    assert one == three


def test_a_batch_larger_than_an_epoch_and_an_empty_epoch() -> None:
    (step,) = steps(course(rows=7, slices=1, samples=3, empty=[1]), Position(), 1)
    assert [sample[:2] for sample in read(step)] == [(0, 0), (0, 1), (0, 2), (2, 0), (2, 1), (2, 2), (3, 0)]


def test_plans_are_made_once_an_epoch() -> None:
    objective = Numbers(samples=100)
    made = Feed(objective, None, 0, slices=1, rows=5)  # type: ignore[arg-type]
    for step in StepStream([Phase(0, made)]).steps(0, Position(), 61):
        assert step.feed.epochs_per_step == 0.05  # asking how long an epoch is makes no plan again
    assert objective.plans == [0, 1, 2, 3]


def test_no_sample_is_refused() -> None:
    with pytest.raises(EtymonError, match="too short for a single sample"):
        feed(samples=0)


def test_an_error_in_the_thread_reaches_the_caller_in_its_place() -> None:
    taken = course(rows=1, slices=1, fail_at=4).steps(0, Position(), 100)
    assert [read(next(taken))[0][1] for _ in range(4)] == [0, 1, 2, 3]
    with pytest.raises(EtymonError, match="sample 4 is broken"):
        next(taken)
    assert not feed_threads()


@pytest.mark.parametrize("fail_at", [None, 3, 4])
def test_closing_early_does_not_hang(fail_at: int | None) -> None:
    # Errors among what was made ahead are the delicate ones: nobody reads them any more.
    taken = course(rows=1, slices=1, fail_at=fail_at).steps(0, Position(), 100)
    next(taken)
    closer = threading.Thread(target=taken.close, daemon=True)
    closer.start()
    closer.join(timeout=20)
    assert not closer.is_alive(), "close() hangs"
    assert not feed_threads()


def in_a_child(results: Any) -> None:
    results.put([read(step) for step in steps(course(), Position(), 3)])


def test_feeds_in_a_spawned_process() -> None:
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    child = context.Process(target=in_a_child, args=(results,))
    child.start()
    got = results.get(timeout=60)
    child.join(timeout=20)
    assert got == [read(step) for step in steps(course(), Position(), 3)]


def test_validation_slices_are_in_order_and_the_same_every_time() -> None:
    objective: Any = Numbers(samples=11)
    slices = validation_slices(objective, None, 0, rows=4)  # type: ignore[arg-type]
    assert [len(part.examples) for part in slices] == [4, 4, 3]  # type: ignore[attr-defined]
    samples = [example for part in slices for example in part.examples]  # type: ignore[attr-defined]
    assert [sample[1] for sample in samples] == list(range(11))
    again = validation_slices(objective, None, 0, rows=4)  # type: ignore[arg-type]
    assert samples == [example for part in again for example in part.examples]  # type: ignore[attr-defined]
    few = validation_slices(objective, None, 0, rows=2, most=3)  # type: ignore[arg-type]
    assert [example[1] for part in few for example in part.examples] == [0, 5, 10]  # type: ignore[attr-defined]


def test_steps_that_never_have_a_target_are_refused_and_a_few_empty_ones_are_not() -> None:
    feed(samples=100).require_targets()
    feed(samples=100, targets_from=59).require_targets()  # the last sample of the tenth step
    with pytest.raises(
        EtymonError, match=r"^numbers leaves nothing to predict in the first 10 steps, [^\n]*$"
    ):
        feed(samples=100, targets_from=60).require_targets()
    with pytest.raises(EtymonError, match="nothing to predict"):
        feed(samples=4, targets_from=float("inf")).require_targets()  # several epochs long
