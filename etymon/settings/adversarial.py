"""Learning from word vectors that are moved to where the loss is larger."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from etymon.config import strict
from etymon.errors import EtymonError
from etymon.settings import option, settings

USUAL_ADVERSARIAL: dict[Any, dict[str, Any]] = {
    "fgm": {"epsilon": 1.0, "steps": 1},
    "pgd": {"epsilon": 1.0, "step_size": 0.3, "steps": 3},
    "freelb": {"epsilon": 0.1, "step_size": 0.1, "steps": 3},
}


@settings
class AdversarialSettings:
    """How word vectors are moved; `of` fills in what is usual.

    - `fgm`: one step of length `epsilon` along the gradient.
    - `pgd`: `steps` steps of `step_size`, never further than `epsilon` away.
    - `freelb`: the same from a random point, and every step's gradient is used.

    The parameters' gradient is the mean over the passes that count: the clean and the last one, or all of
    FreeLB's. So the learning rate and the limit for clipping mean what they mean without, and an `epsilon` of
    0 is plain training. What is published for FGM and PGD is the sum, which is twice as much:
    Adam does not see the difference.
    """

    name: Literal["fgm", "pgd", "freelb"] = option(..., "how word vectors are moved")
    epsilon: float = option(..., "the largest norm of a row's noise", ge=0)
    step_size: float = option(..., "how far a step goes", ge=0)
    steps: int = option(..., "of a row's noise", ge=1)

    def __post_init__(self) -> None:
        if self.name == "fgm" and (self.steps, self.step_size) != (1, self.epsilon):
            raise EtymonError("fgm takes one step of epsilon: leave steps and step_size out, or use pgd")

    @staticmethod
    def of(given: Any) -> AdversarialSettings | None:
        """From a name, or from those settings that are not as usual; None stays None."""
        if given is None or isinstance(given, AdversarialSettings):
            return given
        given = {"name": given} if isinstance(given, str) else given
        if isinstance(given, Mapping):
            given = {**USUAL_ADVERSARIAL.get(given.get("name"), {}), **given}
            given.setdefault("step_size", given.get("epsilon"))
        return strict(AdversarialSettings, given, "adversarial")

    @property
    def shares(self) -> list[float]:
        """What every pass counts in the parameters' gradient; of a pass that counts nothing, only noise has
        one."""
        if self.name == "freelb":
            return [1 / self.steps] * self.steps
        return [0.5, *[0.0] * (self.steps - 1), 0.5]

    @property
    def cost(self) -> float:
        """In plain passes: one that gives parameters no gradient leaves out about a third of the work."""
        return sum(1.0 if share else 2 / 3 for share in self.shares)
