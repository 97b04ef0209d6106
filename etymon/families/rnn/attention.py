"""Recurrent encoders and decoders with attention between them (Bahdanau et al. 2014, Luong et al. 2015).

Rows are read packed: all first tokens, all second ones, ... the longest row first, so that no step computes padding. What a
step does not depend on is computed for all steps at once: everything, where attention only looks at the decoder's states
(Luong's without input feeding, or none at all); else the source's part of the scores, the words' part of the gates, and what is
read out.

Legend: N target tokens, M source tokens, R rows, Q and T longest target and source, n rows of a step, E width of words, D of
states, H of annotations, A of alignments, G of all gates, F of what is read out, L layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from etymon.families.rnn.alignment import Alignment, Readout
from etymon.families.rnn.state import Carried, RecurrentState, Source
from etymon.nn.attention import Memory
from etymon.nn.batch import Batch, Layout
from etymon.nn.blocks import EncoderDecoder
from etymon.nn.layers import Dropout, Embedding, Linear
from etymon.nn.recurrent import Kind, Packing, gru_step, lstm_step, recurrent


@dataclass
class FinalMemory(Memory):
    """An encoder's output with the last states of its layers: of every layer the hidden one, of an LSTM the cell, too."""

    final: list[tuple[Tensor, ...]]


