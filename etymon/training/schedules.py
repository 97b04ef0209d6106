"""Learning rates as pure functions of the step."""

from __future__ import annotations

import math

from etymon.config import did_you_mean
from etymon.errors import EtymonError

SCHEDULES = ("constant", "linear", "cosine")


def rate(schedule: str, step: int, steps: int, warmup: int, final: float = 0.0) -> float:
    """The share of the peak rate at `step` (from 0) of `steps`: a linear rise over `warmup` steps, then the schedule
    down to `final`."""
    if schedule not in SCHEDULES:
        raise EtymonError(f"there is no schedule {schedule!r}: {did_you_mean(schedule, SCHEDULES)}")
    if step < warmup:
        return (step + 1) / warmup
    if schedule == "constant":
        return 1.0
    done = min(1.0, (step - warmup) / max(1, steps - warmup))
    left = 1.0 - done if schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
    return final + (1.0 - final) * left
