"""A small text as tokens, of every family."""

from __future__ import annotations

from typing import Any

import pytest

from tests import tiny


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("stores")
    return {family: tiny.store(family, folder / family) for family in tiny.SHAPES}
