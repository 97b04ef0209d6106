"""What every test shares: one thread, no network, and the optional folder of shared data."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

# Before anything imports a Hugging Face library: tests never reach for the network.
for variable in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE"):
    os.environ[variable] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
# Nothing in a test depends on what was measured on a machine.
os.environ["ETYMON_PRODUCTS"] = "plain"
os.environ["ETYMON_LANGUAGE"] = "en"  # whoever runs them: they read messages

# torch.compile imports setuptools, which fails where a test has loaded the standard library's distutils first.
with contextlib.suppress(ImportError):
    import setuptools  # noqa: F401

import pytest  # noqa: E402
import torch  # noqa: E402

from etymon import plugin_settings, plugins, registry  # noqa: E402

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of reference data; tests that need it are skipped where it is absent."""
    default = Path(__file__).resolve().parents[1].parent / "shared"
    folder = Path(os.environ.get("ETYMON_SHARED", default))
    if not folder.is_dir():
        pytest.skip(f"no shared data at {folder}; set ETYMON_SHARED to the folder that holds it")
    return folder


@pytest.fixture(autouse=True)
def no_plugin_stays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No test sees what another one has opened."""
    # Set, so that it is restored to what it was, whatever opening a plugin does to it.
    monkeypatch.setenv(plugins.NAMED, "")
    yield
    if registry.registered_plugins or registry.recorded_plugins:
        forget_plugins()


def forget_plugins() -> None:
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
