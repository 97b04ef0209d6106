"""Learning rates as pure functions of the step."""

from __future__ import annotations

import math
from typing import get_args

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from etymon.errors import EtymonError
from etymon.settings.training import OptimiserSettings, ScheduleName

SCHEDULES = get_args(ScheduleName)


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
        OptimiserSettings(schedule=self.name)  # type: ignore[arg-type]  # names are declared there
        if self.warmup < 0:
            raise EtymonError(f"warmup cannot be below 0 steps, and it is {self.warmup}")
        for field in ("final", "decay_share", "end"):
            if not 0 <= getattr(self, field) <= 1:
                raise EtymonError(f"{field} is a share, from 0 to 1, not {getattr(self, field):g}")

    def share(self, step: float, steps: int) -> float:
        """The share of the peak rate at `step` (from 0) of `steps`."""
        # Rates are those of step + 1, so that no step of a warm-up has a rate of 0.
        warmup, stable = self.warmup, self.name.startswith("wsd")
        if self.name in ("inverse-square-root", "noam") and step >= warmup:
            return max(self.final, math.sqrt(max(warmup, 1) / (step + 1)))
        if step < warmup:
            return 1.0 if self.name == "inverse-square-root" else min(1.0, (step + 1) / warmup)
        if self.name == "constant":
            return 1.0
        # The decay of `wsd` never begins inside the warm-up (Hu et al. 2024, MiniCPM).
        begin = max(warmup, steps - round(self.decay_share * steps)) if stable else warmup
        last = steps if stable else self.end * steps
        done = min(1.0, max(0, step - begin) / max(1, last - begin))
        if self.name == "cosine":
            left = 0.5 * (1.0 + math.cos(math.pi * done))
        else:
            left = 1.0 - (math.sqrt(done) if self.name == "wsd-sqrt" else done)
        return self.final + (1.0 - self.final) * left
