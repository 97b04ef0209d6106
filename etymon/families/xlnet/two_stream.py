"""Two streams over one text (XLNet, section 2.3): what a token says, and what stands in its place.

The content stream knows every token. The query stream exists only where something is asked: it knows its place, never its
token, and reads the content of what comes before it in the order of factorisation. Both go through the same layers, and both
see the same keys and values, which are computed once.

Legend: N tokens, n asked places, D width, H heads, R rows, Q queries and T keys of a row, M keys before them, L distances, G
tables, K head width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from etymon.nn.attention import Memory, QuerySubset
from etymon.nn.batch import Batch, Layout, QueryPositions
from etymon.nn.blocks import Body, Stack
from etymon.nn.cache import Places
from etymon.nn.embeddings import Embeddings
from etymon.nn.memory import SegmentMemory, SlidingState
from etymon.nn.relative import DistanceSinusoids, RelativeAttention, RelativeInputs, RelativeView, remembered


@dataclass
class StreamInputs(QuerySubset):
    """What one stream looks at in one layer: the keys, values and distances that both have in common."""

    view: RelativeView
    k_HRTK: Tensor
    v_HRTK: Tensor
    r_HLK: Tensor


class SegmentAttention(RelativeAttention):
    """Relative attention that also tells whether two tokens are of the same segment. `biases` are u, v and the segments' one."""

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

    def forward(self, x_ND: Tensor, sight: Any) -> Tensor:
        if isinstance(sight, StreamInputs):
            return self.look(x_ND, sight.k_HRTK, sight.v_HRTK, sight.view, sight.r_HLK)
        return self.reread(x_ND, sight) if sight.places is None else super().forward(x_ND, sight)

    def apart(self, q_HRQK: Tensor) -> Tensor:
        # What keys of the same segment get is common to all: the softmax takes it out.
        difference_HK = (self.segments[1] - self.segments[0]) * self.scale
        return ((q_HRQK + self.segment_bias[:, None, None]) * difference_HK[:, None, None]).sum(-1)


