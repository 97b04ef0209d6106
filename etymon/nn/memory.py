"""Stacks that remember: segments of a text see the hidden states of those before (Transformer-XL, section 3.2).

Training and scoring carry a `SegmentMemory`, every layer's inputs of the last tokens: keys and values are made of them anew, with
gradients for the maps that make them and none for what was read before. Decoding carries a `Recall`, the keys and values
themselves. A segment, and a decode's prompt, see `length` tokens behind their first one; what a decode goes on with sees as many
behind itself, token by token, however many come in a call.

Legend: N tokens, D width, R rows, Q and T longest row of queries and of keys, M remembered tokens, H heads, L distances, K head width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from etymon.nn.attention import Memory
from etymon.nn.batch import Batch
from etymon.nn.blocks import Stack
from etymon.nn.bodies import Body
from etymon.nn.embeddings import Embeddings
from etymon.nn.ragged import Layout
from etymon.nn.relative import RelativeSight, RelativeView, Sinusoids
from etymon.nn.state import KeyValueState, Mark, Places

SPARE = 64
"""Tokens beyond its reach that a decode keeps, so that it can be cropped by as many."""
PIECE = 512
"""Tokens of a row that a decode reads at once, or as many as it reaches back, if those are more: long prompts are read in segments."""


class SegmentMemory:
    """What every layer of a stack read of the last `length` tokens of each row, `[R, M, D]` a layer, the newest last.

    `lengths` tells how many of them are there, by row. Rows begin with none, or `filled` with zeros that are seen (the two
    published codes differ).
    """

    def __init__(self, layers: int, rows: int, length: int, *, filled: Tensor | None = None) -> None:
        self.length, self.filled = length, filled
        self.lengths: tuple[int, ...] = (0 if filled is None else length,) * rows
        blank = None if filled is None or not length else filled.new_zeros(rows, length, filled.shape[-1])
        self.layers: list[Tensor | None] = [blank] * layers

    @property
    def width(self) -> int:
        """M: the most that a row remembers."""
        return 0 if self.layers[0] is None else self.layers[0].shape[1]

    def missing(self, device: torch.device) -> Tensor | None:
        """Which of the cells hold nothing, `[R, M]`; None if there are no such."""
        if min(self.lengths, default=0) == self.width:
            return None
        known = torch.tensor(self.lengths, device=device)[:, None]
        return torch.arange(self.width, device=device) < self.width - known

    def extend(self, inputs: Sequence[Tensor], lengths: Sequence[int]) -> None:
        """Takes up a segment: every layer's inputs `[R, Q, D]`, of which `lengths` are real. No history comes with it."""
        totals = [old + new for old, new in zip(self.lengths, lengths, strict=True)]
        kept = min(self.length, max(totals, default=0))
        self.lengths = tuple(min(self.length, total) for total in totals)
        if kept:
            self.layers = [
                _latest(past, x_RQD.detach(), lengths, kept)
                for past, x_RQD in zip(self.layers, inputs, strict=True)
            ]

    def forget(self, rows: Sequence[int]) -> None:
        """These rows begin anew."""
        begin = 0 if self.filled is None else self.length
        self.lengths = tuple(begin if row in rows else old for row, old in enumerate(self.lengths))
        if self.filled is not None and self.layers[0] is not None:
            kept = torch.tensor([[[float(row not in rows)]] for row in range(len(self.lengths))])
            self.layers = [None if part is None else part * kept.to(part) for part in self.layers]

    def select(self, rows: Tensor) -> SegmentMemory:
        chosen = SegmentMemory(len(self.layers), 0, self.length, filled=self.filled)
        chosen.lengths = tuple(self.lengths[row] for row in rows.tolist())
        chosen.layers = [
            None if part is None else part.index_select(0, rows.to(part.device)) for part in self.layers
        ]
        return chosen

    def tensors(self) -> dict[str, Tensor]:
        return {
            f"memory.{layer}": part.contiguous() for layer, part in enumerate(self.layers) if part is not None
        }

    def load(self, tensors: Mapping[str, Tensor], lengths: Sequence[int]) -> None:
        """The inverse of `tensors` and `lengths`."""
        self.layers = [tensors.get(f"memory.{layer}") for layer in range(len(self.layers))]
        self.lengths = tuple(int(length) for length in lengths)
        if self.width > self.length:
            self.layers = [None if part is None else part[:, -self.length :] for part in self.layers]
            self.lengths = tuple(min(self.length, length) for length in self.lengths)


