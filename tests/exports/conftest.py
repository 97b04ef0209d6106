"""Tiny models whose numbers are not all small, so that an error in any part shows."""

from __future__ import annotations

import torch

from etymon.exports.target import STATES
from tests import tiny


def shaken_model(family, head, seed=1):
    """A tiny model of a family with one head; norms, biases and rare tables are no longer ones and zeros."""
    model = tiny.model(family, frozenset({head} - {STATES}), seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Of 128 cells, larger ones make a recurrence that doubles every rounding, step by step.
            size = 0.02 if ".lstms." in name else 0.2
            parameter.add_(torch.randn(parameter.shape, generator=generator) * size)
    return model.eval()
