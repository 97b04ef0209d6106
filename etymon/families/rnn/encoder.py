"""A recurrent encoder over packed rows.

Legend: M source tokens, R rows, E width of words, H of annotations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from etymon.nn.attention import Memory
from etymon.nn.batch import Batch
from etymon.nn.layers import Dropout, Embedding
from etymon.nn.padded_recurrent import make_packing
from etymon.nn.recurrent import recurrent

if TYPE_CHECKING:
    from etymon.families.rnn import Shape


@dataclass
class FinalMemory(Memory):
    """An encoder's output with the last states of its layers: of every layer the hidden one, of an LSTM the
    cell, too."""

    final: list[tuple[Tensor, ...]]


class RecurrentEncoder(nn.Module):
    """Annotations of every token `[M, H]`, and the last states of every layer, both directions side by side
    `[R, H]`."""

    keeps_float32 = True
    positions = None

    def __init__(self, words: Embedding, shape: Shape) -> None:
        super().__init__()
        self.words, self.backwards, self.width = words, shape.backwards, shape.annotation_dim
        # Layers above the first read both directions side by side.
        widths = [shape.word_dim] + [self.width] * (shape.layers - 1)
        self.layers = nn.ModuleList(
            recurrent(shape.cell, inputs, shape.encoder_width, bidirectional=shape.bidirectional)
            for inputs in widths
        )
        self.dropout = Dropout(shape.dropout)
        self.seen: list[Tensor] | None = None
        """Set by `etymon.trace`: every layer's output is then kept, and the input if it is as wide."""

    def look_up(self, batch: Batch) -> Tensor:
        return self.words(batch.ids)

    def forward(
        self, batch: Batch, embedded: Tensor | None = None
    ) -> tuple[Tensor, list[tuple[Tensor, ...]]]:
        # A hidden token would pass through the states all the same: nothing masks a recurrence.
        if batch.hidden_keys is not None and not batch.layout.is_padded:
            raise ValueError("recurrent layers read ragged rows, not a rectangle with padding")
        packing, finals = make_packing(batch.layout, backwards=self.backwards), []
        x_ME = self.dropout(self.look_up(batch) if embedded is None else embedded)
        if self.seen is not None and self.width == x_ME.shape[1]:
            self.seen.append(x_ME)
        x_MH = packing.pack(x_ME)
        for number, layer in enumerate(self.layers):
            x_MH, last = packing.run(layer, self.dropout(x_MH) if number else x_MH)
            parts = last if isinstance(last, tuple) else (last,)
            # Directions side by side, rows in their own order again.
            finals.append(tuple(torch.cat(part[:, packing.back].unbind(), -1) for part in parts))
            if self.seen is not None:
                self.seen.append(packing.flat(x_MH))
        return packing.flat(x_MH), finals
