"""Every decoder of the registry, tiny and with lively weights."""

from __future__ import annotations

from typing import Any

import torch

import etymon
from etymon.families import REGISTRY, get_family
from etymon.families.model import Model

DECODERS = [name for name in REGISTRY if "prefix" in get_family(name).capabilities]
WORDS = 23
OWN: dict[str, dict[str, Any]] = {"gpt3": {"band": 3}, "gptj": {"rotary_dim": 4}}


def tiny_decoder(family: str, **changed: Any) -> Model:
    shape = {"vocabulary": WORDS, "positions": 24, "dim": 12, "layers": 2, "heads": 2, **OWN.get(family, {})}
    model = etymon.build(family, shape={**shape, **changed}, heads=("vocabulary",))
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    return model.eval()


def rows_of(lengths: list[int], seed: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, WORDS, (length,), generator=generator).tolist() for length in lengths]
