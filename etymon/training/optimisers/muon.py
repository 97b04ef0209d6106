"""Muon (Jordan et al. 2024) for the matrices inside layers, AdamW for everything else, as one optimiser.

PyTorch's own Muon iterates in bfloat16, which a CPU without instructions for it computes slowly or not at all, and it
leaves embeddings, norms and biases to a second optimiser.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from etymon.training.optimisers.adam import fused_adam
from etymon.training.optimisers.stepping import Optimiser

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the quintic whose slope at 0 is steep: singular values end up between about 0.7 and 1.2, not at 1 exactly."""
ITERATIONS = 5
STACKED = 1 << 24
"""Numbers of a stack of matrices that are iterated together."""
MOMENTUM = 0.95


class Muon(Optimiser):
    """Groups with `matrices` true take Muon's step, the others AdamW's.

    A matrix of r rows and c columns moves by rate * 0.2 * sqrt(max(r, c)) along the nearest orthogonal matrix to its
    momentum (Nesterov's, 0.95): about as far, by root mean square, as AdamW would move it, so that AdamW's rate and
    weight decay carry over (Liu et al. 2025).
    """

    def update(self, held: list[Any], group: dict[str, Any]) -> None:
        if not group["matrices"]:
            return fused_adam(self, held, group)
        by_shape: dict[torch.Size, list[Any]] = {}
        for parameter in held:
            by_shape.setdefault(parameter.shape, []).append(parameter)
        for shape, alike in by_shape.items():
            together = max(1, STACKED // shape.numel())
            for first in range(0, len(alike), together):
                self._move(alike[first : first + together], group)

    def _move(self, parameters: list[Any], group: dict[str, Any]) -> None:
        """One step of matrices of the same shape, side by side: small ones cost their calls, not their arithmetic."""
        rate = group["lr"]
        gradients = [parameter.grad for parameter in parameters]
        (moments,) = self.moments(parameters, "momentum")
        torch._foreach_lerp_(moments, gradients, 1 - MOMENTUM)
        updates = orthogonal(torch.stack(torch._foreach_lerp(gradients, moments, MOMENTUM)))
        torch._foreach_mul_(parameters, 1 - rate * group["weight_decay"])
        alpha = -rate * 0.2 * max(parameters[0].shape) ** 0.5
        torch._foreach_add_(parameters, list(updates), alpha=alpha)


def orthogonal(matrices: Tensor) -> Tensor:
    """Roughly the nearest matrix with orthonormal rows or columns, by five Newton-Schulz iterations; of one or a stack."""
    dtype = torch.bfloat16 if matrices.is_cuda else torch.promote_types(matrices.dtype, torch.float32)
    stack = matrices if matrices.dim() == 3 else matrices[None]
    tall = stack.shape[1] > stack.shape[2]
    x = (stack.mT if tall else stack).to(dtype)  # the smaller side makes the smaller products
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    a, b, c = COEFFICIENTS
    if x.shape[2] >= 2 * x.shape[1] and dtype != torch.bfloat16:
        x = _turned(x)
    else:
        for _ in range(ITERATIONS):
            square = x @ x.mT
            x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return (x.mT if tall else x).to(matrices.dtype).reshape(matrices.shape)


def _turned(x: Tensor) -> Tensor:
    """The same iterations of wide matrices by their small squares: x' = p x and x' x'T = p (x xT) p, where p is a polynomial of
    x xT. Nearly twice as fast for feed-forward parts; eight bits of mantissa would not do."""
    a, b, c = COEFFICIENTS
    square, turn = x @ x.mT, None
    for number in range(ITERATIONS):
        step = torch.baddbmm(square, square, square, beta=b, alpha=c)
        step.diagonal(dim1=1, dim2=2).add_(a)
        turn = step if turn is None else step @ turn
        if number < ITERATIONS - 1:
            square = step @ (square @ step)
    assert turn is not None
    return turn @ x
