"""How a model knows where a token stands, other than by a learned table (see `embeddings`).

Legend: R rows, H heads, Q queries, T keys.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from etymon.nn.linear import Embedding


class BucketedBias(nn.Module):
    """A learned scalar per head and bucket of distance, added to the scores (T5, section 2.1).

    Half of the buckets are exact small distances, the others grow logarithmically up to `longest`. The table is
    computed once for a batch and shared by all layers of a stack.
    """

    def __init__(self, heads: int, buckets: int, longest: int, *, bidirectional: bool) -> None:
        super().__init__()
        self.table = Embedding(buckets, heads)
        self.buckets, self.longest, self.bidirectional = buckets, longest, bidirectional

    def forward(self, query_RQ: Tensor, key_RT: Tensor) -> Tensor:
        distance_RQT = key_RT[:, None, :] - query_RQ[:, :, None]
        return self.table(self.bucket(distance_RQT)).permute(0, 3, 1, 2)

    def bucket(self, distance: Tensor) -> Tensor:
        """The bucket of key position minus query position."""
        buckets, offset = self.buckets, torch.zeros_like(distance)
        if self.bidirectional:
            buckets //= 2
            offset = (distance > 0).long() * buckets
            distance = distance.abs()
        else:
            distance = (-distance).clamp(min=0)
        exact = buckets // 2
        # Float32 on purpose: the published weights were trained with its rounding at the bucket borders.
        growth = torch.log(distance.clamp(min=1).float() / exact) / math.log(self.longest / exact)
        far = (exact + (growth * (buckets - exact)).long()).clamp(max=buckets - 1)
        return offset + torch.where(distance < exact, distance, far)
