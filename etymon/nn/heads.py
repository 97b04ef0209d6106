"""Small heads for tasks: they read hidden states at the positions their family says, and answer in float32.

Legend: n positions, D width, R rows, T tokens of a row, S beginnings and E ends of answers that are
followed up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from etymon.nn.layers import Activation, Dropout, LayerNorm, Linear, identity
from etymon.nn.precision import widen


class Projection(nn.Module):
    """Dropout and one linear map: classification, tagging, spans, choices. Its output may have an
    activation and dropout."""

    def __init__(
        self,
        dim: int,
        outputs: int,
        *,
        dropout: float = 0.0,
        bias: bool = True,
        activation: Activation = identity,
        output_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)
        self.linear = Linear(dim, outputs, bias=bias)
        self.activation = activation
        self.output_dropout = Dropout(output_dropout)

    def forward(self, x_nD: Tensor) -> Tensor:
        return widen(self.output_dropout(self.activation(self.linear(self.dropout(x_nD)))))


class Pooler(nn.Module):
    """Dropout, dense (unless it is left out) and activation: dense and tanh are BERT's summary of the first
    token."""

    def __init__(
        self, dim: int, activation: Activation = torch.tanh, *, dense: bool = True, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)
        self.dense = Linear(dim, dim) if dense else nn.Identity()
        self.activation = activation

    def forward(self, x_nD: Tensor) -> Tensor:
        return self.activation(self.dense(self.dropout(x_nD)))


class DeepProjection(nn.Module):
    """Dropout, dense, activation, dropout, linear: the classification head of RoBERTa, ELECTRA, BART and T5.

    `input_dropout` is that before the dense map, if it is another one: DistilBERT has none there. Without
    `dense`, the activation is that of the states themselves.
    """

    def __init__(
        self,
        dim: int,
        outputs: int,
        *,
        dropout: float = 0.0,
        activation: Activation = torch.tanh,
        input_dropout: float | None = None,
        dense: bool = True,
    ) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)
        # RoBERTa, BART, T5 and ELECTRA drop out before both maps.
        self.input_dropout = Dropout(dropout if input_dropout is None else input_dropout)
        self.dense = Linear(dim, dim) if dense else nn.Identity()
        self.linear = Linear(dim, outputs)
        self.activation = activation

    def forward(self, x_nD: Tensor) -> Tensor:
        return widen(self.linear(self.dropout(self.activation(self.dense(self.input_dropout(x_nD))))))


class TokenScore(DeepProjection):
    """Dense, activation and one score a token, `[n]`: above 0 it looks like a replaced one (ELECTRA's
    discriminator)."""

    def __init__(self, dim: int, activation: Activation) -> None:
        super().__init__(dim, 1, activation=activation)

    def forward(self, x_nD: Tensor) -> Tensor:
        return super().forward(x_nD).squeeze(-1)


@dataclass(frozen=True)
class SpanCandidates:
    """The likeliest beginnings of answers, the likeliest ends of each, and scores above 0 for texts without
    an answer."""

    start_probs_RS: Tensor
    starts_RS: Tensor
    end_probs_RES: Tensor
    ends_RES: Tensor
    unanswerable_R: Tensor


class ConditionalSpan(nn.Module):
    """XLNet's SQuAD head: scores of beginnings `[n]`; of ends given a beginning (`end`); and whether there
    is no answer at all (`unanswerable`)."""

    def __init__(
        self, dim: int, epsilon: float, starts: int = 5, ends: int = 5, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.starts, self.ends = starts, ends
        self.start = Linear(dim, 1)
        self.end_dense, self.end_norm = Linear(2 * dim, dim), LayerNorm(dim, epsilon)
        self.end_linear = Linear(dim, 1)
        # The last map has no bias, as published.
        self.answer_dense, self.answer_linear = Linear(2 * dim, dim), Linear(dim, 1, bias=False)
        self.dropout = Dropout(dropout)

    def forward(self, x_nD: Tensor) -> Tensor:
        return widen(self.start(x_nD)).squeeze(-1)

    def end(self, x_nD: Tensor, start_nD: Tensor) -> Tensor:
        """Scores of tokens as ends, `[n]`, each beside the hidden state of a beginning."""
        # tanh before the norm, as in XLNet's code.
        inner_nD = torch.tanh(self.end_dense(torch.cat([x_nD, start_nD], -1)))
        return widen(self.end_linear(self.end_norm(inner_nD))).squeeze(-1)

    def unanswerable(self, start_RD: Tensor, class_RD: Tensor) -> Tensor:
        """Scores `[R]` from the mean state of beginnings, weighted by their probabilities, and the class
        token's state."""
        inner_RD = torch.tanh(self.answer_dense(torch.cat([start_RD, class_RD], -1)))
        return widen(self.answer_linear(self.dropout(inner_RD))).squeeze(-1)

    def search(self, x_RTD: Tensor, class_RD: Tensor, hidden_RT: Tensor) -> SpanCandidates:
        """The best spans of every row; `hidden_RT` marks tokens that no answer begins or ends with."""
        rows, length, dim = x_RTD.shape
        # Ends are scored for the best beginnings alone: all pairs would be `[R, T, T]`.
        probs_RT = self(x_RTD).masked_fill(hidden_RT, -math.inf).softmax(-1)
        best_RS = probs_RT.topk(min(self.starts, length))
        chosen_RSD = x_RTD.gather(1, best_RS.indices[..., None].expand(-1, -1, dim))
        pairs = (rows, length, chosen_RSD.shape[1], dim)
        scores_RTS = self.end(x_RTD[:, :, None].expand(pairs), chosen_RSD[:, None].expand(pairs))
        ends_RES = (
            scores_RTS.masked_fill(hidden_RT[..., None], -math.inf).softmax(1).topk(min(self.ends, length), 1)
        )
        # The expected beginning and not the best one, as published.
        mean_RD = (probs_RT[:, None].to(x_RTD.dtype) @ x_RTD)[:, 0]
        unanswerable_R = self.unanswerable(mean_RD, class_RD)
        return SpanCandidates(
            best_RS.values, best_RS.indices, ends_RES.values, ends_RES.indices, unanswerable_R
        )
