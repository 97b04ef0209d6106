"""The exponential moving average of the weights that a run trains: it is validated, kept and handed over."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from etymon.errors import EtymonError
from etymon.training.optimisers import parameters_by_name
from etymon.training.shards import cut, local, parts


class WeightAverage:
    """A slow copy of all that a module trains; without a decay it holds nothing and does nothing.

    After step t it moves towards the weights by 1 - d, where d is the smaller of the decay and
    (1 + t) / (10 + t), so that the random first weights are soon forgotten.

    Models in checkpoints hold the average, as the one that is handed over does. The weights that training
    goes on with lie beside the optimiser's tensors.
    """

    def __init__(self, module: nn.Module, decay: float | None) -> None:
        self.decay = decay or 0.0
        named = parameters_by_name(module) if decay else {}
        self._parameters = {name: value for name, value in named.items() if value.requires_grad}
        # The average; inside `in_place`, the weights that are trained. Float32, as parameters always are.
        self._aside = {name: value.detach().clone() for name, value in self._parameters.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Takes up the weights that `step` steps have led to."""
        if self._parameters:
            # The growing decay is that of TensorFlow's moving averages, which are told the number of steps.
            share = 1 - min(self.decay, (1 + step) / (10 + step))
            weights = parts(list(self._parameters.values()))
            torch._foreach_lerp_(parts(list(self._aside.values())), weights, share)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Inside, the module has the average as its weights."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def hand_over(self) -> None:
        """Leaves the average in the module, and ends."""
        self._swap()
        self._parameters, self._aside = {}, {}

    @torch.no_grad()
    def _swap(self) -> None:
        # Values, not tensors: optimiser and wrappers hold the parameters.
        for name, parameter in self._parameters.items():
            weights, aside = local(parameter), local(self._aside[name])
            # One matrix at a time: a copy of the whole model would be memory that nobody has counted.
            kept = weights.clone()
            weights.copy_(aside)
            aside.copy_(kept)

    def tensors(self) -> dict[str, Tensor]:
        """Returns what a checkpoint holds beside the models: what lies aside, by the parameters' names."""
        return dict(self._aside)

    @torch.no_grad()
    def restore(self, weights: Mapping[str, Tensor]) -> None:
        """Puts a checkpoint's `weights` back into the module, which has the average that was saved."""
        if weights.keys() != self._parameters.keys():
            raise EtymonError(
                "the checkpoint was saved with another ema: resume with the settings that it was saved with"
            )
        for name, parameter in self._parameters.items():
            local(self._aside[name]).copy_(local(parameter))
            local(parameter).copy_(local(cut(weights[name].to(parameter.device), parameter)))
