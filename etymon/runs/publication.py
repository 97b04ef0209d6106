"""What of a run or a model goes to the hub: its files without anything of this machine, a card, a picture of
its curves, and its milestones as revisions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from etymon.checkpoints.confidential import LEARNT, own_words, refuse_confidential, without_paths
from etymon.checkpoints.folder import ADAPTER_CONFIG, CONFIG, EXPORT_RECORD, MANIFEST
from etymon.checkpoints.hub import SOURCE, WANTED
from etymon.checkpoints.settings import CODE_FILE, OWN_TYPE
from etymon.checkpoints.upload import MAIN, UploadRevision
from etymon.checkpoints.weights import ADAPTERS, INDEX, WHOLE
from etymon.config import read_yaml
from etymon.errors import EtymonError
from etymon.families.card import HubStatements, model_card
from etymon.families.checkpoint import class_names
from etymon.families.imports import find_foreign
from etymon.families.loading import MEMBERS, load
from etymon.files import holds, json_text, read_json
from etymon.report.plots import curve_image
from etymon.runs.measured import read_results
from etymon.runs.milestones import KeptModel, list_milestones
from etymon.runs.report import learning_curve
from etymon.training.progress import format_seconds
from etymon.training.state import RunFolder

README, CURVES, RUN_FILE = "README.md", "curves.png", "run.yaml"
UPLOADED = (*WANTED, MANIFEST, CODE_FILE, f"{SOURCE}/token*.json", "*_Pooling/config.json")
"""Patterns of the files of a model that are sent. Weights are safetensors; the only code is the file that
hands Transformers over to Etymon, of a family that it has no class for."""
TOLD = ("budget", "precision", "size", "recipe", "batch", "length", "seed")
"""What a card says of a run's settings."""


@dataclass(frozen=True)
class CardStatements:
    """What only its author knows of a model."""

    license: str | None = None
    language: Sequence[str] = ()
    datasets: Sequence[str] = ()


@dataclass(frozen=True)
class Publication:
    """What is to be sent, and what was left out."""

    revisions: list[UploadRevision]
    left_out: list[str]
    """Files of the model's folder that nobody reads."""


def prepare_publication(
    source: str | Path,
    repository: str,
    statements: CardStatements,
    *,
    revision: str = MAIN,
    milestones: bool = True,
    keep_card: bool = False,
    token: str | None = None,
    results: Sequence[str | Path] = (),
) -> Publication:
    """Everything that goes to the hub, checked: models are opened and compared with their digests, and every
    file is searched for secrets and paths. Nothing is sent, and nothing is written here."""
    folder = Path(source)
    if not folder.is_dir():
        raise EtymonError(f"no such folder: {folder}; give a run or a saved model of this machine")
    place = _model_place(folder)
    # The model of a run may be given by itself: its curves and milestones are still its own.
    run = folder if (folder / RUN_FILE).is_file() else place.parent
    run = run if (run / RUN_FILE).is_file() and place.parent == run else place
    kept = list_milestones(run) if milestones and run != place else []
    rows = [(model.name, f"{model.words:,} words, {model.steps:,} steps") for model in kept]
    places = {run.resolve(): revision, place.resolve(): revision}
    places |= {model.folder.resolve(): model.name for model in kept}
    measured = read_results(run, places, results)
    hub = HubStatements(
        repository,
        _licence(place, statements),
        revision,
        statements.language,
        statements.datasets,
        _run_rows(run) if run != place else {},
        milestones=rows,
        results=measured.get(revision, ()),
    )
    curves = _curves(run) if run != place else b""
    files, left_out = _model_files(place, replace(hub, curves=CURVES if curves else ""), keep_card)
    if curves:
        files[CURVES] = curves
    if run != place:
        files[RUN_FILE] = without_paths((run / RUN_FILE).read_text(encoding="utf-8")).encode()
    # Milestones first: a branch begins as the main one is, and that one is then the last to change.
    revisions = [_milestone(model, replace(hub, results=measured.get(model.name, ()))) for model in kept]
    revisions.append(UploadRevision(revision, _listed(files)))
    words = own_words(token)
    for part in revisions:
        refuse_confidential(part.files, words)
    return Publication(revisions, left_out)


def _model_place(folder: Path) -> Path:
    """The folder of the model behind a run's folder or its own."""
    for place in (folder, *(folder / member for member in MEMBERS)):
        if not any((place / name).is_file() for name in (CONFIG, ADAPTER_CONFIG)):
            continue
        if find_foreign(place) is None and any((place / name).is_file() for name in (WHOLE, INDEX, ADAPTERS)):
            return place
        _refuse_export(place)
        raise EtymonError(
            f"{place} has no weights in safetensors, and nothing else is uploaded: "
            f"etymon convert {place} NEW writes them"
        )
    if (folder / RUN_FILE).is_file():
        raise EtymonError(
            f"the run {folder} has not ended: go on with --resume, or push a checkpoint that etymon convert "
            f"{folder} NEW has written"
        )
    _refuse_export(folder)
    raise EtymonError(f"there is no model in {folder}, but {holds(folder)}")


