"""A run of ELMo that was cut off goes on bit for bit: with its optimiser, its sampled words, and what both directions remember."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.verbs.small_runs import crash, metrics, pretrain, resume

OPTIONS: dict[str, Any] = {
    "set": ["options.samples=7"],
    "length": 8,
    "optimiser": "adagrad",
    "learning_rate": 0.2,
}


def test_a_resumed_run_is_exact(
    tmp_path: Path, at_step: Callable[[int, Callable[[], Any]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    straight = pretrain("elmo", tmp_path / "straight", **OPTIONS)
    at_step(7, crash)
    with pytest.raises(ConnectionAbortedError):
        pretrain("elmo", tmp_path / "stopped", **OPTIONS)
    gone_on = resume("elmo", tmp_path / "stopped")
    for (name, one), two in zip(straight.model.named_parameters(), gone_on.model.parameters(), strict=True):
        assert torch.equal(one, two), name
    assert metrics(tmp_path / "straight") == metrics(tmp_path / "stopped")
    assert straight.metrics["forward_perplexity"] > 1 and straight.metrics["backward_perplexity"] > 1


def test_workers_prepare_the_same_slices(tmp_path: Path) -> None:
    alone = pretrain("elmo", tmp_path / "alone", steps=3, **OPTIONS)
    helped = pretrain("elmo", tmp_path / "helped", steps=3, workers=1, **OPTIONS)
    for (name, one), two in zip(alone.model.named_parameters(), helped.model.parameters(), strict=True):
        assert torch.equal(one, two), name
