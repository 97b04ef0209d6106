"""The keys of a `config.json` that Transformers reads to compute a model, as a table that its source was searched for.

Whatever it does not hold cannot change what a model computes. `python -m tests.config_keys` makes the table anew.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_name("config_keys.json")


@dataclass(frozen=True)
class ConfigKeys:
    """Of one `model_type`: the `keys` that are read, the values that some have by default, and other names of keys."""

    keys: frozenset[str]
    defaults: Mapping[str, Any]
    aliases: Mapping[str, str]
    """Other name -> key."""


@cache
def config_keys(model_type: str) -> ConfigKeys | None:
    """The keys of a model of Transformers; None if it has no such model."""
    found = _models().get(model_type)
    return (
        None if found is None else ConfigKeys(frozenset(found["keys"]), found["defaults"], found["aliases"])
    )


@cache
def _models() -> dict[str, Any]:
    return json.loads(TABLE.read_text(encoding="utf-8"))["models"]
