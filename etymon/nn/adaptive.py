"""Large vocabularies: adaptive input and softmax (Grave et al. 2016, Baevski and Auli 2018), and the
sampled softmax.

Ids are sorted by frequency and cut into bins. The first bin's softmax has one more entry for each of the
others, and log p(word) = log p(its bin) + log p(word | its bin). With a `divisor`, bin i has vectors of
width / divisor^i and its own map to the model's width. Entry i of those behind the first bin's words stands
for bin i + 1 (the natural order).

A sampled softmax (Jean et al. 2015, as TensorFlow has it) trains on the targets and a sample of the other
words.

Legend: N tokens, n positions, D width, E width of word vectors, V vocabulary, B words of a bin, C rows of a
chunk, S sampled words.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from etymon.errors import EtymonError
from etymon.nn.batch import permute
from etymon.nn.layers import Embedding
from etymon.nn.precision import follow, widen
from etymon.nn.vocabulary import (
    Context,
    DenseVocabulary,
    Score,
    chunks,
    cross_entropy,
    linear_loss,
    wide_linear,
)

SMALL = 10_000
"""Words of a vocabulary that is not worth cutting."""
BIN_COST = 300
"""What another bin costs a token beside its words, in words: an order of magnitude."""
WIDE = 0.8
"""The share of tokens in the first bin, at least, where others are narrower: as in the cut of
WikiText-103."""


def choose_cutoffs(counts: np.ndarray, divisor: int = 1, most: int = 3) -> tuple[int, ...]:
    """Up to `most` cutoffs that make the softmax cheapest for a text in which words, by id, occur `counts`
    times.

    A token costs the first bin's words and, if it is in another bin, that one's, which are narrower by the
    divisor. Narrow vectors are for rare words: with a divisor, `WIDE` of all tokens are of the first bin.
    """
    words = len(counts)
    if words < SMALL or not counts.any():
        return ()
    share = np.concatenate([[0.0], np.cumsum(counts / counts.sum())])
    # Few places are worth trying: frequencies fall like a power of the rank.
    grid = np.unique(np.geomspace(words / 200, words * 0.9, 32).round(-2).astype(int))
    grid = grid[(grid > 0) & (grid < words)].tolist()

    def fits(cutoffs: tuple[int, ...]) -> bool:
        return not cutoffs or divisor == 1 or share[cutoffs[0]] >= WIDE

    def cost(cutoffs: tuple[int, ...]) -> float:
        edges = (*cutoffs, words)
        tails = (
            (share[stop] - share[start]) * (stop - start) / divisor ** (number + 1) + BIN_COST
            for number, (start, stop) in enumerate(pairwise(edges))
        )
        return edges[0] + sum(tails)

    # All combinations of at most three of 32 places: some 5,500.
    choices = (chosen for size in range(most + 1) for chosen in combinations(grid, size))
    return min(filter(fits, choices), key=cost)


class Map(nn.Module):
    """A matrix `[D, E]` that both sides use: word vectors go through it up, hidden states down."""

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(dim, width))

    def forward(self, x_NE: Tensor) -> Tensor:
        return F.linear(x_NE, follow(self.weight, x_NE))

    def down(self, x_nD: Tensor) -> Tensor:
        return x_nD @ follow(self.weight, x_nD)


class BinWords(nn.Module):
    """Output vectors and biases of some words; the vectors may be those of an input table."""

    def __init__(self, words: int, width: int, table: Embedding | None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(words, width)) if table is None else table.weight
        self.bias = nn.Parameter(torch.zeros(words))


class AdaptiveEmbedding(nn.Module):
    """A table for every bin, or one for all where the divisor is 1, and maps to the width where it takes
    some."""

    def __init__(
        self,
        vocabulary: int,
        dim: int,
        cutoffs: Sequence[int] = (),
        *,
        width: int | None = None,
        divisor: int = 1,
    ) -> None:
        super().__init__()
        self.edges = (0, *cutoffs, vocabulary)
        self.dim, self.width, self.divisor = dim, width or dim, divisor
        # Without a divisor all words are as wide, and one table serves all bins.
        sizes = [stop - start for start, stop in pairwise(self.edges)] if divisor > 1 else [vocabulary]
        widths = [self.width // divisor**number for number in range(len(sizes))]
        self.tables = nn.ModuleList(map(Embedding, sizes, widths))
        mapped = divisor > 1 or self.width != dim
        self.maps = nn.ModuleList(Map(dim, width) for width in widths) if mapped else None

    def forward(self, ids_N: Tensor) -> Tensor:
        if len(self.tables) == 1:
            vectors = self.tables[0](ids_N)
            return vectors if self.maps is None else self.maps[0](vectors)
        assert self.maps is not None
        bins_N = bins_of(ids_N, self.edges)
        if torch.compiler.is_compiling():  # an exported program cannot count: every table is asked for all
            vectors_ND = ids_N.new_zeros(1, dtype=torch.float32)
            for number, (table, to_width) in enumerate(zip(self.tables, self.maps, strict=True)):
                start, stop = self.edges[number : number + 2]
                mine_ND = to_width(table((ids_N - start).clamp(0, stop - start - 1)))
                vectors_ND = torch.where((bins_N == number)[:, None], mine_ND, vectors_ND)
            return vectors_ND
        # Sorted by bin, so that each table is read once; the way back is a gather as well (`permute`).
        order_N = bins_N.argsort(stable=True)
        sizes = torch.bincount(bins_N, minlength=len(self.tables)).tolist()
        parts = [
            to_width(table(some - start))
            for some, start, table, to_width in zip(
                ids_N[order_N].split(sizes), self.edges, self.tables, self.maps, strict=False
            )
        ]
        return permute(torch.cat(parts), order_N.argsort(), order_N)


def bins_of(ids: Tensor, edges: Sequence[int]) -> Tensor:
    """The number of every id's bin."""
    return torch.bucketize(ids.contiguous(), torch.tensor(edges[1:-1], device=ids.device), right=True)


