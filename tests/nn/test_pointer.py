"""The pointer sentinel mixture is its formula, row by row, and whatever way it is asked.

Legend: N tokens, D width, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from etymon.errors import EtymonError
from etymon.nn import pointer, vocabulary
from etymon.nn.batch import Batch
from etymon.nn.pointer import PointerVocabulary
from etymon.nn.vocabulary import Context, DenseVocabulary

WIDTH, WORDS = 5, 7
LENGTHS = [6, 1, 9, 3]


def made(window: int, seed: int = 0) -> tuple[PointerVocabulary, Batch, Tensor, Tensor]:
    """A head, rows of few different words, hidden states and targets."""
    generator = torch.Generator().manual_seed(seed)
    base = DenseVocabulary(torch.empty(WORDS, WIDTH), bias=True)
    head = PointerVocabulary(base, WIDTH, window).double()
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    rows = [torch.randint(0, WORDS - 1, (length,), generator=generator).tolist() for length in LENGTHS]
    batch = Batch.of(rows)
    hidden = torch.randn(batch.layout.tokens, WIDTH, generator=generator, dtype=torch.float64)
    targets = torch.randint(0, WORDS, (batch.layout.tokens,), generator=generator)
    return head, batch, hidden.requires_grad_(), targets


def by_hand(head: PointerVocabulary, batch: Batch, hidden_ND: Tensor) -> Tensor:
    """p(w) = g p_vocabulary(w) + the sum of a_i over the i with x_i = w, for every token `[N, V]`."""
    own_NV = torch.nn.functional.linear(hidden_ND, head.weight, head.bias).softmax(-1)
    found = []
    for token, (row, place) in enumerate(
        zip(batch.layout.row.tolist(), batch.layout.index.tolist(), strict=True)
    ):
        first = int(batch.layout.first[row])
        keys = range(first + max(0, place - head.pointer.window + 1), token + 1)
        q_D = torch.tanh(hidden_ND[token] @ head.pointer.query.weight.T + head.pointer.query.bias)
        scores = [hidden_ND[key] @ q_D for key in keys]
        shares = torch.stack([*scores, q_D @ head.pointer.sentinel]).softmax(-1)
        p_V = shares[-1] * own_NV[token]
        for share, key in zip(shares[:-1], keys, strict=True):
            p_V = p_V + share * torch.nn.functional.one_hot(batch.ids[key], WORDS)
        found.append(p_V)
    return torch.stack(found)


@pytest.fixture(params=[1, 4, 64], ids=lambda size: f"block{size}")
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pointer, "BLOCK", request.param)


@pytest.mark.usefixtures("block")
@pytest.mark.parametrize("chunk", [1, 3 * WORDS, 1 << 22])
@pytest.mark.parametrize("window", [1, 2, 5, 100])
def test_the_loss_and_its_gradients_are_the_formula_s(
    window: int, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vocabulary, "CHUNK_ELEMENTS", chunk)
    head, batch, hidden, targets = made(window)
    inputs = [hidden, *head.parameters()]
    some = torch.tensor([18, 0, 3, 3, 6, 12])
    for at in (None, some):
        asked = targets if at is None else targets[at]
        p = by_hand(head, batch, hidden)
        expected = -(p if at is None else p[at]).gather(1, asked[:, None]).log().sum()
        got = head.loss(hidden, at, asked, Context(batch))
        torch.testing.assert_close(got, expected)
        gradients = torch.autograd.grad(expected * -0.7, inputs)
        for one, other in zip(torch.autograd.grad(got * -0.7, inputs), gradients, strict=True):
            torch.testing.assert_close(one, other)


@pytest.mark.usefixtures("block")
@pytest.mark.parametrize("window", [1, 4, 100])
def test_everything_a_head_offers_is_read_off_the_same_mixture(window: int) -> None:
    head, batch, hidden, targets = made(window)
    expected, context = by_hand(head, batch, hidden).detach(), Context(batch)
    torch.testing.assert_close(expected.sum(-1), torch.ones(len(expected), dtype=torch.float64))
    log_probs = head.log_probs(hidden, None, context)
    torch.testing.assert_close(log_probs.exp(), expected)
    torch.testing.assert_close(head.logits(hidden, None, context), log_probs)
    at = torch.tensor([11, 2, 2])
    torch.testing.assert_close(head.log_probs(hidden, at, context).exp(), expected[at])
    picked = expected[at].gather(1, targets[at, None])[:, 0].log()
    torch.testing.assert_close(head.target_log_probs(hidden, at, targets[at], context), picked)
    ranks = [int((row > row[target]).sum()) for row, target in zip(expected[at], targets[at], strict=True)]
    assert head.ranks(hidden, at, targets[at], context).tolist() == ranks
    assert torch.autograd.grad(log_probs.sum(), head.pointer.sentinel)[0].isfinite().all()


def test_a_position_stands_for_the_word_that_was_read_there() -> None:
    """All attention falls on the second token: its own word is copied, and not the one that followed it."""
    head, _, _, _ = made(window=10)
    batch = Batch.of([[4, 2, 5, 3]])
    hidden = torch.zeros(4, WIDTH, dtype=torch.float64)
    hidden[1, 0], hidden[3, 1] = 50.0, 1.0
    with torch.no_grad():
        head.pointer.query.weight.zero_()
        head.pointer.query.bias.zero_()
        head.pointer.query.weight[0, 1] = 9.0  # the last token asks for the first feature
    p = head.log_probs(hidden, torch.tensor([3]), Context(batch)).exp()[0]
    assert p.argmax() == 2
    assert p[2] > 0.99


def test_the_newest_word_is_in_the_window_and_the_one_behind_it_is_not() -> None:
    head, batch, hidden, _ = made(window=3)
    changed = replace_ids(batch, 9, 6)  # the third of the row that begins at 7; no row has the word 6
    one, two = (head.log_probs(hidden, None, Context(each))[:, 6] for each in (batch, changed))
    assert torch.nonzero(one != two)[:, 0].tolist() == [9, 10, 11]


def replace_ids(batch: Batch, place: int, word: int) -> Batch:
    ids = batch.ids.clone()
    ids[place] = word
    return Batch(ids=ids, layout=batch.layout, positions=batch.positions)


@pytest.mark.usefixtures("block")
def test_rows_do_not_see_each_other() -> None:
    head, batch, hidden, _ = made(window=100)
    together = head.log_probs(hidden, None, Context(batch))
    parts = zip(batch.ids.split(LENGTHS), hidden.split(LENGTHS), together.split(LENGTHS), strict=True)
    for ids, own, expected in parts:
        alone = Context(Batch.of([ids.tolist()]))
        torch.testing.assert_close(head.log_probs(own, None, alone), expected)


def test_hidden_keys_are_not_copied() -> None:
    head, batch, hidden, _ = made(window=4)
    ids = batch.ids[:6].view(2, 3)
    mask = torch.tensor([[False, True, True], [True, True, True]])
    padded = head.log_probs(hidden[:6], None, Context(Batch.of_rectangle(ids, mask)))
    bare = head.log_probs(hidden[1:6], None, Context(Batch.of([ids[0, 1:].tolist(), ids[1].tolist()])))
    torch.testing.assert_close(padded[1:], bare)


def test_a_closed_pointer_is_the_base_model() -> None:
    head, batch, hidden, targets = made(window=5)
    with torch.no_grad():
        head.pointer.query.weight.zero_()
        head.pointer.query.bias.fill_(2.0)
        head.pointer.sentinel.fill_(300.0)
    base = DenseVocabulary(head.weight.detach(), bias=True).double()
    with torch.no_grad():
        base.bias.copy_(head.bias)  # type: ignore[union-attr]
    context = Context(batch)
    assert torch.equal(head.logits(hidden, None, context), base.log_probs(hidden))
    assert torch.equal(head.loss(hidden, None, targets, context), base.loss(hidden, None, targets))
    inputs = [hidden, head.weight]
    wanted = torch.autograd.grad(base.loss(hidden, None, targets), [hidden, base.weight])
    for one, other in zip(
        torch.autograd.grad(head.loss(hidden, None, targets, context), inputs), wanted, strict=True
    ):
        torch.testing.assert_close(one, other)


class Largest(TorchDispatchMode):
    """The most entries that any tensor had."""

    most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for each in out if isinstance(out, tuple | list) else [out]:
            if isinstance(each, Tensor):
                self.most = max(self.most, each.untyped_storage().nbytes() // each.element_size())
        return out


def test_nothing_of_all_tokens_and_words_is_ever_held(monkeypatch: pytest.MonkeyPatch) -> None:
    words, tokens, width, window = 3000, 200, 4, 10
    monkeypatch.setattr(vocabulary, "CHUNK_ELEMENTS", 10 * words)
    monkeypatch.setattr(pointer, "BLOCK", 10)
    head = PointerVocabulary(DenseVocabulary(torch.randn(words, width)), width, window)
    torch.nn.init.normal_(head.pointer.sentinel)
    for parameter in head.pointer.query.parameters():
        torch.nn.init.normal_(parameter)
    batch = Batch.of([[1] * 100, [2] * 100])
    hidden = torch.randn(tokens, width, requires_grad=True)
    with Largest() as seen:
        head.loss(hidden, None, torch.arange(tokens), Context(batch)).backward()
    assert seen.most <= 10 * words < tokens * words


def test_without_a_context_it_says_so() -> None:
    head, _, hidden, targets = made(window=2)
    with pytest.raises(ValueError, match="context"):
        head.loss(hidden, None, targets)


def test_what_needs_plain_logits_is_refused() -> None:
    head, _, hidden, targets = made(window=2)
    with pytest.raises(EtymonError, match=r"teacher: leave them or shape.pointer out"):
        head.divergence(hidden, None, lambda part: hidden, 1.0)
    with pytest.raises(EtymonError, match="no label smoothing"):
        head.smoothed_loss(hidden, None, targets, 0.1)
