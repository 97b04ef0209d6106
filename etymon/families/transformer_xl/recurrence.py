"""Stacks over a segment and what is remembered of those before it (Transformer-XL, section 3.2).

Legend: N tokens, D width, R rows, Q and T longest row of queries and of keys, M remembered tokens, H heads,
L distances, K head width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from etymon.nn.attention import Memory
from etymon.nn.batch import Batch, Layout
from etymon.nn.blocks import Body, Stack
from etymon.nn.cache import Places
from etymon.nn.embeddings import Embeddings
from etymon.nn.memory import SegmentMemory, SlidingState
from etymon.nn.padded import PaddedMemory
from etymon.nn.relative import DistanceSinusoids, RelativeInputs, RelativeView

if TYPE_CHECKING:
    from etymon.families.transformer_xl import Shape

PIECE = 512
"""Tokens of a row that a decode reads at once (or its reach, if that is more): scores of a long prompt
would not fit."""


InputsOfLayer = Callable[[int, Any], RelativeInputs]
"""The number of a layer and the layer to its inputs."""


class RecurrentStack(Stack):
    """Layers of relative attention over a segment and what is remembered. With `same_length`, every query
    sees as many tokens as the memory is long, itself included, wherever in its segment it stands."""

    decodes_by_parts = True  # the distances through a layer's map

    def __init__(self, layers: Sequence[nn.Module], shape: Shape) -> None:
        super().__init__(layers, [], dropout=shape.dropout)
        self.memory, self.same_length = shape.memory, shape.same_length
        self.sinusoids = DistanceSinusoids(shape.dim, clamp=shape.clamp, dropout=shape.dropout)

    def forward(
        self,
        x_ND: Tensor,
        batch: Batch,
        memory: Memory | None = None,
        state: Any = None,
        at: Tensor | None = None,
    ) -> Tensor:
        layout = batch.layout
        decodes = isinstance(state, SlidingState)
        inputs_of = self._decode(layout, x_ND, state) if decodes else self._read(x_ND, batch, state)
        hidden = [x_ND]
        for number, layer in enumerate(self.layers):
            hidden.append(layer(hidden[-1], inputs_of(number, layer)))
        if self.seen is not None:
            self.seen.extend(hidden)
        if decodes:
            state.advance(layout)
        elif state is not None:
            # The inputs of the layers, not their outputs: each maps the past through its own matrices.
            lengths = () if layout.is_padded else layout.lengths
            state.extend([layout.pad(part) for part in hidden[:-1]], lengths)
        return self.dropout(hidden[-1] if at is None else hidden[-1].index_select(0, at))

    def _read(self, x_ND: Tensor, batch: Batch, state: SegmentMemory | None) -> InputsOfLayer:
        """All rows side by side: memories end where segments begin, so that distances are the same in each
        row."""
        before, layout, device = 0 if state is None else state.width, batch.layout, x_ND.device
        queries = layout.longest
        distance_QT = torch.arange(queries, device=device)[:, None] + before
        distance_QT = distance_QT - torch.arange(before + queries, device=device)
        hidden_RQT = (distance_QT < 0)[None]
        length = self.memory if state is None else state.length
        if self.same_length and length:
            hidden_RQT = hidden_RQT | (distance_QT >= length)
        missing = None if state is None else state.missing(device)
        if missing is not None or batch.hidden_keys is not None:
            # Only such batches need a mask a row; otherwise all share one.
            blank_R1 = torch.zeros(layout.rows, 1, dtype=torch.bool, device=device)
            missing = blank_R1.expand(-1, before) if missing is None else missing
            hidden = blank_R1.expand(-1, queries)
            hidden = hidden if batch.hidden_keys is None else layout.pad(batch.hidden_keys)
            hidden_RQT = hidden_RQT | torch.cat([missing, hidden], 1)[:, None]
        # One distance more than there are keys: reading with another stride needs a wider table.
        table_LD = self.sinusoids(torch.arange(before + queries - 1, -2, -1, device=device)).to(x_ND.dtype)
        blind = batch.hidden_keys is not None
        view = RelativeView(
            layout, table_LD, before + queries, offset=queries - 1, hidden_RQT=hidden_RQT, blind=blind
        )
        past = [None] * len(self.layers) if state is None else state.layers
        return lambda number, layer: RelativeInputs(view, past[number], _norm_of_past(layer))

    def _decode(self, new: Layout, x_ND: Tensor, state: SlidingState) -> InputsOfLayer:
        """Where the new tokens of one call of a decode go, and what they see."""
        past, reach, queries, device = state.cached_lengths, state.reach, new.longest, x_ND.device
        # A start of zeros is written to the caches with the first tokens.
        zeros = reach if state.filled and state.dropped < 0 and state.empty else 0
        zeros_RMD = x_ND.new_zeros(new.rows, zeros, x_ND.shape[-1])
        written = Layout([zeros + length for length in new.lengths], device)
        cells = Places(written, [old - zeros for old in past])
        # With `same_length` a token is itself one of those that it sees.
        narrow = self.same_length and reach > 0
        back = reach - 1 if narrow else reach
        first = max(0, min(past) - back) if reach else 0
        keys = max(old + length for old, length in zip(past, new.lengths, strict=True)) - first
        begins = torch.tensor(past, device=device)[:, None, None] - first
        equal = len(set(past)) == 1
        if equal:
            begins = begins[:1]
            keys = past[0] + queries - first
        place_RQ1 = torch.arange(queries, device=device)[:, None] + begins
        distance_RQT = place_RQ1 - torch.arange(keys, device=device)
        hidden = distance_RQT < 0
        if reach:
            # A prompt is a segment: all of it sees as far back as its first token does.
            within = place_RQ1 - begins if state.reading and not narrow else 0
            hidden = hidden | (distance_RQT > within + back)
        view = RelativeView(
            new,
            x_ND.new_empty(keys + 1, 1),  # only its length and kind are read: the state has the distances
            keys,
            offset=queries - 1 if equal else None,
            columns_RQT=None if equal else (keys - 1 - distance_RQT).clamp_(0, keys),
            hidden_RQT=hidden if queries > 1 or not equal else None,
        )
        return lambda number, layer: RelativeInputs(
            view,
            zeros_RMD if zeros else None,
            _norm_of_past(layer),
            cache=state.self_caches[number],
            places=cells,
            first=first,
            r_HLK=state.table(number, layer.attention, self.sinusoids, keys + 1, view.table_LD),
        )


def _norm_of_past(layer: Any) -> nn.Module | None:
    """With norms before the parts, the past that a layer's attention reads is normed like the present."""
    return layer.attention_norm if layer.norm_first else None


