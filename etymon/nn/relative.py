"""Attention that knows distances (Dai et al. 2019): content meets content, content meets distance, and two learned biases
stand in for the query where only the key or only the distance matters.

    score(i, j) = ((q_i + u) k_j + (q_i + v) r_(i-j)) / sqrt(K)        r_d = W_r [sin || cos](d)

All queries meet all distances in one product. Where queries and keys are each neighbours, the score of a pair is then found by
reading that product with another stride (the published shift, without its copy); where queries stand anywhere, by a gather.

Legend: N query tokens, D width, H heads, R rows, Q queries and T keys of a row, M keys before them, L distances, K head width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from etymon.nn.attention import Attention, QuerySubset
from etymon.nn.batch import Layout
from etymon.nn.cache import Cache, Places
from etymon.nn.layers import Dropout, Linear, dropout, keep_mask


class DistanceSinusoids(nn.Module):
    """Sines and then cosines of distances, at `dim / 2` speeds; distances beyond `clamp`, if it is positive, are the same."""

    def __init__(self, dim: int, *, clamp: int = 0, dropout: float = 0.0) -> None:
        super().__init__()
        self.dim, self.clamp = dim, clamp
        self.dropout = Dropout(dropout)

    def forward(self, distances_L: Tensor) -> Tensor:
        if self.clamp > 0:
            distances_L = distances_L.clamp(-self.clamp, self.clamp)
        pairs = torch.arange(0, self.dim, 2, device=distances_L.device)
        angles = distances_L[:, None].float() * (1.0 / 10000 ** (pairs / self.dim))
        return self.dropout(torch.cat([angles.sin(), angles.cos()], -1))


@dataclass(frozen=True)
class RelativeView:
    """Where the queries and keys of some rows stand to each other, and who sees whom: made once for all layers.

    `table_LD` are the sinusoids of all distances that occur, in falling order. A query and a key meet in column
    `offset - query + key` of it, or else in the one that `columns_RQT` says. With an offset, pairs whose column is outside of
    the table have to be hidden, and the table must be wider than there are keys. Several tables `[G, L, D]` are for as many
    equal parts of the rows, in order.
    """

    query: Layout
    table_LD: Tensor
    keys: int
    offset: int | None = None
    columns_RQT: Tensor | None = None
    hidden_RQT: Tensor | None = None
    """Pairs that may not meet, `[R or 1, Q, T]`."""
    blind: bool = False
    """Some queries may see nothing at all: they then get nothing, and not an average of what is hidden."""
    differs_RQT: Tensor | None = None
    """For attentions with a term for it: pairs of different segments, 1.0 or 0.0."""

    @cached_property
    def bias_RQT(self) -> Tensor:
        hidden = self.hidden_RQT
        if hidden is None:
            return self.table_LD.new_zeros(1, 1, 1)
        return self.table_LD.new_zeros(hidden.shape).masked_fill_(hidden, -math.inf)

    @cached_property
    def gathered_RQT(self) -> Tensor:
        """The columns, whichever way they are given."""
        if self.columns_RQT is not None:
            return self.columns_RQT
        assert self.offset is not None
        device = self.table_LD.device
        keys, queries = (torch.arange(n, device=device) for n in (self.keys, self.query.longest))
        return (self.offset - queries[:, None] + keys).clamp_(0, self.table_LD.shape[-2] - 1)[None]


@dataclass
class RelativeInputs(QuerySubset):
    """What one layer looks at: a view, and the inputs that it remembers of the tokens before, `[R, M, D]`.

    A decode has a cache instead, of which cell `first` is the first key, and what stands for distances ready made.
    """

    view: RelativeView
    past_RMD: Tensor | None = None
    cache: Cache | None = None
    places: Places | None = None
    first: int = 0
    r_HLK: Tensor | None = None


class RelativeAttention(Attention):
    """`biases` are u and v of `[H, K]`; layers may share them. `look` is for whoever has queries of another place than the
    keys; a subclass may add a term for pairs of different segments (`apart`)."""

    def __init__(
        self,
        dim: int,
        heads: int,
        head_dim: int | None = None,
        *,
        dropout: float = 0.0,
        biases: Sequence[nn.Parameter] | None = None,
    ) -> None:
        super().__init__(dim, heads, head_dim, bias=False, dropout=dropout)
        self.position = Linear(dim, self.heads * self.head_dim, bias=False)
        shared = biases or relative_biases(self.heads, self.head_dim)
        self.content_bias, self.position_bias = shared

    def forward(self, x_ND: Tensor, sight: Any) -> Tensor:
        """Self-attention of tokens that remember."""
        if sight.cache is not None:
            return self._recall(x_ND, sight)
        return self.look(x_ND, *self.keys(sight.view.query.lift(x_ND), sight.past_RMD), sight.view)

    def keys(self, x_RTD: Tensor, past_RMD: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Keys and values of rectangular rows, behind those of their past, heads first: `[H, R, T, K]`.

        The past goes through the maps by itself: it wants no gradient, and so none is computed.
        """
        k, v = (self.by_head(part(x_RTD)) for part in (self.key, self.value))
        if past_RMD is not None:
            past_k, past_v = (self.by_head(part(past_RMD.to(x_RTD.dtype))) for part in (self.key, self.value))
            k, v = torch.cat([past_k, k], 2), torch.cat([past_v, v], 2)
        return k, v

    def look(
        self,
        x_ND: Tensor,
        k_HRTK: Tensor,
        v_HRTK: Tensor,
        view: RelativeView,
        r_HLK: Tensor | None = None,
    ) -> Tensor:
        """The view's queries, of these hidden states, to any keys and values; `r_HLK` if the distances are ready made."""
        q_HRQK = self.by_head(view.query.lift(self.query(x_ND)))
        out_HRQK, weights = relative_attend(
            q_HRQK,
            k_HRTK,
            v_HRTK,
            self.distances(view.table_LD) if r_HLK is None else r_HLK,
            (self.content_bias, self.position_bias),
            view,
            scale=self.scale,
            dropout=self.dropout if self.training else 0.0,
            apart_HRQ=self.apart(q_HRQK),
            eager=self.seen is not None,
        )
        if self.seen is not None and weights is not None:
            real = view.query.real[:, None, :, None]
            self.seen.append(weights.transpose(0, 1).masked_fill(~real, 0.0))
        return self.output(view.query.lower(out_HRQK.permute(1, 2, 0, 3).flatten(2)))

    def _recall(self, x_ND: Tensor, sight: RelativeInputs) -> Tensor:
        """A step of a decode. Caches have their rows first, and are not copied."""
        cache = sight.cache
        assert cache is not None and sight.places is not None
        new_ND = x_ND
        if sight.past_RMD is not None:
            whole_RTD = remembered(sight.past_RMD, sight.view.query.lift(x_ND))
            new_ND = sight.places.layout.lower(whole_RTD)
        cache.append(*self.project(new_ND), sight.places)
        return self.reread(x_ND, sight)

    def reread(self, x_ND: Tensor, sight: RelativeInputs) -> Tensor:
        """The view's queries to what the cache holds."""
        view, cache = sight.view, sight.cache
        assert cache is not None and sight.r_HLK is not None
        keys, values = (part[:, :, sight.first : sight.first + view.keys] for part in cache.parts)
        q_HRQK = self.by_head(view.query.lift(self.query(x_ND))) * self.scale
        content, position = (
            q_HRQK + self.scale * bias[:, None, None] for bias in (self.content_bias, self.position_bias)
        )
        heads, rows, queries, width = position.shape
        met = torch.bmm(position.reshape(heads, rows * queries, width), sight.r_HLK.transpose(1, 2))
        scores = _met(met, view, (heads, rows, queries, view.keys)).add(view.bias_RQT).transpose(0, 1)
        weights = (scores + content.transpose(0, 1) @ keys.transpose(-1, -2)).softmax(-1)
        if self.seen is not None:
            self.seen.append(weights)
        return self.output(view.query.lower((weights @ values).transpose(1, 2).flatten(2)))

    def apart(self, q_HRQK: Tensor) -> Tensor | None:
        """What the score of a pair of different segments is greater by, `[H, R, Q]`, scale included."""
        return None

    def distances(self, table_LD: Tensor) -> Tensor:
        """What stands for every distance, `[H, L, K]`; of several tables, `[H G, L, K]`."""
        return self.by_head(self.position(table_LD if table_LD.dim() == 3 else table_LD[None])).flatten(0, 1)

    def by_head(self, x_RTD: Tensor) -> Tensor:
        return x_RTD.unflatten(-1, (self.heads, self.head_dim)).permute(2, 0, 1, 3)


