"""Adversarial training: a model also learns from looked-up word vectors that were moved to where its loss is larger.

FGM (Miyato et al. 2017), PGD (Madry et al. 2018) and FreeLB (Zhu et al. 2020). Noise is on what a lookup gave and not on the
table: the same word has different noise in every place, and an output matrix that is tied to the table has none. Norms are
those of a row, all its tokens times their width. An encoder and a decoder look up rows of their own. Only the model's own lookups
are moved: a generator beside it and a teacher read the text as it is.

Legend: N tokens, R rows, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, Literal, Protocol

import torch
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from etymon.config import strict
from etymon.errors import EtymonError
from etymon.nn.batch import Batch, Layout
from etymon.objectives.objective import Term
from etymon.training.unit import TrainingUnit

USUAL: dict[Any, dict[str, Any]] = {
    "fgm": {"epsilon": 1.0, "steps": 1},
    "pgd": {"epsilon": 1.0, "step_size": 0.3, "steps": 3},
    "freelb": {"epsilon": 0.1, "step_size": 0.1, "steps": 3},
}


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class AdversarialSettings:
    """How word vectors are moved; `of` fills in what is usual.

    - `fgm`: one step of length `epsilon` along the gradient.
    - `pgd`: `steps` steps of `step_size`, never further than `epsilon` away.
    - `freelb`: the same from a random point, and every step's gradient is used.

    The parameters' gradient is the mean over the passes that count: the clean and the last one, or all of FreeLB's. So the
    learning rate and the limit for clipping mean what they mean without, and an `epsilon` of 0 is plain training. What is
    published for FGM and PGD is the sum, which is twice as much: Adam does not see the difference.
    """

    name: Literal["fgm", "pgd", "freelb"]
    epsilon: float
    """The largest norm of a row's noise."""
    step_size: float
    steps: int

    def __post_init__(self) -> None:
        if not (self.epsilon >= 0 and self.step_size >= 0):
            raise EtymonError(
                f"epsilon and step_size of {self.name} are 0 or more, not {self.epsilon:g} and {self.step_size:g}"
            )
        if self.steps < 1:
            raise EtymonError(f"{self.name} takes at least 1 step, not {self.steps}")
        if self.name == "fgm" and (self.steps, self.step_size) != (1, self.epsilon):
            raise EtymonError("fgm takes one step of epsilon: leave steps and step_size out, or use pgd")

    @staticmethod
    def of(given: Any) -> AdversarialSettings | None:
        """From a name, or from those settings that are not as usual; None stays None."""
        if given is None or isinstance(given, AdversarialSettings):
            return given
        asked = {"name": given} if isinstance(given, str) else given
        if isinstance(asked, Mapping):
            asked = {**USUAL.get(asked.get("name"), {}), **asked}
            asked.setdefault("step_size", asked.get("epsilon"))
        return strict(AdversarialSettings, asked, "adversarial")

    @property
    def shares(self) -> list[float]:
        """What every pass counts in the parameters' gradient; of a pass that counts nothing, only noise has one."""
        if self.name == "freelb":
            return [1 / self.steps] * self.steps
        return [0.5, *[0.0] * (self.steps - 1), 0.5]

    @property
    def cost(self) -> float:
        """In plain passes: one that gives parameters no gradient leaves out about a third of the work."""
        return sum(1.0 if share else 2 / 3 for share in self.shares)


Back = Callable[[Tensor], object]
"""Is given the loss of a pass."""


class Once(Protocol):
    def __call__(self, *, back: Back, last: bool) -> dict[str, Term]:
        """One pass over a slice, always with the same dropout, whose loss is handed to `back`."""


def back_propagate(settings: AdversarialSettings, unit: TrainingUnit, once: Once) -> dict[str, Term]:
    """The gradients of a slice, in several passes. Terms, and what streams remember, are those of the first: the clean one, or
    FreeLB's random point."""
    noise, before, shares = LookupNoise(settings), unit.memories.copy(), settings.shares
    first: dict[str, Term] = {}
    with noise.upon(unit.model):
        for number, share in enumerate(shares):
            last = number == len(shares) - 1
            with unit.isolated_memory(before.copy()) if number else nullcontext():
                terms = once(back=partial(noise.back, share), last=last)
            first = first or terms
            if not last:
                noise.climb()
    return first


class LookupNoise:
    """What is added to the vectors that a model looks up: one tensor a lookup, in the order of lookups, which is that of
    every pass."""

    def __init__(self, settings: AdversarialSettings) -> None:
        self.settings = settings
        self.added: list[Tensor] = []
        self.layouts: list[Layout] = []
        self.place = 0

    @contextmanager
    def upon(self, model: nn.Module) -> Iterator[None]:
        """Inside, whatever the model looks up has noise."""
        readers: list[Any] = [module for module in model.modules() if hasattr(module, "look_up")]
        for reader in readers:
            reader.look_up = partial(self._moved, reader.look_up)
        try:
            yield
        finally:
            for reader in readers:
                del reader.look_up  # the method of its class is back

    def back(self, share: float, loss: Tensor) -> None:
        """Back-propagates a share of a loss; with none, to the noise alone."""
        if share:
            (loss * share).backward()
        else:
            loss.backward(inputs=self.added)

    @torch.no_grad()
    def climb(self) -> None:
        """One step up the gradient, and back to the ball."""
        epsilon, step_size = self.settings.epsilon, self.settings.step_size
        if all(r_ND.grad is None for r_ND in self.added):
            raise EtymonError(
                "adversarial training moves word vectors, and the loss depends on none: leave it out, or do not freeze the body"
            )
        for place, (r_ND, layout) in enumerate(zip(self.added, self.layouts, strict=True)):
            if (g_ND := r_ND.grad) is None:
                continue
            r_ND = r_ND + step_size * g_ND / row_norms(g_ND, layout)
            r_ND *= (epsilon / row_norms(r_ND, layout)).clamp(max=1)
            self.added[place] = r_ND.requires_grad_()
        self.place = 0

    def _moved(self, look_up: Any, batch: Batch) -> Tensor:
        x_ND: Tensor = look_up(batch)
        if self.place == len(self.added):  # the first pass
            self.layouts.append(batch.layout)
            self.added.append(self._begin(x_ND, batch.layout).requires_grad_())
        self.place += 1
        return x_ND + self.added[self.place - 1]

    def _begin(self, x_ND: Tensor, layout: Layout) -> Tensor:
        if self.settings.name != "freelb":
            return torch.zeros_like(x_ND, requires_grad=False)
        # A generator of its own, by the pass's seed: dropout draws what it draws without noise.
        seed = torch.initial_seed() ^ (self.place + 1)
        generator = torch.Generator(x_ND.device).manual_seed(seed)
        r_ND = torch.empty_like(x_ND).uniform_(-1, 1, generator=generator)
        sizes_R = torch.tensor(layout.lengths, device=x_ND.device) * x_ND.shape[1]
        return r_ND * (self.settings.epsilon / sizes_R.sqrt())[layout.row, None]


def row_norms(x_ND: Tensor, layout: Layout) -> Tensor:
    """For every token the norm of its row, `[N, 1]`; never quite 0, so that it can divide."""
    squares_R = x_ND.new_zeros(layout.rows).index_add_(0, layout.row, x_ND.square().sum(-1))
    return squares_R.sqrt().clamp_(min=torch.finfo(x_ND.dtype).tiny)[layout.row, None]