class RecurrentBody(Body):
    """Word vectors and a stack that remembers; texts of any length."""

    stack: RecurrentStack

    def __init__(self, embeddings: Embeddings, stack: RecurrentStack, *, zero_start: bool = False) -> None:
        super().__init__(embeddings, stack)
        self.zero_start = zero_start

    def forward(
        self, batch: Batch, memory: Memory | None = None, state: Any = None, embedded: Tensor | None = None
    ) -> Tensor:
        layout = batch.layout
        # A text by itself begins behind zeros, too, where a model was trained so.
        if state is None and self.zero_start and self.stack.memory:
            state = self.remember(layout.rows) if not layout.is_padded else self._zeros(layout)
        if isinstance(state, SlidingState):
            state.reading = state.empty
        piece = max(state.reach, PIECE) if isinstance(state, SlidingState) and state.reach else layout.longest
        if layout.longest <= piece:
            return super().forward(batch, memory, state, embedded)
        pieces, places = [], []
        for start in range(0, layout.longest, piece):
            # Rows that have ended take part with no tokens.
            at_n = torch.where((layout.index >= start) & (layout.index < start + piece))[0]
            lengths = [min(max(length - start, 0), piece) for length in layout.lengths]
            part = Batch(batch.ids[at_n], Layout(lengths, batch.device), batch.positions[at_n], counted=False)
            pieces.append(super().forward(part, None, state, None if embedded is None else embedded[at_n]))
            places.append(at_n)
        return torch.cat(pieces)[torch.cat(places).argsort()]

    def _zeros(self, layout: Layout) -> PaddedMemory:
        width, like = self.stack.sinusoids.dim, next(self.parameters()).detach()
        zeros_RMD = like.new_zeros(layout.rows, self.stack.memory, width)
        return PaddedMemory([zeros_RMD] * len(self.stack.layers), self.stack.memory)

    @property
    def reach(self) -> int | None:
        return self.stack.memory or None

    def remember(self, rows: int, length: int | None = None) -> SegmentMemory:
        """The memory of `rows` streams before their first segment, with room for `length` tokens (None: the
        shape's)."""
        length = self.stack.memory if length is None else length
        zeros = next(self.parameters()).detach().new_zeros(self.stack.sinusoids.dim)
        return SegmentMemory(len(self.stack.layers), rows, length, filled=zeros if self.zero_start else None)

    def start(self, rows: int, capacity: int = 0) -> SlidingState:
        reach = self.stack.memory
        return SlidingState(
            len(self.stack.layers), rows, capacity, reach, filled=self.zero_start and reach > 0
        )
