"""Heads over the vocabulary. They are asked only at the positions somebody wants, and never hold
`[tokens, vocabulary]`: all they offer is computed in chunks of rows.

Legend: n asked positions, C rows of a chunk, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

CHUNK_ELEMENTS = 1 << 22
"""Entries of the logits held at a time: 16 MB in float32, which a processor's cache can still help with."""


def chunks(rows: int, vocabulary: int) -> Iterator[slice]:
    """Slices of rows whose logits fit the budget."""
    step = max(1, CHUNK_ELEMENTS // max(1, vocabulary))
    for start in range(0, rows, step):
        yield slice(start, min(rows, start + step))


class _LinearCrossEntropy(torch.autograd.Function):
    """The summed cross-entropy of `x W^T + b`. The gradient is formed beside the loss, while a chunk's softmax
    is at hand, so that nothing of size `[n, V]` is kept and no product is computed twice."""

    @staticmethod
    def forward(ctx, x_nD: Tensor, weight_VD: Tensor, bias_V: Tensor | None, targets_n: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        want_x, want_weight = ctx.needs_input_grad[0], ctx.needs_input_grad[1]
        total = x_nD.new_zeros((), dtype=torch.promote_types(x_nD.dtype, torch.float32))
        gradient_x = torch.empty_like(x_nD) if want_x else None
        gradient_weight = torch.zeros_like(weight_VD) if want_weight else None
        gradient_bias = torch.zeros_like(bias_V) if bias_V is not None and ctx.needs_input_grad[2] else None
        for part in chunks(len(x_nD), len(weight_VD)):
            x_CD, targets_C1 = x_nD[part], targets_n[part, None]
            logits_CV = F.linear(x_CD, weight_VD, bias_V)
            normaliser_C1 = logits_CV.logsumexp(-1, keepdim=True)
            total += (normaliser_C1 - logits_CV.gather(1, targets_C1)).sum()
            if gradient_x is None and gradient_weight is None and gradient_bias is None:
                continue
            error_CV = logits_CV.sub_(normaliser_C1).exp_()  # the softmax, in place
            error_CV.scatter_add_(1, targets_C1, error_CV.new_full(targets_C1.shape, -1.0))
            if gradient_x is not None:
                torch.mm(error_CV, weight_VD, out=gradient_x[part])
            if gradient_weight is not None:
                gradient_weight.addmm_(error_CV.T, x_CD)
            if gradient_bias is not None:
                gradient_bias += error_CV.sum(0)
        ctx.gradients = [gradient_x, gradient_weight, gradient_bias]
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor):  # type: ignore[no-untyped-def]
        if ctx.gradients is None:
            raise RuntimeError("the vocabulary loss can be back-propagated once: compute it again")
        scaled = [None if part is None else part.mul_(gradient) for part in ctx.gradients]
        ctx.gradients = None  # scaled in place: a second use would be wrong
        return (*scaled, None)


def linear_cross_entropy(x_nD: Tensor, weight_VD: Tensor, bias_V: Tensor | None, targets_n: Tensor) -> Tensor:
    """`-sum log softmax(x W^T + b)[target]` without ever holding all the logits."""
    if not torch.is_grad_enabled():  # a function is not told: without this it would form gradients for nobody
        x_nD, weight_VD, bias_V = (
            x_nD.detach(),
            weight_VD.detach(),
            None if bias_V is None else bias_V.detach(),
        )
    loss: Tensor = _LinearCrossEntropy.apply(x_nD, weight_VD, bias_V, targets_n)
    return loss


class DenseVocabulary(nn.Module):
    """One score per word: `transform(h) * scale @ weight^T + bias`; the weight may be the embedding table itself.

    `at` is a flat index of the positions asked for (None: all of them).
    """

    def __init__(
        self,
        weight: Tensor,
        *,
        bias: bool = False,
        transform: nn.Module | None = None,
        scale: float = 1.0,
    ) -> None:
        super().__init__()
        self.transform = transform
        self.weight = weight if isinstance(weight, nn.Parameter) else nn.Parameter(weight)
        self.bias = nn.Parameter(torch.zeros(len(weight))) if bias else None
        self.scale = scale

    @property
    def size(self) -> int:
        return len(self.weight)

    def loss(self, hidden_ND: Tensor, at: Tensor | None, targets_n: Tensor) -> Tensor:
        """The summed negative log-likelihood of the targets."""
        return linear_cross_entropy(self._features(hidden_ND, at), self.weight, self.bias, targets_n)

    def logits(self, hidden_ND: Tensor, at: Tensor | None = None) -> Tensor:
        return F.linear(self._features(hidden_ND, at), self.weight, self.bias)

    def log_probs(self, hidden_ND: Tensor, at: Tensor | None = None) -> Tensor:
        return self.logits(hidden_ND, at).log_softmax(-1)

    def target_log_probs(self, hidden_ND: Tensor, at: Tensor | None, targets_n: Tensor) -> Tensor:
        """The log-probability of each target, without gradients, in chunks."""
        return self._by_chunk(
            hidden_ND,
            at,
            lambda logits_CV, part: (
                logits_CV.gather(1, targets_n[part, None])[:, 0] - logits_CV.logsumexp(-1)
            ),
        )

    def ranks(self, hidden_ND: Tensor, at: Tensor | None, targets_n: Tensor) -> Tensor:
        """How many words score above each target: 0 is a correct prediction."""
        return self._by_chunk(
            hidden_ND,
            at,
            lambda logits_CV, part: (logits_CV > logits_CV.gather(1, targets_n[part, None])).sum(-1),
        )

    @torch.no_grad()
    def _by_chunk(
        self, hidden_ND: Tensor, at: Tensor | None, read: Callable[[Tensor, slice], Tensor]
    ) -> Tensor:
        x_nD = self._features(hidden_ND, at)
        parts = [
            read(F.linear(x_nD[part], self.weight, self.bias), part) for part in chunks(len(x_nD), self.size)
        ]
        return torch.cat(parts) if parts else x_nD.new_zeros(0)

    def _features(self, hidden_ND: Tensor, at: Tensor | None) -> Tensor:
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
