"""Attention by distance: the shift equals a gather, the fast way the plain formula, and only distances matter."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from etymon.nn.batch import Layout
from etymon.nn.relative import (
    DistanceSinusoids,
    RelativeAttention,
    RelativeInputs,
    RelativeView,
    relative_attend,
)

H, R, Q, M, K = 3, 2, 5, 4, 6
T = M + Q


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.double, requires_grad=True)


def views(ahead: int, hidden: Tensor | None, blind: bool = False) -> tuple[RelativeView, RelativeView]:
    """The same positions told by an offset and by a gather of query position minus key position."""
    table = torch.zeros(T + ahead, 2, dtype=torch.double)
    differs = (torch.arange(R * Q * T).view(R, Q, T) % 3 == 0).double()
    layout = Layout([Q] * R)
    common = {"hidden_RQT": hidden, "blind": blind, "differs_RQT": differs}
    distance = (torch.arange(Q)[:, None] + M) - torch.arange(T)
    columns = (T - 1 - distance).clamp(0, T + ahead - 1).expand(R, Q, T)
    return (
        RelativeView(layout, table, T, offset=Q - 1, **common),
        RelativeView(layout, table, T, columns_RQT=columns, **common),
    )


@pytest.mark.parametrize("ahead", [1, Q], ids=["causal", "both ways"])
@pytest.mark.parametrize("apart", [False, True])
def test_shift_gather_and_formula_agree_with_their_gradients(ahead: int, apart: bool) -> None:
    torch.manual_seed(0)
    hidden = torch.ones(Q, T, dtype=torch.bool).triu(1 + M)[None] if ahead == 1 else None
    inputs = [
        drawn(H, R, Q, K),
        drawn(H, R, T, K),
        drawn(H, R, T, K),
        drawn(H, T + ahead, K),
        drawn(H, K),
        drawn(H, K),
    ]
    term = drawn(H, R, Q) if apart else None
    wanted = torch.randn(H, R, Q, K, dtype=torch.double)
    shifted, gathered = views(ahead, hidden)
    results = []
    for view, eager in ((shifted, False), (gathered, False), (shifted, True), (gathered, True)):
        q, k, v, r, u, w = inputs
        out, weights = relative_attend(q, k, v, r, (u, w), view, scale=0.4, segment_HRQ=term, eager=eager)
        assert (weights is not None) == eager
        learnt = [*inputs, *([] if term is None else [term])]
        results.append([out, *torch.autograd.grad(out, learnt, wanted)])
    for other in results[1:]:
        for one, two in zip(results[0], other, strict=True):
            torch.testing.assert_close(one, two, rtol=0, atol=1e-12)


def test_scores_are_those_of_the_paper() -> None:
    torch.manual_seed(1)
    attention = RelativeAttention(12, 3, 4).double()
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.randn(7, 12, dtype=torch.double)
    table = DistanceSinusoids(12)(torch.arange(6, -2, -1)).double()
    hidden = torch.ones(7, 7, dtype=torch.bool).triu(1)[None]
    got = attention(x, RelativeInputs(RelativeView(Layout([7]), table, 7, offset=6, hidden_RQT=hidden)))
    q, k, v = (part(x).view(7, 3, 4) for part in (attention.query, attention.key, attention.value))
    expected = torch.zeros(7, 3, 4, dtype=torch.double)
    for head in range(3):
        for i in range(7):
            scores = []
            for j in range(i + 1):
                angle = torch.tensor([(i - j) / 10000 ** (2 * p / 12) for p in range(6)], dtype=torch.double)
                sinusoid = torch.cat([angle.sin(), angle.cos()])
                distance = (attention.position.weight @ sinusoid).view(3, 4)[head]
                content = (q[i, head] + attention.content_bias[head]) @ k[j, head]
                scores.append((content + (q[i, head] + attention.position_bias[head]) @ distance) / 2)
            weights = torch.stack(scores).softmax(0)
            expected[i, head] = sum(weight * v[j, head] for j, weight in enumerate(weights))
    # The sinusoids themselves are computed in float32.
    torch.testing.assert_close(got, attention.output(expected.flatten(1)), rtol=0, atol=1e-5)


def test_queries_that_see_nothing_get_nothing() -> None:
    torch.manual_seed(2)
    hidden = torch.zeros(R, Q, T, dtype=torch.bool)
    hidden[0, 2] = True
    inputs = [
        drawn(H, R, Q, K),
        drawn(H, R, T, K),
        drawn(H, R, T, K),
        drawn(H, T + Q, K),
        drawn(H, K),
        drawn(H, K),
    ]
    for view in views(Q, hidden, blind=True):
        for eager in (False, True):
            q, k, v, r, u, w = inputs
            out, _ = relative_attend(q, k, v, r, (u, w), view, scale=1.0, eager=eager)
            assert not out[:, 0, 2].any()
            assert all(part.isfinite().all() for part in torch.autograd.grad(out.sum(), inputs))


def test_dropout_keeps_the_mean_and_its_gradient_is_that_of_the_value() -> None:
    torch.manual_seed(3)
    view, _ = views(Q, None)
    inputs = [
        drawn(H, R, Q, K),
        drawn(H, R, T, K),
        drawn(H, R, T, K),
        drawn(H, T + Q, K),
        drawn(H, K),
        drawn(H, K),
    ]

    def attended(*parts: Tensor) -> Tensor:
        torch.manual_seed(7)  # the same weights are dropped every time
        q, k, v, r, u, w = parts
        return relative_attend(q, k, v, r, (u, w), view, scale=0.5, dropout=0.3)[0]

    assert torch.autograd.gradcheck(attended, inputs, atol=1e-6)
    q, k, v, r, u, w = inputs
    with torch.no_grad():
        plain, _ = relative_attend(q, k, torch.ones_like(v), r, (u, w), view, scale=0.5)
        torch.testing.assert_close(plain, torch.ones_like(plain))
        sums = [
            relative_attend(q, k, torch.ones_like(v), r, (u, w), view, scale=0.5, dropout=0.3)[0]
            for _ in range(300)
        ]
    assert abs(torch.stack(sums).mean() - 1) < 0.01


def test_sinusoids_come_sines_first_and_stop_at_the_clamp() -> None:
    table = DistanceSinusoids(8, clamp=3)(torch.arange(6, -6, -1))
    assert torch.equal(table[0], table[3]) and torch.equal(table[-1], table[-3])
    assert not torch.equal(table[3], table[4])
    torch.testing.assert_close(
        table[5],
        torch.tensor(
            [math.sin(1 / 10000 ** (p / 4)) for p in range(4)]
            + [math.cos(1 / 10000 ** (p / 4)) for p in range(4)]
        ),
    )