class AdaptiveVocabulary(DenseVocabulary):
    """A vocabulary head of bins; its logits are log-probabilities, of which only those needed are computed
    for a loss.

    With `tied` the output vectors are those of `words`; `tied_maps` says the same of the maps, bin by bin.
    """

    def __init__(
        self,
        words: AdaptiveEmbedding | Embedding,
        cutoffs: Sequence[int] = (),
        *,
        tied: bool = True,
        tied_maps: Sequence[bool] = (),
    ) -> None:
        nn.Module.__init__(self)
        # The parent's constructor would make a matrix of the whole vocabulary.
        self.transform, self.scale = None, 1.0
        tables: list[Any] = [words] if isinstance(words, Embedding) else list(words.tables)
        maps: Any = None if isinstance(words, Embedding) else words.maps
        self.edges = (0, *cutoffs, sum(table.num_embeddings for table in tables))
        bins = len(self.edges) - 1
        self.words = nn.ModuleList(
            BinWords(table.num_embeddings, table.embedding_dim, table if tied else None) for table in tables
        )
        width = tables[0].embedding_dim
        self.clusters = BinWords(bins - 1, width, None) if bins > 1 else None
        self.maps: nn.ModuleList | None = None
        if maps is not None:
            shared = list(maps) if len(maps) == bins else [maps[0]] * bins
            ties = [*tied_maps, *([False] * bins)]
            self.maps = nn.ModuleList(
                shared_map if tie else Map(*shared_map.weight.shape)
                for shared_map, tie in zip(shared, ties, strict=False)
            )

    @property
    def size(self) -> int:
        return self.edges[-1]

    @property
    def _weights(self) -> list[tuple[Tensor, Tensor]]:
        parts: list[Any]
        if len(self.words) > 1:
            parts = [(part.weight, part.bias) for part in self.words]
        else:
            # One split for all bins: its gradient is put together once, not bin by bin.
            sizes = [stop - start for start, stop in pairwise(self.edges)]
            whole: Any = self.words[0]
            parts = list(zip(whole.weight.split(sizes), whole.bias.split(sizes), strict=True))
        if self.clusters is not None:
            weight, bias = parts[0]
            parts[0] = torch.cat([weight, self.clusters.weight]), torch.cat([bias, self.clusters.bias])
        return parts

    def _down(self, number: int, x_nD: Tensor) -> Tensor:
        """Hidden states at the width of a bin."""
        to_width: Any = None if self.maps is None else self.maps[number]
        return x_nD if to_width is None else to_width.down(x_nD)

    def _softmaxes(
        self, x_nD: Tensor, targets_n: Tensor
    ) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]]:
        """The softmaxes that the targets need: features, weights, biases, the targets' places in them, and
        the positions that they are for (None: all)."""
        bins_n, weights = bins_of(targets_n, self.edges), self._weights
        for number, (weight, bias) in enumerate(weights):
            rows, places = None, torch.where(bins_n > 0, self.edges[1] + bins_n - 1, targets_n)
            if number:
                rows = (bins_n == number).nonzero()[:, 0]
                places = targets_n[rows] - self.edges[number]
            x = x_nD if rows is None else x_nD.index_select(0, rows)
            yield self._down(number, x), weight, bias, places, rows

    def loss(
        self, hidden_ND: Tensor, at: Tensor | None, targets_n: Tensor, context: Context | None = None
    ) -> Tensor:
        # A bin without targets takes part all the same: every parameter then has a gradient, if of zeros, as
        # optimisers and distributed training expect.
        parts = self._softmaxes(self._features(hidden_ND, at), targets_n)
        return torch.stack(
            [linear_loss(x, w, b, cross_entropy(places)) for x, w, b, places, _ in parts]
        ).sum()

    @torch.no_grad()
    def target_log_probs(
        self, hidden_ND: Tensor, at: Tensor | None, targets_n: Tensor, context: Context | None = None
    ) -> Tensor:
        total_n = widen(hidden_ND.new_zeros(len(targets_n)))
        for x, weight, bias, places, rows in self._softmaxes(self._features(hidden_ND, at), targets_n):
            for part in chunks(len(x), len(weight)):
                logits_CB = wide_linear(x[part], weight, bias)
                log_probs_C = logits_CB.gather(1, places[part, None])[:, 0] - logits_CB.logsumexp(-1)
                total_n[part if rows is None else rows[part]] += log_probs_C
        return total_n

    def logits(self, hidden_ND: Tensor, at: Tensor | None = None, context: Context | None = None) -> Tensor:
        x_nD, parts = self._features(hidden_ND, at), []
        for number, (weight, bias) in enumerate(self._weights):
            parts.append(wide_linear(self._down(number, x_nD), weight, bias).log_softmax(-1))
        # log p(word) = log p(its bin) + log p(word | its bin).
        first, cluster = parts[0][:, : self.edges[1]], parts[0][:, self.edges[1] :]
        rest = [tail + cluster[:, i, None] for i, tail in enumerate(parts[1:])]
        return torch.cat([first, *rest], 1) if rest else first

    def log_probs(
        self, hidden_ND: Tensor, at: Tensor | None = None, context: Context | None = None
    ) -> Tensor:
        return self.logits(hidden_ND, at, context)

    def _sum_scores(self, hidden_ND: Tensor, at: Tensor | None, score: Score) -> Tensor:
        raise EtymonError(
            "a model with an adaptive softmax knows no label smoothing, z_loss, weights or distributions of "
            "a teacher: leave them or shape.cutoffs out"
        )


