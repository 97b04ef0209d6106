"""Adaptive input and softmax: the same numbers as the whole table, of which no more is computed than needed."""

from __future__ import annotations

from itertools import pairwise
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from etymon.errors import EtymonError
from etymon.nn import adaptive, vocabulary
from etymon.nn.adaptive import AdaptiveEmbedding, AdaptiveVocabulary, choose_cutoffs
from etymon.nn.layers import Embedding
from etymon.nn.vocabulary import DenseVocabulary

WORDS, WIDTH, ASKED = 60, 16, 40
CASES = [
    ((), 1, 16),
    ((), 1, 8),
    ((10, 30), 1, 16),
    ((10, 30), 1, 8),
    ((10, 30), 2, 16),
    ((10, 30, 59), 2, 16),
]


def built(
    cutoffs: tuple[int, ...],
    divisor: int,
    width: int,
    *,
    tied: bool = True,
    tied_maps: tuple[bool, ...] = (False, True, True, True),
) -> tuple[AdaptiveEmbedding, AdaptiveVocabulary, nn.Module]:
    torch.manual_seed(0)
    words = AdaptiveEmbedding(WORDS, WIDTH, cutoffs, width=width, divisor=divisor)
    head = AdaptiveVocabulary(words, cutoffs, tied=tied, tied_maps=tied_maps)
    both = nn.ModuleDict({"words": words, "head": head}).double()
    for parameter in both.parameters():
        nn.init.normal_(parameter)
    return words, head, both


def drawn() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    targets = torch.randint(0, WORDS, (ASKED,), generator=generator)
    return torch.randn(ASKED, WIDTH, dtype=torch.double, generator=generator).requires_grad_(), targets


@pytest.mark.parametrize(("cutoffs", "divisor", "width"), CASES)
@pytest.mark.parametrize("tied", [True, False])
def test_the_loss_is_that_of_the_whole_distribution(
    cutoffs: tuple[int, ...], divisor: int, width: int, tied: bool
) -> None:
    words, head, both = built(cutoffs, divisor, width, tied=tied)
    hidden, targets = drawn()
    log_probs = head.log_probs(hidden)
    torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(ASKED, dtype=torch.double))
    expected = -log_probs.gather(1, targets[:, None]).sum() + words(targets).square().sum()
    with patch.object(vocabulary, "CHUNK_ELEMENTS", 70):  # several chunks a bin
        got = head.loss(hidden, None, targets) + words(targets).square().sum()
        found = head.target_log_probs(hidden, None, targets)
    learnt = [hidden, *both.parameters()]
    for one, two in zip(torch.autograd.grad(got, learnt), torch.autograd.grad(expected, learnt), strict=True):
        torch.testing.assert_close(one, two)
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(found, log_probs.gather(1, targets[:, None])[:, 0].detach())
    better = log_probs > log_probs.gather(1, targets[:, None])
    assert torch.equal(head.ranks(hidden, None, targets), better.sum(-1))
    some = torch.tensor([3, 1, 30])
    torch.testing.assert_close(head.log_probs(hidden, some), log_probs[some])
    torch.testing.assert_close(head.loss(hidden, some, targets[some]), -found[some].sum())


def test_without_cutoffs_it_is_a_plain_softmax() -> None:
    words, head, _ = built((), 1, WIDTH)
    plain = DenseVocabulary(words.tables[0].weight, bias=True).double()
    with torch.no_grad():
        plain.bias.copy_(head.words[0].bias)  # type: ignore[union-attr]
    hidden, targets = drawn()
    assert torch.equal(head.log_probs(hidden), plain.log_probs(hidden))
    one, two = head.loss(hidden, None, targets), plain.loss(hidden, None, targets)
    assert torch.equal(one, two)
    assert torch.equal(*(torch.autograd.grad(loss, [hidden])[0] for loss in (one, two)))
    assert torch.equal(words(targets), words.tables[0].weight[targets])


