"""Small heads for tasks: they read hidden states at the positions their family says.

Legend: n asked positions, D width.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from etymon.nn.dropout import Dropout
from etymon.nn.linear import Linear


class Projection(nn.Module):
    """Dropout and one linear map: classification, tagging, spans, choices."""

    def __init__(self, dim: int, outputs: int, *, dropout: float = 0.0, bias: bool = True) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)
        self.linear = Linear(dim, outputs, bias=bias)

    def forward(self, x_nD: Tensor) -> Tensor:
        return self.linear(self.dropout(x_nD))


class Pooler(nn.Module):
    """Dense and tanh: BERT's summary of the first token."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dense = Linear(dim, dim)

    def forward(self, x_nD: Tensor) -> Tensor:
        return torch.tanh(self.dense(x_nD))


class DeepProjection(nn.Module):
    """Dropout, dense, activation, dropout, linear: the classification head of RoBERTa, ELECTRA, BART and T5.

    DistilBERT's has no dropout before the dense map (`drop_input`).
    """

    def __init__(
        self,
        dim: int,
        outputs: int,
        *,
        dropout: float = 0.0,
        activation: Callable[[Tensor], Tensor] = torch.tanh,
        drop_input: bool = True,
    ) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)
        self.input_dropout = Dropout(dropout if drop_input else 0.0)
        self.dense = Linear(dim, dim)
        self.linear = Linear(dim, outputs)
        self.activation = activation

    def forward(self, x_nD: Tensor) -> Tensor:
        return self.linear(self.dropout(self.activation(self.dense(self.input_dropout(x_nD)))))


class TokenScore(DeepProjection):
    """Dense, activation and one score a token, `[n]`: above 0 it looks like a replaced one (ELECTRA's discriminator)."""

    def __init__(self, dim: int, activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__(dim, 1, activation=activation)

    def forward(self, x_nD: Tensor) -> Tensor:
        return super().forward(x_nD).squeeze(-1)
