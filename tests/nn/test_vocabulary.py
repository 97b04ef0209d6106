"""Vocabulary heads: chunked losses are the plain ones, and nothing else."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from etymon.nn import vocabulary
from etymon.nn.layers import Linear
from etymon.nn.vocabulary import DenseVocabulary, Transform, chunks, cross_entropy, draw, linear_loss

ROWS, WIDTH, WORDS = 7, 5, 11


def linear_cross_entropy(x: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
    return linear_loss(x, weight, bias, cross_entropy(targets))


def numbers(bias: bool, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    generator = torch.Generator().manual_seed(3)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=dtype).requires_grad_()

    targets = torch.randint(0, WORDS, (ROWS,), generator=generator)
    return draw(ROWS, WIDTH), draw(WORDS, WIDTH), draw(WORDS) if bias else None, targets


@pytest.fixture(params=[1, WORDS, 3 * WORDS, 1 << 22], ids=lambda size: f"chunk{size}")
def chunk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary, "CHUNK_ELEMENTS", request.param)


@pytest.mark.usefixtures("chunk")
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_loss_is_cross_entropy(bias: bool, dtype: torch.dtype) -> None:
    x, weight, bias_V, targets = numbers(bias, dtype)
    inputs = [x, weight] if bias_V is None else [x, weight, bias_V]
    expected = F.cross_entropy(F.linear(x, weight, bias_V), targets, reduction="sum")
    got = linear_cross_entropy(x, weight, bias_V, targets)
    torch.testing.assert_close(got, expected)
    gradients = torch.autograd.grad(expected * -0.7, inputs)
    for one, other in zip(torch.autograd.grad(got * -0.7, inputs), gradients, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.usefixtures("chunk")
def test_gradients_are_the_differences_of_losses() -> None:
    """By small steps in float64 (a loss that can be differentiated once cannot go through gradcheck)."""
    x, weight, bias, targets = numbers(bias=True)
    assert bias is not None
    gradients = torch.autograd.grad(linear_cross_entropy(x, weight, bias, targets), (x, weight, bias))
    with torch.no_grad():
        for tensor, gradient in zip((x, weight, bias), gradients, strict=True):
            flat = tensor.view(-1)
            for place in range(0, len(flat), 3):
                around = []
                for step in (1e-6, -1e-6):
                    flat[place] += step
                    around.append(linear_cross_entropy(x, weight, bias, targets))
                    flat[place] -= step
                slope = (around[0] - around[1]) / 2e-6
                torch.testing.assert_close(slope, gradient.reshape(-1)[place], atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 2)], ids=str)
def test_only_wanted_gradients_are_formed(wanted: tuple[int, ...]) -> None:
    x, weight, bias, targets = numbers(bias=True)
    inputs = [
        part.detach().requires_grad_(place in wanted)
        for place, part in enumerate((x, weight, bias))
        if part is not None
    ]
    found = torch.autograd.grad(linear_cross_entropy(*inputs, targets), [inputs[place] for place in wanted])
    plain = F.cross_entropy(F.linear(*inputs), targets, reduction="sum")
    for one, other in zip(
        found, torch.autograd.grad(plain, [inputs[place] for place in wanted]), strict=True
    ):
        torch.testing.assert_close(one, other)


def test_a_second_backward_is_refused() -> None:
    x, weight, _, targets = numbers(bias=False)
    loss = linear_cross_entropy(x, weight, None, targets)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="once"):
        loss.backward()


def test_no_targets_are_no_loss() -> None:
    x, weight, bias, targets = numbers(bias=True)
    loss = linear_cross_entropy(x[:0], weight, bias, targets[:0])
    loss.backward()
    assert loss.item() == 0
    assert weight.grad is not None
    assert not weight.grad.any()


@given(st.integers(0, 50), st.integers(1, 30), st.integers(1, 200))
@settings(max_examples=60)
def test_chunks_cover_all_rows_within_the_budget(rows: int, words: int, budget: int) -> None:
    whole = vocabulary.CHUNK_ELEMENTS
    try:
        vocabulary.CHUNK_ELEMENTS = budget
        found = list(chunks(rows, words))
    finally:
        vocabulary.CHUNK_ELEMENTS = whole
    assert [row for part in found for row in range(rows)[part]] == list(range(rows))
    assert all((part.stop - part.start) * words <= max(budget, words) for part in found)


@pytest.mark.usefixtures("chunk")
@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_everything_a_head_offers_is_read_off_the_same_logits(scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    transform = Transform(Linear(WIDTH, WIDTH), torch.tanh, nn.LayerNorm(WIDTH))
    head = DenseVocabulary(
        nn.Parameter(torch.empty(WORDS, WIDTH)), bias=True, transform=transform, scale=scale
    )
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    hidden = torch.randn(9, WIDTH, generator=generator)
    at, targets = torch.tensor([8, 0, 3, 3]), torch.tensor([1, 10, 0, 7])
    assert head.size == WORDS
    by_hand = F.linear(transform(hidden) * scale, head.weight, head.bias)
    torch.testing.assert_close(head.logits(hidden), by_hand)
    torch.testing.assert_close(head.logits(hidden, at), by_hand[at])
    log_probs = by_hand[at].log_softmax(-1)
    torch.testing.assert_close(head.log_probs(hidden, at), log_probs)
    picked = log_probs.gather(1, targets[:, None])[:, 0]
    torch.testing.assert_close(head.target_log_probs(hidden, at, targets), picked.detach())
    torch.testing.assert_close(head.loss(hidden, at, targets), -picked.sum())
    ranks = [int((row > row[target]).sum()) for row, target in zip(by_hand[at], targets, strict=True)]
    assert head.ranks(hidden, at, targets).tolist() == ranks
    assert not head.target_log_probs(hidden, at, targets).requires_grad
    nothing = torch.zeros(0, dtype=torch.long)
    assert head.target_log_probs(hidden, nothing, nothing).shape == (0,)


def test_no_gradient_is_formed_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A custom function sees inputs that require gradients even where nobody will ask for them."""
    x, weight = torch.randn(6, 4), torch.nn.Parameter(torch.randn(9, 4))
    targets = torch.arange(6)
    wanted = linear_cross_entropy(x, weight, None, targets)
    monkeypatch.setattr(torch, "zeros_like", lambda *_: pytest.fail("a gradient was allocated"))
    with torch.no_grad():
        assert torch.equal(linear_cross_entropy(x, weight, None, targets), wanted.detach())


