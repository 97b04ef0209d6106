"""Small heads for tasks: they read hidden states at the positions their family says.

Legend: n asked positions, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from etymon.nn.activations import Activation, identity
from etymon.nn.dropout import Dropout
from etymon.nn.linear import Linear


class Projection(nn.Module):
    """Dropout and one linear map: classification, tagging, spans, choices. What it gives may have an activation and dropout."""

    def __init__(
        self,
        dim: int,
        outputs: int,
        *,
        dropout: float = 0.0,
        bias: bool = True,
        activation: Activation = identity,
        output_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)
        self.linear = Linear(dim, outputs, bias=bias)
        self.activation = activation
        self.output_dropout = Dropout(output_dropout)

    def forward(self, x_nD: Tensor) -> Tensor:
        return self.output_dropout(self.activation(self.linear(self.dropout(x_nD))))


class Pooler(nn.Module):
    """Dropout, dense (unless it is left out) and activation: dense and tanh are BERT's summary of the first token."""

    def __init__(
        self, dim: int, activation: Activation = torch.tanh, *, dense: bool = True, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)
        self.dense = Linear(dim, dim) if dense else nn.Identity()
        self.activation = activation

    def forward(self, x_nD: Tensor) -> Tensor:
        return self.activation(self.dense(self.dropout(x_nD)))


class DeepProjection(nn.Module):
    """Dropout, dense, activation, dropout, linear: the classification head of RoBERTa, ELECTRA, BART and T5.

    `input_dropout` is that before the dense map, if it is another one: DistilBERT has none there. Without `dense`, the
    activation is that of the states themselves.
    """

    def __init__(
        self,
        dim: int,
        outputs: int,
        *,
        dropout: float = 0.0,
        activation: Activation = torch.tanh,
        input_dropout: float | None = None,
        dense: bool = True,
    ) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)
        self.input_dropout = Dropout(dropout if input_dropout is None else input_dropout)
        self.dense = Linear(dim, dim) if dense else nn.Identity()
        self.linear = Linear(dim, outputs)
        self.activation = activation

    def forward(self, x_nD: Tensor) -> Tensor:
        return self.linear(self.dropout(self.activation(self.dense(self.input_dropout(x_nD)))))


class TokenScore(DeepProjection):
    """Dense, activation and one score a token, `[n]`: above 0 it looks like a replaced one (ELECTRA's discriminator)."""

    def __init__(self, dim: int, activation: Activation) -> None:
        super().__init__(dim, 1, activation=activation)

    def forward(self, x_nD: Tensor) -> Tensor:
        return super().forward(x_nD).squeeze(-1)
