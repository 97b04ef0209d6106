"""Decoders as functions of new tokens and the keys and values of those before them, which they also give
back.

Names and order are those that Optimum's runtime classes and Transformers.js know: `past_key_values.0.key`
goes in, `present.0.key` comes out; over an encoder there are `past_key_values.0.decoder.key` and
`past_key_values.0.encoder.key`.

Legend: R rows, T new tokens, P tokens of the past, S = P + T, M tokens of a source, H heads, K head width, D
width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from etymon.nn.attention import Attention, Memory
from etymon.nn.padded import PaddedState, padded_batch

if TYPE_CHECKING:
    from etymon.families.model import Model

Sizes = dict[int, Any]
"""The free axes of a tensor, by number."""


class CausalProgram(nn.Module):
    """A decoder's logits of new tokens `[R, T]` behind those of the past, and all keys and values.

    `attention_mask` is `[R, S]`; `position_ids` are there for models that number their positions, so that
    rows may be padded on either side.
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        attentions = [layer.attention for layer in _logical_layers(model.body.stack)]
        self.head_sizes = [(part.heads, part.head_dim) for part in attentions]

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        position_ids: Tensor,
        past_key_values: Sequence[Tensor],
    ) -> tuple[Tensor, ...]:
        # Without a past, caches have no tokens: one program serves the prompt and every step after it.
        state = PaddedState(_pairs(past_key_values))
        past = past_key_values[0].shape[2]
        batch = padded_batch(
            input_ids, attention_mask, past=past, positions_RT=position_ids, splits_axes=True
        )
        hidden_ND, _ = self.model.hidden(batch, state)
        vocabulary: Any = self.model.heads["vocabulary"]
        logits_RTV = batch.layout.pad(vocabulary.logits(hidden_ND))
        return logits_RTV, *(part for cache in state.self_caches for part in cache.parts)

    @property
    def cache_names(self) -> list[str]:
        return [f"{layer}.{part}" for layer in range(len(self.head_sizes)) for part in ("key", "value")]

    @property
    def input_names(self) -> list[str]:
        caches = [f"past_key_values.{name}" for name in self.cache_names]
        return ["input_ids", "attention_mask", "position_ids", *caches]

    @property
    def output_names(self) -> list[str]:
        return ["logits", *(f"present.{name}" for name in self.cache_names)]

    def example(self) -> tuple[dict[str, Any], dict[str, Any]]:
        rows, length, past = (torch.export.Dim(name, min=1) for name in ("rows", "length", "past"))
        ids_RT = torch.zeros(3, 7, dtype=torch.long)
        inputs = {
            "input_ids": ids_RT,
            "attention_mask": torch.ones(3, 12, dtype=torch.long),
            "position_ids": torch.zeros_like(ids_RT),
            "past_key_values": [
                torch.zeros(3, heads, 5, width) for heads, width in self.head_sizes for _ in range(2)
            ],
        }
        tokens: Sizes = {0: rows, 1: length}
        shapes = {
            "input_ids": tokens,
            "attention_mask": {0: rows, 1: torch.export.Dim.DYNAMIC},
            "position_ids": tokens,
            "past_key_values": [{0: rows, 2: past} for _ in self.cache_names],
        }
        return inputs, shapes


