"""One input: a command line, and what must hold after it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Case:
    """One input."""

    arguments: list[str]
    outputs: list[Path] = field(default_factory=list)
    """Files and folders that may appear, whole, if the command succeeds, and may not otherwise."""
    must_fail: bool = False
    """The input is damaged in a way that may not go unnoticed."""
    stdin: bytes = b""
    is_terminal: bool = False
    file_limit: int | None = None
    """Bytes that a file may have before writing fails, as on a full disk."""
