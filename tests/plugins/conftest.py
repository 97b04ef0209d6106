"""Every test of plugins begins without any, and leaves none behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import forget_plugins


@pytest.fixture(autouse=True)
def no_plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In an empty folder, with nothing named, opened or remembered."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    forget_plugins()
    yield
    forget_plugins()
