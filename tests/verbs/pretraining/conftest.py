"""Undisturbed runs to compare with, and a way to disturb one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from etymon.runs.result import Pretrained
from etymon.training.state import RunFolder
from tests.verbs.small_runs import pretrain, with_test_sizes


@pytest.fixture(scope="package", autouse=True)
def sizes() -> Iterator[None]:
    with with_test_sizes():
        yield


@pytest.fixture(scope="package")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Pretrained]:
    """An undisturbed run of a family."""
    made: dict[str, Pretrained] = {}

    def run(family: str) -> Pretrained:
        if family not in made:
            made[family] = pretrain(family, tmp_path_factory.mktemp("straight") / family)
        return made[family]

    return run


@pytest.fixture
def at_step(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, Callable[[], Any]], None]:
    """Does something just after a step was logged, once: before its validation and its checkpoint."""
    plain = RunFolder.log

    def arrange(step: int, act: Callable[[], Any]) -> None:
        def log(run: RunFolder, record: dict[str, Any]) -> None:
            plain(run, record)
            if record["step"] == step and "learning_rate" in record:
                monkeypatch.setattr(RunFolder, "log", plain)
                act()

        monkeypatch.setattr(RunFolder, "log", log)

    return arrange
