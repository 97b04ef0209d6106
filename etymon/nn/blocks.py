"""Layers, stacks of layers, and the bodies that families put together of embeddings and stacks.

Legend: N tokens, D width, F inner width, R rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from etymon.nn.attention import Attention, LayerInputs, Memory
from etymon.nn.batch import Batch, Layout
from etymon.nn.cache import KeyValueState
from etymon.nn.embeddings import Embeddings
from etymon.nn.layers import ACTIVATIONS, Dropout, Embedding, Linear, identity
from etymon.nn.visibility import CachedView, FlatView, FullRule, Rule, flat_view


class FeedForward(nn.Module):
    """`outer(activation(inner(x)))`; gated: `outer(activation(gate(x)) * inner(x))`."""

    def __init__(
        self,
        dim: int,
        inner_dim: int,
        activation: str,
        *,
        gated: bool = False,
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.inner = Linear(dim, inner_dim, bias=bias)
        self.gate = Linear(dim, inner_dim, bias=bias) if gated else None
        self.outer = Linear(inner_dim, dim, bias=bias)
        self.activation = ACTIVATIONS[activation]
        self.dropout = Dropout(dropout)

    def forward(self, x_ND: Tensor) -> Tensor:
        if self.gate is None:
            x_NF = self.activation(self.inner(x_ND))
        else:
            # The gated units of T5 1.1 (Shazeer 2020).
            x_NF = self.activation(self.gate(x_ND)) * self.inner(x_ND)
        return self.outer(self.dropout(x_NF))


class Block(nn.Module):
    """Attention, perhaps cross-attention, and a feed-forward part, each around a residual path.

    `norm_first` puts the norms before the parts (GPT-2, T5), otherwise they follow the sum (2017, BERT,
    GPT-1). `residual_scale` multiplies what a part adds: x + scale * part(x). Since a norm takes out any
    common factor, norms after the sum with a scale of 1 / alpha are DeepNorm's, which multiplies the other
    side by alpha. `dropout` falls on what the parts add; `feed_forward_dropout` replaces it for the
    feed-forward part.
    """

    def __init__(
        self,
        attention: nn.Module,
        feed_forward: nn.Module,
        norms: Sequence[nn.Module],
        *,
        norm_first: bool,
        cross: Attention | None = None,
        dropout: float = 0.0,
        feed_forward_dropout: float | None = None,
        residual_scale: float = 1.0,
    ) -> None:
        super().__init__()
        self.norm_first = norm_first
        self.residual_scale = residual_scale
        self.attention = attention
        self.attention_norm = norms[0]
        self.cross = cross
        self.cross_norm = norms[1] if cross is not None else None
        self.feed_forward = feed_forward
        self.feed_forward_norm = norms[-1]
        self.dropout = Dropout(dropout)
        self.feed_forward_dropout = Dropout(dropout if feed_forward_dropout is None else feed_forward_dropout)

    def forward(self, x_ND: Tensor, inputs: LayerInputs) -> Tensor:
        x_ND = self._add(
            x_ND, lambda n: self.attention(n, inputs), self.attention_norm, self.dropout, inputs.select
        )
        if (cross := self.cross) is not None:
            x_ND = self._add(x_ND, lambda n: cross.across(n, inputs), self.cross_norm, self.dropout)
        return self._add(x_ND, self.feed_forward, self.feed_forward_norm, self.feed_forward_dropout)

    def _add(
        self,
        x_ND: Tensor,
        part: Callable[[Tensor], Tensor],
        norm: Any,
        dropout: nn.Module,
        select: Callable[[Tensor], Tensor] = identity,
    ) -> Tensor:
        """x and what a part adds to it, with the norm on one side; `select` picks the tokens whose output
        is wanted."""
        if self.norm_first:
            # `alpha` scales and adds in one kernel.
            added_ND = dropout(part(norm(x_ND)))
            return torch.add(select(x_ND), added_ND, alpha=self.residual_scale)
        added_ND = dropout(part(x_ND))
        return norm(torch.add(select(x_ND), added_ND, alpha=self.residual_scale))


class ParallelBlock(nn.Module):
    """Attention and a feed-forward part side by side behind one norm: x + attention(n) + feed_forward(n)
    (GPT-J)."""

    norm_first = True

    def __init__(
        self,
        attention: nn.Module,
        feed_forward: nn.Module,
        norm: nn.Module,
        *,
        dropout: float = 0.0,
        residual_scale: float = 1.0,
    ) -> None:
        super().__init__()
        self.residual_scale = residual_scale
        self.attention = attention
        self.attention_norm = norm
        self.feed_forward = feed_forward
        self.dropout = Dropout(dropout)

    def forward(self, x_ND: Tensor, inputs: LayerInputs) -> Tensor:
        n_ND = self.attention_norm(x_ND)
        added_ND = self.dropout(self.attention(n_ND, inputs))
        # Both parts read the same normed input: one norm a layer instead of two.
        added_ND = added_ND + self.dropout(self.feed_forward(inputs.select(n_ND)))
        return torch.add(inputs.select(x_ND), added_ND, alpha=self.residual_scale)


class Stack(nn.Module):
    """Layers over one batch, with what they share: compiled visibility, a position bias, the caches.

    `schedule` names the physical layer of every logical one, so that layers can be shared; `rules` gives
    every logical layer its visibility. The default is one physical layer per logical one, all under the
    same rule.
    """

    decodes_by_parts = False
    """Whether a decode reads weights of its layers beside calling them."""

    def __init__(
        self,
        layers: Sequence[nn.Module],
        rule: Rule | Sequence[Rule],
        *,
        schedule: Sequence[int] | None = None,
        norm: nn.Module | None = None,
        position_bias: nn.Module | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.schedule = list(range(len(layers))) if schedule is None else list(schedule)
        # Dense and banded layers may alternate (GPT-3).
        self.rules = list(rule) if isinstance(rule, Sequence) else [rule] * len(self.schedule)
        self.norm = norm
        self.position_bias = position_bias
        self.dropout = Dropout(dropout)
        self.seen: list[Tensor] | None = None
        """Set by `etymon.trace`: the input and every layer's output are then kept."""

    def forward(
        self,
        x_ND: Tensor,
        batch: Batch,
        memory: Memory | None = None,
        state: KeyValueState | None = None,
        at: Tensor | None = None,
    ) -> Tensor:
        """Hidden states `[N, D]`, or those of the flat places `at` alone: the last layer then computes no
        others."""
        narrow = None if at is None or state is not None else self._narrow(batch, at)
        # By rule and not by layer: alternating layers of two rules share two views.
        views = {
            rule: self._with_bias(
                flat_view(rule, batch) if state is None else state.view(rule, batch), x_ND.dtype
            )
            for rule in set(self.rules)
        }
        cross_view = None if memory is None else self._cross_view(batch, memory, state)
        # Made once: all layers write their new tokens to the same cells.
        places = None if state is None else state.places(batch.layout)
        if self.seen is not None:
            self.seen.append(x_ND)
        layers = list(self.layers)  # a module's list spells out every index as a text
        for number, (physical, rule) in enumerate(zip(self.schedule, self.rules, strict=True)):
            inputs = LayerInputs(view=views[rule], places=places, memory=memory, cross_view=cross_view)
            if state is not None:
                inputs.cache = state.self_caches[number]
                inputs.cross_cache = None if memory is None else state.cross_caches[number]
            if narrow is not None and number == len(self.schedule) - 1:
                inputs.at, inputs.view = at, self._with_bias(flat_view(FullRule(), narrow, batch), x_ND.dtype)
                inputs.cross_view = None if memory is None else self._cross_view(narrow, memory, None)
            x_ND = layers[physical](x_ND, inputs)
            if self.seen is not None:
                self.seen.append(x_ND)
        if self.norm is not None:
            # T5 has a dropout behind its last norm; elsewhere the rate is 0.
            x_ND = self.dropout(self.norm(x_ND))
            if self.seen is not None:
                self.seen[-1] = x_ND  # the last state is the normed one, as other libraries report it
        if state is not None:
            state.advance(batch.layout)
        return x_ND if at is None or narrow is not None else x_ND.index_select(0, at)

    def _narrow(self, batch: Batch, at: Tensor) -> Batch | None:
        """The tokens `at` as a batch of rows of one token, if each sees all of its row in the last layer;
        else None."""
        plain = self.rules[-1].plain(batch.layout.longest) if batch.prefix is None else None
        layout = batch.layout
        # A last token sees its whole row in any case, others without a causal order.
        sees_all = at is layout.last or (
            plain == "full" and (at is layout.first or (len(at) == layout.rows and _one_a_row(layout, at)))
        )
        # A traced run shows every token, so nothing is left out then.
        if plain is None or not sees_all or self.seen is not None:
            return None
        return Batch(
            batch.ids[at], Layout([1] * layout.rows, batch.device), batch.positions[at], counted=False
        )

    def _with_bias(self, view: FlatView | CachedView, dtype: torch.dtype) -> FlatView | CachedView:
        position_bias = self.position_bias
        if position_bias is None:
            return view
        # In the type of queries and keys: fused kernels take no other.
        return view.with_bias(lambda queries, keys: position_bias(queries, keys).to(dtype))

    @staticmethod
    def _cross_view(batch: Batch, memory: Memory, state: KeyValueState | None) -> FlatView | CachedView:
        if state is None:
            return flat_view(FullRule(), batch, memory.batch)
        return state.cross_view(batch, memory.batch)