def _latest(past_RMD: Tensor | None, x_RQD: Tensor, lengths: Sequence[int], kept: int) -> Tensor:
    """The last `kept` tokens of every row, of those remembered and those read."""
    if len(set(lengths)) <= 1 and x_RQD.shape[1] >= kept:
        return x_RQD[:, -kept:]
    whole = x_RQD if past_RMD is None else torch.cat([past_RMD, x_RQD], 1)
    if len(set(lengths)) <= 1:
        return whole[:, -kept:]
    ends = torch.tensor(lengths, device=x_RQD.device)[:, None] + (whole.shape[1] - x_RQD.shape[1])
    # Cells before a row's first token hold anything at all: its length says that they are not there.
    index = (ends - kept + torch.arange(kept, device=x_RQD.device)).clamp_(min=0)
    return whole.gather(1, index[..., None].expand(-1, -1, whole.shape[-1]))


class Recall(KeyValueState):
    """The keys and values of a decode, which sees `reach` tokens back (0: all) and drops older ones now and then.

    Cell 0 of the caches holds token `dropped` of every row; with a start `filled` with zeros, what would stand before token 0.
    What stands for distances is computed once and kept as well.
    """

    def __init__(self, layers: int, rows: int, capacity: int, reach: int, *, filled: bool) -> None:
        super().__init__(layers, rows, min(capacity, 2 * (reach + SPARE)) if reach else capacity)
        self.reach, self.filled = reach, filled
        self.dropped = -reach if filled else 0
        self.reading = False
        """The call is the first one, which reads the prompts in segments."""
        self.tables: list[Tensor | None] = [None] * layers

    @property
    def cached(self) -> tuple[int, ...]:
        return tuple(length - self.dropped for length in self.lengths)

    @property
    def filled_cells(self) -> int:
        return max(self.cached, default=0)

    def advance(self, layout: Layout) -> None:
        super().advance(layout)
        least, wanted = min(self.cached, default=0), self.reach + SPARE
        if not self.reach or least <= 2 * wanted:
            return
        # Into new arrays: a mark may still hold on to the old ones.
        self.dropped += least - wanted
        room = max(2 * wanted, self.filled_cells) + 1
        self.self_caches = [cache.without(least - wanted, room) for cache in self.self_caches]

    def crop(self, lengths: Sequence[int]) -> None:
        if not any(lengths):
            self.dropped = -self.reach if self.filled else 0
        elif any(length - self.dropped < min(length, self.reach) for length in lengths):
            raise ValueError(f"a decode that drops what is out of reach can be cropped by {SPARE} tokens")
        super().crop(lengths)

    def mark(self) -> Mark:
        return (*super().mark(), self.dropped, self.self_caches)

    def rewind(self, mark: Mark) -> None:
        super().rewind(mark[:2])
        if self.dropped != mark[2]:
            self.dropped, self.self_caches = mark[2:]

    def table(self, layer: int, attention: Any, sinusoids: Sinusoids, needed: int, like: Tensor) -> Tensor:
        """What stands for the distances `needed - 2`, ..., 0, -1, `[H, L, K]`."""
        known = self.tables[layer]
        if known is None or known.shape[1] < needed:
            size = needed if known is None else max(needed, 2 * known.shape[1])
            distances = torch.arange(size - 2, -2, -1, device=like.device)
            known = attention.distances(sinusoids(distances).to(like.dtype))
            self.tables = [known if at == layer else old for at, old in enumerate(self.tables)]
        return known[:, -needed:]


Sights = Callable[[int, Any], RelativeSight]
"""What a layer looks at, by its number."""


class RecurrentStack(Stack):
    """Layers of relative attention over a segment and what is remembered. With `same_length`, every query sees as many tokens
    as the memory is long, itself included, wherever in its segment it stands."""

    def __init__(
        self,
        layers: Sequence[torch.nn.Module],
        sinusoids: Sinusoids,
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
        decodes = isinstance(state, Recall)
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

    def _reading(self, x_ND: Tensor, batch: Batch, state: SegmentMemory | None) -> Sights:
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
        return lambda number, layer: RelativeSight(view, _normed(layer, past[number]))

    def _decoding(self, new: Layout, x_ND: Tensor, state: Recall) -> Sights:
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
        return lambda number, layer: RelativeSight(
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
        if isinstance(state, Recall):
            state.reading = state.empty
        piece = max(state.reach, PIECE) if isinstance(state, Recall) and state.reach else layout.longest
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

    def start(self, rows: int, capacity: int = 0) -> Recall:
        reach = self.stack.memory
        return Recall(len(self.stack.layers), rows, capacity, reach, filled=self.zero_start and reach > 0)
