"""Adversarial training: the model also learns from word vectors that were moved to where its loss is larger.

FGM (Miyato et al. 2017), PGD (Madry et al. 2018) and FreeLB (Zhu et al. 2020). Noise is added to what a
lookup gave and not to the table: the same word has different noise in every place, and an output matrix that
is tied to the table has none. Norms are those of a row, all its tokens times their width. An encoder and a
decoder look up rows of their own. Only the model's lookups are moved: a generator beside it and a teacher
read the text as it is.

Legend: N tokens, R rows, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from etymon.errors import EtymonError
from etymon.nn.batch import Batch, Layout
from etymon.objectives.objective import Term
from etymon.settings.adversarial import AdversarialSettings
from etymon.training.unit import TrainingUnit

Backward = Callable[[Tensor], object]
"""Is given the loss of a pass."""


class RunPass(Protocol):
    def __call__(self, *, backward: Backward, last: bool) -> dict[str, Term]:
        """Runs a slice forward, always with the same dropout, and hands its loss to `backward`."""


def run_passes(settings: AdversarialSettings, unit: TrainingUnit, run_pass: RunPass) -> dict[str, Term]:
    """Adds the gradients of a slice, in several passes; returns the terms of the first one.

    What streams remember is the first pass's, too: the clean one's, or FreeLB's random point's.
    """
    noise, memories, shares = LookupNoise(settings), unit.memories.copy(), settings.shares
    first_terms: dict[str, Term] = {}
    with noise.added_to(unit.model):
        for number, share in enumerate(shares):
            last = number == len(shares) - 1
            with unit.isolated_memory(memories.copy()) if number else nullcontext():
                terms = run_pass(backward=partial(noise.backward, share), last=last)
            first_terms = first_terms or terms
            if not last:
                noise.ascend()
    return first_terms


class LookupNoise:
    """What is added to looked-up vectors: a tensor a lookup, in the order of lookups, which all passes
    share."""

    def __init__(self, settings: AdversarialSettings) -> None:
        self.settings = settings
        self.tensors: list[Tensor] = []
        self.layouts: list[Layout] = []
        self.place = 0

    @contextmanager
    def added_to(self, model: nn.Module) -> Iterator[None]:
        """Inside, whatever the model looks up has noise."""
        readers: list[Any] = [module for module in model.modules() if hasattr(module, "look_up")]
        for reader in readers:
            reader.look_up = partial(self._look_up, reader.look_up)
        try:
            yield
        finally:
            for reader in readers:
                del reader.look_up  # the method of its class is back

    def backward(self, share: float, loss: Tensor) -> None:
        """Back-propagates a share of a loss; of a share of 0, to the noise alone, which saves a third of
        the work."""
        if share:
            (loss * share).backward()
        else:
            loss.backward(inputs=self.tensors)

    @torch.no_grad()
    def ascend(self) -> None:
        """Moves the noise one step up its gradient, and back into the ball of radius epsilon."""
        epsilon, step_size = self.settings.epsilon, self.settings.step_size
        if all(r_ND.grad is None for r_ND in self.tensors):
            raise EtymonError(
                "adversarial training moves word vectors, and the loss depends on none: leave it out, or "
                "do not freeze the body"
            )
        for place, (r_ND, layout) in enumerate(zip(self.tensors, self.layouts, strict=True)):
            if (g_ND := r_ND.grad) is not None:
                r_ND = r_ND + step_size * g_ND / row_norms(g_ND, layout)
                r_ND *= (epsilon / row_norms(r_ND, layout)).clamp(max=1)
                self.tensors[place] = r_ND.requires_grad_()
        self.place = 0

    def _look_up(self, look_up: Any, batch: Batch) -> Tensor:
        x_ND: Tensor = look_up(batch)
        if self.place == len(self.tensors):  # the first pass
            self.layouts.append(batch.layout)
            r_ND = torch.zeros_like(x_ND, requires_grad=False)
            if self.settings.name == "freelb":
                # A generator of its own, by the pass's seed: dropout draws what it draws without noise.
                generator = torch.Generator(x_ND.device).manual_seed(torch.initial_seed() ^ (self.place + 1))
                r_ND.uniform_(-1, 1, generator=generator)
                sizes_R = torch.tensor(batch.layout.lengths, device=x_ND.device) * x_ND.shape[1]
                r_ND = r_ND * (self.settings.epsilon / sizes_R.sqrt())[batch.layout.row, None]
            self.tensors.append(r_ND.requires_grad_())
        self.place += 1
        return x_ND + self.tensors[self.place - 1]


def row_norms(x_ND: Tensor, layout: Layout) -> Tensor:
    """For every token the norm of its row, `[N, 1]`; never quite 0, so that it can divide."""
    squares_R = x_ND.new_zeros(layout.rows).index_add_(0, layout.row, x_ND.square().sum(-1))
    return squares_R.sqrt().clamp_(min=torch.finfo(x_ND.dtype).tiny)[layout.row, None]
