"""How the loss falls with parameters and tokens, as `make bench-scaling` measured it
(docs/choosing-a-size.md)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from etymon.errors import EtymonError
from etymon.families.family import Family
from etymon.files import read_json

FILE = Path(__file__).with_name("scaling_laws.json")
"""Written by benchmarks/scaling.py."""
# Muennighoff et al. 2023, "Scaling data-constrained language models", section 5: what is read again is worth
# less each time, and so are parameters beyond those that so much text is worth.
REPEATED_TOKENS, EXCESS_PARAMETERS = 15.39, 5.31


@dataclass(frozen=True)
class ScalingLaw:
    """`floor + (parameters_scale / N) ** parameters_slope + (tokens_scale / D) ** tokens_slope`, in nats,
    of N parameters (without those of words) after D tokens (the form of Hoffmann et al. 2022)."""

    floor: float
    parameters_scale: float
    parameters_slope: float
    tokens_scale: float
    tokens_slope: float

    def loss(self, parameters: float, tokens: float) -> float:
        return (
            self.floor
            + (self.parameters_scale / parameters) ** self.parameters_slope
            + (self.tokens_scale / tokens) ** self.tokens_slope
        )


@dataclass(frozen=True)
class ScalingCurve:
    """A law, where it was measured, and others that would fit the measurements as well."""

    family: str
    title: str
    law: ScalingLaw
    refits: tuple[ScalingLaw, ...]
    """Of measurements with resampled residuals."""
    operations: tuple[float, float]
    """The smallest and the largest budget that was measured."""
    cells: tuple[dict[str, Any], ...] = ()


def curve_for(family: Family) -> ScalingCurve:
    """The curve of a family, or of the relative that reads as it does: an encoder-decoder, a causal model, or
    an encoder."""
    curves = read_curves()
    # Borrowing is told: a relative's floor is another, but where the best size lies is much the same.
    sees = family.capabilities
    relative = "t5" if "encoder-decoder" in sees else "gpt2" if "causal" in sees else "bert"
    for name in (family.name, relative, "gpt2"):
        if name in curves:
            return curves[name]
    raise EtymonError(
        f"nobody has measured how {family.title} or a relative of it scales: name a --size "
        f"({', '.join(family.sizes)})"
    )


@cache
def read_curves() -> dict[str, ScalingCurve]:
    return {name: _curve(name, entry) for name, entry in read_json(FILE)["curves"].items()}


def _curve(name: str, entry: dict[str, Any]) -> ScalingCurve:
    # Beyond these a choice is an extrapolation, and says so.
    budgets = [cell["operations"] for cell in entry["cells"]]
    return ScalingCurve(
        name,
        entry["title"],
        ScalingLaw(**entry["law"]),
        tuple(ScalingLaw(*refit) for refit in entry["refits"]),
        (min(budgets), max(budgets)),
        tuple(entry["cells"]),
    )


def effective_tokens(tokens: float, text: float | None) -> float:
    """Tokens read as if all were new, where the text has so many (None: enough)."""
    if text is None or tokens <= text:
        return tokens
    repetitions = tokens / text - 1
    return text * (1 + REPEATED_TOKENS * (1 - math.exp(-repetitions / REPEATED_TOKENS)))


def effective_parameters(parameters: float, worth: float | None) -> float:
    """The same of parameters, where the text is worth so many."""
    if worth is None or parameters <= worth:
        return parameters
    excess = parameters / worth - 1
    return worth * (1 + EXCESS_PARAMETERS * (1 - math.exp(-excess / EXCESS_PARAMETERS)))
