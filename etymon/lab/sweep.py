"""The engine of `etymon sweep`: every cell of a grid becomes ordinary runs, and their results a ranking."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import product
from pathlib import Path
from typing import Any

import torch

import etymon
from etymon.config import _parse_yaml, load_yaml, strict
from etymon.errors import EtymonError
from etymon.executors import open_executor
from etymon.families.loading import model_folder, read_history
from etymon.files import finite, read_json, write_json
from etymon.lab.sweep_jobs import SWEEP_FILE, RunJob, RunTrainer
from etymon.lab.sweep_report import Cell, Ranking, RunOutcome, Swept, write_sweep_report
from etymon.objectives import objective_class
from etymon.plugin_settings import as_plain, read_records, records_in, require_records
from etymon.runs.folder import Job, lock_folder, require_free
from etymon.runs.run import USUAL_BUDGET
from etymon.runs.run_file import RunFile, assemble, find_difference, plain
from etymon.runs.text_data import TextData
from etymon.runs.text_phases import count_sentinels
from etymon.settings.reading import TextSettings
from etymon.text.sources import TextSource
from etymon.text.store import TokenStore
from etymon.training.budgets import parse_budget
from etymon.training.distributed import World, open_world
from etymon.training.progress import format_seconds, make_progress

# Cells that differed in these would be of different kinds, or of different cost.
FIXED_KEYS = ("family", "budget", "text", "training")
# Like the seed, these cost no time: runs that differ in nothing else take the same number of steps.
COSTLESS_KEYS = ("learning_rate", "weight_decay", "layer_decay", "schedule", "warmup", "clip")
Grid = dict[str, list[Any]]


def read_grid(grid: Sequence[str] | Mapping[str, Sequence[Any]]) -> Grid:
    """Values by dotted key, from `key=value,value` as YAML has values, or from a mapping."""
    values_by_key: Grid = {}
    for entry in [grid] if isinstance(grid, str) else grid:
        if isinstance(grid, Mapping):
            key, values = entry, list(grid[entry])
        else:
            key, equals, text = entry.partition("=")
            if not equals:
                raise EtymonError(f"cannot read the grid {entry!r}: write it as key=value,value")
            values = _parse_yaml(f"[{text}]", f"the grid {entry!r}")
        key = key.strip()
        if key in values_by_key:
            raise EtymonError(f"the grid names {key} twice: put all its values behind one")
        if key.partition(".")[0] in FIXED_KEYS:
            raise EtymonError(f"{key} cannot be swept: it is the same for all cells")
        if not values or len({json.dumps(value) for value in values}) < len(values):
            raise EtymonError(f"the grid needs different values for {key}, and it has {_value_text(values)}")
        values_by_key[key] = values
    return values_by_key


@dataclass
class SweepRun:
    """A run of the sweep. Its settings are checked when it is made, before any run starts."""

    cell: Cell
    outcome: RunOutcome
    job: Job
    data: TextData

    @property
    def folder(self) -> Path:
        return self.job.folder

    @property
    def has_begun(self) -> bool:
        return (self.folder / "run.yaml").is_file()

    def read_outcome(self) -> bool:
        """Takes the outcome from the run's folder if it is there; returns whether the run is over."""
        if self.outcome.figures is None and self.has_begun:
            history = read_history(model_folder(self.folder))
            if history and history[-1]["seen"].get("ended"):
                self.outcome.figures = history[-1]["metrics"]
                self.outcome.steps = history[-1]["seen"]["steps"]
        return self.outcome.figures is not None or self.outcome.diverged

    @property
    def text_key(self) -> tuple[Any, ...]:
        """What tokenizer and token store depend on: runs that agree in it share them."""
        file = self.data.file
        vocabulary = file.vocabulary if file.start else self.data.model_plan.vocabulary
        text = [getattr(file, field.name) for field in fields(TextSettings)]
        text += [file.normalise, count_sentinels(file, self.data.model_plan.family, self.data.phases)]
        return (vocabulary, file.tokenizer, file.start, file.teacher, file.data, file.validation, *text)

    @property
    def cost_key(self) -> RunFile:
        """What the time of a step depends on."""
        costless: dict[str, Any] = dict.fromkeys(COSTLESS_KEYS)
        return replace(self.data.file, **costless, seed=0)

    @property
    def metric_key(self) -> tuple[Any, ...]:
        """Figures of runs that agree in it can be compared."""
        number, phase = len(self.data.phases) - 1, self.data.phases[-1]
        store = TokenStore.open(self.folder / (f"store-{number}" if phase.data else "store")).description
        text = (self.cell.unit, store["source"], store["validation"])
        # Bits per byte of the same text compare whatever the tokens are, but a prefix is not predicted:
        # where there is one, only the bytes after it are counted.
        if self.cell.unit == "bits_per_byte":
            return (*text, "prefix" in objective_class(phase.objective).requires)
        # Bits per target compare only if the targets are the same ones.
        return (*text, store["tokenizer"], phase.objective, json.dumps(phase.options, sort_keys=True))


