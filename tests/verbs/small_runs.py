"""Runs of `etymon pretrain` that take about a second: a size called "test" for every family."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import etymon
from etymon.families import REGISTRY
from etymon.runs.result import Pretrained
from etymon.text.sources import Texts
from tests import tiny

FAMILIES = ["gpt2", "bert", "t5", "electra"]
"""A decoder, an encoder, an encoder-decoder, and two models that train together."""
CLOCK = {"tokens_per_second", "utilisation", "memory", "seconds"}
"""What may differ between two equal runs."""


@contextmanager
def with_test_sizes() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for family in REGISTRY:
            sizes: Any = REGISTRY[family].sizes
            patch.setitem(sizes, "test", {**tiny.shape(family, dropout=0.1), "vocabulary": tiny.VOCABULARY})
        yield


def pretrain(family: str, out: Path, **changes: Any) -> Pretrained:
    arguments: dict[str, Any] = {
        "data": Texts(tiny.texts()), "size": "test", "out": out, "steps": 12, "batch": 8, "slices": 2,
        "length": 32, "learning_rate": 5e-3, "validation": 0.2, "validate_every": 4, "save_every": 5,
        "progress": "silent",
    }  # fmt: skip
    return etymon.pretrain(family, **{**arguments, **changes})


def resume(family: str, out: Path, **changes: Any) -> Pretrained:
    return etymon.pretrain(family, size="test", out=out, resume=True, progress="silent", **changes)


def metrics(folder: Path) -> list[dict[str, Any]]:
    """What a run has logged, but for clock and memory."""
    records = [
        json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    return [{name: value for name, value in record.items() if name not in CLOCK} for record in records]


def weight_files(folder: Path) -> list[Path]:
    """Where the models of a run are, by place in its folder."""
    return sorted(path.relative_to(folder) for path in folder.glob("*/model.safetensors"))


def crash() -> None:
    raise ConnectionAbortedError("the lights went out")
