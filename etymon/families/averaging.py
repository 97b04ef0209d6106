"""The mean of several checkpoints of one run, which is often better than the last of them (Vaswani et al. 2017, section 6.1)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from etymon.errors import EtymonError
from etymon.families.loading import load
from etymon.families.model import Model
from etymon.nn.lora import merge


@torch.no_grad()
def average_checkpoints(folders: Sequence[str | Path]) -> Model:
    """A model whose every weight is the mean over the models in the folders; all else is the last one's."""
    if not folders:
        raise EtymonError("there are no checkpoints to average")
    *others, last = folders
    model = merge(load(last))  # the mean of products is not the product of means
    sums = {name: tensor.double() for name, tensor in model.kept().items()}
    for folder in others:
        other = merge(load(folder))
        if (other.family, other.shape, other.asked) != (model.family, model.shape, model.asked):
            raise EtymonError(f"{folder} and {last} hold models of different shapes: they have no mean")
        for name, tensor in other.kept().items():
            sums[name] += tensor
    for name, tensor in model.kept().items():
        tensor.copy_(sums[name] / len(folders))
    return model