class TwoStreamStack(Stack):
    """`causal` is the published attention type "uni"; `same_length` then hides what is further back than the memory is long."""

    def __init__(
        self,
        layers: Sequence[nn.Module],
        sinusoids: DistanceSinusoids,
        *,
        causal: bool = False,
        same_length: bool = False,
        both_ways: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(layers, [], dropout=dropout)
        self.sinusoids, self.causal, self.same_length = sinusoids, causal, same_length
        self.both_ways = both_ways
        """Unless a batch tells, the second half of its rows are texts that were turned round."""

    def forward(
        self, x_ND: Tensor, batch: Batch, memory: Memory | None = None, state: Any = None, at: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        hidden_ND = self.streams(x_ND, batch, state)
        return hidden_ND if at is None else hidden_ND.index_select(0, at)

    def streams(
        self,
        x_ND: Tensor,
        batch: Batch,
        state: SegmentMemory | None = None,
        g_nD: Tensor | None = None,
        asked: QueryPositions | None = None,
        reuse: int | None = None,
    ) -> Tensor:
        """Hidden states of the tokens, or else those of what is asked; the state takes up the first `reuse` tokens of the
        rows (None: all)."""
        layout, inputs = batch.layout, []
        content, query = _views(self, batch, state, x_ND.dtype, asked)
        for number, layer in enumerate(self.layers):
            attention: Any = layer.attention
            inputs.append(x_ND)
            self._see(x_ND, g_nD)
            past_RMD = None if state is None else state.layers[number]
            k_HRTK, v_HRTK = attention.keys(remembered(past_RMD, layout.lift(x_ND)))
            sight = StreamInputs(content, k_HRTK, v_HRTK, attention.distances(content.table_LD))
            # Nobody reads the content behind the last layer if something else is asked.
            if g_nD is None or number + 1 < len(self.layers) or self.seen is not None:
                x_ND = layer(x_ND, sight)
            if g_nD is not None:
                assert query is not None
                g_nD = layer(g_nD, replace(sight, view=query))
        self._see(x_ND, g_nD)
        if state is not None:
            reuse = layout.longest if reuse is None else reuse
            lengths = [min(reuse, length) for length in layout.lengths]
            state.extend([layout.lift(part)[:, :reuse] for part in inputs], lengths)
        return self.dropout(x_ND if g_nD is None else g_nD)

    def _see(self, x_ND: Tensor, g_nD: Tensor | None) -> None:
        """With two streams, both are kept in turn."""
        if self.seen is not None:
            self.seen.extend([x_ND] if g_nD is None else [x_ND, g_nD])

    def ahead(
        self, x_ND: Tensor, g_RD: Tensor, layout: Layout, begins: Sequence[int], state: LookaheadState
    ) -> tuple[Tensor, Tensor]:
        """Reads tokens of every row, the first of which are its `begins`, behind what the state holds of those before them.
        They see each other. Gives their hidden states, and those of queries in the places behind them."""
        past = [begin - state.dropped for begin in begins]
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
            hidden_RQT=hidden_R1T | (distance_RQT < 0) if self.causal else hidden_R1T.expand_as(distance_RQT),
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
            # A step needs the distances back to 1 ahead, which a state knows from the last step.
            r_HLK = (
                state.table(number, attention, self.sinusoids, keys + 2, x_ND)
                if behind == 2
                else attention.distances(table_LD)
            )
            cache = state.self_caches[number]
            sight = RelativeInputs(content, cache=cache, places=places, first=first, r_HLK=r_HLK)
            x_ND = layer(x_ND, sight)
            g_RD = layer(g_RD, RelativeInputs(query, cache=cache, first=first, r_HLK=r_HLK))
        ends = [begin + length for begin, length in zip(begins, layout.lengths, strict=True)]
        state.advance(Layout([end - old for end, old in zip(ends, state.lengths, strict=True)], device))
        return self.dropout(x_ND), self.dropout(g_RD)


def _views(
    stack: TwoStreamStack,
    batch: Batch,
    state: SegmentMemory | None,
    dtype: torch.dtype,
    asked: QueryPositions | None,
) -> tuple[RelativeView, RelativeView | None]:
    """Who sees whom, once for all layers: the tokens, and what is asked."""
    layout, device = batch.layout, batch.device
    rows, queries = layout.rows, layout.longest
    before = 0 if state is None else state.width
    keys = before + queries
    order_N = batch.order
    if asked is not None and order_N is None:  # what is asked comes last: nobody sees it
        order_N = torch.zeros_like(batch.ids).index_fill_(0, asked.at, 1)
    lowest = torch.iinfo(torch.int64).min
    order_RT = None if order_N is None else _behind(before, layout.lift(order_N), lowest)
    segments_RT = None if batch.segments is None else _behind(before, layout.lift(batch.segments), 0)
    absent_RT = _absent(batch, state, before)
    place_Q, cell_T = torch.arange(queries, device=device), torch.arange(keys, device=device)
    back = batch.backward
    if back is None:
        back = rows // 2 if stack.both_ways else 0
    distances_L = torch.arange(keys - 1, -2 if stack.causal else -queries - 1, -1, device=device)
    tables = [
        stack.sinusoids(way * distances_L).to(dtype) for way in (1, -1)[back == rows > 0 : 1 + (back > 0)]
    ]
    mixed = len(tables) == 2 and 2 * back != rows
    table_LD = tables[0] if len(tables) == 1 else torch.cat(tables) if mixed else torch.stack(tables)
    # Where texts of both ways are not equally many, there is one table of both.
    turned_R11 = (torch.arange(rows, device=device) >= rows - back)[:, None, None] * len(distances_L)

    def view(query: Layout, place_RQ1: Tensor, own: Tensor, at: Tensor | None) -> RelativeView:
        hidden = absent_RT[:, None] if absent_RT is not None else None
        if order_RT is not None:
            order_RQ1 = own[:, :, None]
            later = order_RT[:, None] > order_RQ1 if at is None else order_RT[:, None] >= order_RQ1
            hidden = later if hidden is None else hidden | later
        if stack.causal:
            distance = place_RQ1 + before - cell_T
            beyond = distance < 0
            if stack.same_length:
                beyond = beyond | (distance > before)
            hidden = beyond if hidden is None else hidden | beyond
        if hidden is not None and at is None:  # a token always sees itself
            hidden = hidden & (cell_T != place_RQ1 + before)
        columns = None
        if at is not None or mixed:
            columns = queries - 1 - place_RQ1 + cell_T + (turned_R11 if mixed else 0)
            columns = columns.expand(rows, -1, -1).clamp(0, table_LD.shape[-2] - 1)
        differs = None
        if segments_RT is not None:
            own_segments = segments_RT[:, before:] if at is None else query.lift(batch.segments[at])  # type: ignore[index]
            differs = (segments_RT[:, None] != own_segments[:, :, None]).to(dtype)
        return RelativeView(
            query,
            table_LD,
            keys,
            offset=queries - 1 if columns is None else None,
            columns_RQT=columns,
            hidden_RQT=hidden,
            blind=at is not None,
            differs_RQT=differs,
        )

    own_RQ = order_RT[:, before:] if order_RT is not None else place_Q[None]
    content = view(layout, place_Q[None, :, None], own_RQ, None)
    if asked is None or order_N is None:
        return content, None
    query = Layout(asked.counts, device)
    place_RQ1 = query.lift(layout.index[asked.at])[:, :, None]
    return content, view(query, place_RQ1, query.lift(order_N[asked.at]), asked.at)


def _absent(batch: Batch, state: SegmentMemory | None, before: int) -> Tensor | None:
    """Keys that nobody sees, `[R, T]`: cells without a token, and hidden ones."""
    missing = None if state is None else state.missing(batch.device)
    if missing is None and batch.layout.equal and batch.hidden_keys is None:
        return None
    absent_RQ = ~batch.layout.real
    if batch.hidden_keys is not None:
        absent_RQ = absent_RQ | batch.layout.lift(batch.hidden_keys)
    absent_RT = _behind(before, absent_RQ, False)
    if missing is not None:
        absent_RT[:, :before] = missing
    return absent_RT


def _behind(before: int, column_RQ: Tensor, value: int | bool) -> Tensor:
    """A column of the rows behind a constant one of what they remember."""
    if not before:
        return column_RQ
    return torch.cat([column_RQ.new_full((len(column_RQ), before), value), column_RQ], 1)


class LookaheadState(SlidingState):
    """A decode that asks what stands in the next place. Its last token is read again with the next one, which it then sees
    (as published: that was found to be a little better)."""

    def __init__(self, layers: int, rows: int, capacity: int, reach: int) -> None:
        super().__init__(layers, rows, capacity, reach, filled=False)
        self.ids_RC = torch.zeros(rows, 0, dtype=torch.long)

    def write(self, batch: Batch) -> None:
        """The ids of new tokens, behind those there are."""
        places = Places(batch.layout, self.lengths)
        grown = batch.ids.new_zeros(batch.layout.rows, places.needed)
        kept = min(self.ids_RC.shape[1], places.needed)
        grown[:, :kept] = self.ids_RC[:, :kept]
        grown[places.indices] = batch.ids
        self.ids_RC = grown

    def _rows_of(self, other: Any, rows: Tensor) -> None:
        super()._rows_of(other, rows)
        self.ids_RC = other.ids_RC[rows]


class TwoStreamBody(Body):
    """Word vectors, a vector that stands for no word, and two streams; texts of any length."""

    stack: TwoStreamStack

    def __init__(
        self, embeddings: Embeddings, stack: TwoStreamStack, *, memory: int = 0, reuse: int | None = None
    ) -> None:
        super().__init__(embeddings, stack)
        self.memory, self.reuse = memory, reuse
        # Beside the word vectors, where it trains at their rate.
        embeddings.blank = nn.Parameter(torch.empty(1, stack.sinusoids.dim))

    @property
    def reads_prefix(self) -> bool:
        """A prompt is read at once, in both directions."""
        return not self.stack.causal

    def forward(
        self, batch: Batch, memory: Memory | None = None, state: Any = None, embedded: Tensor | None = None
    ) -> Tensor:
        if isinstance(state, LookaheadState):
            return self._ahead(batch, state)
        return self.stack.streams(self.embeddings(batch, embedded), batch, state, reuse=self.reuse)

    def two_stream(
        self,
        batch: Batch,
        asked: QueryPositions,
        state: SegmentMemory | None = None,
        embedded: Tensor | None = None,
        reuse: int | None = None,
    ) -> Tensor:
        """Hidden states `[n, D]` of what stands in the places asked, given what comes before them in the batch's order."""
        x_ND = self.embeddings(batch, embedded)
        g_nD = self._blanks(len(asked.at))
        return self.stack.streams(x_ND, batch, state, g_nD, asked, self.reuse if reuse is None else reuse)

    def remember(self, rows: int, length: int | None = None) -> SegmentMemory:
        return SegmentMemory(len(self.stack.layers), rows, self.memory if length is None else length)

    def start(self, rows: int, capacity: int = 0) -> LookaheadState:
        return LookaheadState(len(self.stack.layers), rows, capacity, self.memory)

    def _blanks(self, count: int) -> Tensor:
        blank_1D: Any = self.embeddings.blank
        return self.embeddings.dropout(blank_1D.expand(count, -1))

    def _ahead(self, batch: Batch, state: LookaheadState) -> Tensor:
        """For every new token, the hidden state of a query in the place behind it. A prefix is read at once, and only its last
        token has a query: of the others there is the content."""
        old, new, device = state.lengths, batch.layout.lengths, batch.device
        prefix = [1] * len(old)
        if state.empty and batch.prefix is not None:
            prefix = batch.prefix[batch.layout.first].clamp(min=1).tolist()
        state.write(batch)
        last = [past + more for past, more in zip(old, new, strict=True)]
        ends = [min(stop, past + size) for stop, past, size in zip(last, old, prefix, strict=True)]
        begins = [max(0, past - 1) for past in old]
        hidden_ND, starts = None, batch.layout.host_starts
        while True:
            layout = Layout([end - begin for begin, end in zip(begins, ends, strict=True)], device)
            first = torch.tensor(begins, device=device)[layout.row]
            ids = state.ids_RC[layout.row, first + layout.index]
            x_ND = self.embeddings(Batch(ids, layout, layout.index))
            x_ND, g_RD = self.stack.ahead(x_ND, self._blanks(layout.rows), layout, begins, state)
            if hidden_ND is None:
                hidden_ND = x_ND.new_zeros(batch.layout.tokens, x_ND.shape[-1])
                if not any(old):
                    at = layout.index + torch.from_numpy(starts).to(device)[layout.row]
                    hidden_ND[at] = x_ND
            at = torch.tensor(
                [start + end - past - 1 for start, end, past in zip(starts.tolist(), ends, old, strict=True)],
                device=device,
            )
            hidden_ND[at] = g_RD
            if ends == last:
                return hidden_ND
            # Rows that are done read their last two tokens once more, which changes nothing.
            ends = [min(stop, end + 1) for stop, end in zip(last, ends, strict=True)]
            begins = [max(0, end - 2) for end in ends]
