"""Every test of plugins begins without any, and leaves none behind."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from etymon import plugin_settings, plugins, registry


@pytest.fixture(autouse=True)
def no_plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In an empty folder, with nothing named, opened or remembered."""
    monkeypatch.chdir(tmp_path)
    # Set, so that it is restored to what it was, whatever opening a plugin does to it.
    monkeypatch.setenv(plugins.NAMED, "")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    forget()
    yield
    forget()


def forget() -> None:
    """As in a new process."""
    for table in (
        plugins._origins,
        plugins._opened,
        registry.registered_plugins,
        registry.recorded_plugins,
        plugin_settings._noted,
    ):
        table.clear()
    registry._is_named_open = False
    for table in registry.TABLES.values():
        vars(table).pop("entry_points", None)
    for name in [name for name in sys.modules if name.startswith(plugins.PREFIX)]:
        del sys.modules[name]
