"""A vocabulary head that can be trained on a sample of the words (Jean et al. 2015), as TensorFlow's sampled softmax.

Legend: n asked positions, D width, V vocabulary, S sampled words.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from etymon.nn.vocabulary import DenseVocabulary


def log_uniform(count: int, words: int, device: torch.device | str = "cpu") -> tuple[Tensor, int]:
    """`count` different words, and how many draws it took; word k has probability log((k + 2) / (k + 1)) / log(words + 1).

    Ids sorted by frequency follow such a law. Draws come from the device's generator.
    """
    drawn = torch.empty(0, dtype=torch.long, device=device)
    while True:
        uniform = torch.rand(max(4 * count, 1024), dtype=torch.float64, device=device)
        more = (uniform * math.log(words + 1)).exp().long() - 1
        drawn = torch.cat([drawn, more.clamp_(0, words - 1)])
        value, order = drawn.sort(stable=True)
        new = torch.ones_like(value, dtype=torch.bool)
        new[1:] = value[1:] != value[:-1]
        first = order[new].sort().values[:count]  # where words came for the first time, in order of time
        if len(first) == count:
            return drawn[first], int(first[-1]) + 1


def log_expected_count(ids: Tensor, words: int, draws: int) -> Tensor:
    """The logarithm of how likely each word is to be among those that so many draws gave."""
    k = ids.double()
    probability = ((k + 2) / (k + 1)).log() / math.log(words + 1)
    return (-torch.expm1(draws * torch.log1p(-probability))).log()


class SampledVocabulary(DenseVocabulary):
    def sampled_loss(self, hidden_ND: Tensor, at: Tensor | None, targets_n: Tensor, samples: int) -> Tensor:
        """The summed loss of the targets against `samples` words that all positions share, corrected for how often words are
        drawn. A word is never held against itself. With as many samples as words, the loss of all words."""
        if samples >= self.size:
            return self.loss(hidden_ND, at, targets_n)
        sampled_S, draws = log_uniform(samples, self.size, hidden_ND.device)
        x_nD = self._features(hidden_ND, at)
        both = torch.cat([targets_n, sampled_S])
        # One lookup of weights: its gradient touches the chosen rows alone until it is added up.
        weight = F.embedding(both, self.weight)
        correction = -log_expected_count(both, self.size, draws).to(x_nD)
        if self.bias is not None:
            correction = correction + self.bias.index_select(0, both)
        n = len(targets_n)
        true_n = (x_nD * weight[:n]).sum(-1) + correction[:n]
        logits_nS = torch.addmm(correction[n:], x_nD, weight[n:].T)
        logits_nS = logits_nS.masked_fill(targets_n[:, None] == sampled_S, -math.inf)
        everything_n = torch.logaddexp(true_n, logits_nS.logsumexp(-1))
        return (everything_n - true_n).sum()
