"""Models that carry something else than keys and values from one call to the next, as functions that take it
and give it back: the states of a recurrent decoder, and what Transformer-XL and XLNet remember of a text.

What a call gives as `present_states.hidden` goes into the next as `past_states.hidden`, and
`present_memory.0` as `past_memory.0`.

Legend: R rows, T new tokens, P remembered tokens, S = P + T, M tokens of a source, L layers, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from etymon.exports.program import HeadProgram, read_words
from etymon.exports.target import STATES
from etymon.families.rnn.state import PaddedRecurrentState, Source
from etymon.nn.padded import PaddedMemory, padded_batch

if TYPE_CHECKING:
    from etymon.families.model import Model


class RecurrentEncoderProgram(nn.Module):
    """What a recurrent decoder reads of a source: its states `[R, M, H]` (of a decoder without attention one
    vector, `[R, 1, H]`), the part of attention's scores that depends on them alone, and its own first
    states `[L, R, D]`."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, ...]:
        memory = self.model.encode(padded_batch(input_ids, attention_mask, splits_axes=True))
        decoder = self.model.body.decoder
        source: Source = decoder.read_source(memory)
        # Once a source, and not once a token.
        keys = [source.keys_RTA] if has_keys(self.model) and source.keys_RTA is not None else []
        return source.values_RTH, *keys, *decoder.first_states(memory)

    @property
    def output_names(self) -> list[str]:
        keys = ["encoder_keys"] if has_keys(self.model) else []
        return ["last_hidden_state", *keys, *(f"present_states.{name}" for name in state_names(self.model))]


class RecurrentDecoderProgram(nn.Module):
    """A recurrent decoder's logits of new tokens `[R, T]` behind some states, and the states behind them. The
    first call takes those that the encoder gave."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        input_ids: Tensor,
        encoder_hidden_states: Tensor,
        past_states: Sequence[Tensor],
        encoder_attention_mask: Tensor | None = None,
        encoder_keys: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        # Lengths are read by attention alone: without it there is one vector a row.
        source = Source(encoder_hidden_states, encoder_hidden_states.new_zeros(1), ())
        if encoder_attention_mask is not None:
            source.keys_RTA = encoder_hidden_states if encoder_keys is None else encoder_keys
            source.lengths_R = encoder_attention_mask.sum(1).to(encoder_hidden_states.dtype)
            source.missing_RT = ~encoder_attention_mask.bool()
        state = PaddedRecurrentState(source, list(past_states))
        # What is written has no padding but at its end, where no state is asked for.
        batch = padded_batch(input_ids, torch.ones_like(input_ids), splits_axes=True)
        hidden_NF = self.model.body.decoder(batch, None, state)
        assert state.now is not None
        return batch.layout.pad(read_words(self.model, hidden_NF)), *state.now

    @property
    def input_names(self) -> list[str]:
        inputs, _ = self.example()
        states = [f"past_states.{name}" for name in state_names(self.model)]
        return [part for name in inputs for part in (states if name == "past_states" else [name])]

    @property
    def output_names(self) -> list[str]:
        return ["logits", *(f"present_states.{name}" for name in state_names(self.model))]

    def example(self) -> tuple[dict[str, Any], dict[str, Any]]:
        rows, length, source = (torch.export.Dim(name, min=1) for name in ("rows", "length", "source_length"))
        ids_RM = torch.ones(3, 9, dtype=torch.long)
        with torch.no_grad():
            values_RMH, *others = RecurrentEncoderProgram(self.model)(ids_RM, ids_RM)
        attends = self.model.body.decoder.alignment is not None
        keys = [others.pop(0)] if has_keys(self.model) else []
        read: dict[int, Any] = {0: rows, 1: source} if attends else {0: rows}
        inputs: dict[str, Any] = {"input_ids": torch.ones(3, 7, dtype=torch.long)}
        inputs |= {"encoder_hidden_states": values_RMH, "past_states": others}
        shapes: dict[str, Any] = {"input_ids": {0: rows, 1: length}, "encoder_hidden_states": read}
        shapes["past_states"] = [{1: rows} for _ in others]
        if attends:
            inputs["encoder_attention_mask"], shapes["encoder_attention_mask"] = ids_RM, read
        if keys:
            inputs["encoder_keys"], shapes["encoder_keys"] = keys[0], read
        return inputs, shapes


def has_keys(model: Model) -> bool:
    """Whether attention maps a source's states before it scores them."""
    alignment = model.body.decoder.alignment
    return alignment is not None and alignment.key is not None


def state_names(model: Model) -> list[str]:
    """What a recurrent decoder carries from token to token."""
    decoder = model.body.decoder
    cells, fed = ["cell"] if decoder.kind == "lstm" else [], ["fed"] if decoder.feed_dim else []
    return ["hidden", *cells, *fed]


class MemoryProgram(nn.Module):
    """A head's outputs for the next tokens of a text `[R, T]`, behind what every layer remembers of those
    before them, `[R, P, D]`; and what it remembers now, the last tokens up to the model's number.

    `attention_mask` is `[R, S]`, of the remembered tokens and the new ones. Distances are counted in cells:
    padding stands before a row's first token or behind its last.
    """

    def __init__(self, model: Model, head: str) -> None:
        super().__init__()
        self.model, self.head = model, head
        self.layers, self.width = len(model.body.stack.layers), model.body.stack.sinusoids.dim

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        past_memory: Sequence[Tensor],
        token_type_ids: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        past = past_memory[0].shape[1]
        batch = padded_batch(
            input_ids, attention_mask, past=past, segments_RT=token_type_ids, splits_axes=True
        )
        # Cells of padding are remembered as well, and never seen.
        state = PaddedMemory(past_memory, memory_length(self.model), ~attention_mask[:, :past].bool())
        hidden_ND, _ = self.model.hidden(batch, state)
        outputs = hidden_ND if self.head == STATES else read_words(self.model, hidden_ND)
        return batch.layout.pad(outputs), *state.layers

    @property
    def input_names(self) -> list[str]:
        inputs, _ = self.example()
        memory = [f"past_memory.{layer}" for layer in range(self.layers)]
        return [part for name in inputs for part in (memory if name == "past_memory" else [name])]

    @property
    def output_names(self) -> list[str]:
        outputs = HeadProgram(self.model, self.head).output_names
        return [*outputs, *(f"present_memory.{layer}" for layer in range(self.layers))]

    def example(self) -> tuple[dict[str, Any], dict[str, Any]]:
        rows, length, past = (torch.export.Dim(name, min=1) for name in ("rows", "length", "past"))
        ids_RT = torch.zeros(3, 7, dtype=torch.long)
        tokens: dict[int, Any] = {0: rows, 1: length}
        inputs = {
            "input_ids": ids_RT,
            "attention_mask": torch.ones(3, 12, dtype=torch.long),
            "past_memory": [torch.zeros(3, 5, self.width) for _ in range(self.layers)],
        }
        shapes = {
            "input_ids": tokens,
            "attention_mask": {0: rows, 1: torch.export.Dim.DYNAMIC},
            "past_memory": [{0: rows, 1: past} for _ in range(self.layers)],
        }
        if "segments" in self.model.capabilities:
            inputs["token_type_ids"], shapes["token_type_ids"] = torch.zeros_like(ids_RT), tokens
        return inputs, shapes


def memory_length(model: Model) -> int:
    """How many tokens a model of segments remembers; 0 of others."""
    if "memory" not in model.capabilities or not hasattr(getattr(model.body, "stack", None), "sinusoids"):
        return 0
    return int(getattr(model.body, "memory", 0) or getattr(model.body.stack, "memory", 0) or 0)
