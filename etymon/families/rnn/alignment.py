"""How a recurrent decoder attends to the source, and what its words are read from.

Legend: n rows, q steps, T longest source, R sources, D width of states, H of annotations, A of alignments.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from etymon.families.rnn.state import Source
from etymon.nn.layers import Linear

if TYPE_CHECKING:
    from etymon.families.rnn import Shape


class Alignment(nn.Module):
    """How well the source fits a state: `dot` q.h, `general` q.Wh, `concat` v.tanh(Wq + Uh).

    With a `window` attention is local (Luong's local-p, section 3.2): each state predicts where to look,
    only so many tokens to both sides are scored, and their weights fall off as a Gaussian of half the
    window's width. Positions are counted from 0.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        dim, annotations = shape.dim, shape.annotation_dim
        self.window = shape.window
        self.key = self.query = self.energy = self.place = self.place_energy = None
        if shape.score == "concat":
            hidden, bias = shape.alignment_dim or dim, shape.alignment_bias
            self.key = Linear(annotations, hidden, bias=bias)
            self.query = Linear(dim, hidden, bias=bias)
            self.energy = Linear(hidden, 1, bias=bias)
        elif shape.score == "general":
            self.key = Linear(annotations, dim, bias=False)
        if shape.window:
            self.place = Linear(dim, dim, bias=False)
            self.place_energy = Linear(dim, 1, bias=False)
        self.seen: list[Tensor] | None = None
        """Set by `etymon.trace`: the weights, `[R, 1, Q, T]`, are then kept."""

    def keys(self, values_RTH: Tensor) -> Tensor:
        return values_RTH if self.key is None else self.key(values_RTH)

    def forward(
        self, s_nqD: Tensor, source: Source, query_nqA: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Contexts `[n, q, H]` and weights `[n, q, T]` of states. `query_nqA` saves the query's map where a
        caller has computed it already."""
        keys_RTA = source.keys_RTA
        assert keys_RTA is not None
        if self.query is None or self.energy is None:
            scores_nqT = s_nqD @ keys_RTA.transpose(1, 2)
        else:
            query_nqA = self.query(s_nqD) if query_nqA is None else query_nqA
            # An array of `[n, q, T, A]`: concat is the one score that is no plain product.
            scores_nqT = self.energy(torch.tanh(query_nqA[:, :, None] + keys_RTA[:, None])).squeeze(-1)
        hidden_nqT = None if source.missing_RT is None else source.missing_RT[:, None]
        if self.place is not None and self.place_energy is not None:
            share_nq1 = torch.sigmoid(self.place_energy(torch.tanh(self.place(s_nqD))))
            centre_nq1 = source.lengths_R[:, None, None] * share_nq1
            distance_nqT = torch.arange(scores_nqT.shape[-1], device=s_nqD.device) - centre_nq1
            outside_nqT = distance_nqT.abs() > self.window
            hidden_nqT = outside_nqT if hidden_nqT is None else hidden_nqT | outside_nqT
        if hidden_nqT is not None:
            # The lowest number and not -inf: a window may lie beyond the source, and its weights must not
            # be NaN.
            scores_nqT = scores_nqT.masked_fill(hidden_nqT, torch.finfo(scores_nqT.dtype).min)
        weights_nqT = scores_nqT.softmax(-1)
        if self.place is not None:
            # exp(-d^2 / (2 sigma^2)) with sigma = window / 2. The weights are not made to sum to 1 again.
            weights_nqT = weights_nqT * torch.exp(-2 * (distance_nqT / self.window) ** 2)
        return weights_nqT @ source.values_RTH, weights_nqT


class Readout(nn.Module):
    """What the words are predicted from: a linear map, tanh of it, or the larger of two outputs (maxout)."""

    def __init__(self, inputs: int, shape: Shape) -> None:
        super().__init__()
        self.kind = shape.readout
        self.linear = Linear(inputs, (2 if self.kind == "maxout" else 1) * shape.readout_dim)

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        if self.kind == "maxout":
            return x.unflatten(-1, (-1, 2)).amax(-1)
        return torch.tanh(x) if self.kind == "tanh" else x
