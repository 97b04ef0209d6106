"""From ids to vectors.

Legend: N tokens, D width.
"""

from __future__ import annotations

from torch import Tensor, nn

from etymon.errors import EtymonError
from etymon.nn.adaptive import AdaptiveEmbedding
from etymon.nn.batch import Batch
from etymon.nn.dropout import Dropout
from etymon.nn.linear import Embedding
from etymon.nn.positions import Sinusoids


class Embeddings(nn.Module):
    """Word vectors, plus whatever a family adds: positions, segments, a norm, a projection, dropout.

    `position_offset` is where counting starts in the table (RoBERTa and BART: 2). With `count_hidden` off, tokens that
    nobody may see have no position: they all stand on the row before the first (RoBERTa). Where layers tell positions
    without a table, `longest` is how many a row may have.
    """

    def __init__(
        self,
        words: Embedding | AdaptiveEmbedding,
        *,
        positions: Embedding | Sinusoids | None = None,
        position_offset: int = 0,
        count_hidden: bool = True,
        longest: int | None = None,
        segments: Embedding | None = None,
        norm: nn.Module | None = None,
        projection: nn.Module | None = None,
        scale: float = 1.0,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.words = words
        self.positions = positions
        self.position_offset = position_offset
        self.count_hidden = count_hidden
        self.room: int | None = longest
        if isinstance(positions, Embedding):
            self.room = positions.num_embeddings - position_offset
        """How many tokens a row may have; None if there is no limit."""
        self.segments = segments
        self.norm = norm
        self.projection = projection
        self.scale = scale
        self.dropout = Dropout(dropout)

    def look_up(self, batch: Batch) -> Tensor:
        """The bare word vectors. Adversarial training puts its own `look_up` in the place of this one, here and elsewhere."""
        return self.words(batch.ids)

    def forward(self, batch: Batch, embedded: Tensor | None = None) -> Tensor:
        x_ND = self.look_up(batch) if embedded is None else embedded
        if self.scale != 1.0:
            x_ND = x_ND * self.scale
        if self.segments is not None:
            # Without segments, or where there is but one, everything belongs to the first: its row is added all the same.
            only = batch.segments is None or self.segments.num_embeddings == 1
            x_ND = x_ND + (self.segments.weight[0] if only else self.segments(batch.segments))
        if self.room is not None and batch.last_position >= self.room:
            raise EtymonError(
                f"the text has {batch.last_position + 1} tokens, but the model has {self.room} positions: "
                "shorten it, or cut it into pieces"
            )
        if self.positions is not None:
            positions = batch.positions if self.count_hidden else _visible_positions(batch)
            positions = positions + self.position_offset
            x_ND = x_ND + (
                self.positions(positions, batch.last_position).to(x_ND.dtype)
                if isinstance(self.positions, Sinusoids)
                else self.positions(positions)
            )
        if self.norm is not None:
            x_ND = self.norm(x_ND)
        x_ND = self.dropout(x_ND)
        return x_ND if self.projection is None else self.projection(x_ND)


def _visible_positions(batch: Batch) -> Tensor:
    """The place of every token among those of its row that are seen, and -1 for the others."""
    if batch.hidden_keys is None or not batch.counted:
        return batch.positions
    seen_N = (~batch.hidden_keys).long()
    through_N = seen_N.cumsum(0)
    before_R = (through_N - seen_N)[batch.layout.first]
    return (through_N - before_R[batch.layout.row]) * seen_N - 1
