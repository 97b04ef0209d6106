"""Evaluation suites: the parts of a YAML file, every model a row, kept part by part so that a killed one goes
on.

A cell of the table is a model and a part. It is written to `OUT/cells` as soon as it is known, under a digest
of the model's files, the part and its data: the same command computes only what is missing, and a model that
has changed is computed anew.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import etymon
from etymon.checkpoints.folder import CONFIG, checksums
from etymon.config import did_you_mean, read_yaml, strict
from etymon.errors import EtymonError
from etymon.families.loading import model_folder, read_history
from etymon.families.model import Model
from etymon.files import read_json, sha256, write_json
from etymon.lab.model_rows import ModelRow, words_seen
from etymon.lab.suite_parts import KINDS, PartInput, PartScore, SuitePart, part_files
from etymon.report.inline import Inline
from etymon.runs.folder import lock_folder
from etymon.settings import option, settings
from etymon.settings.reading import EncodingSettings
from etymon.training.distributed import World

if TYPE_CHECKING:
    from etymon.report.page import Section

BUILT_IN = Path(__file__).parent / "suite_files"
VARIABLE = "ETYMON_SUITES"
# What a model computes depends on these files; cards and histories may change.
MODEL_FILES = (".json", ".safetensors", ".txt", ".model", ".bin")


@settings
class Suite:
    """A file of parts."""

    parts: tuple[SuitePart, ...] = option(..., "the scores of the suite")
    folder: str = option("", "below --suite-data, where its files are")


@dataclass(frozen=True)
class SuiteRow:
    """A model's scores by part; what could not be done has its reason."""

    name: str
    family: str
    run: str
    words: int | None
    words_read: int | None
    scores: dict[str, PartScore]
    reasons: dict[str, str]


@dataclass(frozen=True)
class SuiteResult(Inline):
    suite: str
    parts: list[str]
    rows: list[SuiteRow]
    folder: str
    computed: int
    """Cells that were computed now; the others had been before."""

    def inline_sections(self) -> Iterator[Section]:
        from etymon.lab.suite_tables import table
        from etymon.report.page import ReportTable

        yield ReportTable(*table(self))


def read_suite(name: str) -> tuple[str, Suite, Path]:
    """The suite of a name or a YAML file, and the folder that its paths are relative to, if nothing is
    said."""
    built_in = {path.stem: path for path in sorted(BUILT_IN.glob("*.yaml"))}
    path = built_in.get(name, Path(name))
    if not path.is_file():
        raise EtymonError(
            f"there is no suite {name!r} (nor such a file): {did_you_mean(name, built_in)}",
            code="unknown-name",
        )
    suite = strict(Suite, read_yaml(path), str(path))
    names = [part.name for part in suite.parts]
    if not names or len(set(names)) < len(names):
        raise EtymonError(f"{path}: parts need names that differ, and there must be one at least")
    for part in suite.parts:
        if part.kind == "finetune" and part.task is None:
            raise EtymonError(f"{path}: the part {part.name!r} needs a task to fine-tune for")
    return path.stem, suite, path.parent


