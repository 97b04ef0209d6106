"""Where an answer stands: its end is looked for in the light of its beginning (XLNet's SQuAD head).

Legend: n tokens, R rows, T tokens of a row, D width, S beginnings and E ends that are followed up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from etymon.nn.dropout import Dropout
from etymon.nn.linear import Linear


@dataclass(frozen=True)
class Spans:
    """The likeliest beginnings, the likeliest ends of each (`[R, E, S]`), and a score above 0 for texts without an answer."""

    start_probs_RS: Tensor
    starts_RS: Tensor
    end_probs_RES: Tensor
    ends_RES: Tensor
    unanswerable_R: Tensor


class ConditionalSpan(nn.Module):
    """Scores of beginnings; of ends given a beginning (`end`); and whether there is no answer at all (`unanswerable`)."""

    def __init__(
        self, dim: int, epsilon: float, starts: int = 5, ends: int = 5, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.starts, self.ends = starts, ends
        self.start = Linear(dim, 1)
        self.end_dense, self.end_norm, self.end_linear = (
            Linear(2 * dim, dim),
            nn.LayerNorm(dim, epsilon),
            Linear(dim, 1),
        )
        self.answer_dense, self.answer_linear = Linear(2 * dim, dim), Linear(dim, 1, bias=False)
        self.dropout = Dropout(dropout)

    def forward(self, x_nD: Tensor) -> Tensor:
        return self.start(x_nD).squeeze(-1)

    def end(self, x_nD: Tensor, start_nD: Tensor) -> Tensor:
        """For every token as an end, with the hidden state of the beginning it is asked for."""
        inner_nD = torch.tanh(self.end_dense(torch.cat([x_nD, start_nD], -1)))
        return self.end_linear(self.end_norm(inner_nD)).squeeze(-1)

    def unanswerable(self, start_RD: Tensor, class_RD: Tensor) -> Tensor:
        """From where answers seem to begin, the mean of all states by their probabilities, and from the class token."""
        inner_RD = torch.tanh(self.answer_dense(torch.cat([start_RD, class_RD], -1)))
        return self.answer_linear(self.dropout(inner_RD)).squeeze(-1)

    def search(self, x_RTD: Tensor, class_RD: Tensor, hidden_RT: Tensor) -> Spans:
        """The best spans of every row; `hidden_RT` marks tokens that no answer begins or ends with."""
        rows, length, dim = x_RTD.shape
        probs_RT = self(x_RTD).masked_fill(hidden_RT, -math.inf).softmax(-1)
        best_RS = probs_RT.topk(min(self.starts, length))
        chosen_RSD = x_RTD.gather(1, best_RS.indices[..., None].expand(-1, -1, dim))
        pairs = (rows, length, chosen_RSD.shape[1], dim)
        scores_RTS = self.end(x_RTD[:, :, None].expand(pairs), chosen_RSD[:, None].expand(pairs))
        ends_RES = (
            scores_RTS.masked_fill(hidden_RT[..., None], -math.inf).softmax(1).topk(min(self.ends, length), 1)
        )
        mean_RD = (probs_RT[:, None] @ x_RTD)[:, 0]
        unanswerable_R = self.unanswerable(mean_RD, class_RD)
        return Spans(best_RS.values, best_RS.indices, ends_RES.values, ends_RES.indices, unanswerable_R)
