"""How task heads read a model's hidden states.

Legend: N tokens, n positions that a head reads, D width.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from etymon.errors import EtymonError
from etymon.families.family import Family, Where
from etymon.nn.attention import Memory
from etymon.nn.batch import Batch
from etymon.nn.blocks import EncoderDecoder, Stack
from etymon.nn.trace import trace


class HeadReader(nn.Module, ABC):
    """The part of a model that gives its heads the states they read: of every token, of one place a row, or of all layers."""

    family: Family
    shape: Any
    body: Any
    heads: nn.ModuleDict
    frozen_body: bool

    @abstractmethod
    def hidden(
        self, batch: Batch, state: Any = None, embedded: Tensor | None = None
    ) -> tuple[Tensor, Any]: ...

    @abstractmethod
    def encode(self, batch: Batch, embedded: Tensor | None = None) -> Memory: ...

    @abstractmethod
    def token(self, role: str) -> int | None: ...

    @property
    @abstractmethod
    def decoder_start(self) -> int: ...

    @property
    def encoder_decoder(self) -> bool:
        """Whether it has an encoder and a decoder, not one stack."""
        return isinstance(self.body, EncoderDecoder)

    def read(self, head: str, hidden_ND: Tensor, batch: Batch, at: Tensor | None = None) -> Tensor:
        """A task head's output at the positions its family reads (or at the flat positions `at`)."""
        if head in self.family.feature_heads:
            raise EtymonError(
                f"the head {head!r} reads features of every layer, and not the last states alone"
            )
        return self.read_from(head, self.pick(head, hidden_ND, batch, at))

    def pick(self, head: str, hidden_ND: Tensor, batch: Batch, at: Tensor | None = None) -> Tensor:
        """The states that a head reads in its family (or those at the flat positions `at`)."""
        if at is None and self._reads_at(head) == "mean":
            return batch.layout.mean(hidden_ND)
        at = self._places(head, batch) if at is None else at
        return hidden_ND if at is None else hidden_ND.index_select(0, at)

    def pick_states(self, head: str, batch: Batch, at: Tensor | None = None) -> Tensor:
        """The same of a batch: where single places are read, the last layer computes no others."""
        at = self._places(head, batch) if at is None else at
        return self.pick(head, self.states(batch), batch) if at is None else self.states(batch, at)

    def read_from(self, head: str, x_nD: Tensor) -> Tensor:
        """A task head's output of the states `pick` gives."""
        if (before := self.family.heads[head].after) is not None:
            x_nD = self.heads[before](x_nD)
        return self.heads[head](x_nD)

    def _reads_at(self, head: str) -> Where:
        after = self.family.heads[head].after
        at = self.family.heads[after or head].at
        return at(self.shape) if callable(at) else at

    def _places(self, head: str, batch: Batch) -> Tensor | None:
        """The flat positions that a head reads in its family; None for all."""
        return {"first": batch.layout.first, "last": batch.layout.last}.get(self._reads_at(head))

    def answer(self, head: str, batch: Batch, at: Tensor | None = None) -> Tensor:
        """What a task head says of texts: one row of outputs for every text or, if it looks at all of them,
        every token."""
        if head in self.family.feature_heads:
            return self.answer_from(head, self.layers(batch), batch, at)
        return self.read_from(head, self.pick_states(head, batch, at))

    def answer_from(
        self, head: str, layers_ND: Sequence[Tensor], batch: Batch, at: Tensor | None = None
    ) -> Tensor:
        """The same of a head that reads features, of `layers` that were computed before: a frozen body's do
        not change."""
        # Words that only their letters tell apart have one vector in a task.
        if "letters" in self.family.capabilities:
            unknown = self.token("unknown") or 0
            batch = replace(batch, ids=batch.ids.where(batch.ids < self.shape.vocabulary, unknown))
        return self.heads[head](layers_ND, batch, at)

    def layers(self, batch: Batch) -> list[Tensor]:
        """The states `[N, D]` of every layer, the input of the first before them; of an encoder and a
        decoder, the encoder's."""
        was_training = self.body.training
        needs_gradient = torch.is_grad_enabled() and not self.frozen_body
        self.body.train(was_training and not self.frozen_body)
        try:
            with torch.set_grad_enabled(needs_gradient), trace(self, attention=False) as seen:
                last = self.last_layer(batch)
        finally:
            self.body.train(was_training)
        return next((stack.hidden for stack in seen.values() if stack.hidden), [last])

    def last_layer(self, batch: Batch) -> Tensor:
        """The last of these alone."""
        return self.encode(batch).hidden_MD if self.encoder_decoder else self.hidden(batch)[0]

    def states(self, batch: Batch, at: Tensor | None = None) -> Tensor:
        """The hidden states `[N, D]` that task heads look at, or those at some flat positions. A decoder over
        an encoder reads the same text behind its start."""
        last, memory = self.body, None
        if self.encoder_decoder and last.decoder is None:
            last = last.encoder
        elif self.encoder_decoder:
            last, memory = last.decoder, self.encode(batch)
            ids_N = batch.ids.roll(1)
            ids_N[batch.layout.first] = self.decoder_start
            batch = replace(batch, ids=ids_N, segments=None, views={})
        # The last layer of a plain stack need not compute what nobody reads.
        if at is not None and isinstance(getattr(last, "stack", None), Stack):
            return last.at(at, batch, memory)
        whole_ND: Tensor = self.hidden(batch)[0] if last is self.body else last(batch, memory)
        return whole_ND if at is None else whole_ND.index_select(0, at)
