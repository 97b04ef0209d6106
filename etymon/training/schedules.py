"""Learning rates as pure functions of the step."""

from __future__ import annotations

import math
from collections.abc import Callable

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from etymon.errors import EtymonError
from etymon.registry import SCHEDULES
from etymon.settings.training import OptimiserSettings


@dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
class ScheduleChoice:
    """How the learning rate runs over a run: a linear rise over `warmup` steps, then the schedule.

    - `constant` stays; `linear` and `cosine` fall to `final` at the last step, or at the share `end` of the
      steps.
    - `noam` falls as 1 / sqrt(t), t counted from 1 (Vaswani et al. 2017, whose rate is this times (dim *
      warmup)^-0.5). `inverse-square-root` is T5's: the same, but the warm-up is taken at the full rate, 1 /
      sqrt(max(t, warmup)). For both, which know no last step, `final` is a floor.
    - `wsd`, warm-up, stable, decay: stays until the last `decay_share` of the steps, then falls to `final` in
      a straight line, or as 1 - sqrt of the part done (`wsd-sqrt`). Until then it does not depend on how long
      the run will be.
    """

    name: str = "cosine"
    warmup: int = 0
    """In steps."""
    final: float = 0.0
    """The rate at the end, as a share of the peak."""
    decay_share: float = 0.1
    """The share of all steps in which `wsd` falls."""
    end: float = 1.0
    """The share of all steps after which `linear` and `cosine` have fallen."""

    def __post_init__(self) -> None:
        OptimiserSettings(schedule=self.name)  # names are checked there
        if self.warmup < 0:
            raise EtymonError(f"warmup cannot be below 0 steps, and it is {self.warmup}")
        for field in ("final", "decay_share", "end"):
            if not 0 <= getattr(self, field) <= 1:
                raise EtymonError(f"{field} is a share, from 0 to 1, not {getattr(self, field):g}")

    def share(self, step: float, steps: int) -> float:
        """The share of the peak rate at `step` (from 0) of `steps`."""
        return float(SCHEDULES.find(self.name)(step, steps, self))


# Rates are those of step + 1, so that no step of a warm-up has a rate of 0.


def constant(step: float, steps: int, choice: ScheduleChoice) -> float:
    return min(1.0, (step + 1) / choice.warmup) if step < choice.warmup else 1.0


# Neither this nor T5's knows a last step: `final` is a floor.
def noam(step: float, steps: int, choice: ScheduleChoice) -> float:
    if step < choice.warmup:
        return min(1.0, (step + 1) / choice.warmup)
    return max(choice.final, math.sqrt(max(choice.warmup, 1) / (step + 1)))


def inverse_square_root(step: float, steps: int, choice: ScheduleChoice) -> float:
    return 1.0 if step < choice.warmup else noam(step, steps, choice)


def linear(step: float, steps: int, choice: ScheduleChoice) -> float:
    return _fall(lambda done: 1.0 - done, step, choice, choice.warmup, choice.end * steps)


def cosine(step: float, steps: int, choice: ScheduleChoice) -> float:
    return _fall(
        lambda done: 0.5 * (1.0 + math.cos(math.pi * done)), step, choice, choice.warmup, choice.end * steps
    )


def wsd(step: float, steps: int, choice: ScheduleChoice) -> float:
    return _fall(lambda done: 1.0 - done, step, choice, _decay_begin(steps, choice), steps)


def wsd_sqrt(step: float, steps: int, choice: ScheduleChoice) -> float:
    return _fall(lambda done: 1.0 - math.sqrt(done), step, choice, _decay_begin(steps, choice), steps)


def _decay_begin(steps: int, choice: ScheduleChoice) -> int:
    # The decay of `wsd` never begins inside the warm-up (Hu et al. 2024, MiniCPM).
    return max(choice.warmup, steps - round(choice.decay_share * steps))


def _fall(
    left: Callable[[float], float], step: float, choice: ScheduleChoice, begin: int, last: float
) -> float:
    """The warm-up, then from the peak at `begin` to `final` at `last`: `left` says how much of the way is
    left when a share of it is done."""
    if step < choice.warmup:
        return min(1.0, (step + 1) / choice.warmup)
    done = min(1.0, max(0, step - begin) / max(1, last - begin))
    return choice.final + (1.0 - choice.final) * left(done)


PUBLISHED = {
    "constant": constant,
    "linear": linear,
    "cosine": cosine,
    "inverse-square-root": inverse_square_root,
    "noam": noam,
    "wsd": wsd,
    "wsd-sqrt": wsd_sqrt,
}
"""What has no last step (`noam`) or another beginning is a function of its own; a plugin's is one as well."""