class RecurrentEncoder(nn.Module):
    """Annotations of every token `[M, H]`, and the last states of every layer, both directions side by side `[R, H]`."""

    positions = None

    def __init__(
        self,
        words: Embedding,
        kind: Kind,
        dim: int,
        layers: int,
        *,
        bidirectional: bool,
        backwards: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.words, self.backwards = words, backwards
        width = (2 if bidirectional else 1) * dim
        self.layers = nn.ModuleList(
            recurrent(kind, words.embedding_dim if not number else width, dim, bidirectional=bidirectional)
            for number in range(layers)
        )
        self.dropout = Dropout(dropout)
        self.seen: list[Tensor] | None = None
        """Set by `etymon.trace`: every layer's output is then kept, and the input if it is as wide."""
        self.width = width

    def look_up(self, batch: Batch) -> Tensor:
        return self.words(batch.ids)

    def forward(
        self, batch: Batch, embedded: Tensor | None = None
    ) -> tuple[Tensor, list[tuple[Tensor, ...]]]:
        if batch.hidden_keys is not None:
            raise ValueError("recurrent layers read ragged rows, not a rectangle with padding")
        packing, finals = Packing(batch.layout, backwards=self.backwards), []
        x_ME = self.dropout(self.look_up(batch) if embedded is None else embedded)
        if self.seen is not None and self.width == x_ME.shape[1]:
            self.seen.append(x_ME)
        x_MH = packing.pack(x_ME)
        for number, layer in enumerate(self.layers):
            x_MH, last = packing.run(layer, self.dropout(x_MH) if number else x_MH)  # type: ignore[arg-type]
            parts = last if isinstance(last, tuple) else (last,)
            finals.append(tuple(torch.cat(part[:, packing.back].unbind(), -1) for part in parts))
            if self.seen is not None:
                self.seen.append(packing.flat(x_MH))
        return packing.flat(x_MH), finals


class RecurrentDecoder(nn.Module):
    """From words so far and an encoder's memory to what the next words are read from, `[N, F]`.

    - `bahdanau`: the context comes of the state before, goes into the step, and is read out with that state and the word.
    - `luong`: the step comes first, then its context, and both are read out; with `feed`, into the next step.
    - `none`: one fixed vector, the encoder's last states, stands for the source at every step (Cho et al. 2014).

    The first state comes from the encoder's last one (`bridge`):

    - `copied`: the encoder's own, layer by layer.
    - `backward`, `both`: hidden and cell are maps of its last hidden state, of the backward direction or of both.
    - `states`: hidden is a map of its hidden state, cell one of its cell, of both directions.

    A new hidden state goes through tanh. Maps read the last `final_dim` numbers, which are the backward direction's.
    """

    positions = None

    def __init__(
        self,
        words: Embedding,
        kind: Kind,
        dim: int,
        layers: int,
        *,
        order: Literal["bahdanau", "luong", "none"],
        memory_dim: int,
        final_dim: int,
        alignment: Alignment | None,
        readout: Literal["linear", "tanh", "maxout"],
        readout_dim: int,
        bridge: Literal["copied", "backward", "both", "states"],
        feed: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.words, self.kind, self.order, self.feed = words, kind, order, feed
        embedding, contextual = words.embedding_dim, order != "luong"
        extra = readout_dim if feed else memory_dim if contextual else 0
        self.layers = nn.ModuleList(
            recurrent(kind, dim if number else embedding + extra, dim) for number in range(layers)
        )
        self.alignment = alignment
        self.readout = Readout(dim + memory_dim + (embedding if contextual else 0), readout_dim, readout)
        cells = layers * dim if kind == "lstm" else 0
        own_cells = bridge == "states" and bool(cells)
        hidden = layers * dim + (0 if own_cells else cells)
        self.bridge = None if bridge == "copied" else Linear(final_dim, hidden)
        self.cell_bridge = Linear(final_dim, cells) if own_cells else None
        self.dropout, self.final_dim, self.fed_dim = Dropout(dropout), final_dim, readout_dim if feed else 0
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
        if state is not None and state.now is not None:
            source, begin = state.source, state.now
        else:
            source, begin = self._source(memory), self._begin(memory)
            if state is not None:
                state.begin(source, begin)
        assert source is not None
        packing = Packing(batch.layout)
        y_NE = self.dropout(self.look_up(batch) if embedded is None else embedded)
        if self.seen is not None:
            self.seen.append(y_NE)
        fused = state is None and not self.feed and self.order != "bahdanau"
        if fused:
            return self._at_once(batch, packing, y_NE, source, begin)
        out_NF, states = self._by_steps(batch, packing, y_NE, source, begin)
        if state is not None:
            state.advance(batch.layout, states)
        return out_NF

    # --- the beginning

    def _source(self, memory: FinalMemory) -> Source:
        layout = memory.batch.layout
        if self.alignment is None:
            return Source.of(layout, memory.final[-1][0][:, None], None)
        values_RTH = layout.lift(memory.hidden_MD)
        missing = None if layout.equal else ~layout.real
        return Source.of(layout, values_RTH, self.alignment.keys(values_RTH), missing)

    def _begin(self, memory: FinalMemory) -> Carried:
        final, depth = memory.final, len(self.layers)
        rows, fed_RF = len(final[-1][0]), None
        if self.fed_dim:
            fed_RF = final[-1][0].new_zeros(rows, self.fed_dim)
        if self.bridge is None:
            begun = [torch.stack(parts) for parts in zip(*final, strict=True)]
        else:
            last_R = [part_RH[:, -self.final_dim :] for part_RH in final[-1]]
            mapped_R = self.bridge(last_R[0])
            if self.cell_bridge is not None:
                mapped_R = torch.cat([mapped_R, self.cell_bridge(last_R[1])], -1)
            parts = mapped_R.view(rows, -1, depth, self.layers[0].hidden_size).permute(1, 2, 0, 3)
            begun = [parts[0].tanh(), *parts[1:]]
        return Carried(begun[0], begun[1] if len(begun) > 1 else None, fed_RF)

    # --- all steps at once

    def _at_once(
        self, batch: Batch, packing: Packing, y_NE: Tensor, source: Source, begin: Carried
    ) -> Tensor:
        context_NH = source.values_RTH[:, 0][batch.layout.row] if self.alignment is None else None
        x_ND = packing.pack(y_NE if context_NH is None else torch.cat([y_NE, context_NH], -1))
        h_LRD = begin.h_LRD[:, packing.rows]
        c_LRD = None if begin.c_LRD is None else begin.c_LRD[:, packing.rows]
        for number, layer in enumerate(self.layers):
            first = h_LRD[number : number + 1].contiguous()
            x_ND, _ = packing.run(
                layer,  # type: ignore[arg-type]
                self.dropout(x_ND) if number else x_ND,
                first if c_LRD is None else (first, c_LRD[number : number + 1].contiguous()),
            )
            if self.seen is not None:
                self.seen.append(packing.flat(x_ND))
        s_ND = packing.flat(x_ND)
        if context_NH is None:
            assert self.alignment is not None
            context_RQH, weights_RQT = self.alignment(batch.layout.lift(s_ND), source)
            context_NH = batch.layout.lower(context_RQH)
            if self.alignment.seen is not None:
                self.alignment.seen.append((weights_RQT * batch.layout.real[..., None])[:, None])
            return self._read(torch.cat([context_NH, s_ND], -1))
        # The state before each step: the first one, then those of the tokens before.
        before_ND = torch.cat([begin.h_LRD[-1], s_ND])[self._before(batch.layout)]
        return self._read(torch.cat([before_ND, y_NE, context_NH], -1))

    @staticmethod
    def _before(layout: Layout) -> Tensor:
        earlier = torch.arange(layout.tokens, device=layout.device) - 1 + layout.rows
        return torch.where(layout.index == 0, layout.row, earlier)

    def _read(self, x_NX: Tensor) -> Tensor:
        out_NF: Tensor = self.dropout(self.readout(x_NX))
        if self.seen is not None:
            self.seen.append(out_NF)
        return out_NF

    # --- step by step

    def _by_steps(
        self, batch: Batch, packing: Packing, y_NE: Tensor, source: Source, begin: Carried
    ) -> tuple[Tensor, Carried]:
        y_NE, source, begin = packing.pack(y_NE), source.at(packing.rows), begin.at(packing.rows)
        bottom: Any = self.layers[0]
        embedding = y_NE.shape[-1]
        gates_NG = F.linear(y_NE, bottom.weight_ih_l0[:, :embedding], bottom.bias_ih_l0)
        weight_extra = bottom.weight_ih_l0[:, embedding:]
        top, query = self._top()
        h, c = list(begin.h_LRD), [] if begin.c_LRD is None else list(begin.c_LRD)
        fed = begin.fed_RF
        reads, carried, weights, offset = [], [], [], 0
        for size in packing.sizes:
            step = slice(offset, offset + size)
            offset += size
            h, c = [part[:size] for part in h], [part[:size] for part in c]
            fed, now = None if fed is None else fed[:size], source.first(size)
            before_nD, gates_nG = h[-1], gates_NG[step]
            context_nH, recurrent_nG = None, None
            if self.order == "bahdanau":
                assert self.alignment is not None
                query_nA = None
                if query is not None:  # the state's part of the scores and of the gates in one product
                    query_nA, recurrent_nG = F.linear(before_nD, *top).split(query, -1)
                context_nH, aligned = self._look(before_nD, now, query_nA)
                weights.append(aligned)
                gates_nG = gates_nG + F.linear(context_nH, weight_extra)
            elif self.order == "none":
                context_nH = now.values_RTH[:, 0]
                gates_nG = gates_nG + F.linear(context_nH, weight_extra)
            elif fed is not None:
                gates_nG = gates_nG + F.linear(fed, weight_extra)
            for number in range(len(self.layers)):
                layer: Any = self.layers[number]
                if number:
                    below_nD = self.dropout(h[number - 1])
                    gates_nG = F.linear(below_nD, layer.weight_ih_l0, layer.bias_ih_l0)
                if recurrent_nG is None or number < len(self.layers) - 1:
                    own_nG = F.linear(h[number], layer.weight_hh_l0, layer.bias_hh_l0)
                else:
                    own_nG = recurrent_nG
                if self.kind == "gru":
                    h[number] = gru_step(gates_nG, own_nG, h[number])
                else:
                    h[number], c[number] = lstm_step(gates_nG + own_nG, c[number])
            if self.order == "luong":
                context_nH, aligned = self._look(h[-1], now, None)
                weights.append(aligned)
                reads.append(torch.cat([context_nH, h[-1]], -1))
                if self.feed:
                    fed = reads[-1] = self.dropout(self.readout(reads[-1]))
            else:
                assert context_nH is not None
                reads.append(torch.cat([before_nD, y_NE[step], context_nH], -1))
            carried.append(Carried(torch.stack(h), torch.stack(c) if c else None, fed))
        if self.alignment is not None and self.alignment.seen is not None:
            self.alignment.seen.append(self._spread(packing, weights, batch.layout))
        states = Carried.joined(carried).at(packing.inverse)
        if self.seen is not None:
            self.seen += list(states.h_LRD)
        read_NX = packing.flat(torch.cat(reads))
        if not self.feed:
            return self._read(read_NX), states
        if self.seen is not None:
            self.seen.append(read_NX)
        return read_NX, states

    def _top(self) -> tuple[tuple[Tensor, Tensor], list[int] | None]:
        """The query's map and the last layer's recurrent one as one; None if there is no such query."""
        layer: Any = self.layers[-1]
        weight, bias = layer.weight_hh_l0, layer.bias_hh_l0
        asked = None if self.alignment is None or self.order != "bahdanau" else self.alignment.query
        if type(asked) is not Linear:  # there is none, or it has eight bits or an adapter
            return (weight, bias), None
        query = asked.weight
        query_bias = bias.new_zeros(len(query)) if asked.bias is None else asked.bias
        return (torch.cat([query, weight]), torch.cat([query_bias, bias])), [len(query), len(weight)]

    def _look(self, s_nD: Tensor, source: Source, query_nA: Tensor | None) -> tuple[Tensor, Tensor]:
        assert self.alignment is not None
        query = None if query_nA is None else query_nA[:, None]
        context_n1H, weights_n1T = self.alignment(s_nD[:, None], source, query)
        return context_n1H[:, 0], weights_n1T

    @staticmethod
    def _spread(packing: Packing, weights: list[Tensor], layout: Layout) -> Tensor:
        """The weights of steps as `[R, 1, Q, T]`, rows in their own order."""
        padded = [F.pad(part, (0, 0, 0, 0, 0, layout.rows - len(part))) for part in weights]
        return torch.cat(padded, 1)[packing.back][:, None]


class RecurrentEncoderDecoder(EncoderDecoder):
    encoder: Any
    decoder: Any

    def encode(self, batch: Batch, embedded: Tensor | None = None) -> Memory:
        hidden_MH, final = self.encoder(batch, embedded)
        return FinalMemory(hidden_MH, batch, final)
