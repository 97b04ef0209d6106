"""Attention that knows distances (Dai et al. 2019): content meets content, content meets distance, and two
learned biases stand in for the query where only the key or only the distance matters.

    score(i, j) = ((q_i + u) k_j + (q_i + v) r_(i-j)) / sqrt(K)        r_d = W_r [sin || cos](d)

All queries meet all distances in one product. Where queries and keys are each neighbours, the score of a
pair is then found by reading that product with another stride (the published shift, without its copy);
where queries stand anywhere, by a gather.

Legend: N query tokens, D width, H heads, R rows, Q queries and T keys of a row, M keys before them, L
distances, K head width; heads come first in memory, since one product a head then reads its part of all
rows.
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
from etymon.nn.layers import Dropout, Linear, keep_mask
from etymon.nn.layers import dropout as drop
from etymon.nn.precision import follow


class DistanceSinusoids(nn.Module):
    """Sines and then cosines of distances `[L, D]`, at D / 2 speeds. Distances beyond `clamp`, if it is
    above 0, are taken for it."""

    def __init__(self, dim: int, *, clamp: int = 0, dropout: float = 0.0) -> None:
        super().__init__()
        self.dim, self.clamp = dim, clamp
        self.dropout = Dropout(dropout)

    def forward(self, distances_L: Tensor) -> Tensor:
        if self.clamp > 0:
            distances_L = distances_L.clamp(-self.clamp, self.clamp)
        pairs = torch.arange(0, self.dim, 2, device=distances_L.device)
        # In float32, and sines before cosines, as the published weights were trained.
        angles = distances_L[:, None].float() * (1.0 / 10000 ** (pairs / self.dim))
        return self.dropout(torch.cat([angles.sin(), angles.cos()], -1))


@dataclass(frozen=True)
class RelativeView:
    """Where the queries and keys of some rows stand to each other, and who sees whom: made once for all
    layers.

    `table_LD` are the sinusoids of all distances that occur, in falling order. The distance of a query and
    a key is column `offset - query + key` of it, or else the one in `columns_RQT`. With an offset, pairs
    whose column is outside of the table have to be hidden, and the table must be wider than there are keys.
    Several tables `[G, L, D]` are for as many equal parts of the rows, in order.
    """

    query: Layout
    table_LD: Tensor
    keys: int
    offset: int | None = None
    columns_RQT: Tensor | None = None
    hidden_RQT: Tensor | None = None
    """Pairs that may not meet, `[R or 1, Q, T]`."""
    blind: bool = False
    """Some queries may see no key at all: their output is then 0, and not an average of what is hidden."""
    differs_RQT: Tensor | None = None
    """1.0 for pairs of different segments, else 0.0; for attentions that score segments."""

    @cached_property
    def bias_RQT(self) -> Tensor:
        hidden = self.hidden_RQT
        if hidden is None:
            return self.table_LD.new_zeros(1, 1, 1)
        return self.table_LD.new_zeros(hidden.shape).masked_fill_(hidden, -math.inf)


class RelativeInputs(QuerySubset):
    """One layer's inputs beside its hidden states: a view, and the remembered inputs of the tokens before,
    `[R, M, D]`, which go through `norm` first.

    A decode has a cache instead, of which cell `first` is the first key, and `r_HLK`, the distances through
    their map.
    """

    def __init__(
        self,
        view: RelativeView,
        past_RMD: Tensor | None = None,
        norm: nn.Module | None = None,
        cache: Cache | None = None,
        places: Places | None = None,
        first: int = 0,
        r_HLK: Tensor | None = None,
    ) -> None:
        self.view, self.cache, self.places = view, cache, places
        self.first, self.r_HLK = first, r_HLK
        self._past_RMD, self._norm = past_RMD, norm

    def normed_past(self) -> Tensor | None:
        """Asked for by the layer itself: only while it computes, a sharded one has the weights of its
        norm."""
        if self._past_RMD is None or self._norm is None:
            return self._past_RMD
        return self._norm(self._past_RMD)


class RelativeAttention(Attention):
    """`biases` are u and v of `[H, K]`; layers may share them. A subclass may score pairs of different
    segments."""

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
        # W_r of the paper: distances have a key map of their own.
        self.position = Linear(dim, self.heads * self.head_dim, bias=False)
        shared = biases or relative_biases(self.heads, self.head_dim)
        self.content_bias, self.position_bias = shared

    def forward(self, x_ND: Tensor, inputs: Any) -> Tensor:
        """Self-attention, with a memory or with a cache."""
        view, past_RMD = inputs.view, inputs.normed_past()
        if inputs.cache is None:
            return self.attend_to(x_ND, *self.keys(view.query.pad(x_ND), past_RMD), view)
        new_ND = x_ND
        if past_RMD is not None:
            new_ND = inputs.places.layout.unpad(prepend_memory(past_RMD, view.query.pad(x_ND)))
        inputs.cache.append(*self.project(new_ND), inputs.places)
        return self.attend_to_cache(x_ND, inputs)

    def keys(self, x_RTD: Tensor, past_RMD: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Keys and values of rectangular rows, behind those of their past, heads first: `[H, R, T, K]`.

        The past goes through the maps by itself: it has no gradient, so that none is computed for it.
        """
        k, v = (self.by_head(part(x_RTD)) for part in (self.key, self.value))
        if past_RMD is not None:
            past_k, past_v = (self.by_head(part(past_RMD.to(x_RTD.dtype))) for part in (self.key, self.value))
            k, v = torch.cat([past_k, k], 2), torch.cat([past_v, v], 2)
        return k, v

    def attend_to(
        self,
        x_ND: Tensor,
        k_HRTK: Tensor,
        v_HRTK: Tensor,
        view: RelativeView,
        r_HLK: Tensor | None = None,
    ) -> Tensor:
        """Attention output `[N, D]` of the view's queries, which are made of x, to any keys and values."""
        q_HRQK = self.by_head(view.query.pad(self.query(x_ND)))
        out_HRQK, weights = relative_attend(
            q_HRQK,
            k_HRTK,
            v_HRTK,
            self.distances(view.table_LD) if r_HLK is None else r_HLK,
            (self.content_bias, self.position_bias),
            view,
            scale=self.scale,
            dropout=self.dropout if self.training else 0.0,
            segment_HRQ=self.segment_scores(q_HRQK),
            eager=self.seen is not None,
        )
        if self.seen is not None and weights is not None:
            real = view.query.real[:, None, :, None]
            self.seen.append(weights.transpose(0, 1).masked_fill(~real, 0.0))
        return self.output(view.query.unpad(out_HRQK.permute(1, 2, 0, 3).flatten(2)))

    def attend_to_cache(self, x_ND: Tensor, inputs: RelativeInputs) -> Tensor:
        """The view's queries to what the cache holds. Caches have their rows first, and are not copied."""
        view, cache, r_HLK = inputs.view, inputs.cache, inputs.r_HLK
        assert cache is not None and r_HLK is not None
        keys, values = (part[:, :, inputs.first : inputs.first + view.keys] for part in cache.parts)
        # Queries are fewer than scores: the scale falls on them.
        q_HRQK = self.by_head(view.query.pad(self.query(x_ND))).to(keys.dtype) * self.scale
        content, position = (
            q_HRQK + self.scale * follow(bias, q_HRQK)[:, None, None]
            for bias in (self.content_bias, self.position_bias)
        )
        products = torch.bmm(position.flatten(1, 2), follow(r_HLK, position).transpose(1, 2))
        scores = pick_distances(products, view, q_HRQK.shape[2]).add(view.bias_RQT).transpose(0, 1)
        weights = (scores + content.transpose(0, 1) @ keys.transpose(-1, -2)).softmax(-1)
        if self.seen is not None:
            self.seen.append(weights)
        return self.output(view.query.unpad((weights @ values).transpose(1, 2).flatten(2)).to(x_ND.dtype))

    def segment_scores(self, q_HRQK: Tensor) -> Tensor | None:
        """What pairs of different segments score more than others, `[H, R, Q]`, scale included; None if
        nothing."""
        return None

    def distances(self, table_LD: Tensor) -> Tensor:
        """The table of distances through its map, `[H, L, K]`; of several tables, `[H G, L, K]`."""
        return self.by_head(self.position(table_LD if table_LD.dim() == 3 else table_LD[None])).flatten(0, 1)

    def by_head(self, x_RTD: Tensor) -> Tensor:
        return x_RTD.unflatten(-1, (self.heads, self.head_dim)).permute(2, 0, 1, 3)