def test_entries_of_rarer_bins_stand_in_their_natural_order() -> None:
    _, head, _ = built((10, 30), 2, WIDTH)
    hidden, _ = drawn()
    first = head.maps[0].down(hidden) @ torch.cat([head.words[0].weight, head.clusters.weight]).T  # type: ignore[index, operator, union-attr]
    shares = (first + torch.cat([head.words[0].bias, head.clusters.bias])).softmax(-1)  # type: ignore[union-attr]
    p = head.log_probs(hidden).exp()
    torch.testing.assert_close(p[:, 10:30].sum(-1), shares[:, 10])
    torch.testing.assert_close(p[:, 30:].sum(-1), shares[:, 11])


def test_input_vectors_are_those_of_their_bins() -> None:
    words, _, _ = built((10, 30), 2, WIDTH)
    ids = torch.tensor([59, 0, 10, 9, 30, 29, 0])
    for vector, word in zip(words(ids), ids.tolist(), strict=True):
        number = (word >= 10) + (word >= 30)
        expected = words.maps[number].weight @ words.tables[number].weight[word - (0, 10, 30)[number]]  # type: ignore[index]
        torch.testing.assert_close(vector, expected)
    assert [table.embedding_dim for table in words.tables] == [16, 8, 4]


def test_only_bins_with_targets_are_computed() -> None:
    _, head, both = built((10, 30), 2, WIDTH)
    hidden, targets = drawn()
    sizes = []
    plain = adaptive.linear_loss

    def watched(x: Tensor, weight: Tensor, *others: object) -> Tensor:
        sizes.append((len(x), len(weight)))
        return plain(x, weight, *others)  # type: ignore[arg-type]

    with patch.object(adaptive, "linear_loss", watched):
        head.loss(hidden, None, targets % 20).backward()
    counts = int((targets % 20 >= 10).sum())
    assert sizes == [(ASKED, 12), (counts, 20), (0, 30)]
    # Nobody is left without a gradient, which processes that train together would wait for.
    used = [parameter for name, parameter in both.named_parameters() if "words.maps.0" not in name]
    assert all(
        parameter.grad is not None for parameter in used if parameter is not both["words"].maps[0].weight
    )  # type: ignore[index]


def test_it_stands_on_an_ordinary_table_as_well() -> None:
    table = Embedding(WORDS, WIDTH).double()
    nn.init.normal_(table.weight)
    head = AdaptiveVocabulary(table, (10, 30)).double()
    nn.init.normal_(head.clusters.weight)  # type: ignore[union-attr]
    nn.init.zeros_(head.clusters.bias)  # type: ignore[union-attr]
    assert head.words[0].weight is table.weight and head.size == WORDS
    hidden, targets = drawn()
    torch.testing.assert_close(
        head.loss(hidden, None, targets), -head.log_probs(hidden).gather(1, targets[:, None]).sum()
    )


def test_what_needs_plain_logits_is_refused() -> None:
    _, head, _ = built((10, 30), 2, WIDTH)
    hidden, targets = drawn()
    with pytest.raises(EtymonError, match=r"teacher: leave them or shape.cutoffs out"):
        head.divergence(hidden, None, lambda part: hidden, 1.0)
    with pytest.raises(EtymonError, match="no label smoothing"):
        head.smoothed_loss(hidden, None, targets, 0.1)


def test_cutoffs_are_chosen_from_the_counts() -> None:
    words = 100_000
    zipf = (1e7 / np.arange(1, words + 1)).astype(np.int64)
    chosen = choose_cutoffs(zipf, divisor=4)
    assert chosen == tuple(sorted(set(chosen))) and 1 <= len(chosen) <= 3 and 0 < chosen[0] < words / 5

    def cost(cutoffs: tuple[int, ...]) -> float:
        edges = (*cutoffs, words)
        shares = [zipf[a:b].sum() / zipf.sum() for a, b in pairwise(edges)]
        sizes = [(b - a) / 4 ** (i + 1) for i, (a, b) in enumerate(pairwise(edges))]
        return edges[0] + sum(p * size for p, size in zip(shares, sizes, strict=True))

    assert cost(chosen) < min(cost(()), cost((20_000,)), cost((20_000, 60_000)), cost((50_000,)))
    assert zipf[: chosen[0]].sum() > 0.8 * zipf.sum()
    # Without narrower vectors only the cost counts.
    assert choose_cutoffs(zipf)[0] < chosen[0]
    assert choose_cutoffs(zipf[:5000]) == ()
