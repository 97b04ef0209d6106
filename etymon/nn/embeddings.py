"""From ids to vectors, and how a model knows where a token stands.

Legend: N tokens, D width, R rows, H heads, Q queries, T keys, K head width, P turned pairs of a head.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from etymon.errors import EtymonError
from etymon.nn.adaptive import AdaptiveEmbedding
from etymon.nn.batch import Batch
from etymon.nn.layers import Dropout, Embedding
from etymon.nn.precision import ComputesInPrecision


class Embeddings(ComputesInPrecision, nn.Module):
    """Word vectors, plus whatever a family adds: positions, segments, a norm, a projection, dropout.

    `position_offset` is where counting starts in the table (RoBERTa and BART: 2). With `count_hidden` off,
    tokens that nobody may see have no position: they all stand on the row before the first (RoBERTa). Where
    layers tell positions without a table, `longest` is how many a row may have.
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
        """How many tokens a row may have; None if there is no limit."""
        if isinstance(positions, Embedding):
            self.room = positions.num_embeddings - position_offset
        self.segments = segments
        self.norm = norm
        self.projection = projection
        self.scale = scale
        self.dropout = Dropout(dropout)

    def look_up(self, batch: Batch) -> Tensor:
        """The bare word vectors. Adversarial training replaces this method, here and in other modules that
        have it."""
        return self.words(batch.ids)

    def forward(self, batch: Batch, embedded: Tensor | None = None) -> Tensor:
        x_ND = self.look_up(batch) if embedded is None else embedded
        if self.scale != 1.0:
            x_ND = x_ND * self.scale
        if self.segments is not None:
            # BERT adds a segment vector to every token: without segments, that of the first.
            only = batch.segments is None or self.segments.num_embeddings == 1
            x_ND = x_ND + (self.segments.weight[0] if only else self.segments(batch.segments))
        if self.room is not None and batch.last_position >= self.room:
            raise EtymonError(
                f"the text has {batch.last_position + 1} tokens, but the model has {self.room} positions: "
                "shorten it, or cut it into pieces",
                code="too-long",
            )
        if self.positions is not None:
            positions = batch.positions if self.count_hidden else _visible_positions(batch)
            # RoBERTa and BART keep the first two rows of the table for padding and what is before it.
            positions = positions + self.position_offset
            x_ND = x_ND + (
                self.positions(positions, batch.last_position).to(x_ND.dtype)
                if isinstance(self.positions, Sinusoids)
                else self.positions(positions)
            )
        if self.norm is not None:
            x_ND = self.norm(x_ND)
        # Sums and the norm are of the whole vectors: they are rounded once, at the end.
        x_ND = self.dropout(self.enter(x_ND))
        return x_ND if self.projection is None else self.projection(x_ND)


def _visible_positions(batch: Batch) -> Tensor:
    """The place of every token among the visible ones of its row, and -1 for hidden ones, `[N]` (RoBERTa)."""
    if batch.hidden_keys is None or not batch.counted:
        return batch.positions
    visible_N = (~batch.hidden_keys).long()
    through_N = visible_N.cumsum(0)  # over all rows: what earlier rows have is taken off
    before_R = (through_N - visible_N)[batch.layout.first]
    return (through_N - before_R[batch.layout.row]) * visible_N - 1


