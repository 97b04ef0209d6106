"""The pointer sentinel mixture (Merity et al. 2016): the next word is one of the vocabulary or a copy of a
recent one.

    q = tanh(W h_t + b)        a = softmax([q h_i for the last L positions i <= t, and q s])
    p(w) = a_s p_vocabulary(w) + the sum of a_i over the positions with x_i = w

A position i stands for the word that was read there, x_i, and not for the one that followed it; the newest
is t itself. The share of the sentinel s is left to the vocabulary.

Legend: N tokens, n positions, D width, L window, K keys, G blocks of S queries, C rows of a chunk, R rows,
V vocabulary.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from etymon.errors import EtymonError
from etymon.nn.initialise import Filler, constant
from etymon.nn.layers import Linear
from etymon.nn.precision import follow, widen
from etymon.nn.vocabulary import Context, DenseVocabulary, Score, linear_loss
from etymon.nn.window import PointerWindow

BLOCK = 64
"""The smallest number of queries that are compared with keys together: smaller products are slow."""

OPENING, CLOSED = 0.5, 8.0
"""A pointer begins with the same query everywhere, which normed states, whose entries add up to nothing, do
not answer; the sentinel does, so that it begins nearly closed. Open from the start it costs more than it
gives (docs/lab-notes.md)."""


def _wide(tensor: Tensor, generator: torch.Generator) -> object:
    """So that scores differ by about 1, whatever the width."""
    return tensor.normal_(0.0, 1 / tensor.shape[-1], generator=generator)


INITIAL: list[tuple[str, Filler]] = [
    ("*.pointer.query.weight", _wide),
    ("*.pointer.query.bias", constant(OPENING)),
    ("*.pointer.sentinel", lambda tensor, _: tensor.fill_(CLOSED / math.tanh(OPENING) / len(tensor))),
]


class Pointer(nn.Module):
    """How well the words of a position's window fit, against the sentinel."""

    def __init__(self, dim: int, window: int) -> None:
        super().__init__()
        self.window = window
        self.query = Linear(dim, dim)
        self.sentinel = nn.Parameter(torch.empty(dim))

    def start(self) -> PointerWindow:
        """The window of the past that a state carries."""
        return PointerWindow(self.window - 1)

    def forward(
        self, hidden_ND: Tensor, at: Tensor | None, context: Context
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Logarithms of the sentinel's share `[n]` and of the keys' shares `[n, K]`, and the keys' words
        `[n, K]`."""
        window = None if context.state is None else context.state.window
        q_nD, scores_nK, words_nK = (
            self._score_batch(hidden_ND, at, context)
            if window is None
            else self._score_window(hidden_ND, at, context, window)
        )
        # One softmax over keys and sentinel, of which only logarithms are kept.
        scores_nK, sentinel_n = widen(scores_nK), widen(q_nD @ follow(self.sentinel, q_nD))
        whole_n = torch.logaddexp(scores_nK.logsumexp(-1), sentinel_n)
        return sentinel_n - whole_n, scores_nK - whole_n[:, None], words_nK

    def _score_batch(
        self, hidden_ND: Tensor, at: Tensor | None, context: Context
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Keys of the same batch. Rows lie end to end, so a window is a stretch of the flat axis as far as
        it is of one row: blocks of queries meet their own stretch and the one before, and nothing is padded
        but the ends."""
        batch, reach, size = context.batch, self.window - 1, max(self.window, BLOCK)
        spare = -len(hidden_ND) % size

        def stretches(column: Tensor, blank: int) -> Tensor:
            ends = (0, 0) * (column.dim() - 1) + (reach, spare)
            return F.pad(column, ends, value=blank).unfold(0, size + reach, size)

        rows_N = batch.layout.row
        if batch.hidden_keys is not None:
            # A number that no row has: hidden tokens match no query.
            rows_N = rows_N.masked_fill(batch.hidden_keys, -2)
        rows_GK = stretches(rows_N, -1)
        distance_SK = torch.arange(reach, size + reach, device=rows_N.device)[:, None] - torch.arange(
            size + reach, device=rows_N.device
        )
        seen_GSK = (
            (rows_GK[:, reach:, None] == rows_GK[:, None]) & (distance_SK >= 0) & (distance_SK <= reach)
        )
        q_ND = torch.tanh(self.query(hidden_ND))
        q_GSD = F.pad(q_ND, (0, 0, 0, spare)).view(-1, size, q_ND.shape[1])
        scores_GSK = (q_GSD @ stretches(hidden_ND, 0)).masked_fill(~seen_GSK, -math.inf)
        at = torch.arange(len(q_ND), device=q_ND.device) if at is None else at
        return q_ND[at], scores_GSK.flatten(0, 1)[at], stretches(batch.ids, -1)[at // size]

    def _score_window(
        self, hidden_ND: Tensor, at: Tensor | None, context: Context, window: PointerWindow
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Keys of a state that holds the batch already: a window for every position, which are few in a
        decode."""
        layout = context.batch.layout
        at = torch.arange(len(hidden_ND), device=hidden_ND.device) if at is None else at
        places = layout.row[at, None], layout.index[at, None] + torch.arange(self.window, device=at.device)
        words_nL = window.ids_RM[places]
        q_nD = torch.tanh(self.query(hidden_ND[at]))
        scores_nL = torch.einsum("nd,nld->nl", q_nD, window.hidden_RMD[places])
        return q_nD, scores_nL.masked_fill(words_nL < 0, -math.inf), words_nL


class PointerVocabulary(DenseVocabulary):
    """A dense head and a pointer. Its logits are log-probabilities: mixtures have no others."""

    def __init__(self, base: DenseVocabulary, dim: int, window: int) -> None:
        super().__init__(base.weight, transform=base.transform, scale=base.scale)
        self.bias = base.bias
        self.pointer = Pointer(dim, window)

    def loss(
        self, hidden_ND: Tensor, at: Tensor | None, targets_n: Tensor, context: Context | None = None
    ) -> Tensor:
        log_gate_n, log_copy_n = self._target_shares(hidden_ND, at, targets_n, context)
        log_softmax_n = torch.empty_like(log_gate_n)
        score = mixture_score(targets_n, log_gate_n.detach(), log_copy_n.detach(), log_softmax_n)
        total = linear_loss(self._features(hidden_ND, at), self.weight, self.bias, score)
        # The same value once more, as a function of the pointer alone: it adds nothing but the pointer's
        # gradient, which the chunked loss cannot form.
        again = -torch.logaddexp(log_gate_n + log_softmax_n, log_copy_n).sum()
        return total + (again - again.detach())

    def logits(self, hidden_ND: Tensor, at: Tensor | None = None, context: Context | None = None) -> Tensor:
        log_gate_n, log_shares_nK, words_nK = self._shares(hidden_ND, at, context)
        log_softmax_nV = super().logits(hidden_ND, at).log_softmax(-1)
        # A word that stands in the window several times gets the sum of its shares.
        copy_nV = torch.zeros_like(log_softmax_nV).scatter_add(1, words_nK.clamp(min=0), log_shares_nK.exp())
        none_nV = copy_nV == 0
        # The logarithm of 0 would make a gradient of NaN even where it is masked later.
        log_copy_nV = copy_nV.masked_fill(none_nV, 1.0).log().masked_fill(none_nV, -math.inf)
        return torch.logaddexp(log_gate_n[:, None] + log_softmax_nV, log_copy_nV)

    @torch.no_grad()
    def target_log_probs(
        self, hidden_ND: Tensor, at: Tensor | None, targets_n: Tensor, context: Context | None = None
    ) -> Tensor:
        log_gate_n, log_copy_n = self._target_shares(hidden_ND, at, targets_n, context)
        log_softmax_n = torch.empty_like(log_gate_n)
        score = mixture_score(targets_n, log_gate_n, log_copy_n, log_softmax_n)
        linear_loss(self._features(hidden_ND, at), self.weight, self.bias, score)
        return torch.logaddexp(log_gate_n + log_softmax_n, log_copy_n)

    def _sum_scores(self, hidden_ND: Tensor, at: Tensor | None, score: Score) -> Tensor:
        raise EtymonError(
            "a model with a pointer knows no label smoothing, z_loss, weights or distributions of a teacher: "
            "leave them or shape.pointer out"
        )

    def _shares(
        self, hidden_ND: Tensor, at: Tensor | None, context: Context | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        if context is None:
            raise ValueError("a pointer looks back: give the head its context")
        return self.pointer(hidden_ND, at, context)

    def _target_shares(
        self, hidden_ND: Tensor, at: Tensor | None, targets_n: Tensor, context: Context | None
    ) -> tuple[Tensor, Tensor]:
        """Logarithms of the sentinel's share `[n]`, and of the sum of all keys with the target's word
        `[n]`."""
        log_gate_n, log_shares_nK, words_nK = self._shares(hidden_ND, at, context)
        alike_nK = (words_nK == targets_n[:, None]) & (log_shares_nK > -math.inf)
        none_n = ~alike_nK.any(-1)
        # Where no key has the word there is no sum to take a logarithm of, and none to differentiate.
        alike_nK = alike_nK | none_n[:, None]
        log_copy_n = log_shares_nK.masked_fill(~alike_nK, -math.inf).logsumexp(-1)
        return log_gate_n, log_copy_n.masked_fill(none_n, -math.inf)


def mixture_score(targets_n: Tensor, log_gate_n: Tensor, log_copy_n: Tensor, log_softmax_n: Tensor) -> Score:
    """`-log(gate * softmax(logits)[target] + copy)`; `log_softmax_n` is filled with what the softmax alone
    gives."""

    def score(logits_CV: Tensor, part: slice, gradient: bool) -> tuple[Tensor, Tensor | None]:
        targets_C1 = targets_n[part, None]
        normaliser_C1 = logits_CV.logsumexp(-1, keepdim=True)
        log_softmax_C1 = logits_CV.gather(1, targets_C1) - normaliser_C1
        log_softmax_n[part] = log_softmax_C1[:, 0]
        gated_C1 = log_gate_n[part, None] + log_softmax_C1
        log_p_C1 = torch.logaddexp(gated_C1, log_copy_n[part, None])
        if not gradient:
            return -log_p_C1.sum(), None
        # The gradient of the softmax's part, times its share of the mixture's probability.
        error_CV = logits_CV.sub_(normaliser_C1).exp_()
        error_CV.scatter_add_(1, targets_C1, error_CV.new_full(targets_C1.shape, -1.0))
        return -log_p_C1.sum(), error_CV.mul_((gated_C1 - log_p_C1).exp())

    return score
