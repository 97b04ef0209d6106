"""Folders of tiny models, and the command line on them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from etymon import cli
from etymon.families.saving import save
from tests.generation.conftest import tiny_model


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a tiny model of a family."""
    made: dict[str, Path] = {}

    def path(family: str) -> Path:
        if family not in made:
            made[family] = tmp_path_factory.mktemp("models") / family
            save(tiny_model(family), made[family])
        return made[family]

    return path


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """One command line in this process: exit code, standard output, standard error."""

    def command(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as leaving:
            cli.main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return int(leaving.value.code or 0), captured.out, captured.err

    return command
