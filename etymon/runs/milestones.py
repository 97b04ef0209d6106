"""The models that a run has kept on its way (`--save-at`), as whoever evaluates them finds them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from etymon.checkpoints.folder import CONFIG
from etymon.families.loading import read_history

MILESTONES = "milestones"


@dataclass(frozen=True)
class KeptModel:
    """A model of a run as it was after so much text."""

    name: str
    """Of its folder: `chck_1M`."""
    folder: Path
    steps: int
    tokens: int
    words: int
    """Of the text, counted once an epoch."""
    words_read: int
    """Of all samples: a word that an epoch reads twice counts twice."""


def list_milestones(run: str | Path) -> list[KeptModel]:
    """The milestones of a run's folder in the order of its steps; none if it kept none."""
    kept = []
    for folder in (Path(run) / MILESTONES).glob("*"):
        # What begins with a dot is being written, or was when the run was killed.
        if folder.name.startswith(".") or not (folder / CONFIG).is_file():
            continue
        history = read_history(folder)
        seen = history[-1].get("seen", {}) if history else {}
        counts = (int(seen.get(name, 0)) for name in ("steps", "tokens", "words", "words_read"))
        kept.append(KeptModel(folder.name, folder, *counts))
    return sorted(kept, key=lambda model: (model.steps, model.words, model.name))
