"""Bodies: embeddings and a stack, once or twice. What a family composes from parts ends up as one of these."""

from __future__ import annotations

from torch import Tensor, nn

from etymon.nn.attention import Memory
from etymon.nn.batch import Batch
from etymon.nn.blocks import Stack
from etymon.nn.embeddings import Embeddings
from etymon.nn.linear import Embedding
from etymon.nn.state import KeyValueState


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

    def at(self, at_n: Tensor, batch: Batch, memory: Memory | None = None) -> Tensor:
        """Hidden states of some flat places alone, without the work that only the others would need."""
        return self.stack(self.embeddings(batch), batch, memory, at=at_n)

    def start(self, rows: int, capacity: int = 0) -> KeyValueState:
        """An empty state for decoding step by step, with room for `capacity` tokens a row."""
        return KeyValueState(len(self.stack.schedule), rows, capacity)

    @property
    def positions(self) -> int | None:
        """How many tokens a row may have; None if there is no limit."""
        return self.embeddings.room


class EncoderDecoder(nn.Module):
    """Two bodies that share their word vectors. `decoder` is None when only the encoder is wanted."""

    def __init__(self, words: Embedding, encoder: Body, decoder: Body | None) -> None:
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
