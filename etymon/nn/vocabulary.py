"""Heads over the vocabulary. They compute only the positions that are wanted, and never hold `[tokens,
vocabulary]`: everything is computed in chunks of rows.

Legend: N tokens, n positions, C rows of a chunk, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from etymon.nn.batch import Batch
from etymon.nn.cache import KeyValueState
from etymon.nn.precision import follow, is_half, widen
from etymon.nn.products import Multiplied

CHUNK_ELEMENTS = 1 << 22
"""Entries of the logits held at a time: 16 MB in float32, which a processor's cache can still help with."""


HALF_ERRORS = 1 << 26
"""Gradients of half-precision logits that are kept for one product with the weights' gradient: 128 MB. That
product is rounded to half precision before it is added up in float32, so there should be few of them."""
GRADIENT_WORDS = 8192
"""Words whose gradients are added up at a time there. A product for all 50,257 of GPT-2's at once needed
200 MB for itself and for turned errors, and took twice as long (240 against 121 ms for 1,335 rows); bits are
the same."""


def chunks(rows: int, vocabulary: int, elements: int | None = None) -> Iterator[slice]:
    """Slices of rows whose logits fit the budget."""
    # At least a row, however large the vocabulary.
    step = max(1, (elements or CHUNK_ELEMENTS) // max(1, vocabulary))
    for start in range(0, rows, step):
        yield slice(start, min(rows, start + step))


def wide_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Logits in float32 at least; the product itself is computed in the type of x, the bias is added after
    it."""
    if x.dtype == weight.dtype and not is_half(x):
        return F.linear(x, weight, bias)
    logits = F.linear(x, follow(weight, x)).float()
    return logits if bias is None else logits.add_(bias)


Look = Callable[[Tensor, slice], None]
"""Gets a chunk's distributions `[C, V]` while they are in memory."""
Score = Callable[[Tensor, slice, bool], tuple[Tensor, Tensor | None]]
"""A chunk's logits (which it may overwrite), its rows, and whether a gradient is wanted, to the summed loss
and its gradient by the logits."""


class LinearLoss(torch.autograd.Function):
    """The summed loss of the logits `x W^T + b`. The gradient is formed beside the loss, while a chunk's
    logits are in memory, so that nothing of size `[n, V]` is kept and no product is computed twice.

    In half precision only the three products are half: losses, softmax and sums over chunks are float32.
    """

    @staticmethod
    def forward(ctx: Any, x_nD: Tensor, weight_VD: Tensor, bias_V: Tensor | None, score: Score) -> Tensor:
        wants_x, wants_weight, wants_bias, _ = ctx.needs_input_grad
        # Sums of many chunks are kept in 32 bits at least, whatever the hidden states have.
        total = x_nD.new_zeros((), dtype=torch.promote_types(x_nD.dtype, torch.float32))
        gradient_x = torch.empty_like(x_nD) if wants_x else None
        gradient_weight = torch.zeros_like(weight_VD) if wants_weight else None
        gradient_bias = torch.zeros_like(bias_V) if bias_V is not None and wants_bias else None
        rounds = is_half(x_nD)
        rounded_VD = follow(weight_VD, x_nD)  # once, not chunk by chunk
        wants_gradient = any(ctx.needs_input_grad)
        for held in chunks(len(x_nD), len(weight_VD), HALF_ERRORS if rounds else None):
            errors_HV: Tensor | None = None
            for chunk in chunks(held.stop - held.start, len(weight_VD)):
                part = slice(held.start + chunk.start, held.start + chunk.stop)
                loss, error_CV = score(wide_linear(x_nD[part], rounded_VD, bias_V), part, wants_gradient)
                total += loss
                if error_CV is None:
                    continue
                if gradient_bias is not None:
                    gradient_bias += error_CV.sum(0)
                if not rounds:
                    errors_HV = error_CV  # a chunk at a time, as it is
                    continue
                if errors_HV is None:
                    errors_HV = x_nD.new_empty(held.stop - held.start, len(weight_VD))
                errors_HV[chunk] = error_CV
            if errors_HV is None:
                continue
            if gradient_x is not None:
                torch.mm(errors_HV, rounded_VD, out=gradient_x[held])
            if gradient_weight is not None and rounds:
                for first in range(0, len(weight_VD), GRADIENT_WORDS):
                    words = slice(first, first + GRADIENT_WORDS)
                    gradient_weight[words] += errors_HV[:, words].T @ x_nD[held]
            elif gradient_weight is not None:
                gradient_weight.addmm_(errors_HV.T, x_nD[held])
        ctx.gradients = [gradient_x, gradient_weight, gradient_bias]
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.gradients is None:
            raise RuntimeError("the vocabulary loss can be back-propagated once: compute it again")
        scaled = [None if part is None else part.mul_(gradient) for part in ctx.gradients]
        ctx.gradients = None  # scaled in place: a second use would be wrong
        return (*scaled, None)


def linear_loss(x_nD: Tensor, weight_VD: Tensor, bias_V: Tensor | None, score: Score) -> Tensor:
    """The sum of `score` over the logits `x W^T + b`, without ever holding all of them."""
    if not torch.is_grad_enabled():
        # `needs_input_grad` is true here all the same: without this, gradients would be formed and thrown
        # away.
        x_nD, weight_VD = x_nD.detach(), weight_VD.detach()
        bias_V = None if bias_V is None else bias_V.detach()
    return LinearLoss.apply(x_nD, weight_VD, bias_V, score)


def cross_entropy(
    targets_n: Tensor,
    look: Look | None = None,
    smoothing: float = 0.0,
    z_loss: float = 0.0,
    weights_n: Tensor | None = None,
) -> Score:
    """`-log softmax(logits)[target]`; with `smoothing`, that share of the target is every word in equal
    parts, and `z_loss` times the squared logarithm of the normaliser is added. Targets count by their
    `weights_n`."""

    def score(logits_CV: Tensor, part: slice, gradient: bool) -> tuple[Tensor, Tensor | None]:
        targets_C1 = targets_n[part, None]
        normaliser_C1 = logits_CV.logsumexp(-1, keepdim=True)
        logit_C1 = logits_CV.gather(1, targets_C1)
        if smoothing:
            logit_C1 = (1 - smoothing) * logit_C1 + smoothing * logits_CV.mean(-1, keepdim=True)
        loss_C1 = normaliser_C1 - logit_C1
        if z_loss:
            loss_C1 = loss_C1 + z_loss * normaliser_C1.square()
        weights_C1 = None if weights_n is None else weights_n[part, None]
        loss = (loss_C1 if weights_C1 is None else loss_C1 * weights_C1).sum()
        if not gradient and look is None:
            return loss, None
        error_CV = logits_CV.sub_(normaliser_C1).exp_()  # the softmax, in place
        if look is not None:
            look(error_CV, part)
        if z_loss:
            error_CV.mul_(1 + 2 * z_loss * normaliser_C1)
        # The gradient of cross-entropy: softmax minus target, in the array of the logits.
        error_CV.scatter_add_(1, targets_C1, error_CV.new_full(targets_C1.shape, smoothing - 1.0))
        if smoothing:
            error_CV.sub_(smoothing / error_CV.shape[1])
        if weights_C1 is not None:
            error_CV.mul_(weights_C1)
        return loss, error_CV if gradient else None

    return score


def divergence(teacher: Callable[[slice], Tensor], temperature: float) -> Score:
    """`T^2 KL(softmax(teacher / T) || softmax(logits / T))`: T^2 keeps the size of the gradient (Hinton et
    al. 2015)."""

    def score(logits_CV: Tensor, part: slice, gradient: bool) -> tuple[Tensor, Tensor | None]:
        # The logits are this call's own: they may be overwritten.
        log_q_CV = logits_CV.div_(temperature).log_softmax(-1)
        log_p_CV = teacher(part).div(temperature).log_softmax(-1)
        p_CV = log_p_CV.exp()
        loss = temperature**2 * (p_CV * log_p_CV.sub_(log_q_CV)).sum()
        return loss, log_q_CV.exp_().sub_(p_CV).mul_(temperature) if gradient else None

    return score


BLOCK = 256
"""A word is drawn in two steps, a block of so many words and then the word in it: a running sum over the
whole vocabulary would be an array of its size."""


def draw(weights_CV: Tensor, uniforms_C: Tensor) -> Tensor:
    """In every row the index at which the running sum of the weights passes `uniform * sum`."""
    rows, words = weights_CV.shape
    whole = words // BLOCK
    # Whole blocks are a view; the rest of the vocabulary is a shorter block of its own.
    sums_CB = weights_CV[:, : whole * BLOCK].view(rows, whole, BLOCK).sum(-1)
    if words % BLOCK:
        sums_CB = torch.cat([sums_CB, weights_CV[:, whole * BLOCK :].sum(-1, keepdim=True)], 1)
    running_CB = sums_CB.cumsum(-1)
    goal_C1 = uniforms_C[:, None].to(running_CB.dtype) * running_CB[:, -1:]
    # Rounding may leave the goal beyond the last sum: the last block then.
    block_C1 = torch.searchsorted(running_CB, goal_C1, right=True).clamp_(max=sums_CB.shape[1] - 1)
    goal_C1 = goal_C1 - (running_CB - sums_CB).gather(1, block_C1)
    index_CK = block_C1 * BLOCK + torch.arange(BLOCK, device=weights_CV.device)
    inside_CK = weights_CV.gather(1, index_CK.clamp(max=words - 1)).masked_fill_(index_CK >= words, 0.0)
    place_C1 = torch.searchsorted(inside_CK.cumsum(-1), goal_C1, right=True).clamp_(max=BLOCK - 1)
    return (block_C1 * BLOCK + place_C1)[:, 0].clamp_(max=words - 1)


@dataclass(frozen=True)
class Context:
    """Where hidden states come from: a batch, and the state that it continued. Only heads that look back
    read it."""

    batch: Batch
    state: KeyValueState | None = None


class DenseVocabulary(Multiplied, nn.Module):
    """One score per word: `transform(h) * scale @ weight^T + bias`; the weight may be the embedding table
    itself.

    `at` is a flat index of the positions to compute (None: all of them). A `fixed` bias is stored and never
    trained (BART).
    """

    def __init__(
        self,
        weight: Tensor,
        *,
        bias: bool | Literal["fixed"] = False,
        transform: nn.Module | None = None,
        scale: float = 1.0,
    ) -> None:
        super().__init__()
        self.transform = transform
        self.weight = weight if isinstance(weight, nn.Parameter) else nn.Parameter(weight)
        zeros_V = torch.zeros(len(weight))
        self.bias: Tensor | None
        if bias == "fixed":
            # A buffer is stored and moved with the model, and has no gradient.
            self.register_buffer("bias", zeros_V)
        else:
            self.bias = nn.Parameter(zeros_V) if bias else None
        self.scale = scale

    @property
    def size(self) -> int:
        return len(self.weight)

    def loss(
        self, hidden_ND: Tensor, at: Tensor | None, targets_n: Tensor, context: Context | None = None
    ) -> Tensor:
        """The summed negative log-likelihood of the targets."""
        return self._sum_scores(hidden_ND, at, cross_entropy(targets_n))

    def smoothed_loss(
        self,
        hidden_ND: Tensor,
        at: Tensor | None,
        targets_n: Tensor,
        smoothing: float = 0.0,
        z_loss: float = 0.0,
        weights_n: Tensor | None = None,
    ) -> Tensor:
        """The same for training alone: a share of every target is all words in equal parts (label smoothing),
        `z_loss` times log² of the normaliser keeps the logits small, and targets may have weights."""
        score = cross_entropy(targets_n, smoothing=smoothing, z_loss=z_loss, weights_n=weights_n)
        return self._sum_scores(hidden_ND, at, score)

    def loss_and_sample(
        self,
        hidden_ND: Tensor,
        at: Tensor | None,
        targets_n: Tensor,
        uniforms_n: Tensor,
        temperature: float = 1.0,
    ) -> tuple[Tensor, Tensor]:
        """The loss, and a word `[n]` drawn at every position by the same logits: no gradient runs through
        the draw."""
        drawn_n = torch.empty_like(targets_n)

        def look(p_CV: Tensor, part: slice) -> None:
            weights_CV = p_CV if temperature == 1.0 else p_CV ** (1 / temperature)
            drawn_n[part] = draw(weights_CV, uniforms_n[part])

        return self._sum_scores(hidden_ND, at, cross_entropy(targets_n, look)), drawn_n

    def divergence(
        self, hidden_ND: Tensor, at: Tensor | None, teacher: Callable[[slice], Tensor], temperature: float
    ) -> Tensor:
        """The summed `T^2 KL` to the distributions of a teacher, whose logits are computed chunk by chunk."""
        return self._sum_scores(hidden_ND, at, divergence(teacher, temperature))

    def _sum_scores(self, hidden_ND: Tensor, at: Tensor | None, score: Score) -> Tensor:
        """All losses of plain logits but `loss` of other heads, which refuse the rest by overriding this."""
        return linear_loss(self._features(hidden_ND, at), self.weight, self.bias, score)

    def logits(self, hidden_ND: Tensor, at: Tensor | None = None, context: Context | None = None) -> Tensor:
        x_nD = self._features(hidden_ND, at)
        if is_half(x_nD):
            # The bias is added in float32, behind the half-precision product.
            logits_nV = self.multiply(x_nD, self.weight, None).float()
            return logits_nV if self.bias is None else logits_nV.add_(self.bias)
        return self.multiply(x_nD, self.weight, self.bias)

    def log_probs(
        self, hidden_ND: Tensor, at: Tensor | None = None, context: Context | None = None
    ) -> Tensor:
        return self.logits(hidden_ND, at, context).log_softmax(-1)

    def target_log_probs(
        self, hidden_ND: Tensor, at: Tensor | None, targets_n: Tensor, context: Context | None = None
    ) -> Tensor:
        """The log-probability of each target, without gradients, in chunks."""

        def read(logits_CV: Tensor, part: slice) -> Tensor:
            return logits_CV.gather(1, targets_n[part, None])[:, 0] - logits_CV.logsumexp(-1)

        return self._by_chunk(hidden_ND, at, context, read)

    def ranks(
        self, hidden_ND: Tensor, at: Tensor | None, targets_n: Tensor, context: Context | None = None
    ) -> Tensor:
        """How many words score above each target: 0 is a correct prediction."""

        def read(logits_CV: Tensor, part: slice) -> Tensor:
            return (logits_CV > logits_CV.gather(1, targets_n[part, None])).sum(-1)

        return self._by_chunk(hidden_ND, at, context, read)

    @torch.no_grad()
    def _by_chunk(
        self,
        hidden_ND: Tensor,
        at: Tensor | None,
        context: Context | None,
        read: Callable[[Tensor, slice], Tensor],
    ) -> Tensor:
        at = torch.arange(len(hidden_ND), device=hidden_ND.device) if at is None else at
        parts = [read(self.logits(hidden_ND, at[part], context), part) for part in chunks(len(at), self.size)]
        return torch.cat(parts) if parts else widen(hidden_ND.new_zeros(0))

    def _features(self, hidden_ND: Tensor, at: Tensor | None) -> Tensor:
        # Positions first, then the transform: a masked model predicts 15% of its tokens.
        x_nD = hidden_ND if at is None else hidden_ND.index_select(0, at)
        if self.transform is not None:
            x_nD = self.transform(x_nD)
        return x_nD if self.scale == 1.0 else x_nD * self.scale


class Transform(nn.Module):
    """Dense, activation, norm: what BERT's relatives put before the vocabulary."""

    def __init__(self, dense: nn.Module, activation: Callable[[Tensor], Tensor], norm: nn.Module) -> None:
        super().__init__()
        self.dense, self.norm, self.activation = dense, norm, activation

    def forward(self, x_nD: Tensor) -> Tensor:
        return self.norm(self.activation(self.dense(x_nD)))
