"""Segments that remember: cutting a text changes nothing, and no gradient goes back."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from etymon.families.transformer_xl import Shape, recurrence
from etymon.families.transformer_xl import body as build_body
from etymon.families.transformer_xl.recurrence import RecurrentBody
from etymon.nn.batch import Batch

WORDS, WIDTH, LENGTH = 40, 16, 24
generator = torch.Generator().manual_seed(0)
TEXTS = torch.randint(0, WORDS, (3, LENGTH), generator=generator).tolist()


def built(
    length: int,
    *,
    same_length: bool = False,
    norm_first: bool = False,
    zero_start: bool = False,
    clamp: int = 0,
) -> RecurrentBody:
    torch.manual_seed(0)
    shape = Shape(
        vocabulary=WORDS,
        dim=WIDTH,
        layers=3,
        heads=2,
        head_dim=WIDTH // 2,
        inner_dim=32,
        memory=length,
        clamp=clamp,
        same_length=same_length,
        zero_start=zero_start,
        cutoffs=(),
        divisor=1,
        norm_first=norm_first,
        dropout=0.0,
    )
    body = build_body(shape, frozenset())
    for parameter in body.parameters():
        nn.init.normal_(parameter, 0.0, 0.3)
    return body.double().eval()


def pieces(body: RecurrentBody, state: object, cuts: list[int]) -> Tensor:
    outputs = []
    for start, stop in pairwise(cuts):
        out_ND = body(Batch.of([text[start:stop] for text in TEXTS]), state=state)
        outputs.append(out_ND.view(len(TEXTS), stop - start, -1))
    return torch.cat(outputs, 1)


def whole(body: RecurrentBody) -> Tensor:
    return body(Batch.of(TEXTS)).view(len(TEXTS), LENGTH, -1)


def close(one: Tensor, two: Tensor) -> None:
    torch.testing.assert_close(one, two, rtol=0, atol=1e-12)


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("clamp", [0, 5])
def test_segments_with_enough_memory_are_one_long_pass(norm_first: bool, clamp: int) -> None:
    body = built(LENGTH, norm_first=norm_first, clamp=clamp)
    close(pieces(body, body.remember(3), [0, 5, 6, 13, 24]), whole(body))


def test_too_little_memory_and_zeros_at_the_start_are_something_else() -> None:
    short, filled = built(4), built(LENGTH, zero_start=True)
    assert (pieces(short, short.remember(3), [0, 8, 16, 24]) - whole(short)).abs().max() > 1e-3
    assert (pieces(filled, filled.remember(3), [0, 8, 16, 24]) - whole(filled)).abs().max() > 1e-3
    # The zeros are seen where nothing is remembered, too.
    close(pieces(filled, filled.remember(3), [0, 24]), whole(filled))
    assert (whole(built(LENGTH)) - whole(filled)).abs().max() > 1e-3


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("zero_start", [False, True])
@pytest.mark.parametrize("same_length", [False, True])
def test_decoding_sees_what_segments_see(
    norm_first: bool, zero_start: bool, same_length: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("etymon.nn.memory.SPARE", 2)
    body = built(4, norm_first=norm_first, zero_start=zero_start, same_length=same_length)
    cuts = [0, 5, *range(6, LENGTH + 1)]
    recall = body.start(3, 10)
    steps = pieces(body, recall, cuts)
    close(steps, pieces(body, body.remember(3), cuts))
    close(pieces(body, body.start(3), [0, 5, 6, 11, 13, LENGTH]), steps)  # however many tokens come at once
    keys, _ = recall.self_caches[0].parts
    assert keys.shape[2] <= 13 and recall.dropped > 0


@pytest.mark.parametrize("norm_first", [False, True])
def test_same_length_makes_the_cuts_invisible(norm_first: bool) -> None:
    """What a token sees then depends on its place alone: decoding equals reading everything again."""
    body = built(6, same_length=True, norm_first=norm_first)
    for state in (body.remember(3), body.start(3)):
        close(pieces(body, state, [0, 9, *range(10, LENGTH + 1)]), whole(body))


def test_decoding_equals_recomputation_for_ragged_rows() -> None:
    body = built(LENGTH)
    lengths = [9, 4, 7]
    for state in (body.start(3, 4), body.remember(3)):
        body(Batch.of([text[:length] for text, length in zip(TEXTS, lengths, strict=True)]), state=state)
        for step in range(3):
            new = [[text[length + step]] for text, length in zip(TEXTS, lengths, strict=True)]
            out_ND = body(Batch.of(new), state=state)
        for row, length in enumerate(lengths):
            close(out_ND[row], body(Batch.of([TEXTS[row][: length + 3]]))[-1])


def test_rows_that_forget_begin_anew_and_the_others_do_not() -> None:
    for zero_start in (False, True):
        body = built(10, zero_start=zero_start)
        state, fresh = body.remember(3), body.remember(3)
        first, second = ([text[a:b] for text in TEXTS] for a, b in ((0, 8), (8, 14)))
        body(Batch.of(first), state=state)
        untouched = state.select(torch.arange(3))
        state.forget([1])
        out, kept, new = (
            body(Batch.of(second), state=each).view(3, 6, -1) for each in (state, untouched, fresh)
        )
        close(out[1], new[1])
        close(out[[0, 2]], kept[[0, 2]])
        assert (kept[1] - new[1]).abs().max() > 1e-3
        assert state.lengths == ((10, 6, 10) if not zero_start else (10, 10, 10))
        third = Batch.of([text[14:16] for text in TEXTS])
        close(body(third, state=state).view(3, 2, -1)[1], body(third, state=fresh).view(3, 2, -1)[1])


def test_no_gradient_reaches_an_earlier_segment_but_remembered_states_train_the_maps() -> None:
    body = built(8)
    state = body.remember(1)
    early = torch.randn(6, WIDTH, dtype=torch.double, requires_grad=True)
    late = torch.randn(6, WIDTH, dtype=torch.double, requires_grad=True)
    body(Batch.of([TEXTS[0][:6]]), state=state, embedded=early)
    assert all(part is not None and not part.requires_grad for part in state.layers)
    past = [part.clone() for part in state.layers if part is not None]
    out = body(Batch.of([TEXTS[0][6:12]]), state=state, embedded=late)
    key = body.stack.layers[0].attention.key.weight
    from_early, from_late, with_memory = torch.autograd.grad(out.sum(), [early, late, key], allow_unused=True)
    assert from_early is None and from_late.abs().max() > 0
    # The same keys as if memory were input: without it the gradient of the map is another one.
    alone = body(Batch.of([TEXTS[0][6:12]]), embedded=late)
    (without_memory,) = torch.autograd.grad(alone.sum(), [key])
    assert (with_memory - without_memory).abs().max() > 1e-3
    assert len(past) == 3


def test_a_memory_survives_being_saved() -> None:
    body = built(7)
    state = body.remember(3)
    pieces(body, state, [0, 4, 9])
    state.forget([2])
    other = body.remember(3)
    other.load({name: part.clone() for name, part in state.tensors().items()}, list(state.lengths))
    close(pieces(body, other, [9, 12]), pieces(body, state, [9, 12]))
    shorter = body.remember(3, 3)
    shorter.load(state.tensors(), list(state.lengths))
    assert shorter.width == 3 and shorter.lengths == (3, 3, 3)


def test_evaluation_may_remember_longer_than_training() -> None:
    body = built(3)
    close(pieces(body, body.remember(3, LENGTH), [0, 8, 16, 24]), whole(body))
    assert body.remember(2, 0).lengths == (0, 0)
    close(pieces(body, body.remember(3, 0), [0, 24]), whole(body))


def test_a_decode_can_go_back_to_a_mark_beyond_what_it_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("etymon.nn.memory.SPARE", 2)
    body = built(3, same_length=True)
    state = body.start(3)
    pieces(body, state, [0, 6])
    mark = state.mark()
    first = pieces(body, state, list(range(6, LENGTH + 1)))
    assert state.dropped > 0
    state.rewind(mark)
    close(pieces(body, state, list(range(6, LENGTH + 1))), first)
    with pytest.raises(ValueError, match="cropped by"):
        state.crop([8, 8, 8])
    state.crop([LENGTH - 2] * 3)
    close(pieces(body, state, [LENGTH - 2, LENGTH]), first[:, -2:])


def test_chosen_rows_of_a_decode_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("etymon.nn.memory.SPARE", 1)
    for zero_start in (False, True):
        body = built(3, same_length=True, zero_start=zero_start)
        state = body.start(3)
        pieces(body, state, [0, 7])
        rows = torch.tensor([2, 0])
        forked, chosen = state.select(rows).fork(2), state.select(torch.arange(3))
        chosen.keep(rows)
        after = pieces(body, state, [7, 8, 9])
        for step in range(2):
            new = [[TEXTS[row][7 + step]] for row in (2, 0)]
            out = body(Batch.of(new), state=chosen)
            doubled = body(Batch.of([row for row in new for _ in range(2)]), state=forked)
            close(out, after[[2, 0], step])
            close(doubled, out.repeat_interleave(2, 0))


def test_long_prompts_are_read_in_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recurrence, "PIECE", 5)
    body = built(4, same_length=True)
    lengths = [24, 3, 11]
    texts = [text[:length] for text, length in zip(TEXTS, lengths, strict=True)]
    state = body.start(3)
    close(body(Batch.of(texts), state=state), body(Batch.of(texts)))
    assert state.lengths == (24, 3, 11)
    more = [[7], [8], [9]]
    longer = Batch.of([text + new for text, new in zip(texts, more, strict=True)])
    close(body(Batch.of(more), state=state), body(longer)[longer.layout.last])
