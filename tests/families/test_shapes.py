"""docs/shapes.md and shapes-single.md name every field of every family's shape, and no other."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from etymon.families import REGISTRY, get_family

DOCS = Path(__file__).parents[2] / "docs"
PAGE = "".join((DOCS / f"{name}.md").read_text(encoding="utf-8") for name in ("shapes", "shapes-single"))


def documented() -> dict[str, set[str]]:
    """The fields of every family, by the page's tables."""
    found: dict[str, set[str]] = {name: set() for name in REGISTRY}
    for names, families, _ in re.findall(r"^\| (`.*?`) \| (.*?) \| (.*) \|$", PAGE, re.MULTILINE):
        listed = families.removeprefix("all").removeprefix(" but ").split(", ")
        chosen = set(REGISTRY) - set(listed) if families.startswith("all") else set(listed)
        assert set(filter(None, listed)) <= set(REGISTRY), families
        for family in chosen:
            found[family] |= set(re.findall(r"`(\w+)`", names))
    return found


def test_every_field_of_every_shape_is_documented() -> None:
    told = documented()
    there = {name: {field.name for field in fields(get_family(name).shape)} for name in REGISTRY}
    missing = {name: there[name] - told[name] for name in REGISTRY if there[name] - told[name]}
    assert not missing, "say in docs/shapes.md what these mean"
    assert told == there, "docs/shapes.md names fields that are not there"
