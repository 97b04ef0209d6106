"""A layer of XLNet: relative attention with segments, over two streams that share keys and values.

Legend: N tokens, n query positions, D width, H heads, R rows, Q queries and T keys of a row, M keys before
them, L distances, K head width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from etymon.nn.attention import QuerySubset
from etymon.nn.batch import Layout
from etymon.nn.blocks import Block
from etymon.nn.precision import follow
from etymon.nn.relative import RelativeAttention, RelativeView, prepend_memory


class StreamInputs(QuerySubset):
    """One layer's inputs for one stream: keys, values and distances, which both streams share."""

    def __init__(self, view: RelativeView, k_HRTK: Tensor, v_HRTK: Tensor, r_HLK: Tensor) -> None:
        self.view, self.k_HRTK, self.v_HRTK, self.r_HLK = view, k_HRTK, v_HRTK, r_HLK


class TwoStreamInputs:
    """One layer's inputs for both streams. `is_read`: somebody reads the content behind it."""

    def __init__(
        self,
        layout: Layout,
        content: RelativeView,
        query: RelativeView | None,
        past_RMD: Tensor | None,
        is_read: bool,
    ) -> None:
        self.layout, self.content, self.query = layout, content, query
        self.past_RMD, self.is_read = past_RMD, is_read


class TwoStreamBlock(Block):
    """A block under both streams."""

    entry = "streams"
    """What a stack calls: where parameters are sharded, they are gathered around it."""

    def streams(
        self, x_ND: Tensor, g_nD: Tensor | None, inputs: TwoStreamInputs
    ) -> tuple[Tensor | None, Tensor | None]:
        """The content of tokens `[N, D]` (None if nobody reads it) and, if there are some, queries `[n, D]`,
        each behind this layer."""
        attention: Any = self.attention
        pass_through: Any = self.forward  # not called as a module: its weights are gathered around `streams`
        # Once for both streams: the query stream has no keys of its own.
        keys = attention.keys(prepend_memory(inputs.past_RMD, inputs.layout.pad(x_ND)))
        shared = (*keys, attention.distances(inputs.content.table_LD))
        y_ND = pass_through(x_ND, StreamInputs(inputs.content, *shared)) if inputs.is_read else None
        if g_nD is not None:
            assert inputs.query is not None
            g_nD = pass_through(g_nD, StreamInputs(inputs.query, *shared))
        return y_ND, g_nD


class SegmentAttention(RelativeAttention):
    """Relative attention that also scores whether two tokens are of the same segment. `biases` are u, v and
    the segments' one."""

    def __init__(
        self,
        dim: int,
        heads: int,
        head_dim: int | None = None,
        *,
        dropout: float = 0.0,
        biases: Sequence[nn.Parameter] | None = None,
    ) -> None:
        super().__init__(dim, heads, head_dim, dropout=dropout, biases=biases and biases[:2])
        like = self.content_bias
        self.segment_bias = nn.Parameter(torch.empty_like(like)) if biases is None else biases[2]
        self.segments = nn.Parameter(torch.empty(2, *like.shape))
        """Of the same segment, and of different ones."""

    def forward(self, x_ND: Tensor, inputs: Any) -> Tensor:
        if isinstance(inputs, StreamInputs):
            return self.attend_to(x_ND, inputs.k_HRTK, inputs.v_HRTK, inputs.view, inputs.r_HLK)
        # A query of a decode writes nothing to the cache: it has no places there.
        return self.attend_to_cache(x_ND, inputs) if inputs.places is None else super().forward(x_ND, inputs)

    def segment_scores(self, q_HRQK: Tensor) -> Tensor:
        # Only the difference counts: what is added to all keys alike, the softmax takes out.
        difference_HK = follow((self.segments[1] - self.segments[0]) * self.scale, q_HRQK)
        bias_HK = follow(self.segment_bias, q_HRQK)
        return ((q_HRQK + bias_HK[:, None, None]) * difference_HK[:, None, None]).sum(-1)