class EncoderProgram(nn.Module):
    """An encoder's states of a padded source."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        batch = padded_batch(input_ids, attention_mask, splits_axes=True)
        return batch.layout.pad(self.model.encode(batch).hidden_MD)


class DecoderProgram(nn.Module):
    """A decoder's logits over an encoder's states. Without a past, it also gives the keys and values of the
    source, which are made once; with one it is given them."""

    def __init__(self, model: Model, with_past: bool) -> None:
        super().__init__()
        self.model, self.with_past = model, with_past
        layers = _logical_layers(model.body.decoder.stack)
        self.own_sizes = [(layer.attention.heads, layer.attention.head_dim) for layer in layers]
        self.cross_sizes = [(layer.cross.heads, layer.cross.head_dim) for layer in layers]

    def forward(
        self,
        encoder_attention_mask: Tensor,
        input_ids: Tensor,
        encoder_hidden_states: Tensor,
        past_key_values: Sequence[Tensor] = (),
    ) -> tuple[Tensor, ...]:
        layers = len(self.own_sizes)
        # Only its mask is read: the states of the source are there already.
        source = padded_batch(encoder_attention_mask, encoder_attention_mask, splits_axes=True)
        memory = Memory(source.layout.unpad(encoder_hidden_states), source)
        if self.with_past:
            # Of every layer four: its own keys and values, then the source's.
            pairs = _pairs(past_key_values)
            state, past = PaddedState(pairs[::2], pairs[1::2]), past_key_values[0].shape[2]
            visible_RS = torch.ones(input_ids.shape[0], past + input_ids.shape[1], dtype=torch.bool)
            batch = padded_batch(input_ids, visible_RS, past=past, splits_axes=True)
        else:
            state = PaddedState([()] * layers, [()] * layers)
            batch = padded_batch(input_ids, torch.ones_like(input_ids), splits_axes=True)
        hidden_ND, _ = self.model.decode(batch, memory, state)
        vocabulary: Any = self.model.heads["vocabulary"]
        logits_RTV = batch.layout.pad(vocabulary.logits(hidden_ND))
        caches: list[Tensor] = []
        for layer_cache, cross_cache in zip(state.self_caches, state.cross_caches, strict=True):
            # The source's keys do not change: with a past, only the others come back.
            caches += [*layer_cache.parts, *([] if self.with_past else cross_cache.parts)]
        return logits_RTV, *caches

    def cache_names(self, sides: Sequence[str] = ("decoder", "encoder")) -> list[str]:
        return [
            f"{layer}.{side}.{part}"
            for layer in range(len(self.own_sizes))
            for side in sides
            for part in ("key", "value")
        ]

    @property
    def input_names(self) -> list[str]:
        caches = [f"past_key_values.{name}" for name in self.cache_names()] if self.with_past else []
        return ["encoder_attention_mask", "input_ids", "encoder_hidden_states", *caches]

    @property
    def output_names(self) -> list[str]:
        names = self.cache_names(("decoder",)) if self.with_past else self.cache_names()
        return ["logits", *(f"present.{name}" for name in names)]

    def example(self) -> tuple[dict[str, Any], dict[str, Any]]:
        rows, source, length, past = (
            torch.export.Dim(name, min=1) for name in ("rows", "source_length", "length", "past")
        )
        inputs: dict[str, Any] = {
            "encoder_attention_mask": torch.ones(3, 9, dtype=torch.long),
            "input_ids": torch.zeros(3, 7, dtype=torch.long),
            "encoder_hidden_states": torch.zeros(3, 9, self.source_width),
        }
        shapes: dict[str, Any] = {
            "encoder_attention_mask": {0: rows, 1: source},
            "input_ids": {0: rows, 1: length},
            "encoder_hidden_states": {0: rows, 1: source},
        }
        if self.with_past:
            inputs["past_key_values"], shapes["past_key_values"] = [], []
            for layer_sizes, cross_sizes in zip(self.own_sizes, self.cross_sizes, strict=True):
                for (heads, width), tokens, free in ((layer_sizes, 5, past), (cross_sizes, 9, source)):
                    for _ in range(2):
                        inputs["past_key_values"].append(torch.zeros(3, heads, tokens, width))
                        shapes["past_key_values"].append({0: rows, 2: free})
        return inputs, shapes

    @property
    def source_width(self) -> int:
        """Of the encoder's states, which the first cross-attention reads."""
        cross: Attention = _logical_layers(self.model.body.decoder.stack)[0].cross
        return cross.key.in_features


def _logical_layers(stack: Any) -> list[Any]:
    """The layers as they are passed through: shared ones several times."""
    return [stack.layers[number] for number in stack.schedule]


def _pairs(parts: Sequence[Tensor]) -> list[tuple[Tensor, ...]]:
    return list(zip(parts[::2], parts[1::2], strict=True))