def find_files(suite: Suite, home: Path, data: Path | None) -> dict[str, tuple[list[Path], list[Path]]]:
    """The files of every part, below `data`; refuses what is not there."""
    # The option, then the variable, then where the file is (or, of a suite that comes with us, where we are).
    given = data or (Path(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else None)
    base = given or (Path.cwd() if home == BUILT_IN else home)
    return {part.name: part_files(part, [base / suite.folder, base]) for part in suite.parts}


def run_suite(
    rows: Sequence[ModelRow],
    name: str,
    out: Path,
    *,
    data: Path | None = None,
    budget: str | None = None,
    how: EncodingSettings | None = None,
    open_model: Callable[[Any], Model],
    on_progress: Callable[[str], None] = lambda note: None,
    on_note: Callable[[str], None] = lambda note: None,
) -> SuiteResult:
    """Every model's scores. `budget` bounds each fine-tuning instead of the suite's own; `how` says what the
    bytes of the files mean; `open_model` opens what a row names."""
    name, suite, home = read_suite(name)
    # All files are looked for before anything is computed.
    files = find_files(suite, home, data)
    how = how or EncodingSettings()
    # In UTF-8 they have the digests that they always had.
    rules = [how.reader_options] if how.reader_options != EncodingSettings().reader_options else []
    parts = [part if budget is None else replace(part, budget=budget) for part in suite.parts]
    out.mkdir(parents=True, exist_ok=True)
    computed, table = 0, []
    with lock_folder(out, World()):
        for row in rows:
            scores: dict[str, PartScore] = {}
            reasons: dict[str, str] = {}
            digest, place = _model_digest(row)
            opened: list[Model] = []

            # Opened when a part first asks for it, and once: what is kept needs no model.
            def open_once(row: ModelRow = row, opened: list[Model] = opened) -> Model:
                if not opened:
                    opened.append(open_model(row.model))
                return opened[0]

            for part in parts:
                train, validation = files[part.name]
                contents = [_data_digest(path) for path in (*train, *validation)]
                key = _digest([digest, asdict(part), contents, *rules])
                cell = out / "cells" / f"{key}.json"
                if cell.is_file():
                    scores[part.name] = strict(PartScore, read_json(cell)["score"], str(cell))
                    continue
                if part.kind == "finetune" and not place:
                    reasons[part.name] = "fine-tuning begins with a model's folder, not with an open model"
                    continue
                on_progress(f"{row.name}: {part.name}")
                task = PartInput(
                    part,
                    train,
                    validation,
                    place,
                    open_once,
                    out / "runs" / key,
                    partial(_tell, on_progress, row.name),
                    how,
                )
                try:
                    scores[part.name] = KINDS[part.kind](task)
                except EtymonError as error:
                    # What one model cannot do is told, and the others go on.
                    reasons[part.name] = str(error)
                    on_note(f"{row.name}, {part.name}: {error}")
                    continue
                computed += 1
                record = {"model": row.name, "part": asdict(part), "score": asdict(scores[part.name])}
                # Whole or not at all: a cell is either done or computed again.
                write_json(cell, {**record, "etymon": etymon.__version__})
            seen = words_seen(opened[0].history if opened else read_history(Path(place)) if place else [])
            family = opened[0].family.name if opened else _family(place)
            table.append(SuiteRow(row.name, family, row.run, seen.words, seen.words_read, scores, reasons))
    return SuiteResult(name, [part.name for part in parts], table, str(out), computed)


def _tell(on_progress: Callable[[str], None], name: str, note: str) -> None:
    on_progress(f"{name}: {note}")


def _model_digest(row: ModelRow) -> tuple[str, str]:
    """A digest of what the model computes, and the folder that fine-tuning begins with."""
    if not isinstance(row.model, str | Path):
        weights = {
            name: tensor.detach().cpu().numpy().tobytes()
            for name, tensor in row.model.stored_tensors().items()
        }
        return _digest([{name: hashlib.sha256(part).hexdigest() for name, part in weights.items()}]), ""
    folder = model_folder(row.model)
    files = {name: digest for name, digest in checksums(folder).items() if Path(name).suffix in MODEL_FILES}
    kept = {
        name: digest
        for name, digest in files.items()
        if Path(name).name not in ("history.json", "etymon.json")
    }
    return _digest(kept), str(folder)


def _data_digest(path: Path) -> Any:
    if path.is_dir():
        return [_data_digest(file) for file in sorted(path.rglob("*")) if file.is_file()]
    return [path.name, sha256(path)]


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:20]


def _family(place: str) -> str:
    config = read_json(Path(place) / CONFIG) if place and (Path(place) / CONFIG).is_file() else {}
    return str(config.get("model_type", ""))
