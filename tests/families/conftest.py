"""A folder with a tiny pretrained model for every test that wants one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

import etymon
from tests.families.folders import PRETRAINED, rewrite, tiny


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., Path]:
    """A folder with a tiny pretrained model; `change` may spoil its weights and config."""

    def save(family: str, change: Callable[[dict[str, Tensor]], Any] | None = None, **config: Any) -> Path:
        folder = tmp_path / family
        etymon.save(tiny(family, PRETRAINED[family]), folder)
        (folder / "history.json").unlink()  # a foreign folder says less about itself
        if change is not None:
            rewrite(folder, change)
        if config:
            path = folder / "config.json"
            path.write_text(json.dumps({**json.loads(path.read_text()), **config}))
        return folder

    return save
