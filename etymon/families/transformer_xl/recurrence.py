"""Stacks over a segment and what is remembered of those before (Transformer-XL, section 3.2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from etymon.nn.attention import Memory
from etymon.nn.batch import Batch, Layout
from etymon.nn.blocks import Body, Stack
from etymon.nn.cache import Places
from etymon.nn.embeddings import Embeddings
from etymon.nn.memory import SegmentMemory, SlidingState
from etymon.nn.relative import DistanceSinusoids, RelativeInputs, RelativeView

PIECE = 512
"""Tokens of a row that a decode reads at once, or as many as it reaches back, if those are more: long prompts are read in segments."""


InputsOfLayer = Callable[[int, Any], RelativeInputs]
"""What a layer looks at, by its number."""


class RecurrentStack(Stack):
    """Layers of relative attention over a segment and what is remembered. With `same_length`, every query sees as many tokens
    as the memory is long, itself included, wherever in its segment it stands."""

    def __init__(
        self,
        layers: Sequence[torch.nn.Module],
        sinusoids: DistanceSinusoids,
        *,
        memory: int,
        same_length: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(layers, [], dropout=dropout)
        self.sinusoids, self.memory, self.same_length = sinusoids, memory, same_length

    def forward(
        self, x_ND: Tensor, batch: Batch, memory: Memory | None = None, state: Any = None, at: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        layout = batch.layout
        decodes = isinstance(state, SlidingState)
        sight = self._decoding(layout, x_ND, state) if decodes else self._reading(x_ND, batch, state)
        inputs = [x_ND]
        for number, layer in enumerate(self.layers):
            inputs.append(layer(inputs[-1], sight(number, layer)))
        if self.seen is not None:
            self.seen.extend(inputs)
        if decodes:
            state.advance(layout)
        elif state is not None:
            state.extend([layout.lift(part) for part in inputs[:-1]], layout.lengths)
        return self.dropout(inputs[-1] if at is None else inputs[-1].index_select(0, at))

    def _reading(self, x_ND: Tensor, batch: Batch, state: SegmentMemory | None) -> InputsOfLayer:
        """All rows side by side: what they remember ends where their segments begin, so distances are the same in each."""
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
            blank = torch.zeros(layout.rows, before + queries, dtype=torch.bool, device=device)
            if missing is not None:
                blank[:, :before] = missing
            if batch.hidden_keys is not None:
                blank[:, before:] = layout.lift(batch.hidden_keys)
            hidden_RQT = hidden_RQT | blank[:, None]
        table_LD = self.sinusoids(torch.arange(before + queries - 1, -2, -1, device=device)).to(x_ND.dtype)
        blind = batch.hidden_keys is not None
        view = RelativeView(
            layout, table_LD, before + queries, offset=queries - 1, hidden_RQT=hidden_RQT, blind=blind
        )
        past = [None] * len(self.layers) if state is None else state.layers
        return lambda number, layer: RelativeInputs(view, _normed(layer, past[number]))

    def _decoding(self, new: Layout, x_ND: Tensor, state: SlidingState) -> InputsOfLayer:
        """Where the new tokens of one call of a decode go, and what they see."""
        opening = state.reach if state.filled and state.dropped < 0 and state.empty else 0
        zeros = x_ND.new_zeros(new.rows, opening, x_ND.shape[-1])
        past, reach = state.cached, state.reach
        opened = Layout([opening + length for length in new.lengths], x_ND.device)
        cells = Places(opened, [old - opening for old in past])
        # With `same_length` a token is one of those that it sees.
        narrow = self.same_length and reach > 0
        back = reach - 1 if narrow else reach
        first = max(0, min(past) - back) if reach else 0
        keys = max(old + length for old, length in zip(past, new.lengths, strict=True)) - first
        queries = new.longest
        begins = torch.tensor(past, device=x_ND.device)[:, None, None] - first
        if len(set(past)) == 1:
            begins = begins[:1]
            keys = past[0] + queries - first
        places = torch.arange(queries, device=x_ND.device)[:, None] + begins
        distance_RQT = places - torch.arange(keys, device=x_ND.device)
        hidden = distance_RQT < 0
        if reach:
            within = places - begins if state.reading and not narrow else 0
            hidden = hidden | (distance_RQT > within + back)
        even = len(begins) == 1
        view = RelativeView(
            new,
            x_ND.new_empty(keys + 1, 1),
            keys,
            offset=queries - 1 if even else None,
            columns_RQT=None if even else (keys - 1 - distance_RQT).clamp_(0, keys),
            hidden_RQT=hidden if queries > 1 or not even else None,
        )
        return lambda number, layer: RelativeInputs(
            view,
            _normed(layer, zeros) if opening else None,
            cache=state.self_caches[number],
            places=cells,
            first=first,
            r_HLK=state.table(number, layer.attention, self.sinusoids, keys + 1, view.table_LD),
        )


def _normed(layer: Any, past_RMD: Tensor | None) -> Tensor | None:
    """What a layer's attention is shown of the past: as it is shown the present."""
    return past_RMD if past_RMD is None or not layer.norm_first else layer.attention_norm(past_RMD)


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
        if state is None and self.zero_start and self.stack.memory:
            state = self.remember(len(layout.lengths))
        if isinstance(state, SlidingState):
            state.reading = state.empty
        piece = max(state.reach, PIECE) if isinstance(state, SlidingState) and state.reach else layout.longest
        if layout.longest <= piece:
            return super().forward(batch, memory, state, embedded)
        pieces, places = [], []
        for start in range(0, layout.longest, piece):
            at_n = torch.where((layout.index >= start) & (layout.index < start + piece))[0]
            lengths = [min(max(length - start, 0), piece) for length in layout.lengths]
            part = Batch(batch.ids[at_n], Layout(lengths, batch.device), batch.positions[at_n], counted=False)
            pieces.append(super().forward(part, None, state, None if embedded is None else embedded[at_n]))
            places.append(at_n)
        return torch.cat(pieces)[torch.cat(places).argsort()]

    @property
    def reach(self) -> int | None:
        return self.stack.memory or None

    def remember(self, rows: int, length: int | None = None) -> SegmentMemory:
        """What `rows` streams know before their first segment; `length` is how much they will remember."""
        length = self.stack.memory if length is None else length
        zeros = next(self.parameters()).detach().new_zeros(self.stack.sinusoids.dim)
        return SegmentMemory(len(self.stack.layers), rows, length, filled=zeros if self.zero_start else None)

    def start(self, rows: int, capacity: int = 0) -> SlidingState:
        reach = self.stack.memory
        return SlidingState(
            len(self.stack.layers), rows, capacity, reach, filled=self.zero_start and reach > 0
        )
