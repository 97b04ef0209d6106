"""The environment of an older Transformers, for maths that the newer ones have dropped (`make .venv-peer`)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("ETYMON_PEER", ROOT / ".venv-peer")) / "bin" / "python"


def run_peer(script: str, *arguments: str | Path) -> None:
    """Runs a script of this folder with the older Transformers; a test is skipped where that is not installed."""
    if not PYTHON.is_file():
        pytest.skip(f"there is no {PYTHON} with the older Transformers: make .venv-peer, or set ETYMON_PEER")
    command = [str(PYTHON), str(Path(__file__).with_name(script)), *map(str, arguments)]
    quiet = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, env=quiet, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
