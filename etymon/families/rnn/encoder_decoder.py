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

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from etymon.families.rnn.alignment import Alignment, Readout
from etymon.families.rnn.state import RecurrentState, Source, States, concatenate_states, pick_states
from etymon.nn.attention import Memory
from etymon.nn.batch import Batch
from etymon.nn.blocks import EncoderDecoder
from etymon.nn.layers import Dropout, Embedding, Linear
from etymon.nn.precision import ComputesInPrecision
from etymon.nn.recurrent import Packing, gru_step, lstm_step, recurrent

if TYPE_CHECKING:
    from etymon.families.rnn import Shape


@dataclass
class FinalMemory(Memory):
    """An encoder's output with the last states of its layers: of every layer the hidden one, of an LSTM the
    cell, too."""

    final: list[tuple[Tensor, ...]]


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
        state: RecurrentState | None = None,
        embedded: Tensor | None = None,
    ) -> Tensor:
        if state is not None and state.source is not None and state.now is not None:
            source, begin = state.source, state.now
        else:
            source, begin = self._source(memory), self._first_states(memory)
            if state is not None:
                state.begin(source, begin)
        packing = Packing(batch.layout)
        y_NE = self.dropout(self.look_up(batch) if embedded is None else embedded)
        if self.seen is not None:
            self.seen.append(y_NE)
        # Only a running decode needs the states behind every token; training does not.
        if state is None and not self.feed_dim and self.order != "bahdanau":
            return self.enter(self._all_steps(batch, packing, y_NE, source, begin))
        out_NF, states = self._step_by_step(batch, packing, y_NE, source, begin)
        if state is not None:
            state.advance(batch.layout, states)
        return self.enter(out_NF)

    def _source(self, memory: FinalMemory) -> Source:
        layout = memory.batch.layout
        values_RTH = memory.final[-1][0][:, None] if self.alignment is None else layout.pad(memory.hidden_MD)
        lengths_R = torch.tensor(layout.lengths, device=layout.device, dtype=values_RTH.dtype)
        source = Source(values_RTH, lengths_R, tuple(range(layout.rows)))
        if self.alignment is not None:
            # U h of the concat score: once a source, not once a step.
            source.keys_RTA = self.alignment.keys(values_RTH)
            source.missing_RT = None if layout.equal else ~layout.real
        return source

    def _first_states(self, memory: FinalMemory) -> States:
        final = memory.final
        rows = len(final[-1][0])
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
            parts = mapped_R.view(rows, -1, len(self.layers), width).permute(1, 2, 0, 3)
            states = [parts[0].tanh(), *parts[1:]]
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
        bottom: Any = self.layers[0]
        embedding = y_NE.shape[-1]
        # The words' part of the first layer's gates, for all steps in one product.
        gates_NG = F.linear(y_NE, bottom.weight_ih_l0[:, :embedding], bottom.bias_ih_l0)
        weight_extra = bottom.weight_ih_l0[:, embedding:]
        joint, sizes = self._joint_query()
        h, c = list(begin[0]), list(begin[1]) if self.kind == "lstm" else []
        fed_nF = begin[-1][0] if self.feed_dim else None
        reads, carried = [], []
        weights: list[Tensor] = []
        for start, stop in packing.steps:
            size = stop - start  # rows are the longest first: those that have ended are the last ones
            h, c, now = [part[:size] for part in h], [part[:size] for part in c], source.first(size)
            before_nD, gates_nG, context_nH, recurrent_nG = h[-1], gates_NG[start:stop], None, None
            if self.order == "bahdanau":
                query_nA = None
                if sizes is not None:
                    query_nA, recurrent_nG = F.linear(before_nD, *joint).split(sizes, -1)
                context_nH = self._attend(before_nD, now, weights, query_nA)
            elif self.order == "none":
                context_nH = now.values_RTH[:, 0]
            extra = context_nH if fed_nF is None else fed_nF[:size]
            if extra is not None:
                gates_nG = gates_nG + F.linear(extra, weight_extra)
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
            if self.order == "luong":
                read_nX = torch.cat([self._attend(h[-1], now, weights), h[-1]], -1)
                if self.feed_dim:
                    fed_nF = read_nX = self.dropout(self.readout(read_nX))
            else:
                assert context_nH is not None
                read_nX = torch.cat([before_nD, y_NE[start:stop], context_nH], -1)
            reads.append(read_nX)
            states = [torch.stack(part) for part in (h, c) if part]
            carried.append(states if fed_nF is None else [*states, fed_nF[None]])
        if self.alignment is not None and self.alignment.seen is not None:
            rows = batch.layout.rows
            # Later steps have fewer rows: the weights of those that have ended are zeros.
            padded = [F.pad(part_n1T, (0, 0, 0, 0, 0, rows - len(part_n1T))) for part_n1T in weights]
            self.alignment.seen.append(torch.cat(padded, 1)[packing.back][:, None])
        states = pick_states(concatenate_states(carried), packing.inverse)
        if self.seen is not None:
            self.seen += list(states[0])
        read_NX = packing.flat(torch.cat(reads))
        if self.feed_dim and self.seen is not None:
            self.seen.append(read_NX)
        return read_NX if self.feed_dim else self._read(read_NX), states

    def _joint_query(self) -> tuple[tuple[Tensor, Tensor], list[int] | None]:
        """The query's map and the last layer's recurrent one, both of the state before, as one product, and
        how it splits; None for the latter if there is no such query."""
        layer: Any = self.layers[-1]
        weight, bias = layer.weight_hh_l0, layer.bias_hh_l0
        query = None if self.alignment is None or self.order != "bahdanau" else self.alignment.query
        if type(query) is not Linear:  # there is none, or it has eight bits or an adapter
            return (weight, bias), None
        query_bias = bias.new_zeros(query.out_features) if query.bias is None else query.bias
        # Both read the state before: one product a step instead of two.
        joint = torch.cat([query.weight, weight]), torch.cat([query_bias, bias])
        return joint, [len(query.weight), len(weight)]

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
