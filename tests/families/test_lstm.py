"""The loop over time against PyTorch's LSTM and a plain loop, ragged rows, states, and what the two directions see."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from etymon.families.elmo import Shape
from etymon.families.elmo.lstm import Lstm, TwoWayStack, run
from etymon.nn.batch import Batch, Layout
from etymon.nn.recurrent import Packing

LENGTHS = (3, 5, 0, 2)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def filled(module: torch.nn.Module, scale: float = 1.0) -> torch.nn.Module:
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=scale)
    return module.double()


def cells(projected: int | None = 3) -> list[Lstm]:
    return [filled(Lstm(3, 4, projected)) for _ in range(2)]  # type: ignore[misc]


def plain(
    part: Lstm,
    x_TD: Tensor,
    hidden: Tensor,
    cell: Tensor,
    cell_clip: float | None,
    projection_clip: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """One row, one step at a time, by the formulas."""
    said = []
    for x_D in x_TD:
        i, f, m, o = (part.input.weight @ x_D + part.state.weight @ hidden + part.state.bias).chunk(4)
        cell = f.sigmoid() * cell + i.sigmoid() * m.tanh()
        cell = cell if cell_clip is None else cell.clamp(-cell_clip, cell_clip)
        hidden = o.sigmoid() * cell.tanh()
        hidden = hidden if part.projection is None else part.projection.weight @ hidden
        hidden = hidden if projection_clip is None else hidden.clamp(-projection_clip, projection_clip)
        said.append(hidden)
    return torch.stack(said) if said else x_TD.new_zeros(0, len(hidden)), hidden, cell


def gradients(value: Tensor, of: list[Tensor]) -> list[Tensor]:
    return list(torch.autograd.grad(value, of))


@pytest.mark.parametrize("clips", [(None, None), (0.5, None), (None, 0.4), (0.5, 0.4)])
@pytest.mark.parametrize("projected", [3, None])
def test_values_and_gradients_are_those_of_the_formulas(
    clips: tuple[float | None, float | None], projected: int | None
) -> None:
    parts, layout = cells(projected), Layout(LENGTHS)
    width, packings = projected or 4, (Packing(layout), Packing(layout, backwards=True))
    ahead = packings[0]
    x = [torch.randn(layout.tokens, 3, dtype=torch.double, requires_grad=True) for _ in parts]
    hidden = torch.randn(2, layout.rows, width, dtype=torch.double, requires_grad=True)
    cell = torch.randn(2, layout.rows, 4, dtype=torch.double, requires_grad=True)
    weights = [parameter for part in parts for parameter in part.parameters()]
    packed = [packing.pack(x_ND) for x_ND, packing in zip(x, packings, strict=True)]
    y, last_hidden, last_cell = run(
        parts, packed, ahead.steps, hidden[:, ahead.rows], cell[:, ahead.rows], *clips
    )
    found = [packing.flat(part) for part, packing in zip(y, packings, strict=True)]
    ends = last_hidden[:, ahead.back], last_cell[:, ahead.back]
    expected, expected_ends = [], ([], [])
    for way, part in enumerate(parts):
        rows = []
        for number, row in enumerate(x[way].split(LENGTHS)):
            text = row if way == 0 else row.flip(0)
            said, *after = plain(part, text, hidden[way, number], cell[way, number], *clips)
            rows.append(said if way == 0 else said.flip(0))
            for list_, end in zip(expected_ends, after, strict=True):
                list_.append(end)
        expected.append(torch.cat(rows))
    for ours, theirs in zip(
        [*found, *(end.flatten(0, 1) for end in ends)], [*expected, *map(torch.stack, expected_ends)]
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)
    factors = [torch.randn_like(part) for part in expected]
    end_factors = [torch.randn_like(torch.stack(part)) for part in expected_ends]
    sums = []
    for outputs, lasts in (
        (found, [e.flatten(0, 1) for e in ends]),
        (expected, [torch.stack(e) for e in expected_ends]),
    ):
        total = sum((part * factor).sum() for part, factor in zip(outputs, factors))
        sums.append(total + sum((part * factor).sum() for part, factor in zip(lasts, end_factors)))
    inputs = [*x, hidden, cell, *weights]
    for ours, theirs in zip(gradients(sums[0], inputs), gradients(sums[1], inputs), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_clips_bite() -> None:
    """Else the test above would show nothing."""
    parts, steps = cells(), Packing(Layout(LENGTHS)).steps
    x = [torch.randn(sum(LENGTHS), 3, dtype=torch.double) for _ in parts]
    empty = torch.zeros(2, 4, 3, dtype=torch.double), torch.zeros(2, 4, 4, dtype=torch.double)
    with torch.no_grad():
        free, _, cell = run(parts, x, steps, *empty, None, None)
    assert float(free.abs().max()) > 0.4 and float(cell.abs().max()) > 0.5
    with torch.no_grad():
        clipped, _, cell = run(parts, x, steps, *empty, 0.5, 0.4)
    assert float(clipped.abs().max()) == 0.4 and float(cell.abs().max()) == 0.5


@pytest.mark.parametrize("projected", [3, None])
def test_rows_of_one_length_without_clips_are_pytorch_s(projected: int | None) -> None:
    part = cells(projected)[0]
    theirs = torch.nn.LSTM(3, 4, proj_size=projected or 0, dtype=torch.double)
    with torch.no_grad():
        theirs.weight_ih_l0.copy_(part.input.weight)
        theirs.weight_hh_l0.copy_(part.state.weight)
        theirs.bias_ih_l0.copy_(part.state.bias)
        theirs.bias_hh_l0.zero_()
        if part.projection is not None:
            theirs.weight_hr_l0.copy_(part.projection.weight)
    x_TRD = torch.randn(6, 2, 3, dtype=torch.double)
    hidden, cell = (
        torch.randn(1, 2, projected or 4, dtype=torch.double),
        torch.randn(1, 2, 4, dtype=torch.double),
    )
    steps = [(2 * t, 2 * t + 2) for t in range(6)]
    expected, (last_hidden, last_cell) = theirs(x_TRD, (hidden, cell))
    # Clips beyond all values leave them as they are, and take the loop.
    for clip in (None, 1e9):
        found = run([part], [x_TRD.flatten(0, 1)], steps, hidden, cell, clip, clip)
        for ours, other in zip(found, (expected.flatten(0, 1)[None], last_hidden, last_cell), strict=True):
            torch.testing.assert_close(ours, other, rtol=1e-12, atol=1e-14)


def stack(**options: float | None) -> TwoWayStack:
    chosen = {"cell_clip": 3.0, "projection_clip": 3.0, "dropout": 0.0, **options}
    made = TwoWayStack(Shape(dim=3, cells=5, layers=2, **chosen))  # type: ignore[arg-type]
    return filled(made, 0.7).eval()  # type: ignore[return-value]


def test_directions_never_look_at_each_other() -> None:
    two, batch = stack(), Batch.of([[0] * 5, [0] * 3])
    x_ND = torch.randn(8, 6, dtype=torch.double)
    before = two(x_ND, batch)
    changed = x_ND.clone()
    changed[2] += 1.0  # the third of the first five
    after = two(changed, batch)
    moved = (after != before).view(8, 2, 3).any(-1)
    assert moved[:, 0].tolist() == [False, False, True, True, True, False, False, False]
    assert moved[:, 1].tolist() == [True, True, True, False, False, False, False, False]
    only_back = x_ND.clone()
    only_back[2, 3:] += 1.0
    assert torch.equal(two(only_back, batch)[:, :3], before[:, :3])


def test_segments_with_a_state_are_one_long_text_ahead() -> None:
    two = stack()
    x_ND = torch.randn(7, 6, dtype=torch.double)
    whole = two(x_ND, Batch.of([[0] * 7]))
    state = two.start(1)
    parts = [two(x, Batch.of([[0] * len(x)]), state=state) for x in x_ND.split([3, 4])]
    torch.testing.assert_close(torch.cat(parts)[:, :3], whole[:, :3])
    assert state.lengths == (7,)
    assert not torch.allclose(torch.cat(parts)[:, 3:], whole[:, 3:]), (
        "back, the second segment comes after the first"
    )
    back = two.start(1)
    later, earlier = (two(x, Batch.of([[0] * len(x)]), state=back) for x in reversed(x_ND.split([3, 4])))
    torch.testing.assert_close(torch.cat([earlier, later])[:, 3:], whole[:, 3:])


def test_no_gradient_reaches_an_earlier_segment() -> None:
    two, state = stack(), stack().start(1)
    first = torch.randn(3, 6, dtype=torch.double, requires_grad=True)
    two(first, Batch.of([[0] * 3]), state=state)
    two(torch.randn(3, 6, dtype=torch.double), Batch.of([[0] * 3]), state=state).sum().backward()
    assert first.grad is None and not state.hidden_LGRP.requires_grad


def test_a_state_chooses_forgets_and_comes_back() -> None:
    two = stack()
    state = two.start(3)
    two(torch.randn(6, 6, dtype=torch.double), Batch.of([[0], [0] * 2, [0] * 3]), state=state)
    assert state.lengths == (1, 2, 3)
    chosen = state.select(torch.tensor([2, 0]))
    assert chosen.lengths == (3, 1) and torch.equal(chosen.cell_LGRC[:, :, 1], state.cell_LGRC[:, :, 0])
    again = two.start(3)
    again.load(state.tensors(), state.lengths)
    assert torch.equal(again.hidden_LGRP, state.hidden_LGRP) and again.lengths == state.lengths
    again.cell_LGRC[:, :, 1] = float("nan")
    again.forget([1])
    assert (
        again.lengths == (1, 0, 3)
        and not again.cell_LGRC[:, :, 1].any()
        and not again.hidden_LGRP[:, :, 1].any()
    )
    assert torch.equal(again.cell_LGRC[:, :, 2], state.cell_LGRC[:, :, 2])


@pytest.mark.parametrize("skip", [True, False])
def test_the_input_of_a_layer_is_added_but_for_the_first(skip: bool) -> None:
    two, x_ND, batch = (
        stack(skip_connections=skip),
        torch.randn(4, 6, dtype=torch.double),
        Batch.of([[0] * 4]),
    )
    two.seen = []
    two(x_ND, batch)
    states, (one, other) = two.seen, two.layers
    alone = TwoWayStack(Shape(dim=3, cells=5, layers=1, dropout=0.0)).double()
    for layer, added, expected in ((one, 0.0, states[1]), (other, float(skip), states[2])):
        alone.layers[0] = layer
        given = states[0] if layer is one else states[1]
        torch.testing.assert_close(alone(given, batch) + added * given, expected)


def test_dropout_is_on_inputs_and_outputs_in_training_alone() -> None:
    two, x_ND, batch = stack(dropout=0.5), torch.ones(400, 6, dtype=torch.double), Batch.of([[0] * 4] * 100)
    assert torch.equal(two(x_ND, batch), two(x_ND, batch))
    dropped = two.train()(x_ND, batch)
    assert 0.4 < float((dropped == 0).double().mean()) < 0.6
