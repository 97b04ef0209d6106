"""What a step takes without values is what it takes with them."""

from __future__ import annotations

import pytest
import torch

from etymon.families.surgery import generator_for
from etymon.objectives.objective import weighted_loss
from etymon.training.feeding import Feed, Position
from etymon.training.heap import Heap
from etymon.training.memory import _LiveBytes, copy_without_values, step_footprint
from etymon.training.optimisers import OPTIMISERS, OptimiserChoice, build_optimiser
from etymon.training.speed import slice_flops
from etymon.training.unit import TrainingUnit
from tests import tiny

CASES = [
    ("gpt2", "causal"), ("gpt3", "causal"), ("bert", "masked-next-sentence"), ("t5", "span-corruption"),
    ("electra", "replaced"), ("xlnet", "permutation"), ("transformer-xl", "recurrent"), ("bart", "denoising"),
]  # fmt: skip


def unit_and_slice(family: str, name: str, folder, rows: int = 4, length: int = 24):
    objective = tiny.objective(family, name, length)
    model = tiny.model(family, objective, dropout=0.1)
    companions = {}
    if objective.companions:
        companions["generator"] = generator_for(model, tiny.generator_shape(family), 0)
    feed = Feed(objective, tiny.store(family, folder).train, 0, slices=1, rows=rows)
    return TrainingUnit(model, objective, companions), feed.slice(feed.addresses(Position())[0][0])


@pytest.mark.parametrize(("family", "name"), CASES)
def test_activations_are_counted_as_a_step_with_values_holds_them(family, name, tmp_path):
    unit, prepared = unit_and_slice(family, name, tmp_path / "store")
    found = step_footprint(copy_without_values(unit), prepared, OptimiserChoice())
    unit.train()
    with _LiveBytes() as alive:
        for tensor in [*unit.parameters(), *unit.buffers()]:
            alive.add(tensor)
        weights = alive.bytes
        loss = weighted_loss(unit(prepared), prepared.counts)
        held = alive.bytes - weights
        loss.backward()
    assert found.weights == weights
    assert found.activations == pytest.approx(held, rel=0.02)
    assert found.gradients == sum(4 * each.numel() for each in unit.parameters() if each.requires_grad)
    assert found.tokens == prepared.tokens
    assert found.operations == slice_flops(unit, prepared) > 0


@pytest.mark.parametrize(("family", "name"), [("rnn", "denoising"), ("elmo", "bidirectional")])
def test_recurrent_layers_are_counted_about_as_their_kernels_hold_them(family, name, tmp_path):
    unit, prepared = unit_and_slice(family, name, tmp_path / "store", length=8)
    found = step_footprint(copy_without_values(unit), prepared, OptimiserChoice())
    unit.train()
    with _LiveBytes() as alive:
        for tensor in [*unit.parameters(), *unit.buffers()]:
            alive.add(tensor)
        weights = alive.bytes
        loss = weighted_loss(unit(prepared), prepared.counts)
        held = alive.bytes - weights
    assert loss.requires_grad
    assert found.activations == pytest.approx(held, rel=0.25)
    assert found.operations == pytest.approx(slice_flops(unit, prepared), rel=0.02)


@pytest.mark.parametrize("name", OPTIMISERS)
def test_what_an_optimiser_keeps_is_what_it_then_keeps(name, tmp_path):
    unit, prepared = unit_and_slice("gpt2", "causal", tmp_path / "store")
    choice = OptimiserChoice(name=name, frozen=("body.embeddings.positions*",))
    found = step_footprint(copy_without_values(unit), prepared, choice)
    optimiser = build_optimiser(unit, choice)
    weighted_loss(unit(prepared), prepared.counts).backward()
    optimiser.step()
    kept = [
        value
        for state in optimiser.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor)
    ]
    assert found.optimiser == pytest.approx(sum(4 * value.numel() for value in kept), rel=0.01)
    assert found.gradients < found.weights  # what is frozen has none


def test_measuring_takes_no_values_and_changes_nothing(tmp_path):
    unit, prepared = unit_and_slice("gpt2", "causal", tmp_path / "store")
    before = {name: value.clone() for name, value in unit.state_dict().items()}
    step_footprint(copy_without_values(unit), prepared, OptimiserChoice())
    assert all(torch.equal(value, before[name]) for name, value in unit.state_dict().items())
    assert all(value.grad is None for value in unit.parameters())


def test_gaps_are_those_of_later_slices(tmp_path):
    unit, prepared = unit_and_slice("gpt2", "causal", tmp_path / "store")
    without = step_footprint(copy_without_values(unit), prepared, OptimiserChoice())
    behind = step_footprint(copy_without_values(unit), prepared, OptimiserChoice(), later=[prepared] * 2)
    assert without.gaps == 0 < behind.gaps
    assert behind.total > without.total and behind.activations == without.activations


def test_a_heap_holds_its_blocks_and_gives_back_what_it_mapped():
    heap = Heap()
    heap.allocate("large", 64 << 20)
    assert 64 << 20 <= heap.resident < 65 << 20
    heap.free("large")
    assert heap.resident < 1 << 20 and heap.peak >= 64 << 20


def test_a_freed_block_is_too_small_for_a_tensor_of_the_same_size_between_others():
    heap = Heap()
    for key in range(9):
        heap.allocate(key, 100_000)
    before = heap.resident
    heap.free(4)
    heap.allocate("as large", 100_000)
    assert heap.resident > before + 90_000
    heap.allocate("smaller", 99_000)
    assert heap.resident < before + 110_000