def relative_biases(heads: int, head_dim: int) -> tuple[nn.Parameter, nn.Parameter]:
    """u and v, blank."""
    return nn.Parameter(torch.empty(heads, head_dim)), nn.Parameter(torch.empty(heads, head_dim))


def prepend_memory(past_RMD: Tensor | None, x_RQD: Tensor) -> Tensor:
    """Rows `[R, M + Q, D]` behind what they remember."""
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
    segment_HRQ: Tensor | None = None,
    eager: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """The attention output `[H, R, Q, K]`; the weights `[H, R, Q, T]` as well, from the plain formula, if
    `eager`.

    `biases` are u and v; `segment_HRQ` is added to scores of pairs of different segments, scale included.
    """
    if not eager and not torch.compiler.is_compiling():
        out: Tensor = RelativeAttend.apply(
            q_HRQK, k_HRTK, v_HRTK, r_HLK, *biases, segment_HRQ, view, scale, dropout
        )
        return out, None
    # The plain formula: `etymon.trace` reads its weights, and tests hold the fast way to it.
    content, position = ((q_HRQK + follow(bias, q_HRQK)[:, None, None]) * scale for bias in biases)
    products = position.reshape(len(r_HLK), -1, position.shape[-1]) @ r_HLK.transpose(-1, -2)
    columns = view.columns_RQT
    if columns is None:
        assert view.offset is not None
        keys, queries = (torch.arange(n, device=q_HRQK.device) for n in (view.keys, view.query.longest))
        columns = (view.offset - queries[:, None] + keys).clamp_(0, products.shape[-1] - 1)
    scores = content @ k_HRTK.transpose(-1, -2)
    products = products.reshape(*position.shape[:-1], -1)
    scores = scores + products.gather(-1, columns.expand_as(scores))
    if segment_HRQ is not None and view.differs_RQT is not None:
        scores = scores + segment_HRQ[..., None] * view.differs_RQT
    if view.hidden_RQT is not None:
        scores = scores.masked_fill(view.hidden_RQT, -math.inf)
    weights = scores.softmax(-1)
    if view.blind and view.hidden_RQT is not None:
        weights = weights.masked_fill(view.hidden_RQT, 0.0)
    return drop(weights, dropout) @ v_HRTK, weights


