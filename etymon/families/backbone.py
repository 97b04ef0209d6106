"""The part of a model that computes: a family's body, the heads that were asked for, and hidden states.

Legend: N tokens, n query positions, D width.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from etymon.config import did_you_mean
from etymon.errors import EtymonError
from etymon.families.family import Family
from etymon.nn.attention import Memory
from etymon.nn.batch import Batch, Letters, QueryPositions
from etymon.nn.blocks import Body, EncoderDecoder
from etymon.nn.cache import KeyValueState, StreamState
from etymon.nn.features import FeatureSettings
from etymon.nn.pointer import PointerVocabulary
from etymon.nn.vocabulary import DenseVocabulary

if TYPE_CHECKING:
    from etymon.text.tokenizer import Tokenizer


class Backbone(nn.Module):
    """`body` turns tokens into hidden states; `heads`, by name, turn hidden states into what a task wants."""

    def __init__(
        self,
        family: Family,
        shape: Any,
        heads: Iterable[str],
        labels: Sequence[str],
        features: FeatureSettings | None,
    ) -> None:
        super().__init__()
        family = family.of_shape(shape)
        family = family if features is None else family.with_features(features)
        self.family, self.shape = family, shape
        names = frozenset(heads)
        for name in names - family.heads.keys():
            raise EtymonError(f"{family.title} has no head {name!r}: {did_you_mean(name, family.heads)}")
        # A head that only serves another one (BERT's pooler) is built with it and not listed.
        self.head_names = names - {family.heads[name].after for name in names}
        self.labels = tuple(labels)
        self.body: Any = family.body(shape, self.head_names - family.feature_heads)
        self.heads = nn.ModuleDict()
        for name in family.heads:
            if name in family.with_required(self.head_names):
                self.heads[name] = family.heads[name].build(shape, self.body, len(self.labels))
        window, vocabulary = getattr(shape, "pointer", 0), self._vocabulary
        if window and isinstance(vocabulary, DenseVocabulary):
            self.heads["vocabulary"] = PointerVocabulary(vocabulary, shape.dim, window)
        # Models that read letters spell their words with it.
        self.tokenizer: Tokenizer | None = None

    def hidden(self, batch: Batch, state: Any = None, embedded: Tensor | None = None) -> tuple[Tensor, Any]:
        """Hidden states `[N, D]`; with a state (of `start` or of `remember`), of the new tokens only, which
        it then holds."""
        assert isinstance(self.body, Body), (
            f"{self.family.title} has an encoder and a decoder: encode, then decode"
        )
        if "letters" in self.capabilities and batch.letters is None and embedded is None:
            assert self.tokenizer is not None, (
                "a model that reads letters needs a tokenizer, or a batch with them"
            )
            letters, index = self.tokenizer.lexicon.spell(batch.ids.cpu().numpy())
            index_N = torch.from_numpy(index).to(batch.device)
            batch = replace(
                batch, letters=Letters(torch.from_numpy(letters).to(batch.device), index_N, index_N)
            )
        hidden_ND: Tensor = self.body(batch, state=state, embedded=embedded)
        if state is not None and isinstance(self._vocabulary, PointerVocabulary):
            assert state.window is not None, "a state of this model comes from its `start`"
            state.window.append(hidden_ND, batch.ids, batch.layout)
        return hidden_ND, state

    def encode(self, batch: Batch, embedded: Tensor | None = None) -> Memory:
        """The encoder's hidden states of a batch, for `decode`."""
        assert isinstance(self.body, EncoderDecoder), f"{self.family.title} is one stack: use hidden"
        return self.body.encode(batch, embedded)

    def decode(
        self, batch: Batch, memory: Memory, state: KeyValueState | None = None, embedded: Tensor | None = None
    ) -> tuple[Tensor, KeyValueState | None]:
        """The decoder's hidden states `[N, D]` of the new tokens, which the state then holds."""
        assert isinstance(self.body, EncoderDecoder), f"{self.family.title} is one stack: use hidden"
        return self.body.decode(batch, memory, state, embedded), state

    def start(self, rows: int, capacity: int = 0) -> KeyValueState:
        """An empty state for `rows` rows, with room for `capacity` tokens each."""
        state: KeyValueState = self.body.start(rows, capacity)
        if isinstance(self._vocabulary, PointerVocabulary):
            state.window = self._vocabulary.pointer.start()
        return state

    def remember(self, rows: int, length: int | None = None) -> StreamState:
        """What `rows` streams of text carry from segment to segment, before their first: `length` tokens, or
        the shape's number of them."""
        return self.body.remember(rows, length)

    def two_stream(
        self,
        batch: Batch,
        queries: QueryPositions,
        state: Any = None,
        embedded: Tensor | None = None,
        reuse: int | None = None,
    ) -> tuple[Tensor, Any]:
        """Hidden states `[n, D]` of what stands in some places, given what comes before them in the batch's
        `order` and not them; without an order, given all but them. The state takes up the rows' first `reuse`
        tokens, the shape's number by default."""
        assert "two-stream" in self.capabilities, f"{self.family.title} has one stream: use hidden"
        return self.body.two_stream(batch, queries, state, embedded, reuse), state

    @property
    def encoder_decoder(self) -> bool:
        """Whether it has an encoder and a decoder, not one stack."""
        return isinstance(self.body, EncoderDecoder)

    @property
    def capabilities(self) -> frozenset[str]:
        return self.family.capabilities

    @property
    def _vocabulary(self) -> nn.Module | None:
        return dict(self.heads.items()).get("vocabulary")
