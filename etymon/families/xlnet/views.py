"""Who sees whom in the two streams of XLNet (section 2.2): the order of factorisation, memory, segments and
distances.

Legend: N tokens, n query positions, D width, R rows, Q queries and T keys of a row, L distances.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from etymon.nn.batch import Batch, Layout, QueryPositions
from etymon.nn.memory import SegmentMemory
from etymon.nn.relative import RelativeView

if TYPE_CHECKING:
    from etymon.families.xlnet.two_stream import TwoStreamStack


def build_views(
    stack: TwoStreamStack,
    batch: Batch,
    state: SegmentMemory | None,
    dtype: torch.dtype,
    positions: QueryPositions | None,
) -> tuple[RelativeView, RelativeView | None]:
    """Who sees whom, once for all layers: the view of the tokens, and that of queries, if there are some."""
    layout, device = batch.layout, batch.device
    rows, queries = layout.rows, layout.longest
    before = 0 if state is None else state.width
    keys = before + queries
    order_N = batch.order
    if positions is not None and order_N is None:  # what is predicted comes last: nothing sees it
        order_N = torch.zeros_like(batch.ids).index_fill_(0, positions.at, 1)
    # Memory comes before everything in any order: all see it.
    lowest = torch.iinfo(torch.int64).min
    order_RT = None if order_N is None else _behind(before, layout.pad(order_N), lowest)
    segments_RT = None if batch.segments is None else _behind(before, layout.pad(batch.segments), 0)
    absent_RT = _absent_keys(batch, state, before)
    cell_T = torch.arange(keys, device=device)
    # Texts that were turned round are the last rows. Their distances have the other sign: they get a table
    # of their own, and where both kinds are not equally many, both tables are one and columns say which
    # half.
    back = batch.backward
    if back is None:
        back = rows // 2 if stack.shape.both_ways else 0
    distances_L = torch.arange(keys - 1, -2 if stack.shape.causal else -queries - 1, -1, device=device)
    signs = (1,) if not back else (-1,) if back == rows else (1, -1)
    tables = [stack.sinusoids(sign * distances_L).to(dtype) for sign in signs]
    mixed = len(tables) == 2 and 2 * back != rows
    table_LD = tables[0] if len(tables) == 1 else torch.cat(tables) if mixed else torch.stack(tables)
    turned_R11 = (torch.arange(rows, device=device) >= rows - back)[:, None, None] * distances_L.shape[0]

    def view(query: Layout, place_RQ1: Tensor, at: Tensor | None) -> RelativeView:
        """Of the tokens themselves, or of queries at the flat places `at`."""
        hidden = None if absent_RT is None else absent_RT[:, None]
        if order_RT is not None and order_N is not None:
            order_RQ = order_RT[:, before:] if at is None else query.pad(order_N[at])
            # A token sees those of its own number, a query only those of smaller ones: never its own token.
            later = torch.gt if at is None else torch.ge
            later_RQT = later(order_RT[:, None], order_RQ[:, :, None])
            hidden = later_RQT if hidden is None else hidden | later_RQT
        if stack.shape.causal:
            distance = place_RQ1 + before - cell_T
            beyond = distance < 0
            if stack.shape.same_length:
                beyond = beyond | (distance > before)
            hidden = beyond if hidden is None else hidden | beyond
        if hidden is not None and at is None:  # a token always sees itself
            hidden = hidden & (cell_T != place_RQ1 + before)
        columns = None
        # Queries stand anywhere, and both tables in one need an offset: no common stride.
        if at is not None or mixed:
            columns = queries - 1 - place_RQ1 + cell_T + (turned_R11 if mixed else 0)
            columns = columns.expand(rows, -1, -1).clamp(0, table_LD.shape[-2] - 1)
        differs = None
        if segments_RT is not None and batch.segments is not None:
            segments_RQ = segments_RT[:, before:] if at is None else query.pad(batch.segments[at])
            differs = (segments_RT[:, None] != segments_RQ[:, :, None]).to(dtype)
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

    content = view(layout, torch.arange(queries, device=device)[None, :, None], None)
    if positions is None:
        return content, None
    query = Layout(positions.counts, device)
    return content, view(query, query.pad(layout.index[positions.at])[:, :, None], positions.at)


def _absent_keys(batch: Batch, state: SegmentMemory | None, before: int) -> Tensor | None:
    """Keys that nothing sees, `[R, T]`: cells without a token, and hidden ones. None if there are none."""
    missing = None if state is None else state.missing(batch.device)
    if missing is None and batch.layout.equal and batch.hidden_keys is None:
        return None
    absent_RQ = ~batch.layout.real
    if batch.hidden_keys is not None:
        absent_RQ = absent_RQ | batch.layout.pad(batch.hidden_keys)
    return _behind(before, absent_RQ, False) if missing is None else torch.cat([missing, absent_RQ], 1)


def _behind(before: int, column_RQ: Tensor, value: int | bool) -> Tensor:
    """A column of the rows behind `before` cells of a constant, which stand for the memory."""
    return F.pad(column_RQ, (before, 0), value=value) if before else column_RQ