def relative_biases(heads: int, head_dim: int) -> tuple[nn.Parameter, nn.Parameter]:
    """u and v, blank."""
    return nn.Parameter(torch.empty(heads, head_dim)), nn.Parameter(torch.empty(heads, head_dim))


def remembered(past_RMD: Tensor | None, x_RQD: Tensor) -> Tensor:
    """Rows behind what they remember."""
    return x_RQD if past_RMD is None else torch.cat([past_RMD.to(x_RQD.dtype), x_RQD], 1)


def relative_attend(
    q_HRQK: Tensor,
    k_HRTK: Tensor,
    v_HRTK: Tensor,
    r_HLK: Tensor,
    biases: tuple[Tensor, Tensor],
    view: RelativeView,
    *,
    scale: float,
    dropout: float = 0.0,
    apart_HRQ: Tensor | None = None,
    eager: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """The attention output `[H, R, Q, K]`; the weights `[H, R, Q, T]` as well, from the plain formula, if `eager`.

    `biases` are u and v, `apart_HRQ` what pairs of different segments have on top, scale included.
    """
    if eager:
        return _eager(q_HRQK, k_HRTK, v_HRTK, r_HLK, biases, view, scale, dropout, apart_HRQ)
    out: Tensor = _RelativeAttention.apply(
        q_HRQK, k_HRTK, v_HRTK, r_HLK, *biases, apart_HRQ, view, scale, dropout
    )
    return out, None


def _eager(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    r: Tensor,
    biases: tuple[Tensor, Tensor],
    view: RelativeView,
    scale: float,
    rate: float,
    apart: Tensor | None,
) -> tuple[Tensor, Tensor]:
    content, position = ((q + bias[:, None, None]) * scale for bias in biases)
    scores = content @ k.transpose(-1, -2)
    met = (position.reshape(len(r), -1, position.shape[-1]) @ r.transpose(-1, -2)).reshape(
        *position.shape[:-1], -1
    )
    scores = scores + met.gather(-1, view.gathered_RQT.expand_as(scores))
    if apart is not None and view.differs_RQT is not None:
        scores = scores + apart[..., None] * view.differs_RQT
    if view.hidden_RQT is not None:
        scores = scores.masked_fill(view.hidden_RQT, -math.inf)
    weights = scores.softmax(-1)
    if view.blind and view.hidden_RQT is not None:
        weights = weights.masked_fill(view.hidden_RQT, 0.0)
    return dropout(weights, rate) @ v, weights


class _RelativeAttention(torch.autograd.Function):
    """One array of scores becomes the weights in place and is all that is kept of that size, beside what dropout leaves of
    them. Both products of the scores add into it, and the gradient of the distances reads it by the stride."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        r: Tensor,
        u: Tensor,
        w: Tensor,
        apart: Tensor | None,
        view: RelativeView,
        scale: float,
        rate: float,
    ) -> Tensor:
        heads, rows, queries, width = q.shape
        # Heads come first in memory from here on; queries move there with the biases, in one pass each.
        content, position = (
            torch.add(q, bias[:, None, None], out=torch.empty_like(q, memory_format=torch.contiguous_format))
            for bias in (u, w)
        )
        k, v, r = (part.contiguous().view(-1, *part.shape[-2:]) for part in (k, v, r))
        met = torch.bmm(position.view(len(r), -1, width), r.transpose(1, 2)).view(heads, -1, r.shape[1])
        shape = heads, rows, queries, k.shape[1]
        # The scale and the mask come with the copy that leaves the stride behind.
        scores = torch.add(view.bias_RQT, _met(met, view, shape), alpha=scale)
        del met
        if apart is not None and view.differs_RQT is not None:
            scores.addcmul_(apart[..., None], view.differs_RQT)
        weights = scores.view(-1, *shape[2:])
        weights.baddbmm_(content.view(-1, queries, width), k.transpose(1, 2), alpha=scale)
        torch.softmax(weights, -1, out=weights)
        if view.blind and view.hidden_RQT is not None:
            scores.masked_fill_(view.hidden_RQT, 0.0)
        used = weights if not rate else kept(weights.shape, rate, weights).mul_(weights)
        ctx.save_for_backward(content, position, k, v, r, apart, weights, used)
        ctx.view, ctx.shape, ctx.scale, ctx.factor = view, shape, scale, 1 / (1 - rate)
        out = torch.bmm(used, v)
        return (out.mul_(ctx.factor) if rate else out).view(q.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        content, position, k, v, r, apart, weights, used = ctx.saved_tensors
        view, scale, width = ctx.view, ctx.scale, v.shape[-1]
        heads, rows, queries, keys = ctx.shape
        gradient = gradient.contiguous().view(-1, queries, width)
        if used is not weights:
            gradient = gradient * ctx.factor
        gradient_v = torch.bmm(used.transpose(1, 2), gradient)
        error = torch.bmm(gradient, v.transpose(1, 2))
        if used is weights:
            torch.ops.aten._softmax_backward_data.out(error, weights, -1, error.dtype, grad_input=error)
        else:
            error.mul_(used)  # = weights * (their gradient)
            error.addcmul_(weights, error.sum(-1, keepdim=True), value=-1)
        error_HRQT = error.view(ctx.shape)
        gradient_apart = None
        if apart is not None and view.differs_RQT is not None:
            gradient_apart = (error_HRQT * view.differs_RQT).sum(-1)
        gradient_content = torch.bmm(error, k).view(content.shape)
        gradient_k = torch.bmm(error.transpose(1, 2), content.view(-1, queries, width)).mul_(scale)
        met = _met_back(error_HRQT, view, r.shape[1]).view(len(r), -1, r.shape[1])
        gradient_position = torch.bmm(met, r).view(content.shape)
        gradient_r = torch.bmm(met.transpose(1, 2), position.view(len(r), -1, width)).mul_(scale)
        gradient_u, gradient_w = (
            part.sum((1, 2)).mul_(scale) for part in (gradient_content, gradient_position)
        )
        gradient_q = content.new_empty(rows, queries, heads, width).permute(2, 0, 1, 3)  # as queries lie
        torch.add(gradient_content, gradient_position, out=gradient_q)
        wide = heads, rows, keys, width
        return (
            gradient_q.mul_(scale), gradient_k.view(wide), gradient_v.view(wide), gradient_r, gradient_u,
            gradient_w, gradient_apart, None, None, None,
        )  # fmt: skip


def kept(shape: torch.Size, rate: float, like: Tensor) -> Tensor:
    """1.0 for what stays and 0.0 for what is dropped; a product with it is cheaper than one with a boolean mask."""
    if like.device.type != "cpu":
        return torch.empty_like(like).bernoulli_(1 - rate)
    return keep_mask(shape, rate, like.dtype)


def _met(met: Tensor, view: RelativeView, shape: tuple[int, ...]) -> Tensor:
    """Every pair's own entry out of what all queries have with all distances, `[H, R Q, L]` to `[H, R, Q, T]`."""
    heads, _, queries, keys = shape
    met_HRQL = met.view(heads, -1, queries, met.shape[-1])
    if view.columns_RQT is not None:
        index = view.columns_RQT.expand(heads, met_HRQL.shape[1], queries, keys)
        return met_HRQL.gather(-1, index)
    return met.as_strided(*_strides(view, met_HRQL.shape, keys))


def _met_back(error: Tensor, view: RelativeView, distances: int) -> Tensor:
    """The way back: zeros where no pair met."""
    heads, rows, queries, keys = error.shape
    met = error.new_zeros(heads, rows, queries, distances)
    if view.columns_RQT is not None:
        met.scatter_(-1, view.columns_RQT.expand(error.shape), error)
    else:
        # Hidden pairs may lie in another row's unused cells: their error is exactly 0, as are those.
        met.as_strided(*_strides(view, met.shape, keys)).copy_(error)
    return met.view(heads, rows * queries, distances)


def _strides(
    view: RelativeView, shape: Sequence[int], keys: int
) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Each query's keys begin one column before those of the query before it: rows are one shorter than they lie."""
    heads, rows, queries, distances = shape
    assert view.offset is not None and distances > keys and view.offset + keys - queries < distances
    row = queries * distances
    return (heads, rows, queries, keys), (rows * row, row, distances - 1, 1), view.offset