@pytest.mark.parametrize("words", [3, 255, 256, 257, 1000])
def test_draws_follow_the_running_sum(words: int) -> None:
    generator = torch.Generator().manual_seed(words)
    weights = torch.rand(500, words, generator=generator, dtype=torch.float64)
    weights[:, words // 2] = 0.0  # what has no weight is never drawn
    uniforms = torch.rand(500, generator=generator, dtype=torch.float64)
    drawn = draw(weights, uniforms)
    running = weights.cumsum(-1)
    goal = uniforms * running[:, -1]
    rows = torch.arange(500)
    assert (running[rows, drawn] >= goal - 1e-9).all()
    assert (running[rows, drawn] - weights[rows, drawn] <= goal + 1e-9).all()
    assert (drawn != words // 2).all()
    assert (draw(weights, torch.ones(500)) < words).all() and (draw(weights, torch.zeros(500)) == 0).all()


def test_draws_have_the_softmax_as_their_distribution() -> None:
    generator = torch.Generator().manual_seed(1)
    head = DenseVocabulary(torch.randn(600, 8, generator=generator))
    hidden = torch.randn(1, 8, generator=generator).expand(20_000, 8)
    uniforms = torch.rand(20_000, generator=generator)
    targets = torch.zeros(20_000, dtype=torch.long)
    for temperature in (1.0, 0.5):
        loss, drawn = head.loss_and_sample(hidden, None, targets, uniforms, temperature)
        assert torch.equal(loss, head.loss(hidden, None, targets))
        shares = torch.bincount(drawn, minlength=600) / len(drawn)
        wanted = (head.logits(hidden[:1])[0] / temperature).softmax(-1)
        assert (shares - wanted).abs().max() < 4 * (wanted.max() / len(drawn)).sqrt()


def test_divergence_and_its_gradient_are_those_of_the_plain_formula() -> None:
    generator = torch.Generator().manual_seed(2)
    head, teacher = (
        DenseVocabulary(torch.randn(50, 6, generator=generator).double(), bias=True) for _ in range(2)
    )
    head, teacher = head.double(), teacher.double()
    hidden = torch.randn(9, 6, generator=generator, dtype=torch.float64, requires_grad=True)
    taught = torch.randn(9, 6, generator=generator, dtype=torch.float64)
    at = torch.tensor([0, 3, 3, 8])
    wanted = 4.0 * F.kl_div(
        (head.logits(hidden, at) / 2).log_softmax(-1),
        (teacher.logits(taught, at).detach() / 2).softmax(-1),
        reduction="sum",
    )
    inputs = [hidden, *head.parameters()]
    gradients = torch.autograd.grad(wanted, inputs)
    got = head.divergence(hidden, at, lambda part: teacher.logits(taught, at[part]).detach(), 2.0)
    torch.testing.assert_close(got, wanted)
    for one, other in zip(torch.autograd.grad(got, inputs), gradients, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(("smoothing", "z_loss"), [(0.1, 0.0), (0.5, 0.0), (0.0, 0.3), (0.1, 0.3)])
def test_smoothed_targets_are_those_of_pytorch(smoothing: float, z_loss: float) -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((9, 5), (13, 5)))
    targets = torch.randint(0, 13, (9,), generator=generator)
    head = DenseVocabulary(weight, bias=True).double()
    x.requires_grad_()
    ours = head.smoothed_loss(x, None, targets, smoothing, z_loss)
    theirs = torch.nn.functional.cross_entropy(
        head.logits(x), targets, reduction="sum", label_smoothing=smoothing
    )
    theirs = theirs + z_loss * head.logits(x).logsumexp(-1).square().sum()
    torch.testing.assert_close(ours, theirs)
    wanted = [x, head.weight, head.bias]
    for one, other in zip(
        torch.autograd.grad(ours, wanted), torch.autograd.grad(theirs, wanted), strict=True
    ):
        torch.testing.assert_close(one, other)