def log_uniform(count: int, words: int, device: torch.device | str = "cpu") -> tuple[Tensor, int]:
    """`count` different words, and how many draws it took. Word k has probability log((k + 2) / (k + 1)) /
    log(words + 1), since ids sorted by frequency follow such a law. Draws come from the device's
    generator."""
    drawn = torch.empty(0, dtype=torch.long, device=device)
    while True:
        uniform = torch.rand(max(4 * count, 1024), dtype=torch.float64, device=device)
        more = (uniform * math.log(words + 1)).exp().long() - 1
        drawn = torch.cat([drawn, more.clamp_(0, words - 1)])
        value, order = drawn.sort(stable=True)
        new = torch.ones_like(value, dtype=torch.bool)
        new[1:] = value[1:] != value[:-1]
        # The sort is stable: of equal words, the first of a run is the one that was drawn first.
        first = order[new].sort().values[:count]
        if len(first) == count:
            return drawn[first], int(first[-1]) + 1


def log_expected_count(ids: Tensor, words: int, draws: int) -> Tensor:
    """The logarithm of how likely each word is to be among those that so many draws gave."""
    k = ids.double()
    probability = ((k + 2) / (k + 1)).log() / math.log(words + 1)
    return (-torch.expm1(draws * torch.log1p(-probability))).log()


class SampledVocabulary(DenseVocabulary):
    def sampled_loss(self, hidden_ND: Tensor, at: Tensor | None, targets_n: Tensor, samples: int) -> Tensor:
        """The summed loss of the targets against `samples` words that all positions share, corrected for
        how often words are drawn. A sampled word does not count against the same target. With as many
        samples as words, the full loss."""
        if samples >= self.size:
            return self.loss(hidden_ND, at, targets_n)
        sampled_S, draws = log_uniform(samples, self.size, hidden_ND.device)
        x_nD = self._features(hidden_ND, at)
        both = torch.cat([targets_n, sampled_S])
        # One lookup of weights: its gradient touches the chosen rows alone until it is added up.
        weight = follow(F.embedding(both, self.weight), x_nD)
        correction = -log_expected_count(both, self.size, draws).to(widen(x_nD[:0]))
        if self.bias is not None:
            correction = correction + self.bias.index_select(0, both)
        n = len(targets_n)
        true_n = widen((x_nD * weight[:n]).sum(-1)) + correction[:n]
        if x_nD.dtype == correction.dtype:
            logits_nS = torch.addmm(correction[n:], x_nD, weight[n:].T)
        else:
            logits_nS = widen(x_nD @ weight[n:].T) + correction[n:]
        # The target is in the sum already: drawn by chance, it would count twice.
        logits_nS = logits_nS.masked_fill(targets_n[:, None] == sampled_S, -math.inf)
        return (torch.logaddexp(true_n, logits_nS.logsumexp(-1)) - true_n).sum()
