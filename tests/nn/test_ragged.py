"""Flat rows, padded rectangles, and the way between them."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck

from etymon.nn.batch import Batch, Layout, permute, token_order

LENGTHS = st.lists(st.integers(1, 6), min_size=1, max_size=6)


def indexed(flat: Tensor, lengths: list[int]) -> Tensor:
    """What `pad` should give, by plain indexing, with zeros in blank cells."""
    longest, rows, start = max(lengths), [], 0
    for length in lengths:
        row = flat[start : start + length]
        rows.append(torch.cat([row, row.new_zeros(longest - length, *flat.shape[1:])]))
        start += length
    return torch.stack(rows)


@given(LENGTHS)
@settings(deadline=None, max_examples=40)
def test_pad_and_unpad_are_inverse_and_differentiate_like_indexing(lengths: list[int]) -> None:
    layout = Layout(lengths)
    generator = torch.Generator().manual_seed(sum(lengths))
    flat = torch.randn(sum(lengths), 2, 3, generator=generator, requires_grad=True)
    padded = layout.pad(flat)
    real = layout.real[..., None, None]
    assert torch.equal(padded.masked_fill(~real, 0), indexed(flat, lengths))
    assert torch.equal(layout.unpad(padded), flat)
    weights = torch.randn(padded.shape, generator=generator)
    (by_pad,) = torch.autograd.grad((padded.masked_fill(~real, 0) * weights).sum(), flat)
    (by_index,) = torch.autograd.grad((indexed(flat, lengths) * weights).sum(), flat)
    assert torch.equal(by_pad, by_index)
    rectangle = torch.randn(padded.shape, generator=generator, requires_grad=True)
    (unpadded,) = torch.autograd.grad((layout.unpad(rectangle) * flat.detach()).sum(), rectangle)
    assert torch.equal(unpadded, indexed(flat, lengths))


def test_pad_and_unpad_pass_gradcheck() -> None:
    layout = Layout([2, 4, 1])
    flat = torch.randn(7, 2, dtype=torch.float64, requires_grad=True)
    rectangle = torch.randn(3, 4, 2, dtype=torch.float64, requires_grad=True)
    # Blank cells are never seen, so a gradient that arrives there is nobody's: they are blanked here as well.
    assert gradcheck(lambda x: layout.pad(x).masked_fill(~layout.real[..., None], 0), flat)
    assert gradcheck(layout.unpad, rectangle)
    order, inverse = token_order(Layout([2, 4, 1]), (2, 0, 1))
    assert gradcheck(lambda x: permute(x, order, inverse), flat)


def test_equal_rows_are_a_view() -> None:
    layout = Layout([3, 3])
    flat = torch.randn(6, 2)
    assert layout.pad(flat).data_ptr() == flat.data_ptr()
    assert layout.unpad(layout.pad(flat)).data_ptr() == flat.data_ptr()


@given(LENGTHS)
@settings(deadline=None, max_examples=30)
def test_layout_knows_where_everything_lies(lengths: list[int]) -> None:
    layout = Layout(lengths)
    expected = [(row, index) for row, length in enumerate(lengths) for index in range(length)]
    assert list(zip(layout.row.tolist(), layout.index.tolist(), strict=True)) == expected
    assert layout.first.tolist() == [expected.index((row, 0)) for row in range(len(lengths))]
    assert layout.last.tolist() == [expected.index((row, length - 1)) for row, length in enumerate(lengths)]
    assert (layout.tokens, layout.rows, layout.longest) == (sum(lengths), len(lengths), max(lengths))


@given(LENGTHS, st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=30)
def test_rows_come_into_any_order_and_back(lengths: list[int], random: object) -> None:
    layout, order = Layout(lengths), list(range(len(lengths)))
    random.shuffle(order)  # type: ignore[attr-defined]
    forward, backward = token_order(layout, tuple(order))
    flat = torch.arange(layout.tokens)
    moved = permute(flat, forward, backward)
    starts = layout.first.tolist()
    assert moved.tolist() == [starts[row] + index for row in order for index in range(lengths[row])]
    assert torch.equal(permute(moved, backward, forward), flat)


def test_batches_of_rows() -> None:
    batch = Batch.of([[5, 6, 7], [8]], segments=[[0, 0, 1], [1]], starts=[0, 4])
    assert batch.ids.tolist() == [5, 6, 7, 8]
    assert batch.segments is not None
    assert batch.segments.tolist() == [0, 0, 1, 1]
    assert batch.positions.tolist() == [0, 1, 2, 4]
    assert (batch.last_position, batch.counted) == (4, False)
    plain = Batch.of([[5, 6, 7], [8]])
    assert (plain.last_position, plain.counted) == (2, True)


def test_batches_of_rectangles() -> None:
    ids = torch.tensor([[5, 6], [7, 0]])
    batch = Batch.of_rectangle(
        ids, torch.tensor([[1, 1], [1, 0]]), positions_RT=torch.tensor([[3, 4], [0, 1]])
    )
    assert batch.hidden_keys is not None
    assert batch.hidden_keys.tolist() == [False, False, False, True]
    assert batch.positions.tolist() == [3, 4, 0, 1]
    assert batch.last_position == 4
    assert Batch.of_rectangle(ids, torch.ones_like(ids)).hidden_keys is None
