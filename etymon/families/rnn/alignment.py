"""What a recurrent decoder looks at the source with, and what its words are read from.

Legend: n rows, q steps, T longest source, R sources, D width of states, H of annotations, A of alignments.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from etymon.families.rnn.state import Source
from etymon.nn.layers import Linear


class Alignment(nn.Module):
    """How well the source fits a state: `dot` q.h, `general` q.Wh, `concat` v.tanh(Wq + Uh).

    With a `window` attention is local: each state predicts where to look, scores are of so many tokens to both sides, and
    their weights fall off as a Gaussian of half its width (Luong's local-p; places are counted from 0).
    """

    def __init__(
        self, score: str, dim: int, width: int, alignment: int, window: int = 0, *, bias: bool = False
    ) -> None:
        """`bias` gives all three maps of a concat score one; the papers have none, other people's models often do."""
        super().__init__()
        self.score, self.window = score, window
        if score == "concat":
            self.key: Linear | None = Linear(width, alignment, bias=bias)
        else:
            self.key = Linear(width, dim, bias=False) if score == "general" else None
        self.query = Linear(dim, alignment, bias=bias) if score == "concat" else None
        self.energy = Linear(alignment, 1, bias=bias) if score == "concat" else None
        self.place = Linear(dim, dim, bias=False) if window else None
        self.place_energy = Linear(dim, 1, bias=False) if window else None
        self.seen: list[Tensor] | None = None
        """Set by `etymon.trace`: the weights, `[R, 1, Q, T]`, are then kept."""

    def keys(self, values_RTH: Tensor) -> Tensor:
        return values_RTH if self.key is None else self.key(values_RTH)

    def forward(
        self, s_nqD: Tensor, source: Source, query_nqA: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Contexts `[n, q, H]` of states and the weights `[n, q, T]`; a query that is known already is not asked for again."""
        assert source.keys_RTA is not None
        if self.query is not None and query_nqA is None:
            query_nqA = self.query(s_nqD)
        if self.energy is None:
            scores_nqT = s_nqD @ source.keys_RTA.transpose(1, 2)
        else:
            assert query_nqA is not None
            mixed_nqTA = torch.tanh(query_nqA[:, :, None] + source.keys_RTA[:, None])
            scores_nqT = self.energy(mixed_nqTA).squeeze(-1)
        far_nqT = None if source.missing_RT is None else source.missing_RT[:, None]
        if self.place is not None and self.place_energy is not None:
            center_nq1 = source.lengths_R[:, None, None] * torch.sigmoid(
                self.place_energy(torch.tanh(self.place(s_nqD)))
            )
            distance_nqT = torch.arange(scores_nqT.shape[-1], device=s_nqD.device) - center_nq1
            outside_nqT = distance_nqT.abs() > self.window
            far_nqT = outside_nqT if far_nqT is None else far_nqT | outside_nqT
        if far_nqT is not None:
            scores_nqT = scores_nqT.masked_fill(far_nqT, torch.finfo(scores_nqT.dtype).min)
        weights_nqT = scores_nqT.softmax(-1)
        if self.place is not None:
            weights_nqT = weights_nqT * torch.exp(-2 * (distance_nqT / self.window) ** 2)
        return weights_nqT @ source.values_RTH, weights_nqT


class Readout(nn.Module):
    """What the words are predicted from: a linear map, tanh of it, or the larger of two (maxout)."""

    def __init__(self, inputs: int, outputs: int, kind: Literal["linear", "tanh", "maxout"]) -> None:
        super().__init__()
        self.kind = kind
        self.linear = Linear(inputs, (2 if kind == "maxout" else 1) * outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        if self.kind == "maxout":
            return x.unflatten(-1, (-1, 2)).amax(-1)
        return torch.tanh(x) if self.kind == "tanh" else x
