"""`etymon convert`: any checkpoint that can be read, written as a folder of today's layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal


@dataclass
class Converted:
    folder: Path
    family: str
    parameters: int
    heads: tuple[str, ...]
    new_heads: tuple[str, ...]


def convert(
    source: Annotated[str | Path, "folder or hub id"],
    target: Annotated[str | Path, "folder to write"],
    *,
    heads: Annotated[Sequence[str] | None, "heads to keep or add (those of the checkpoint)"] = None,
    dtype: Annotated[
        Literal["float32", "float16", "bfloat16"], "precision of the written weights"
    ] = "float32",
    revision: Annotated[str | None, "branch, tag or commit of a hub id"] = None,
    ignore_config_key: Annotated[Sequence[str], "a key of config.json to pass over"] = (),
    partial: Annotated[bool, "tolerate unexpected weights and missing heads"] = False,
) -> Converted:
    """Read a checkpoint and write it as a Hugging Face folder.

    Old layouts (pickled weights, missing prefixes, gamma and beta, stored copies) come out in today's layout.
    """
    import torch

    from etymon.checkpoints.folder import ensure_replaceable
    from etymon.families.loading import load, save

    ensure_replaceable(target)
    model = load(
        source, heads=heads, revision=revision, ignore_config_keys=tuple(ignore_config_key), partial=partial
    )
    save(model.to(getattr(torch, dtype)), target)
    return Converted(
        Path(target), model.family.title, model.parameter_count(), tuple(sorted(model.asked)), model.new_heads
    )


def present(result: Converted) -> None:
    print(f"{result.family}, {result.parameters:,} parameters, written to {result.folder}")
    if result.new_heads:
        print(f"initialised anew, since the checkpoint has none: {', '.join(result.new_heads)}")