def _refuse_export(folder: Path) -> None:
    """An export has no weights that could be opened or converted, whatever lies beside them."""
    if (folder / EXPORT_RECORD).is_file():
        raise EtymonError(f"{folder} is an export for another runtime: push the model that it was made of")


def _licence(place: Path, statements: CardStatements) -> str:
    history = _history(place)
    licence = statements.license or (history[-1].get("license") if history else None)
    if not licence:
        raise EtymonError(
            "the model states no licence, without which nobody may use it: say --license cc-by-4.0 "
            "(or another as the hub writes it)"
        )
    return str(licence)


def _history(place: Path) -> list[dict[str, Any]]:
    """How the model was trained, without paths."""
    path = place / "history.json"
    note = json.loads(without_paths(json_text(read_json(path)))) if path.is_file() else {}
    return [entry for entry in note.get("history") or () if isinstance(entry, dict)]


# --- the files


def _milestone(kept: KeptModel, hub: HubStatements) -> UploadRevision:
    files, _ = _model_files(kept.folder, replace(hub, revision=kept.name, milestones=()), keep_card=False)
    return UploadRevision(kept.name, _listed(files))


def _model_files(
    place: Path, hub: HubStatements, keep_card: bool
) -> tuple[dict[str, Path | bytes], list[str]]:
    """The files of a model by their names on the hub, and the names of those that stay here."""
    files: dict[str, Path | bytes] = {}
    left_out = []
    for path in sorted(each for each in place.rglob("*") if each.is_file()):
        name = path.relative_to(place).as_posix()
        if name == README:
            continue
        if not any(fnmatch(name, pattern) for pattern in UPLOADED):
            left_out.append(name)
        elif name.endswith(".json") and path.name not in LEARNT:
            files[name] = without_paths(path.read_text(encoding="utf-8")).encode()
        else:  # weights and vocabularies go as they are
            files[name] = path
    files[README] = _card(place, hub, keep_card).encode()
    return files, left_out


def _card(place: Path, hub: HubStatements, keep_card: bool) -> str:
    """README.md of a repository. The model is opened for it, which also compares it with its digests."""
    model = load(place)
    config = read_json(place / (ADAPTER_CONFIG if model.lora is not None else CONFIG))
    base = ""
    if model.lora is not None:
        base = str(config.get("base_model_name_or_path") or "")
        if Path(base).is_absolute() or Path(base).exists():
            raise EtymonError(
                f"the adapters in {place} were made for {base}, which is a folder of this machine: "
                "push that one first, and name it in adapter_config.json; "
                "or push what etymon convert has merged"
            )
        names = class_names(read_json(place / CONFIG)) if (place / CONFIG).is_file() else []
    else:
        names = [] if str(config.get("model_type", "")).startswith(OWN_TYPE) else class_names(config)
    text = model_card(model, asdict(model.shape), names[0] if names else None, _history(place), base, hub)
    if not (keep_card and (place / README).is_file()):
        return without_paths(text)
    from huggingface_hub import ModelCard

    # The author's words, under today's front matter.
    card = ModelCard((place / README).read_text(encoding="utf-8"))
    return f"---\n{ModelCard(text).data.to_yaml()}\n---\n{card.text}"


def _listed(files: Mapping[str, Path | bytes]) -> dict[str, Path | bytes]:
    """The files, with all of their names in the manifest: a later save in a downloaded folder may replace
    them."""
    result = dict(files)
    if isinstance(content := files.get(MANIFEST), bytes):
        manifest = json.loads(content)
        manifest["files"] = sorted({*manifest.get("files", ()), *files})
        result[MANIFEST] = f"{json_text(manifest, indent=2)}\n".encode()
    return result


# --- what a run tells


def _run_rows(run: Path) -> dict[str, Any]:
    """Rows of a card: how the run was asked for, and how long it took."""
    settings = read_yaml(run / RUN_FILE)
    rows = {name: settings[name] for name in TOLD if settings.get(name) not in (None, "", [])}
    seconds = [record["seconds"] for record in RunFolder(run).metrics() if "seconds" in record]
    return rows | ({"time": format_seconds(seconds[-1])} if seconds else {})


def _curves(run: Path) -> bytes:
    """A picture of the losses by step; nothing of a run that has none."""
    # Of a run that only resumed, or whose metrics were removed, there may be no points.
    curve = learning_curve(RunFolder(run).metrics())
    if not any(curve.series.values()):
        return b""
    return curve_image(curve.series, "step", curve.y_label)
