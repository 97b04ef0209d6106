"""What decoding returns."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sequence:
    """New tokens, without the prompt and with the end token if there was one."""

    ids: list[int]
    log_prob: float
    """What the model itself gives these tokens, whatever penalties and filters were on."""
    score: float
    """What decides between texts: with beams the length-penalised score, otherwise `log_prob`."""
    finished: bool
    """An end token or a stop string was reached, and not just the limit."""
