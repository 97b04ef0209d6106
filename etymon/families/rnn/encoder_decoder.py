"""Recurrent encoders and decoders with attention between them (Bahdanau et al. 2014, Luong et al. 2015).

Rows are read packed: all first tokens, all second ones, ... the longest row first, so that no step computes
padding. What a step does not depend on is computed for all steps at once: everything, where attention only
looks at the decoder's states (Luong's without input feeding, or none at all); else the source's part of the
scores, the words' part of the gates, and what is read out.

Legend: N target tokens, M source tokens, R rows, Q and T longest target and source, n rows of a step, E
width of words, D of states, H of annotations, A of alignments, G of all gates, F of what is read out, L
layers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from etymon.families.rnn.alignment import Alignment, Readout
from etymon.families.rnn.encoder import FinalMemory
from etymon.families.rnn.state import (
    PaddedRecurrentState,
    RecurrentState,
    Source,
    States,
    concatenate_states,
    pick_states,
)
from etymon.families.rnn.steps import StepMaps, StepStates, join_query
from etymon.nn.attention import Memory
from etymon.nn.batch import Batch
from etymon.nn.blocks import EncoderDecoder
from etymon.nn.layers import Dropout, Embedding, Linear
from etymon.nn.padded_recurrent import make_packing, scan_steps
from etymon.nn.precision import ComputesInPrecision
from etymon.nn.recurrent import Packing, gru_step, lstm_step, recurrent

if TYPE_CHECKING:
    from etymon.families.rnn import Shape


class RecurrentDecoder(ComputesInPrecision, nn.Module):
    """From words so far and an encoder's memory to what the next words are read from, `[N, F]`.

    - `bahdanau`: the context comes of the state before, goes into the step, and is read out with that state
      and the word.
    - `luong`: the step comes first, then its context, and both are read out; with `feed`, into the next step.
    - `none`: one fixed vector, the encoder's last states, stands for the source at every step (Cho et al.
      2014).

    The first state comes from the encoder's last one (`shape.first_state`):

    - `copied`: the encoder's own, layer by layer.
    - `backward`, `both`: hidden and cell are maps of its last hidden state, of the backward direction or of
      both.
    - `states`: hidden is a map of its hidden state, cell one of its cell, of both directions.

    A new hidden state goes through tanh. Maps read the last `final_dim` numbers, which are the backward
    direction's.
    """

    keeps_float32 = True
    positions = None

    def __init__(self, words: Embedding, shape: Shape) -> None:
        super().__init__()
        self.words, self.kind, self.order = words, shape.cell, shape.attention
        dim, context_dim, depth = shape.dim, shape.annotation_dim, shape.decoder_layers or shape.layers
        # What a step reads beside the word: what was read out last, or the context.
        self.feed_dim = shape.readout_dim if shape.feed else 0
        extra = self.feed_dim if self.order == "luong" else context_dim
        widths = [shape.word_dim + extra] + [dim] * (depth - 1)
        self.layers = nn.ModuleList(recurrent(shape.cell, inputs, dim) for inputs in widths)
        self.alignment = None if self.order == "none" else Alignment(shape)
        self.readout = Readout(dim + context_dim + (0 if self.order == "luong" else shape.word_dim), shape)
        hidden = depth * dim
        cells = hidden if shape.cell == "lstm" else 0
        maps_cells = shape.first_state == "states" and cells > 0
        self.final_dim = shape.encoder_width if shape.first_state == "backward" else context_dim
        self.bridge = self.cell_bridge = None
        if shape.first_state != "copied":
            self.bridge = Linear(self.final_dim, hidden if maps_cells else hidden + cells)
        if maps_cells:
            self.cell_bridge = Linear(self.final_dim, cells)
        self.dropout = Dropout(shape.dropout)
        self.seen: list[Tensor] | None = None
        """Set by `etymon.trace`: the input, every layer's states and what is read out are then kept."""

    def start(self, rows: int, capacity: int = 0) -> RecurrentState:
        """An empty state for decoding step by step."""
        return RecurrentState(rows)

    def look_up(self, batch: Batch) -> Tensor:
        return self.words(batch.ids)

    def forward(
        self,
        batch: Batch,
        memory: FinalMemory,
        state: RecurrentState | PaddedRecurrentState | None = None,
        embedded: Tensor | None = None,
    ) -> Tensor:
        if state is not None and state.source is not None and state.now is not None:
            source, begin = state.source, state.now
        else:
            source, begin = self.read_source(memory), self.first_states(memory)
            if state is not None:
                state.begin(source, begin)
        packing = make_packing(batch.layout)
        y_NE = self.dropout(self.look_up(batch) if embedded is None else embedded)
        if self.seen is not None:
            self.seen.append(y_NE)
        # Only a running decode needs the states behind every token; training does not.
        if state is None and not self.feed_dim and self.order != "bahdanau":
            return self.enter(self._all_steps(batch, packing, y_NE, source, begin))
        run = self._padded_steps if batch.layout.is_padded else self._step_by_step
        out_NF, states = run(batch, packing, y_NE, source, begin)
        if state is not None:
            state.advance(batch.layout, states)
        return self.enter(out_NF)

    def read_source(self, memory: FinalMemory) -> Source:
        """What steps attend to."""
        layout = memory.batch.layout
        values_RTH = memory.final[-1][0][:, None] if self.alignment is None else layout.pad(memory.hidden_MD)
        lengths_R = layout.real.sum(1) if layout.is_padded else torch.tensor(layout.lengths)
        numbers = () if layout.is_padded else tuple(range(layout.rows))
        source = Source(values_RTH, lengths_R.to(values_RTH), numbers)
        if self.alignment is not None:
            # U h of the concat score: once a source, not once a step.
            source.keys_RTA = self.alignment.keys(values_RTH)
            source.missing_RT = None if layout.equal and not layout.is_padded else ~layout.real
        return source

    def first_states(self, memory: FinalMemory) -> States:
        """What the first step begins with."""
        final = memory.final
        rows = final[-1][0].shape[0]
        if self.bridge is None:
            states = [torch.stack(parts) for parts in zip(*final, strict=True)]
        else:
            last_R = [part_RH[:, -self.final_dim :] for part_RH in final[-1]]
            mapped_R = self.bridge(last_R[0])
            if self.cell_bridge is not None:
                # Hidden states of all layers first, then cells.
                mapped_R = torch.cat([mapped_R, self.cell_bridge(last_R[1])], -1)
            # Hidden states of all layers, then an LSTM's cells, which do not go through tanh.
            width: Any = self.layers[0].hidden_size
            parts = mapped_R.unflatten(-1, (-1, len(self.layers), width)).permute(1, 2, 0, 3)
            states = [parts[0].tanh(), *(parts[1:] if len(parts) > 1 else ())]
        return [*states, states[0].new_zeros(1, rows, self.feed_dim)] if self.feed_dim else states

    def _read(self, x_NX: Tensor) -> Tensor:
        out_NF: Tensor = self.dropout(self.readout(x_NX))
        if self.seen is not None:
            self.seen.append(out_NF)
        return out_NF

    def _all_steps(
        self, batch: Batch, packing: Packing, y_NE: Tensor, source: Source, begin: States
    ) -> Tensor:
        """Where no step reads what attention gave: a fused kernel a layer, then attention of all states at
        once."""
        layout = batch.layout
        # Without attention the source is one vector a row, the same at every step.
        context_NH = source.values_RTH[:, 0][layout.row] if self.alignment is None else None
        x_ND = packing.pack(y_NE if context_NH is None else torch.cat([y_NE, context_NH], -1))
        first = [part_LRD[:, packing.rows] for part_LRD in begin]
        for number, layer in enumerate(self.layers):
            parts = tuple(part_LRD[number : number + 1].contiguous() for part_LRD in first)
            below_ND = self.dropout(x_ND) if number else x_ND
            x_ND, _ = packing.run(layer, below_ND, parts if len(parts) > 1 else parts[0])
            if self.seen is not None:
                self.seen.append(packing.flat(x_ND))
        s_ND = packing.flat(x_ND)
        if self.alignment is not None:
            context_RQH, weights_RQT = self.alignment(layout.pad(s_ND), source)
            if self.alignment.seen is not None:
                self.alignment.seen.append((weights_RQT * layout.real[..., None])[:, None])
            return self._read(torch.cat([layout.unpad(context_RQH), s_ND], -1))
        assert context_NH is not None
        # The state before each step: a row's first one, then those of the tokens before.
        earlier_N = torch.arange(layout.tokens, device=layout.device) - 1 + layout.rows
        before_N = torch.where(layout.index == 0, layout.row, earlier_N)
        before_ND = torch.cat([begin[0][-1], s_ND])[before_N]
        return self._read(torch.cat([before_ND, y_NE, context_NH], -1))

    def _step_by_step(
        self, batch: Batch, packing: Packing, y_NE: Tensor, source: Source, begin: States
    ) -> tuple[Tensor, States]:
        y_NE, source, begin = packing.pack(y_NE), source.at(packing.rows), pick_states(begin, packing.rows)
        maps = self._step_maps(y_NE)
        states = StepStates.of(begin, self.kind == "lstm", bool(self.feed_dim))
        reads, carried = [], []
        weights: list[Tensor] = []
        for start, stop in packing.steps:
            size = stop - start  # rows are the longest first: those that have ended are the last ones
            states, now = states.first(size), source.first(size)
            reads.append(self._step(maps, states, y_NE[start:stop], maps.gates[start:stop], now, weights))
            carried.append(states.stacked())
        if self.alignment is not None and self.alignment.seen is not None:
            rows = batch.layout.rows
            # Later steps have fewer rows: the weights of those that have ended are zeros.
            padded = [F.pad(part_n1T, (0, 0, 0, 0, 0, rows - len(part_n1T))) for part_n1T in weights]
            self.alignment.seen.append(torch.cat(padded, 1)[packing.back][:, None])
        behind = pick_states(concatenate_states(carried), packing.inverse)
        if self.seen is not None:
            self.seen += list(behind[0])
        read_NX = packing.flat(torch.cat(reads))
        if self.feed_dim and self.seen is not None:
            self.seen.append(read_NX)
        return read_NX if self.feed_dim else self._read(read_NX), behind

    def _padded_steps(
        self, batch: Batch, packing: Packing, y_NE: Tensor, source: Source, begin: States
    ) -> tuple[Tensor, States]:
        """The same of rows with padding; states are those behind the last step."""
        y_TRE = packing.pack(y_NE)
        maps = self._step_maps(y_TRE)
        lstm, feeds = self.kind == "lstm", bool(self.feed_dim)

        def step(carried: list[Tensor], now: list[Tensor]) -> tuple[list[Tensor], Tensor]:
            states = StepStates.of(carried, lstm, feeds)
            read_RX = self._step(maps, states, now[0], now[1], source, [])
            return states.stacked(), read_RX

        last, read_TRX = scan_steps(step, list(begin), [y_TRE, maps.gates])
        read_NX = packing.flat(read_TRX)
        return read_NX if self.feed_dim else self._read(read_NX), last

    def _step_maps(self, y_NE: Tensor) -> StepMaps:
        bottom: Any = self.layers[0]
        words = y_NE.shape[-1]
        # The words' part of the first layer's gates, for all steps in one product.
        gates = F.linear(y_NE, bottom.weight_ih_l0[:, :words], bottom.bias_ih_l0)
        query = self.alignment.query if self.alignment is not None and self.order == "bahdanau" else None
        return StepMaps(gates, bottom.weight_ih_l0[:, words:], *join_query(self.layers[-1], query))

    def _step(
        self,
        maps: StepMaps,
        states: StepStates,
        y_nE: Tensor,
        gates_nG: Tensor,
        source: Source,
        weights: list[Tensor],
    ) -> Tensor:
        """What the words of one step are read from, `[n, X]`; `states` are then those behind it."""
        h, c = states.hidden, states.cells
        before_nD, context_nH, recurrent_nG = h[-1], None, None
        if self.order == "bahdanau":
            query_nA = None
            if maps.sizes is not None:
                query_nA, recurrent_nG = F.linear(before_nD, *maps.joint).split(maps.sizes, -1)
            context_nH = self._attend(before_nD, source, weights, query_nA)
        elif self.order == "none":
            context_nH = source.values_RTH[:, 0]
        extra = context_nH if states.fed is None else states.fed
        if extra is not None:
            gates_nG = gates_nG + F.linear(extra, maps.extra)
        for number in range(len(self.layers)):
            layer: Any = self.layers[number]
            if number:
                gates_nG = F.linear(self.dropout(h[number - 1]), layer.weight_ih_l0, layer.bias_ih_l0)
            if recurrent_nG is None or number < len(self.layers) - 1:
                state_nG = F.linear(h[number], layer.weight_hh_l0, layer.bias_hh_l0)
            else:
                state_nG = recurrent_nG
            if self.kind == "gru":
                h[number] = gru_step(gates_nG, state_nG, h[number])
            else:
                h[number], c[number] = lstm_step(gates_nG + state_nG, c[number])
        if self.order != "luong":
            assert context_nH is not None
            return torch.cat([before_nD, y_nE, context_nH], -1)
        read_nX = torch.cat([self._attend(h[-1], source, weights), h[-1]], -1)
        if self.feed_dim:
            states.fed = read_nX = self.dropout(self.readout(read_nX))
        return read_nX

    def _attend(
        self, s_nD: Tensor, source: Source, weights: list[Tensor], query_nA: Tensor | None = None
    ) -> Tensor:
        """The context `[n, H]` of one step; its weights are added to `weights`."""
        assert self.alignment is not None
        query_n1A = None if query_nA is None else query_nA[:, None]
        context_n1H, weights_n1T = self.alignment(s_nD[:, None], source, query_n1A)
        weights.append(weights_n1T)
        return context_n1H[:, 0]


class RecurrentEncoderDecoder(EncoderDecoder):
    encoder: Any
    decoder: Any

    def encode(self, batch: Batch, embedded: Tensor | None = None) -> Memory:
        hidden_MH, final = self.encoder(batch, embedded)
        return FinalMemory(hidden_MH, batch, final)
