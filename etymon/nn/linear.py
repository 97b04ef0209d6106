"""Parts whose parameters are left blank until a family initialises or a checkpoint fills them.

PyTorch's own constructors draw random numbers that are thrown away at once; here every parameter gets its
first value exactly once, and a family's rule says which (`initialise`).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Linear(nn.Linear):
    def reset_parameters(self) -> None:
        pass


class Embedding(nn.Embedding):
    def reset_parameters(self) -> None:
        pass


class RootMeanSquareNorm(nn.Module):
    """Scale-only normalisation (T5): no mean is taken off, no bias is added."""

    def __init__(self, dim: int, epsilon: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.rms_norm(x, self.weight.shape, self.weight, self.epsilon)