class RelativeAttend(torch.autograd.Function):
    """Relative attention that keeps one array of the size of the scores, `[H R, Q, T]`, for the way back,
    and with dropout a second one of what is left of the weights.

    The scores become the weights in place. Both products of the scores add into that array, and the
    gradient of the distances reads it by the same stride as the forward pass.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        r: Tensor,
        u: Tensor,
        w: Tensor,
        segment: Tensor | None,
        view: RelativeView,
        scale: float,
        rate: float,
    ) -> Tensor:
        heads, _, queries, width = q.shape
        # Heads come first in memory from here on; queries move there with the biases, in one pass each.
        content, position = (
            torch.add(q, bias[:, None, None], out=torch.empty_like(q, memory_format=torch.contiguous_format))
            for bias in (u, w)
        )
        k, v, r = (part.contiguous().view(-1, *part.shape[-2:]) for part in (k, v, r))
        products = torch.bmm(position.view(len(r), -1, width), r.transpose(1, 2)).view(heads, -1, r.shape[1])
        # The scale and the mask come with the copy that leaves the stride behind.
        scores = torch.add(view.bias_RQT, pick_distances(products, view, queries), alpha=scale)
        del products
        if segment is not None and view.differs_RQT is not None:
            scores.addcmul_(segment[..., None], view.differs_RQT)
        weights = scores.view(-1, queries, k.shape[1])
        weights.baddbmm_(content.view(-1, queries, width), k.transpose(1, 2), alpha=scale)
        torch.softmax(weights, -1, out=weights)
        if view.blind and view.hidden_RQT is not None:
            # A softmax over nothing but -inf is NaN: such a query's weights become 0.
            scores.masked_fill_(view.hidden_RQT, 0.0)
        used = weights
        if rate and q.device.type == "cpu":
            # A product with 1.0 and 0.0 is cheaper than one with a boolean mask.
            used = keep_mask(weights.shape, rate, weights.dtype).mul_(weights)
        elif rate:
            used = torch.empty_like(weights).bernoulli_(1 - rate).mul_(weights)
        ctx.save_for_backward(content, position, k, v, r, segment, weights, used)
        ctx.view, ctx.shape, ctx.scale, ctx.factor = view, scores.shape, scale, 1 / (1 - rate)
        out = torch.bmm(used, v)
        return (out.mul_(ctx.factor) if rate else out).view(q.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        content, position, k, v, r, segment, weights, used = ctx.saved_tensors
        view, scale, width = ctx.view, ctx.scale, v.shape[-1]
        heads, rows, queries, keys = ctx.shape
        # From here on, heads and rows are one axis of the batched products.
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
        gradient_segment = None
        if segment is not None and view.differs_RQT is not None:
            gradient_segment = (error_HRQT * view.differs_RQT).sum(-1)
        gradient_content = torch.bmm(error, k).view(content.shape)
        gradient_k = torch.bmm(error.transpose(1, 2), content.view(-1, queries, width)).mul_(scale)
        by_distance = spread_distances(error_HRQT, view, r.shape[1]).view(len(r), -1, r.shape[1])
        gradient_position = torch.bmm(by_distance, r).view(content.shape)
        gradient_r = torch.bmm(by_distance.transpose(1, 2), position.view(len(r), -1, width)).mul_(scale)
        gradient_u, gradient_w = (
            # A bias is met by all queries: their sum is float32 even where they are not.
            part.sum((1, 2), dtype=torch.promote_types(part.dtype, torch.float32)).mul_(scale)
            for part in (gradient_content, gradient_position)
        )
        # In the memory order of the queries, rows first, as their projection wants it.
        gradient_q = content.new_empty(rows, queries, heads, width).permute(2, 0, 1, 3)
        torch.add(gradient_content, gradient_position, out=gradient_q).mul_(scale)
        gradient_k, gradient_v = (part.view(heads, rows, keys, width) for part in (gradient_k, gradient_v))
        by_tensor = gradient_q, gradient_k, gradient_v, gradient_r, gradient_u, gradient_w, gradient_segment
        return *by_tensor, None, None, None


def pick_distances(products: Tensor, view: RelativeView, queries: int) -> Tensor:
    """Every pair's entry out of the products of all queries with all distances, `[H, R Q, L]` to `[H, R, Q,
    T]`."""
    products_HRQL = products.view(len(products), -1, queries, products.shape[-1])
    if view.columns_RQT is not None:
        return products_HRQL.gather(-1, view.columns_RQT.expand(*products_HRQL.shape[:3], view.keys))
    return products.as_strided(*_strides(view, products_HRQL.shape))


def spread_distances(error: Tensor, view: RelativeView, distances: int) -> Tensor:
    """The gradient of `pick_distances`, `[H, R Q, L]`: zeros where no pair has that distance."""
    # Zeros first: distances beyond a row's keys get no gradient.
    spread = error.new_zeros(*error.shape[:3], distances)
    if view.columns_RQT is not None:
        spread.scatter_(-1, view.columns_RQT.expand(error.shape), error)
    else:
        # Hidden pairs may lie in another row's unused cells: their error is exactly 0, as are those.
        spread.as_strided(*_strides(view, spread.shape)).copy_(error)
    return spread.flatten(1, 2)


def _strides(view: RelativeView, shape: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Sizes, strides and offset that read `[H, R, Q, L]` as `[H, R, Q, T]`: each query's keys begin one
    column before those of the query before it, so rows are read as if they were one shorter than they
    lie."""
    heads, rows, queries, distances = shape
    assert view.offset is not None and distances > view.keys and view.offset + view.keys - queries < distances
    row = queries * distances
    return (heads, rows, queries, view.keys), (rows * row, row, distances - 1, 1), view.offset
