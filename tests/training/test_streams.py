"""Streams in training: one memory a stream, whatever the slices; judged apart; saved by stream."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from etymon.errors import EtymonError
from etymon.objectives import get_objective
from etymon.objectives.objective import StreamBatch, check_fit, weighted_loss
from etymon.training.feeding import Feed, Phase, Position, StepStream, validation_slices
from etymon.training.speed import flops_per_token
from etymon.training.unit import StreamMemories, TrainingUnit, add_counts, evaluate
from tests import tiny
from tests.carrying import carrying


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tiny.store("gpt2", tmp_path_factory.mktemp("store"))


@pytest.fixture(autouse=True)
def memory() -> Iterator[None]:
    with carrying():
        yield


def unit_of(family: str = "gpt2", **options: Any) -> TrainingUnit:
    objective = get_objective("recurrent", tiny.tokenizer("gpt2"), 12, **options)
    return TrainingUnit(tiny.model(family, objective), objective)


def gradients(unit: TrainingUnit, store: Any, *, slices: int, steps: int = 3) -> dict[str, torch.Tensor]:
    """What steps over the same streams add up to, without any update."""
    feed = Feed(unit.objective, store.train, 0, slices=slices, rows=8 // slices)
    for step in StepStream([Phase(0, feed)]).steps(0, Position(), steps):
        counts = add_counts(step.slices.values())
        for prepared in step.slices.values():
            weighted_loss(unit(prepared), counts).backward()
    return {name: parameter.grad for name, parameter in unit.named_parameters()}


@pytest.mark.parametrize("family", ["gpt2", "transformer-xl"])
@pytest.mark.parametrize("reset", ["epoch", "document"])
def test_slices_add_up_to_one(family: str, reset: str, store: Any) -> None:
    whole, parts = (gradients(unit_of(family, reset=reset), store, slices=slices) for slices in (1, 4))
    for name, gradient in whole.items():
        torch.testing.assert_close(parts[name], gradient, rtol=1e-4, atol=1e-6, msg=name)


def test_memory_reaches_the_loss_and_can_be_switched_off(store: Any) -> None:
    with_memory, without = (gradients(unit_of(**options), store, slices=1) for options in ({}, {"memory": 0}))
    assert any(not torch.allclose(with_memory[name], without[name]) for name in without)
    assert not unit_of(memory=0).memories.tensors()


def test_a_stream_has_its_own_memory(store: Any) -> None:
    """Streams read side by side give what each gives alone."""
    unit = unit_of().eval()
    objective: Any = unit.objective
    plan = objective.plan(store.train, 0, 0, streams=3)[:9]
    rows = [objective.prepare(store.train, row, None) for row in plan]
    with torch.no_grad(), unit.isolated_memory():
        together = [float(unit(objective.collate(rows[at : at + 3]))["loss"].sum) for at in (0, 3, 6)]
    alone = torch.zeros(3)
    for stream in range(3):
        with torch.no_grad(), unit.isolated_memory():
            alone += torch.tensor(
                [float(unit(objective.collate([rows[at + stream]]))["loss"].sum) for at in (0, 3, 6)]
            )
    torch.testing.assert_close(alone, torch.tensor(together), rtol=1e-5, atol=1e-4)


def test_fresh_rows_forget(store: Any) -> None:
    unit = unit_of().eval()
    objective: Any = unit.objective
    plan = objective.plan(store.train, 0, 0, streams=2)
    first, second = (
        objective.collate([objective.prepare(store.train, row, None) for row in plan[at : at + 2]])
        for at in (0, 2)
    )
    second.fresh = (False, True)
    with torch.no_grad():
        unit(first)
        state = unit.recall(second)
        assert state.lengths == (12, 0) and state.mean_RD[0].any() and not state.mean_RD[1].any()
        second.fresh = (True, True)
        assert unit.recall(second).lengths == (0, 0)


def test_judging_and_measuring_leave_the_streams_alone(store: Any) -> None:
    unit = unit_of()
    gradients(unit, store, slices=2)
    before = {name: tensor.clone() for name, tensor in unit.memories.tensors().items()}
    assert sorted(before) == ["0-3/lengths", "0-3/mean", "4-7/lengths", "4-7/mean"]
    slices = validation_slices(unit.objective, store.validation, 0, rows=2, slices=2)
    once = evaluate(unit, slices)
    assert evaluate(unit, slices) == once  # from an empty memory each time
    flops_per_token(unit, Feed(unit.objective, store.train, 0, slices=2, rows=4))
    assert all(torch.equal(tensor, before[name]) for name, tensor in unit.memories.tensors().items())


def test_validation_reads_streams_to_their_ends(store: Any) -> None:
    unit = unit_of(validation_memory=99, recent=0.5)
    asked: list[Any] = []
    model: Any = unit.model
    plain = type(model).remember

    class Recording:
        def __call__(self, rows: int, length: int | None = None) -> Any:
            asked.append(length)
            return plain(model, rows, length)

    object.__setattr__(model, "remember", Recording())
    slices = validation_slices(unit.objective, store.validation, 0, rows=2, slices=2)
    figures = evaluate(unit, slices)
    assert (
        sum(part.counts["loss"] for part in slices) == store.validation.stream_length
    )  # all of it, `recent` or not
    assert (
        set(asked) == {99} and len(asked) == 2
    )  # a memory for each of the two slices, and never another one
    assert figures["bits_per_byte"] > 0
    some = validation_slices(unit.objective, store.validation, 0, rows=2, slices=2, most=9)
    assert len(some) == 4  # two steps of four streams
    assert [part.streams for part in some] == [(0, 1), (2, 3)] * 2


def test_loss_on_the_recent_part_only(store: Any) -> None:
    unit = unit_of(recent=0.5)
    feed = Feed(unit.objective, store.train, 0, slices=1, rows=2)
    step = next(StepStream([Phase(0, feed)]).steps(0, Position(), 1))
    prepared: Any = step.slices[0]
    assert isinstance(prepared, StreamBatch)
    assert prepared.counts == {"loss": 12} and prepared.at.tolist() == [*range(6, 12), *range(18, 24)]
    assert torch.equal(prepared.targets[:5], prepared.batch.ids[7:12])


def test_saved_streams_go_on_wherever_they_are_loaded(store: Any) -> None:
    unit = unit_of()
    gradients(unit, store, slices=2)
    other = unit_of()
    other.memories = StreamMemories(unit.memories.tensors())
    # What is saved before its streams are asked for is saved again.
    assert other.memories.tensors().keys() == unit.memories.tensors().keys()
    feed = Feed(unit.objective, store.train, 0, slices=2, rows=4)
    prepared: Any = feed.slice(feed.addresses(Position(0, 24))[0][1])
    one, two = (each(prepared)["loss"].sum for each in (unit, other))
    assert torch.equal(one, two)
    # What was not asked for is another process's to save.
    assert sorted(other.memories.tensors()) == ["4-7/lengths", "4-7/mean"]


def test_another_number_of_streams_is_refused(store: Any) -> None:
    unit, other = unit_of(), unit_of()
    gradients(unit, store, slices=2)
    other.memories = StreamMemories(unit.memories.tensors())
    feed = Feed(other.objective, store.train, 0, slices=1, rows=8)
    with pytest.raises(EtymonError, match="remembers the streams 0-3, 4-7, and a slice has 0-7"):
        other(feed.slice(feed.addresses(Position())[0][0]))


def test_a_batch_that_grows_is_refused(store: Any) -> None:
    objective = get_objective("recurrent", tiny.tokenizer("gpt2"), 12)
    feeds = [Feed(objective, store.train, 0, slices=1, rows=rows) for rows in (2, 4)]
    with pytest.raises(EtymonError, match=r"2, 4 samples a step.*would change the number of streams"):
        StepStream([Phase(0, feeds[0]), Phase(3, feeds[1])])
    with pytest.raises(EtymonError, match="too short for 4000 streams"):
        Feed(objective, store.train, 0, slices=1, rows=4000)


def test_a_phase_with_other_samples_begins_anew(store: Any) -> None:
    feeds = [
        Feed(get_objective("recurrent", tiny.tokenizer("gpt2"), length), store.train, 0, slices=1, rows=2)
        for length in (8, 12)
    ]
    course = StepStream([Phase(0, feeds[0]), Phase(2, feeds[1])])
    assert [step.resets_streams for step in course.steps(0, Position(), 4)] == [True, False, True, False]
    assert [step.resets_streams for step in course.steps(2, Position(0, 4), 2)] == [True, False]


def test_a_family_without_memory_is_refused(tmp_path: Path) -> None:
    from etymon.families import get_family

    objective = get_objective("recurrent", tiny.tokenizer("gpt2"), 12)
    with pytest.raises(EtymonError, match="able to remember earlier segments"):
        check_fit(objective, get_family("gpt1"))
    with pytest.raises(EtymonError, match="reads streams in order"):
        get_objective("recurrent=0.5,causal=0.5", tiny.tokenizer("gpt2"), 12)