def _one_a_row(layout: Layout, at: Tensor) -> bool:
    """Whether the flat places are one of every row, in order."""
    return torch.equal(layout.row[at], torch.arange(layout.rows, device=at.device))


class Body(nn.Module):
    """An encoder or a decoder: ids to hidden states."""

    def __init__(self, embeddings: Embeddings, stack: Stack) -> None:
        super().__init__()
        self.embeddings = embeddings
        self.stack = stack

    def forward(
        self,
        batch: Batch,
        memory: Memory | None = None,
        state: KeyValueState | None = None,
        embedded: Tensor | None = None,
    ) -> Tensor:
        return self.stack(self.embeddings(batch, embedded), batch, memory, state)

    @property
    def reach(self) -> int | None:
        """How many tokens back a decode sees; None for all of them."""
        return None

    def start(self, rows: int, capacity: int = 0) -> KeyValueState:
        """An empty state for decoding step by step, with room for `capacity` tokens a row."""
        return KeyValueState(len(self.stack.schedule), rows, capacity)

    @property
    def positions(self) -> int | None:
        """How many tokens a row may have; None if there is no limit."""
        return self.embeddings.room


class EncoderDecoder(nn.Module):
    """Two bodies that share their word vectors. `decoder` is None where only the encoder was built."""

    def __init__(self, words: Embedding, encoder: Any, decoder: Any) -> None:
        super().__init__()
        self.words = words
        self.encoder = encoder
        self.decoder = decoder

    def encode(self, batch: Batch, embedded: Tensor | None = None) -> Memory:
        return Memory(self.encoder(batch, embedded=embedded), batch)

    def decode(
        self,
        batch: Batch,
        memory: Memory,
        state: KeyValueState | None = None,
        embedded: Tensor | None = None,
    ) -> Tensor:
        assert self.decoder is not None, "this model was built without its decoder"
        return self.decoder(batch, memory, state, embedded)

    def start(self, rows: int, capacity: int = 0) -> KeyValueState:
        assert self.decoder is not None, "this model was built without its decoder"
        return self.decoder.start(rows, capacity)

    @property
    def positions(self) -> int | None:
        return self.encoder.positions
