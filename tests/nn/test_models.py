"""Whole models: any layout of the same rows, and any way of reading them, gives the same numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import etymon
from etymon.families import get_family
from etymon.families.model import Model
from etymon.nn import grouping
from etymon.nn.batch import Batch, Layout
from etymon.nn.cache import KeyValueState, Places
from etymon.nn.memory import SegmentMemory

SHAPES: dict[str, dict[str, Any]] = {
    "gpt2": {"vocabulary": 23, "positions": 16, "dim": 12, "layers": 2, "heads": 2},
    "gpt1": {"vocabulary": 23, "positions": 16, "dim": 12, "layers": 2, "heads": 2},
    "gpt3": {"vocabulary": 23, "positions": 16, "dim": 12, "layers": 2, "heads": 2, "band": 3},
    "gptj": {"vocabulary": 23, "positions": 16, "dim": 12, "layers": 2, "heads": 2, "rotary_dim": 4},
    "bert": {"vocabulary": 23, "positions": 16, "dim": 12, "layers": 2, "heads": 2, "inner_dim": 14},
    "bart": {
        "vocabulary": 23, "positions": 16, "dim": 12, "inner_dim": 14, "layers": 2, "heads": 2, "decoder_inner_dim": 10,
    },
    "transformer": {"vocabulary": 23, "dim": 12, "inner_dim": 14, "layers": 2, "heads": 2},
    "t5": {
        "vocabulary": 23, "dim": 12, "head_dim": 5, "inner_dim": 14, "layers": 2, "heads": 2, "buckets": 8,
        "longest_distance": 12,
    },
}  # fmt: skip


def tiny(family: str) -> Model:
    known = get_family(family)
    model = Model(known, known.shape(**SHAPES[family]), known.architectures[0].heads).initialise(seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    return model.eval()


MODELS = {family: tiny(family) for family in SHAPES}


def rows_of(lengths: list[int], seed: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, 23, (length,), generator=generator).tolist() for length in lengths]


def rectangle_of(rows: list[list[int]]) -> tuple[Batch, Tensor]:
    """The rows padded on the right, and which of the flat cells are real."""
    longest = max(map(len, rows))
    ids = torch.tensor([row + [7] * (longest - len(row)) for row in rows])
    mask = torch.arange(longest) < torch.tensor([len(row) for row in rows])[:, None]
    return Batch.of_rectangle(ids, mask), mask.reshape(-1)


def hidden(model: Model, sources: Batch, targets: Batch) -> Tensor:
    if model.encoder_decoder:
        return model.decode(targets, model.encode(sources))[0]
    return model.hidden(sources)[0]


def gradients(model: Model, x_ND: Tensor) -> list[Tensor]:
    weights = torch.linspace(-1, 1, x_ND.numel()).view(x_ND.shape)
    body = list(model.body.parameters())
    return list(torch.autograd.grad((x_ND * weights).sum(), body))


@pytest.mark.parametrize("group_cost", [0.0, grouping.GROUP_COST], ids=["split", "grouped"])
@pytest.mark.parametrize("family", MODELS)
@given(lengths=st.lists(st.tuples(st.integers(1, 8), st.integers(1, 6)), min_size=1, max_size=5))
@settings(deadline=None, max_examples=12)
def test_ragged_rows_are_padded_rows(family: str, group_cost: float, lengths: list[tuple[int, int]]) -> None:
    model, kept = MODELS[family], grouping.GROUP_COST
    sources, targets = rows_of([s for s, _ in lengths]), rows_of([t for _, t in lengths], seed=1)
    padded_sources, real = rectangle_of(sources)
    padded_targets, real_targets = rectangle_of(targets)
    try:
        grouping.GROUP_COST = group_cost
        ragged = hidden(model, Batch.of(sources), Batch.of(targets))
    finally:
        grouping.GROUP_COST = kept
    padded = hidden(model, padded_sources, padded_targets)[real_targets if model.encoder_decoder else real]
    torch.testing.assert_close(ragged, padded, atol=2e-5, rtol=1e-4)
    for one, other in zip(gradients(model, ragged), gradients(model, padded), strict=True):
        torch.testing.assert_close(one, other, atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize("family", MODELS)
def test_the_order_and_company_of_rows_do_not_matter(family: str) -> None:
    model, lengths = MODELS[family], [6, 2, 8, 3]
    rows, targets = rows_of(lengths), rows_of([3, 4, 1, 4], seed=1)
    with torch.no_grad():
        together = hidden(model, Batch.of(rows), Batch.of(targets))
        places = targets if model.encoder_decoder else rows
        for order in ([1, 3, 0, 2], [2], [0, 2]):
            moved = hidden(model, Batch.of([rows[i] for i in order]), Batch.of([targets[i] for i in order]))
            expected = together.split([len(row) for row in places])
            torch.testing.assert_close(moved, torch.cat([expected[i] for i in order]), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("where", ["first", "last", "mixed"])
@pytest.mark.parametrize("family", MODELS)
def test_states_of_some_places_are_those_of_all(family: str, where: str) -> None:
    model = MODELS[family]
    model.carried["decoder_start_token_id"] = 0
    batch = Batch.of(rows_of([6, 2, 8, 3, 2]))
    at = torch.tensor([0, 5, 7, 11]) if where == "mixed" else getattr(batch.layout, where)
    with FlopCounterMode(display=False) as whole_cost:
        whole = model.states(batch).index_select(0, at)
    with FlopCounterMode(display=False) as cost:
        some = model.states(batch, at)
    torch.testing.assert_close(some, whole, atol=1e-5, rtol=1e-4)
    for one, other in zip(gradients(model, some), gradients(model, whole), strict=True):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-4)
    causal = model.encoder_decoder or family.startswith("gpt")
    spared = (where == "last" and family != "gpt3") or (where == "first" and not causal)
    assert (cost.get_total_flops() < whole_cost.get_total_flops()) == spared


@pytest.mark.parametrize("family", MODELS)
def test_looking_does_not_change_what_is_seen(family: str) -> None:
    model = MODELS[family]
    sources, targets = Batch.of(rows_of([5, 2, 7])), Batch.of(rows_of([3, 6, 1], seed=1))
    fast = hidden(model, sources, targets)
    with etymon.trace(model) as seen:
        traced = hidden(model, sources, targets)
    torch.testing.assert_close(traced, fast, atol=1e-5, rtol=1e-4)
    for one, other in zip(gradients(model, traced), gradients(model, fast), strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-3)
    last = seen["decoder"] if model.encoder_decoder else next(iter(seen.values()))
    assert torch.equal(last.hidden[-1], traced)
    assert len(last.hidden) == 3
    assert len(last.attention) == 2
    assert len(last.cross) == (2 if model.encoder_decoder else 0)
    for weights in last.attention + last.cross:
        queries = targets if model.encoder_decoder else sources
        for row, length in enumerate(queries.layout.lengths):
            torch.testing.assert_close(weights[row, :, :length].sum(-1), torch.ones(2, length))
            assert not weights[row, :, length:].any()


def test_nothing_is_kept_after_looking() -> None:
    model = MODELS["gpt2"]
    with pytest.raises(KeyError), etymon.trace(model) as seen:
        raise KeyError
    model.hidden(Batch.of([[1, 2]]))
    assert seen.hidden == []
    assert seen.attention == []


def test_given_vectors_stand_in_for_words() -> None:
    model, batch = MODELS["bert"], Batch.of(rows_of([4, 2]))
    words = model.body.embeddings.look_up(batch)
    assert torch.equal(model.hidden(batch, embedded=words)[0], model.hidden(batch)[0])
    assert not torch.equal(model.hidden(batch, embedded=words + 0.1)[0], model.hidden(batch)[0])


# --- step by step


def step(model: Model, rows: list[list[int]], state: KeyValueState, memory: Any) -> Tensor:
    batch = Batch.of(rows, starts=list(state.lengths))
    return (model.hidden(batch, state) if memory is None else model.decode(batch, memory, state))[0]


@pytest.fixture(params=["gpt1", "gpt2", "gpt3", "gptj", "bart", "transformer", "t5"])
def reading(request: pytest.FixtureRequest) -> tuple[Model, list[list[int]], Any, list[Tensor]]:
    """A model, rows of several lengths, what they are conditioned on, and the hidden states of one full pass."""
    model, rows = MODELS[request.param], rows_of([9, 6, 8])
    with torch.no_grad():
        memory = model.encode(Batch.of(rows_of([4, 7, 2], seed=5))) if model.encoder_decoder else None
        batch = Batch.of(rows)
        whole = (model.hidden(batch) if memory is None else model.decode(batch, memory))[0]
    return model, rows, memory, list(whole.split([9, 6, 8]))


def assert_near(got: Tensor, expected: list[Tensor]) -> None:
    torch.testing.assert_close(got, torch.cat(expected), atol=1e-5, rtol=0)


@pytest.mark.parametrize("prompts", [[5, 2, 4], [3, 3, 3], [1, 1, 1]], ids=str)
@pytest.mark.parametrize("capacity", [0, 16])
def test_token_by_token(
    reading: tuple[Model, list[list[int]], Any, list[Tensor]], prompts: list[int], capacity: int
) -> None:
    model, rows, memory, whole = reading
    state = model.start(3, capacity)
    with torch.no_grad():
        first = step(model, [row[:n] for row, n in zip(rows, prompts)], state, memory)
        assert_near(first, [x[:n] for x, n in zip(whole, prompts)])
        for more in range(min(len(row) - n for row, n in zip(rows, prompts))):
            places = [n + more for n in prompts]
            assert state.lengths == tuple(places)
            got = step(model, [[row[place]] for row, place in zip(rows, places)], state, memory)
            assert_near(got, [x[place : place + 1] for x, place in zip(whole, places)])


def test_several_tokens_at_a_time(reading: tuple[Model, list[list[int]], Any, list[Tensor]]) -> None:
    model, rows, memory, whole = reading
    state, done = model.start(3), [0, 0, 0]
    with torch.no_grad():
        for pieces in ([2, 1, 3], [3, 3, 1], [4, 2, 4]):
            parts = [row[n : n + more] for row, n, more in zip(rows, done, pieces)]
            got = step(model, parts, state, memory)
            assert_near(got, [x[n : n + more] for x, n, more in zip(whole, done, pieces)])
            done = [n + more for n, more in zip(done, pieces)]
    assert done == [9, 6, 8]


def test_rows_leave_move_and_multiply(reading: tuple[Model, list[list[int]], Any, list[Tensor]]) -> None:
    model, rows, memory, whole = reading
    state = model.start(3, 4)
    with torch.no_grad():
        step(model, [rows[0][:4], rows[1][:2], rows[2][:5]], state, memory)
        moved = state.select(torch.tensor([2, 0]))
        assert moved.lengths == (5, 4)
        got = step(model, [[rows[2][5]], [rows[0][4]]], moved, memory)
        assert_near(got, [whole[2][5:6], whole[0][4:5]])
        forked = moved.fork(2)
        assert forked.lengths == (6, 6, 5, 5)
        wrong = (rows[2][6] + 1) % 23
        got = step(model, [[rows[2][6]], [wrong], [rows[0][5]], [rows[0][5]]], forked, memory)
        assert_near(got[[0, 2, 3]], [whole[2][6:7], whole[0][5:6], whole[0][5:6]])
        assert not torch.allclose(got[1], whole[2][6])
        # What became of the copies is nothing to the original.
        got = step(model, [[rows[0][4]], [rows[1][2]], [rows[2][5]]], state, memory)
        assert_near(got, [whole[0][4:5], whole[1][2:3], whole[2][5:6]])


@pytest.mark.parametrize("length", [0, 2])
def test_copies_stay_on_the_device(length: int) -> None:
    """Whatever the device of the rows that are asked for."""
    keys = torch.zeros(2, 1, 4, device="meta")
    layout = Layout([1, 1], "meta")
    state = KeyValueState(1, 2, length)
    state.self_caches[0].append(keys, keys, Places(layout, state.lengths))
    state.advance(layout)
    copied, _ = state.fork(2).self_caches[0].parts
    assert copied.device.type == "meta" and len(copied) == 4
    memory = SegmentMemory(1, 2, 3)
    memory.extend([torch.zeros(2, 3, 4, device="meta")], [3, 3])
    assert memory.select(torch.tensor([1, 0, 1])).lengths == (3, 3, 3)
