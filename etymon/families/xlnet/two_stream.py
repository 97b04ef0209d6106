"""Two streams over one text (XLNet, section 2.3): the content of tokens, and queries for places.

The content stream knows every token. The query stream exists only where something is predicted: it knows
its place, never its token, and reads the content of what comes before it in the order of factorisation.
Both go through the same layers, and both see the same keys and values, which are computed once.

Legend: N tokens, n query positions, D width, H heads, R rows, Q queries and T keys of a row, M keys before
them, L distances, G tables, K head width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from etymon.families.xlnet.block import TwoStreamInputs
from etymon.families.xlnet.views import build_views
from etymon.nn.attention import Memory
from etymon.nn.batch import Batch, Layout, QueryPositions
from etymon.nn.blocks import Body, Stack
from etymon.nn.cache import Places
from etymon.nn.embeddings import Embeddings
from etymon.nn.memory import SegmentMemory, SlidingState
from etymon.nn.relative import DistanceSinusoids, RelativeInputs, RelativeView

if TYPE_CHECKING:
    from etymon.families.xlnet import Shape


class TwoStreamStack(Stack):
    """Layers under both streams, with the distances and the visibility that the shape says."""

    decodes_by_parts = True  # the distances through a layer's map

    def __init__(self, layers: Sequence[nn.Module], shape: Shape) -> None:
        super().__init__(layers, [], dropout=shape.dropout)
        self.shape = shape
        self.sinusoids = DistanceSinusoids(shape.dim, clamp=shape.clamp, dropout=shape.dropout)

    def forward(
        self,
        x_ND: Tensor,
        batch: Batch,
        memory: Memory | None = None,
        state: Any = None,
        at: Tensor | None = None,
    ) -> Tensor:
        hidden_ND = self.streams(x_ND, batch, state)
        return hidden_ND if at is None else hidden_ND.index_select(0, at)

    def streams(
        self,
        x_ND: Tensor,
        batch: Batch,
        state: SegmentMemory | None = None,
        g_nD: Tensor | None = None,
        queries: QueryPositions | None = None,
        reuse: int | None = None,
    ) -> Tensor:
        """Hidden states of the tokens `[N, D]`, or with queries `g_nD` theirs. The state keeps the first
        `reuse` tokens of the rows (None: all)."""
        layout, layer_inputs = batch.layout, []
        content, query = build_views(self, batch, state, x_ND.dtype, queries)
        for number, layer in enumerate(self.layers):
            layer_inputs.append(x_ND)
            self._record(x_ND, g_nD)
            past_RMD = None if state is None else state.layers[number]
            # With queries, nothing reads the content behind the last layer.
            is_read = g_nD is None or number + 1 < len(self.layers) or self.seen is not None
            inputs = TwoStreamInputs(layout, content, query, past_RMD, is_read)
            next_ND, g_nD = layer.streams(x_ND, g_nD, inputs)  # type: ignore[operator]
            x_ND = next_ND if is_read else x_ND
        self._record(x_ND, g_nD)
        if state is not None:
            # Of the content stream alone: queries know no tokens that could be remembered.
            reuse = layout.longest if reuse is None else reuse
            lengths = () if layout.is_padded else [min(reuse, length) for length in layout.lengths]
            state.extend([layout.pad(part)[:, :reuse] for part in layer_inputs], lengths)
        return self.dropout(x_ND if g_nD is None else g_nD)

    def _record(self, x_ND: Tensor, g_nD: Tensor | None) -> None:
        """For `etymon.trace`: with two streams, both are kept in turn."""
        if self.seen is not None:
            self.seen.extend([x_ND] if g_nD is None else [x_ND, g_nD])

    def look_ahead(
        self, x_ND: Tensor, g_RD: Tensor, layout: Layout, begins: Sequence[int], state: LookaheadState
    ) -> tuple[Tensor, Tensor]:
        """Reads tokens of every row, from place `begins` on, behind what the state holds of those before
        them. They see each other. Returns their hidden states `[N, D]`, and those of one query a row `[R,
        D]` in the place behind."""
        past = [begin - state.dropped for begin in begins]
        # Two of the `reach` tokens that a query sees are the new one and the one that is read again with it.
        reach = None if state.empty or not state.reach else max(0, state.reach - 2)
        first = 0 if reach is None else max(0, min(past) - reach)
        device, queries = x_ND.device, layout.longest
        begins_R11 = torch.tensor(past, device=device)[:, None, None] - first
        ends_R11 = begins_R11 + torch.tensor(layout.lengths, device=device)[:, None, None]
        keys = max(old + new for old, new in zip(past, layout.lengths, strict=True)) - first
        cells = torch.arange(keys, device=device)
        hidden_R1T = cells >= ends_R11
        if reach is not None:
            hidden_R1T = hidden_R1T | (cells < begins_R11 - reach)
        distance_RQT = begins_R11 + torch.arange(queries, device=device)[:, None] - cells
        behind = max(2, queries)
        table_LD = self.sinusoids(torch.arange(keys, -behind, -1, device=device)).to(x_ND.dtype)
        content = RelativeView(
            layout,
            table_LD,
            keys,
            columns_RQT=(keys - distance_RQT).clamp_(0, keys + behind - 1),
            hidden_RQT=hidden_R1T | (distance_RQT < 0)
            if self.shape.causal
            else hidden_R1T.expand_as(distance_RQT),
        )
        query = RelativeView(
            Layout((1,) * layout.rows, device),
            table_LD,
            keys,
            columns_RQT=(keys - (ends_R11 - cells)).clamp_(0, keys + behind - 1),
            hidden_RQT=hidden_R1T,
        )
        places = Places(layout, past)
        for number, layer in enumerate(self.layers):
            attention: Any = layer.attention
            # A step needs no distance beyond 1 ahead: the state keeps these from the last step.
            r_HLK = (
                state.table(number, attention, self.sinusoids, keys + 2, x_ND)
                if behind == 2
                else attention.distances(table_LD)
            )
            cache = state.self_caches[number]
            inputs = RelativeInputs(content, cache=cache, places=places, first=first, r_HLK=r_HLK)
            x_ND = layer(x_ND, inputs)
            asking = RelativeInputs(query, cache=cache, first=first, r_HLK=r_HLK)
            g_RD = layer(g_RD, asking)
        ends = [begin + length for begin, length in zip(begins, layout.lengths, strict=True)]
        state.advance(Layout([end - old for end, old in zip(ends, state.lengths, strict=True)], device))
        return self.dropout(x_ND), self.dropout(g_RD)


class LookaheadState(SlidingState):
    """A decode that queries the next place. Its last token is read again with the next one, which it then
    sees (as published, where that was a little better)."""

    def __init__(self, layers: int, rows: int, capacity: int, reach: int) -> None:
        super().__init__(layers, rows, capacity, reach, filled=False)
        self.ids_RC = torch.zeros(rows, 0, dtype=torch.long)

    def write(self, batch: Batch) -> None:
        """The ids of new tokens, behind those there are."""
        places = Places(batch.layout, self.lengths)
        # A new array: marks and selected states may share the old one.
        grown = batch.ids.new_zeros(batch.layout.rows, places.needed)
        kept = min(self.ids_RC.shape[1], places.needed)
        grown[:, :kept] = self.ids_RC[:, :kept]
        grown[places.indices] = batch.ids
        self.ids_RC = grown

    def _rows_of(self, other: Any, rows: Tensor) -> None:
        super()._rows_of(other, rows)
        self.ids_RC = other.ids_RC[rows]

    def join(self, other: Any, rows: int, cells: int) -> None:
        super().join(other, rows, cells)
        parts = self.ids_RC, other.ids_RC
        longest = max(part.shape[1] for part in parts)
        self.ids_RC = torch.cat([F.pad(part, (0, longest - part.shape[1])) for part in parts])


class TwoStreamBody(Body):
    """Word vectors, a vector that stands for no word, and two streams; texts of any length."""

    stack: TwoStreamStack

    def __init__(self, embeddings: Embeddings, stack: TwoStreamStack) -> None:
        super().__init__(embeddings, stack)
        self.memory, self.reuse = stack.shape.memory or 0, stack.shape.reuse or None
        # Beside the word vectors, where it trains at their rate.
        embeddings.blank = nn.Parameter(torch.empty(1, stack.sinusoids.dim))

    @property
    def reads_prefix(self) -> bool:
        """A prompt is read at once, in both directions."""
        return not self.stack.shape.causal

    def forward(
        self, batch: Batch, memory: Memory | None = None, state: Any = None, embedded: Tensor | None = None
    ) -> Tensor:
        if isinstance(state, LookaheadState):
            return self._look_ahead(batch, state)
        return self.stack.streams(self.embeddings(batch, embedded), batch, state, reuse=self.reuse)

    def two_stream(
        self,
        batch: Batch,
        queries: QueryPositions,
        state: SegmentMemory | None = None,
        embedded: Tensor | None = None,
        reuse: int | None = None,
    ) -> Tensor:
        """Hidden states `[n, D]` of what stands in some places, given what comes before them in the batch's
        order."""
        x_ND = self.embeddings(batch, embedded)
        g_nD = self._blanks(len(queries.at))
        return self.stack.streams(x_ND, batch, state, g_nD, queries, self.reuse if reuse is None else reuse)

    def remember(self, rows: int, length: int | None = None) -> SegmentMemory:
        return SegmentMemory(len(self.stack.layers), rows, self.memory if length is None else length)

    def start(self, rows: int, capacity: int = 0) -> LookaheadState:
        return LookaheadState(len(self.stack.layers), rows, capacity, self.memory)

    def _blanks(self, count: int) -> Tensor:
        blank_1D: Any = self.embeddings.blank
        return self.embeddings.dropout(self.embeddings.enter(blank_1D).expand(count, -1))

    def _look_ahead(self, batch: Batch, state: LookaheadState) -> Tensor:
        """For every new token, the hidden state `[N, D]` of a query in the place behind it. A prefix is
        read at once, and only its last token has a query: of the others there is the content."""
        old, new, device = state.lengths, batch.layout.lengths, batch.device
        prefix = [1] * len(old)
        if state.empty and batch.prefix is not None:
            prefix = batch.prefix[batch.layout.first].clamp(min=1).tolist()
        state.write(batch)
        last = [past + more for past, more in zip(old, new, strict=True)]
        ends = [min(stop, past + size) for stop, past, size in zip(last, old, prefix, strict=True)]
        begins = [max(0, past - 1) for past in old]
        # Where the token that makes a row `length` long lies in the batch: offset + length.
        offsets = [
            start - past - 1 for start, past in zip(batch.layout.host_starts.tolist(), old, strict=True)
        ]
        hidden_ND = None
        while True:
            layout = Layout([end - begin for begin, end in zip(begins, ends, strict=True)], device)
            first = torch.tensor(begins, device=device)[layout.row]
            # The ids are kept, since the last token is read once more.
            ids = state.ids_RC[layout.row, first + layout.index]
            x_ND = self.embeddings(Batch(ids, layout, layout.index))
            x_ND, g_RD = self.stack.look_ahead(x_ND, self._blanks(layout.rows), layout, begins, state)
            if hidden_ND is None:
                hidden_ND = x_ND.new_zeros(batch.layout.tokens, x_ND.shape[-1])
                if not any(old):
                    hidden_ND[layout.index + batch.layout.first[layout.row]] = x_ND
            hidden_ND[[offset + end for offset, end in zip(offsets, ends, strict=True)]] = g_RD
            if ends == last:
                return hidden_ND
            # Rows that are done read their last two tokens once more, which changes nothing.
            ends = [min(stop, end + 1) for stop, end in zip(last, ends, strict=True)]
            begins = [max(0, end - 2) for end in ends]