class BucketedBias(nn.Module):
    """A learned scalar per head and bucket of distance, added to the scores (T5, section 2.1).

    Half of the buckets are exact small distances, the others grow logarithmically up to `longest`. The
    table is computed once for a batch and shared by all layers of a stack.
    """

    def __init__(self, heads: int, buckets: int, longest: int, *, bidirectional: bool) -> None:
        super().__init__()
        self.table = Embedding(buckets, heads)
        self.buckets, self.longest, self.bidirectional = buckets, longest, bidirectional
        # For exported programs: another runtime's logarithm, or a rounded one, has other borders.
        self.far_buckets = self._far_bucket(torch.arange(longest + 1, device="cpu"))

    def forward(self, query_RQ: Tensor, key_RT: Tensor) -> Tensor:
        distance_RQT = key_RT[:, None, :] - query_RQ[:, :, None]
        return self.table(self.bucket(distance_RQT)).permute(0, 3, 1, 2)

    def bucket(self, distance: Tensor) -> Tensor:
        """The bucket of key position minus query position."""
        if torch.compiler.is_compiling():
            table, farthest = self.far_buckets.to(distance.device), self.longest
            if not self.bidirectional:
                return table[(-distance).clamp(0, farthest)]
            ahead = (distance > 0).long() * (self.buckets // 2)
            return ahead + table[distance.abs().clamp(max=farthest)]
        if not self.bidirectional:
            return self._far_bucket((-distance).clamp(min=0))
        return (distance > 0).long() * (self.buckets // 2) + self._far_bucket(distance.abs())

    def _far_bucket(self, distance: Tensor) -> Tensor:
        """The bucket of a distance without its sign."""
        buckets = self.buckets // 2 if self.bidirectional else self.buckets
        # Half of the buckets are a distance each, the others grow logarithmically.
        exact = buckets // 2
        # Float32 on purpose: the published weights were trained with its rounding at the bucket borders.
        growth = torch.log(distance.clamp(min=1).float() / exact) / math.log(self.longest / exact)
        far = (exact + (growth * (buckets - exact)).long()).clamp(max=buckets - 1)
        return torch.where(distance < exact, distance, far)


class Sinusoids(nn.Module):
    """Sines and cosines in turn, of wavelengths from 2 pi to 10,000 times that (Vaswani et al. 2017):
    nothing is learned, and no text is too long."""

    def __init__(self, dim: int, halved: bool = False) -> None:
        """`halved`: as fairseq has them, all sines before all cosines."""
        super().__init__()
        self.dim = dim
        self.waves = halved_sinusoids if halved else sinusoids
        self.table_TD = torch.empty(0, dim)
        """Grows with the longest text so far."""

    def forward(self, positions_N: Tensor, last: int) -> Tensor:
        if torch.compiler.is_compiling():  # an exported program has no table that grows
            return self.waves(positions_N, self.dim)
        if last >= len(self.table_TD) or self.table_TD.device != positions_N.device:
            # Twice as long as needed: growing texts of a decode do not compute it anew at every step.
            self.table_TD = self.waves(torch.arange(2 * last + 16, device=positions_N.device), self.dim)
        return self.table_TD[positions_N]


def sinusoids(positions_T: Tensor, dim: int) -> Tensor:
    # In double precision: at far positions a rounded angle is another angle.
    speeds = torch.exp(
        torch.arange(0, dim, 2, device=positions_T.device).double() * (-math.log(10000.0) / dim)
    )
    angles = positions_T[:, None].double() * speeds
    return torch.stack((angles.sin(), angles.cos()), -1).flatten(1)[:, :dim].float()


def halved_sinusoids(positions_T: Tensor, dim: int) -> Tensor:
    """fairseq's: all sines, then all cosines, the slowest of them exactly 10,000 times slower than the first
    (the paper's falls short of that), and places counted from 2, behind its padding token."""
    count = dim // 2
    steps = torch.arange(count, device=positions_T.device).double()
    speeds = torch.exp(steps * (-math.log(10000.0) / max(1, count - 1)))
    angles = (positions_T[:, None].double() + 2) * speeds
    waves_TD = torch.cat((angles.sin(), angles.cos()), -1)
    return nn.functional.pad(waves_TD, (0, dim - 2 * count)).float()


def sinusoidal(table_TD: Tensor, generator: torch.Generator) -> None:
    """Fills a table of positions with them, as its first value."""
    table_TD.copy_(sinusoids(torch.arange(len(table_TD)), table_TD.shape[1]))


class Rotary(nn.Module):
    """Turns queries and keys by angles that grow with their positions, so that scores know distances (Su et
    al. 2021).

    The first `width` numbers of every head are pairs of neighbours, each turned at its own speed; the
    others stay (GPT-J). `angles` is the type that angles are computed in: GPT-J's are rounded to float32,
    RoFormer's are not.
    """

    def __init__(self, width: int, base: float = 10000.0, *, angles: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.width, self.base, self.angles = width, base, angles
        self._last: tuple[Tensor, Tensor, Tensor] | None = None
        """The positions of the last call, their cosines and sines: all layers ask for the same."""

    def waves(self, positions_N: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines `[N, 1, P]` of the angles of all pairs."""
        if torch.compiler.is_compiling():  # an exported program keeps nothing between calls
            return self._waves(positions_N)
        last = self._last
        if last is None or last[0] is not positions_N:
            # Outside of inference mode: a batch that was only read may be trained on next.
            with torch.inference_mode(False), torch.no_grad():
                self._last = last = positions_N, *self._waves(positions_N)
        return last[1:]

    def _waves(self, positions_N: Tensor) -> tuple[Tensor, Tensor]:
        pairs_P = torch.arange(0, self.width, 2, device=positions_N.device, dtype=self.angles)
        speeds_P = 1.0 / self.base ** (pairs_P / self.width)
        angles_N1P = positions_N[:, None, None].to(self.angles) * speeds_P
        return angles_N1P.cos().float(), angles_N1P.sin().float()

    def forward(self, positions_N: Tensor) -> Callable[[Tensor], Tensor]:
        cosines_N1P, sines_N1P = self.waves(positions_N)

        def turn(x_NHK: Tensor) -> Tensor:
            # Angles have at least float32: rounded ones would be other positions.
            cosine, sine = cosines_N1P.to(x_NHK.dtype), sines_N1P.to(x_NHK.dtype)
            left, right = x_NHK[..., : self.width : 2], x_NHK[..., 1 : self.width : 2]
            turned = torch.stack((left * cosine - right * sine, right * cosine + left * sine), dim=-1)
            return torch.cat((turned.flatten(-2), x_NHK[..., self.width :]), dim=-1)

        return turn