class Sweep:
    """One sweep in its folder. Runs that are finished there are not run again."""

    def __init__(
        self,
        folder: Path,
        file: RunFile,
        grid: Grid,
        seeds: int | None,
        source: TextSource | None,
        *,
        resume: bool,
        progress: Any = "auto",
        on: str | None = None,
        **options: Any,
    ) -> None:
        """Checks all settings before any work; `options` are those of `Job` (device, workers)."""
        saved: dict[str, Any] = {"cells": []}
        if resume:
            changed = bool(options.get("changed_plugins"))
            saved, file = _read_saved(folder, file, grid, seeds, changed)
            grid, seeds = dict(saved["grid"]), saved["seeds"]
        seeds = seeds or 1
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise EtymonError("a sweep runs in one process: start it without torchrun")
        if seeds < 1 or (seeds > 1 and "seed" in grid):
            raise EtymonError("give every cell one seed or more, or sweep over seed, not both")
        if not grid and seeds == 1:
            raise EtymonError("there is nothing to compare: give --grid key=value,value, or --seeds 3")
        if not file.validation:
            raise EtymonError("without held-out text nothing can be ranked: leave validation above 0")
        if not resume:
            if (folder / SWEEP_FILE).exists():
                raise EtymonError(
                    f"{folder} holds a sweep already: go on with --resume, or give another --out",
                    code="run-exists",
                )
            require_free(folder)
            if source is None and not file.data and "data" not in grid:
                raise EtymonError(
                    "there is no text to train on: give --data with files, folders or globs", code="no-data"
                )
        self.folder, self.file, self.grid, self.seeds, self.source = folder, file, grid, seeds, source
        self.progress, self.progress_kind, self.options = make_progress(progress), progress, options
        self.on = on
        """Where runs are trained: None is one after the other in this process; else as in `open_executor`."""
        self.cells, self.runs = self._plan_runs()
        # A run that diverged would diverge again: it keeps its outcome.
        diverged = {entry["folder"]: entry for cell in saved["cells"] for entry in cell["runs"]}
        for planned in self.runs:
            entry = diverged.get(planned.outcome.folder)
            if entry is not None and entry["diverged"]:
                planned.outcome.reason, planned.outcome.diverged = entry["reason"], True

    def _plan_runs(self) -> tuple[list[Cell], list[SweepRun]]:
        """All cells, and a run for every seed of each; the first seed of all cells comes first."""
        last_words = [_last_word(key) for key in self.grid]
        keys = last_words if len({*last_words}) == len(last_words) else list(self.grid)
        cells: list[Cell] = []
        for values in product(*self.grid.values()):
            name = ",".join(f"{key}={_value_text(value)}" for key, value in zip(keys, values, strict=True))
            cells.append(Cell(name, dict(zip(self.grid, values, strict=True))))
        names = [re.sub(r"[^\w.+=,-]+", "-", cell.name)[:120] for cell in cells]
        # Names that became the same get a number.
        folders = [name if name not in names[:i] else f"{name}-{i + 1}" for i, name in enumerate(names)]
        runs = []
        tree = plain(asdict(replace(self.file, training=None)))
        for number in range(self.seeds):
            for cell, folder in zip(cells, folders, strict=True):
                overrides = [f"{key}={json.dumps(value)}" for key, value in cell.settings.items()]
                file = assemble(RunFile, tree, None, overrides)
                if self.seeds > 1:
                    file = replace(file, seed=file.seed + number)
                    folder = f"{folder},seed={file.seed}".strip(",")
                run_file = self.folder / folder / "run.yaml"
                resuming = run_file.is_file()
                if resuming:  # a run that starts from a model took over its size
                    file = replace(file, size=load_yaml(run_file, RunFile).size)
                job = Job(self.folder / folder, file, resuming=resuming, **self.options)
                cell.runs.append(RunOutcome(folder, file.seed))
                runs.append(SweepRun(cell, cell.runs[-1], job, TextData(job, None)))
        return cells, runs

    def run(self) -> Swept:
        """Runs whatever is not finished, ranks the cells and writes sweep.json and report.html."""
        budget = self.file.budget or USUAL_BUDGET
        amount, unit = parse_budget(budget).amount, parse_budget(budget).unit
        whole = f", about {format_seconds(len(self.runs) * amount)}" if unit == "seconds" else ""
        grid = f" ({len(self.cells)} cells x {self.seeds} seeds)" if self.seeds > 1 else ""
        with open_world(self.options.get("device")) as world:
            # Runs of the same cost need the same memory.
            for planned in {repr(planned.cost_key): planned for planned in self.runs}.values():
                if not planned.job.resuming:
                    planned.data.require_memory(world)
        self.progress.note(f"{len(self.runs)} runs of {budget} each{whole}{grid}")
        command = f"etymon sweep {self.file.family} --out {shlex.quote(str(self.folder))} --resume"
        title = f"A sweep over {', '.join(self.grid) or 'seeds'}"
        figures: dict[str, str | float | None] = {
            "cells": len(self.cells),
            "seeds": self.seeds,
            "budget of a run": budget,
        }
        with lock_folder(self.folder, World()):
            self._write([])
            try:
                signal = self._run_unfinished()
            except KeyboardInterrupt:
                self.progress.note(f"interrupted; go on with: {command}")
                raise
            rankings = self._rank()
            self._write(rankings)
            report = write_sweep_report(self.folder, title, figures, self.cells, rankings)
        failed = [cell for cell in self.cells if cell.reason]
        done = sum(planned.read_outcome() for planned in self.runs)
        return Swept(self.folder, rankings, failed, report, len(self.runs), done, command, signal)

    def _run_unfinished(self) -> int | None:
        """Returns the signal that stopped it, if one did."""
        threads = torch.get_num_threads()  # runs are the same only with the same number
        gpus = int(str(self.options.get("device") or "").startswith("cuda"))
        with open_executor(self.on, None if self.on else 1, threads, gpus) as executor:
            for wave in self._waves():
                unfinished = [planned for planned in wave if not planned.read_outcome()]
                results = executor.run(RunTrainer, (), map(self._make_job, unfinished))
                for planned, (_, end) in zip(unfinished, results):
                    if end.is_stopped:
                        return end.signal
                    outcome = planned.outcome
                    outcome.reason, outcome.diverged = end.reason, end.diverged
                    if not end.reason and not (planned.read_outcome() and outcome.figures):
                        outcome.reason = "no validation text was held out to rank it by"
                    if end.reason:
                        if self.on is None:
                            self._require_begun(end.reason)
                        self.progress.note(f"{planned.folder.name}: {end.reason}")
                    self._write([])
                self._require_begun(next((each.outcome.reason for each in wave if each.outcome.reason), ""))
        return None

    def _waves(self) -> list[list[SweepRun]]:
        """Runs that may run at the same time: here one, on a cluster first those that others take the
        tokenizer, the store or the number of steps from, then all others."""
        if self.on is None:
            return [[planned] for planned in self.runs]
        leaders: dict[Any, SweepRun] = {}
        for planned in self.runs:
            leaders.setdefault(planned.text_key, planned)
            if parse_budget(planned.data.file.budget or USUAL_BUDGET).unit == "seconds":
                leaders.setdefault(repr(planned.cost_key), planned)
        first = [planned for planned in self.runs if any(planned is leader for leader in leaders.values())]
        return [first, [planned for planned in self.runs if planned not in first]]

    def _require_begun(self, reason: str) -> None:
        """If no run has begun there is nothing to resume: leaves no trace, and raises what happened."""
        if reason and not any(self.folder.glob("*/run.yaml")):
            for planned in self.runs:
                shutil.rmtree(planned.folder, ignore_errors=True)
            (self.folder / SWEEP_FILE).unlink()
            raise EtymonError(reason)

    def _make_job(self, planned: SweepRun) -> RunJob:
        """The run as a job; it is made just before it begins, since others tell what it can share with
        them."""
        number = 1 + next(place for place, other in enumerate(self.runs) if other is planned)
        self.progress.note(f"run {number} of {len(self.runs)}: {planned.folder.name}")
        file, progress = planned.data.file, self.progress_kind if self.on is None else "silent"
        # A store that only names another one has no tokenizer in it.
        stores = (other.folder / "store" for other in self.runs if other.text_key == planned.text_key)
        shared = next((store for store in stores if (store / "tokenizer").is_dir()), None)
        if shared is not None and shared.parent == planned.folder:
            shared = None
        # Of runs that cost the same, the first one measures how many steps a time budget has and the others
        # take as many: a busy moment of the machine would favour one of them.
        twins = (other for other in self.runs if other.cost_key == planned.cost_key)
        twin = next((other for other in twins if other.has_begun), None)
        if twin is not None and parse_budget(file.budget or USUAL_BUDGET).unit == "seconds":
            settings = load_yaml(twin.folder / "run.yaml", RunFile).training
            assert settings is not None
            file = replace(file, budget=f"{settings.steps}steps", validate_every=settings.validate_every)
        marker = self.folder / SWEEP_FILE
        return RunJob(planned.folder, file, self.source, shared, progress, self.options, marker)

    def _rank(self) -> list[Ranking]:
        groups: dict[tuple[Any, ...], list[Cell]] = {}
        for cell in self.cells:
            # A cell with a failed run is left out: its mean would be of fewer seeds.
            if cell.figures and not cell.reason:
                first = next(other for other in self.runs if other.cell is cell and other.outcome.figures)
                groups.setdefault(first.metric_key, []).append(cell)
        budget = parse_budget(self.file.budget or USUAL_BUDGET)
        more = 10 * budget.amount
        amount = f"{int(more) if more == int(more) else more}"
        amount += "s" if budget.unit == "seconds" else budget.unit
        data = "" if self.file.data or "data" in self.grid else " --data ..."
        # Validations were chosen for this budget's few steps: a longer run chooses its own.
        validations = "" if self.file.validate_every else " --set validate_every=null"
        has_several = len(groups) > 1
        rankings = []
        for number, cells in enumerate(groups.values(), 1):
            cells = sorted(cells, key=lambda cell: cell.mean)
            values = {key: {_value_text(cell.settings[key]) for cell in cells} for key in self.grid}
            shared = ", ".join(f"{key}={min(texts)}" for key, texts in values.items() if len(texts) == 1)
            config = shlex.quote(str(self.folder / cells[0].runs[0].folder / "run.yaml"))
            out = shlex.quote(f"runs/{self.folder.name}-best{f'-{number}' if has_several else ''}")
            repeat = f"etymon pretrain {self.file.family}{data} --config {config}"
            repeat += f" --budget {amount}{validations} --out {out}"
            unit = cells[0].unit.replace("_", " ")
            rankings.append(Ranking(unit, shared if has_several else "", cells, repeat))
        return rankings

    def _write(self, rankings: list[Ranking]) -> None:
        """Writes sweep.json, which a resumed sweep reads."""
        ranked = [
            {**asdict(ranking), "cells": [[cell.name, cell.mean, cell.spread] for cell in ranking.cells]}
            for ranking in rankings
        ]
        settings = plain(asdict(self.file))
        saved = {
            "etymon": etymon.__version__,
            "settings": settings,
            "plugins": as_plain(
                records_in([settings, {_last_word(key): each for key, each in self.grid.items()}])
            ),
            "grid": list(self.grid.items()),  # a list: the order of the keys names the cells
            "seeds": self.seeds,
            "cells": [asdict(cell) for cell in self.cells],
            "rankings": ranked,
        }
        write_json(self.folder / SWEEP_FILE, finite(saved))


def _read_saved(
    folder: Path, file: RunFile, grid: Grid, seeds: int | None, changed_plugins: bool
) -> tuple[dict[str, Any], RunFile]:
    """sweep.json and its settings; settings given now may repeat those, and anything else is refused."""
    if not (folder / SWEEP_FILE).is_file():
        raise EtymonError(f"there is no sweep in {folder} to resume: it has no {SWEEP_FILE}", code="no-run")
    saved = read_json(folder / SWEEP_FILE)
    records = read_records(saved.get("plugins", []), str(folder / SWEEP_FILE))
    require_records(records, str(folder), changed=changed_plugins)
    before = strict(RunFile, saved["settings"], str(folder / SWEEP_FILE))
    difference = find_difference(file, before)
    is_same = file.family == before.family and grid in ({}, dict(saved["grid"]))
    if difference or not is_same or seeds not in (None, saved["seeds"]):
        name = difference[0] if difference else "grid, seeds or family"
        raise EtymonError(
            f"the sweep in {folder} began with another {name}: leave that out, or give another --out",
            code="run-changed",
        )
    return saved, before


def _last_word(key: str) -> str:
    """`masking` of the dotted key `options.masking`."""
    return key.rpartition(".")[2]


def _value_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
