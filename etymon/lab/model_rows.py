"""The models of a table, a row each: folders, hub ids, open models, and the milestones of runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etymon.checkpoints.folder import ADAPTER_CONFIG, CONFIG
from etymon.errors import EtymonError
from etymon.families.loading import read_history

MILESTONES = "milestones"


@dataclass(frozen=True)
class ModelRow:
    """A model that is to be evaluated."""

    name: str
    model: Any
    """A folder, a hub id, or an open model."""
    run: str = ""
    """What joins the milestones of one run to a curve: the run's folder."""


@dataclass(frozen=True)
class WordsSeen:
    """What a model was trained on, all trainings together; None where its folder does not say."""

    words: int | None = None
    """Of the text, counted once an epoch."""
    words_read: int | None = None
    """Of all samples: a word that an epoch reads twice counts twice."""


def list_models(models: Any, milestones: bool = False) -> list[ModelRow]:
    """A row a model; with `milestones`, before the model of a run's folder those that it saved on its way, by
    the words read."""
    if not isinstance(models, Sequence) or isinstance(models, str):
        models = [models]
    rows = []
    # Milestones first: a table reads from less training to more.
    for model in models:
        if not isinstance(model, str | Path):
            rows.append(ModelRow(f"{model.family.name}", model))
            continue
        name = str(model)
        saved = _milestones(Path(name)) if milestones else []
        rows += [ModelRow(f"{name}/{MILESTONES}/{place.name}", place, name) for place in saved]
        rows.append(ModelRow(name, model, name if saved else ""))
    if not rows:
        raise EtymonError("there is no model to evaluate: give at least one")
    if milestones and not any(row.run for row in rows):
        raise EtymonError(
            f"{rows[0].name} has no {MILESTONES}: train with --save-at 1Mwords 2Mwords ..., or leave "
            "--milestones out"
        )
    # Open models of one family would otherwise be one column.
    names = [row.name for row in rows]
    return [
        row if names.count(row.name) == 1 else ModelRow(f"{row.name} ({number})", row.model, row.run)
        for number, row in enumerate(rows, 1)
    ]


def _milestones(folder: Path) -> list[Path]:
    # One that is being written has a name with a dot before it.
    places = [
        place
        for place in sorted((folder / MILESTONES).glob("*"))
        if not place.name.startswith(".")
        and any((place / file).is_file() for file in (CONFIG, ADAPTER_CONFIG))
    ]
    return sorted(places, key=lambda place: words_seen(read_history(place)).words_read or 0)


def words_seen(history: Sequence[dict[str, Any]]) -> WordsSeen:
    """The sums over a model's trainings."""
    # A model that went on from another has the entries of both.
    seen = [entry["seen"] for entry in history if "seen" in entry]
    if not seen:
        return WordsSeen()
    return WordsSeen(*(sum(entry.get(name) or 0 for entry in seen) for name in ("words", "words_read")))
