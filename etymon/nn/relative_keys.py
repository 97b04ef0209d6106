"""Positions as learned vectors of distances, which queries (and keys) meet like further keys.

    score(i, j) = (q_i k_j + q_i e_(i-j)) / sqrt(K)                   (Shaw et al. 2018, the part of the keys)
    score(i, j) = (q_i k_j + q_i e_(i-j) + k_j e_(i-j)) / sqrt(K)     (Huang et al. 2020, their fourth method)

Nothing of size `[Q, T, K]` is made: queries meet every distance that occurs in one product, and a pair's entry is then found in
it by reading its rows with another stride.

Legend: R rows, H heads, Q queries, T keys, K head width, L distances, P positions.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from etymon.nn.linear import Embedding


class RelativeKeys(nn.Module):
    """What distances add to the scores of one attention; `meets_keys` adds what keys have with them, too. With `scaled` off,
    the scale of the scores is not theirs (ALBERT in Transformers 4).

    The table has a row for every distance from -(P - 1) to P - 1: query position minus key position. What is farther away is
    taken for the farthest.
    """

    def __init__(self, positions: int, head_dim: int, *, meets_keys: bool, scaled: bool = True) -> None:
        super().__init__()
        self.table = Embedding(2 * positions - 1, head_dim)
        self.positions, self.meets_keys, self.scaled = positions, meets_keys, scaled

    def forward(self, q_RHQK: Tensor, k_RHTK: Tensor, distances: int | Tensor, scale: float) -> Tensor:
        """`[R, H, Q, T]`, scale included. `distances` is how far the first query stands behind the first key where queries and
        keys are each neighbours, and otherwise `[R or 1, Q, T]`."""
        scale = scale if self.scaled else 1.0
        if isinstance(distances, int):
            return self._of_neighbours(q_RHQK, k_RHTK, distances, scale)
        rows_RQT = (distances + self.positions - 1).clamp(0, 2 * self.positions - 2)
        if q_RHQK.shape[2] == 1:
            return self._of_one_query(q_RHQK, k_RHTK, rows_RQT, scale)
        table_KL = self.table.weight.T * scale
        shape = *q_RHQK.shape[:3], k_RHTK.shape[2]
        scores = (q_RHQK @ table_KL).gather(-1, rows_RQT[:, None].expand(shape))
        if self.meets_keys:
            columns = rows_RQT.transpose(1, 2)[:, None].expand(*shape[:2], shape[3], shape[2])
            scores = scores + (k_RHTK @ table_KL).gather(-1, columns).transpose(-1, -2)
        return scores

    def _of_neighbours(self, q_RHQK: Tensor, k_RHTK: Tensor, offset: int, scale: float) -> Tensor:
        queries, keys = q_RHQK.shape[2], k_RHTK.shape[2]
        first, count, rows = self.positions + offset - keys, queries + keys - 1, self.table.num_embeddings
        table_LK = self.table.weight[first : first + count]
        if first < 0 or first + count > rows:
            places_L = torch.arange(first, first + count, device=table_LK.device)
            table_LK = self.table(places_L.clamp_(0, rows - 1))
        table_LK = table_LK * scale
        scores = skew(q_RHQK @ table_LK.flip(0).T, keys)
        if self.meets_keys:
            scores = scores + skew(k_RHTK @ table_LK.T, queries).transpose(-1, -2)
        return scores

    def _of_one_query(self, q_RHQK: Tensor, k_RHTK: Tensor, rows_RQT: Tensor, scale: float) -> Tensor:
        """A step of a decode, or a head that reads one place: so few distances that their vectors can be looked up."""
        table_R1TK = self.table(rows_RQT) * scale
        met_RHTK = q_RHQK + k_RHTK if self.meets_keys else q_RHQK
        return (met_RHTK * table_R1TK).sum(-1)[:, :, None]


def skew(met_RHAL: Tensor, count: int) -> Tensor:
    """`[..., A, count]` out of `[..., A, A + count - 1]`: of every row as many entries, each row beginning one further left."""
    places, width = met_RHAL.shape[-2:]
    assert width == places + count - 1
    if places == 1:
        return met_RHAL
    # Without its first entries the array read in rows that are shorter by one: no entry is copied.
    flat = met_RHAL.flatten(-2)[..., places - 1 : places - 1 + places * (width - 1)]
    return flat.unflatten(-1, (places, width - 1))[..., :count]
