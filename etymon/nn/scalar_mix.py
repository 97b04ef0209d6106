"""A learned mix of a model's layers (Peters et al. 2018): `gamma * sum of softmax(s)_l * h_l`.

Legend: N tokens, D width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

EPSILON = 1e-13


class ScalarMix(nn.Module):
    """As AllenNLP's class of that name: a scalar for every layer, softmax over them, one factor for all.

    With `layer_norm`, every layer is first brought to mean 0 and variance 1 over all tokens and numbers of the batch together.
    """

    def __init__(self, layers: int, layer_norm: bool = False) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(1))
        self.scalars = nn.ParameterList(nn.Parameter(torch.zeros(1)) for _ in range(layers))
        self.layer_norm = layer_norm

    @property
    def weights(self) -> Tensor:
        """The share of every layer."""
        return torch.cat(list(self.scalars)).softmax(0)

    def forward(self, layers_ND: Sequence[Tensor]) -> Tensor:
        if len(layers_ND) != len(self.scalars):
            raise ValueError(f"a mix of {len(self.scalars)} layers was given {len(layers_ND)}")
        parts = [_normed(x_ND) for x_ND in layers_ND] if self.layer_norm else layers_ND
        return self.gamma * torch.stack([w * x_ND for w, x_ND in zip(self.weights, parts)]).sum(0)

    def penalty(self) -> Tensor:
        """The squared norm of the scalars, to be added to a loss: a strong one keeps the mix near the mean."""
        return torch.cat(list(self.scalars)).square().sum()


def _normed(x_ND: Tensor) -> Tensor:
    centred_ND = x_ND - x_ND.mean()
    return centred_ND / (centred_ND.square().mean() + EPSILON).sqrt()
