"""The work behind `etymon sweep`: a grid as cells, cells as runs, runs as a ranking."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import etymon
from etymon.config import _parse_yaml, load_yaml, strict
from etymon.errors import EtymonError
from etymon.families.loading import model_folder, read_history
from etymon.files import finite, read_json, write_json
from etymon.objectives import objective_class
from etymon.report.page import Code, Curve, Figures, ReportTable, Section, write_report
from etymon.runs.folder import Job, lock_folder, require_free, resume_job
from etymon.runs.result import Pretrained
from etymon.runs.run import USUAL_BUDGET, run
from etymon.runs.run_file import RunFile, assemble, differing, plain
from etymon.runs.text_data import TextData
from etymon.text.sources import PreparedText, TextSource, text_source
from etymon.text.store import TokenStore
from etymon.training.budgets import parse_budget
from etymon.training.distributed import World, open_world
from etymon.training.loop import Diverged
from etymon.training.progress import ProgressKind, format_seconds, make_progress
from etymon.training.state import VALIDATION_PREFIX, RunFolder
from etymon.verbs.sweep import Cell, Outcome, Ranking, Swept

NOTE = "sweep.json"
FIXED = ("family", "budget", "text", "training")
"""Keys of a run file that no grid may have: cells would be of different kinds, or of different cost."""
FREE = ("learning_rate", "weight_decay", "layer_decay", "schedule", "warmup", "clip")
"""Settings that cost no time, as the seed does: runs that differ in nothing else take the same number of
steps."""
Grid = dict[str, list[Any]]


def read_grid(grid: Sequence[str] | Mapping[str, Sequence[Any]]) -> Grid:
    """Values by dotted key, from `key=value,value` as YAML has values, or from a mapping."""
    values_by_key: Grid = {}
    for each in [grid] if isinstance(grid, str) else grid:
        if isinstance(grid, Mapping):
            key, values = each, list(grid[each])
        else:
            key, equals, text = each.partition("=")
            if not equals:
                raise EtymonError(f"cannot read the grid {each!r}: write it as key=value,value")
            values = _parse_yaml(f"[{text}]", f"the grid {each!r}")
        key = key.strip()
        if key in values_by_key:
            raise EtymonError(f"the grid names {key} twice: put all its values behind one")
        if key.partition(".")[0] in FIXED:
            raise EtymonError(f"{key} cannot be swept: it is the same for all cells")
        if not values or len({json.dumps(value) for value in values}) < len(values):
            raise EtymonError(f"the grid needs different values for {key}, and it has {_shown(values)}")
        values_by_key[key] = values
    return values_by_key


@dataclass
class Member:
    """A run of the sweep: whose it is, what came of it, and how it will be run, which is checked before
    anything begins."""

    cell: Cell
    outcome: Outcome
    job: Job
    data: TextData

    @property
    def folder(self) -> Path:
        return self.job.folder

    def finished(self) -> bool:
        """Whether the run came to its end: what its folder says is taken over."""
        if self.outcome.figures is None and (self.folder / "run.yaml").is_file():
            past = read_history(model_folder(self.folder))
            if past and past[-1]["seen"].get("ended"):
                self.outcome.figures, self.outcome.steps = past[-1]["metrics"], past[-1]["seen"]["steps"]
        return self.outcome.figures is not None or self.outcome.diverged

    @property
    def text(self) -> tuple[Any, ...]:
        """What decides about tokenizer and store: members that agree in it share them."""
        file = self.data.file
        return (
            file.vocabulary if file.start else self.data.model_plan.vocabulary, file.tokenizer, file.start, file.teacher, file.data, file.documents,
            file.column, file.errors, file.validation,
        )  # fmt: skip

    @property
    def cost(self) -> RunFile:
        """What the time of a step depends on."""
        free: dict[str, Any] = dict.fromkeys(FREE)
        return replace(self.data.file, **free, seed=0)

    @property
    def question(self) -> tuple[Any, ...]:
        """Figures of members that agree in it can be compared.

        Bits per byte of the same text can, whatever the tokens, but not with those of what follows a prefix;
        bits per target only if the targets are the same.
        """
        number, phase = len(self.data.phases) - 1, self.data.phases[-1]
        store = TokenStore.open(self.folder / (f"store-{number}" if phase.data else "store")).description
        text = (self.cell.unit, store["source"], store["validation"])
        if self.cell.unit == "bits_per_byte":
            return (*text, "prefix" in objective_class(phase.objective).requires)
        options = json.dumps(phase.options, sort_keys=True)
        return (*text, store["tokenizer"], phase.objective, options)

    def curve(self) -> list[tuple[float, float]]:
        """Validation by tokens."""
        records, name = RunFolder(self.folder).metrics(), VALIDATION_PREFIX + self.cell.unit
        tokens = {0: 0, **{record["step"]: record["tokens"] for record in records if "tokens" in record}}
        return [(tokens[record["step"]], record[name]) for record in records if name in record]


class Sweep:
    """One sweep, in its folder. What is finished there is not done again."""

    def __init__(
        self, folder: Path, file: RunFile, grid: Grid, seeds: int, source: TextSource | None,
        progress: ProgressKind = "auto", *, resuming: bool = False, **options: Any,
    ) -> None:  # fmt: skip
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise EtymonError("a sweep runs in one process: start it without torchrun")
        if seeds < 1 or (seeds > 1 and "seed" in grid):
            raise EtymonError("give every cell one seed or more, or sweep over seed, not both")
        if not grid and seeds == 1:
            raise EtymonError("there is nothing to compare: give --grid key=value,value, or --seeds 3")
        if not file.validation:
            raise EtymonError("without held-out text nothing can be ranked: leave validation above 0")
        if not resuming:
            if (folder / NOTE).exists():
                raise EtymonError(
                    f"{folder} holds a sweep already: go on with --resume, or give another --out"
                )
            require_free(folder)
        if source is None and not file.data and not resuming and "data" not in grid:
            raise EtymonError("there is no text to train on: give --data with files, folders or globs")
        self.folder, self.file, self.grid, self.seeds, self.source = folder, file, grid, seeds, source
        self.progress, self.kind, self.options = make_progress(progress), progress, options
        self.members = self._members()
        self.cells = list({id(member.cell): member.cell for member in self.members}.values())

    @staticmethod
    def resumed(
        folder: Path,
        settings: RunFile,
        grid: Grid,
        seeds: int | None,
        source: TextSource | None,
        **options: Any,
    ) -> Sweep:
        """The sweep in a folder; what is asked may say again what it began with, but nothing else."""
        if not (folder / NOTE).is_file():
            raise EtymonError(f"there is no sweep in {folder} to resume: it has no {NOTE}")
        note = read_json(folder / NOTE)
        begun, swept = strict(RunFile, note["settings"], str(folder / NOTE)), dict(note["grid"])
        other = differing(settings, begun)
        if (
            other
            or settings.family != begun.family
            or grid not in ({}, swept)
            or seeds not in (None, note["seeds"])
        ):
            name = other[0] if other else "grid, seeds or family"
            raise EtymonError(
                f"the sweep in {folder} began with another {name}: leave that out, or give another --out"
            )
        sweep = Sweep(folder, begun, swept, note["seeds"], source, resuming=True, **options)
        diverged = {
            each["folder"]: each for cell in note["cells"] for each in cell["runs"] if each["diverged"]
        }
        for member in sweep.members:
            saved = diverged.get(member.folder.name)
            if saved is not None:  # it would diverge again
                member.outcome.reason, member.outcome.diverged = saved["reason"], True
        return sweep

    def _members(self) -> list[Member]:
        """Every seed of every cell, checked as far as that can be done before any work; the first seed of
        all comes first."""
        short = [key.rpartition(".")[2] for key in self.grid]
        names = short if len({*short}) == len(short) else list(self.grid)
        cells: list[Cell] = []
        for values in product(*self.grid.values()):
            name = ",".join(f"{key}={_shown(value)}" for key, value in zip(names, values, strict=True))
            cells.append(Cell(name, dict(zip(self.grid, values, strict=True))))
        folders = _distinct([re.sub(r"[^\w.+=,-]+", "-", cell.name)[:120] for cell in cells])
        members = []
        tree = plain(asdict(replace(self.file, training=None)))
        for number in range(self.seeds):
            for cell, folder in zip(cells, folders, strict=True):
                overrides = [f"{key}={json.dumps(value)}" for key, value in cell.settings.items()]
                file = assemble(RunFile, tree, None, overrides)
                if self.seeds > 1:
                    file = replace(file, seed=file.seed + number)
                    folder = f"{folder},seed={file.seed}".strip(",")
                place = self.folder / folder
                begun = (place / "run.yaml").is_file()
                if begun:  # which may have gone on from a model of another size
                    file = replace(file, size=load_yaml(place / "run.yaml", RunFile).size)
                job = Job(place, file, resuming=begun, **self.options)
                cell.runs.append(Outcome(folder, file.seed))
                members.append(Member(cell, cell.runs[-1], job, TextData(job, None)))
        return members

    def go(self) -> Swept:
        budget = self.file.budget or USUAL_BUDGET
        amount = parse_budget(budget)
        whole = (
            f", about {format_seconds(len(self.members) * amount.amount)}" if amount.unit == "seconds" else ""
        )
        each = f" ({len(self.cells)} cells x {self.seeds} seeds)" if self.seeds > 1 else ""
        with open_world(self.options.get("device")) as world:
            for member in {repr(member.cost): member for member in self.members}.values():
                if not member.job.resuming:
                    member.data.require_memory(world.device)
        self.progress.note(f"{len(self.members)} runs of {budget} each{whole}{each}")
        command = f"etymon sweep {self.file.family} --out {shlex.quote(str(self.folder))} --resume"
        with lock_folder(self.folder, World()):
            self._write([])
            try:
                signal = self._run_all()
            except KeyboardInterrupt:
                self.progress.note(f"interrupted; go on with: {command}")
                raise
            rankings = self._rankings()
            self._write(rankings)
            report = self._report(rankings)
        failed = [cell for cell in self.cells if cell.reason]
        done = sum(member.finished() for member in self.members)
        return Swept(self.folder, rankings, failed, report, len(self.members), done, command, signal)

    def _run_all(self) -> int | None:
        """Runs what is not finished; gives the signal that stopped it, if one did."""
        for number, member in enumerate(self.members, 1):
            if member.finished():
                continue
            self.progress.note(f"run {number} of {len(self.members)}: {member.folder.name}")
            outcome = member.outcome
            try:
                result = self._trained(member)
                if result.stopped:
                    return result.signal
                if not member.finished() or not outcome.figures:
                    outcome.reason = "no text was held out that it could be judged by"
            except EtymonError as error:
                if not any(
                    self.folder.glob("*/run.yaml")
                ):  # nothing has come about that could be gone on with
                    for each in self.members:
                        shutil.rmtree(each.folder, ignore_errors=True)
                    (self.folder / NOTE).unlink()
                    raise
                outcome.reason, outcome.diverged = str(error), isinstance(error, Diverged)
                self.progress.note(f"{member.folder.name}: {error}")
            self._write([])
        return None

    def _trained(self, member: Member) -> Pretrained:
        file = member.data.file
        if (member.folder / "run.yaml").is_file():
            settings = RunFile(family=file.family)  # as it began
            job = resume_job(Job(member.folder, settings, make_progress(self.kind), **self.options))
            return run(job, TextData(job, None))
        source: TextSource | None = self.source
        if source is None and file.data:
            source = text_source(file.data, file.documents, file.column, file.errors)
        if source is None:
            raise EtymonError("the texts of this sweep were given by a program: give them again as data")
        # A store that only names another one has no tokenizer in it.
        stores = (other.folder / "store" for other in self.members if other.text == member.text)
        shared = next((store for store in stores if (store / "tokenizer").is_dir()), None)
        if shared is not None and not isinstance(source, PreparedText) and shared.parent != member.folder:
            source = PreparedText(shared, source.description)
        progress, file = make_progress(self.kind), self._measured(member)
        # Runs of the same cost are compared, and so take the same steps.
        job = Job(member.folder, file, progress, fixed_steps=True, **self.options)
        return run(job, TextData(job, source))

    def _measured(self, member: Member) -> RunFile:
        """A time as the steps that a run of the same cost had in it: a busy moment would favour one of
        them."""
        file = member.data.file
        twins = (other.folder / "run.yaml" for other in self.members if other.cost == member.cost)
        begun = next((path for path in twins if path.is_file()), None)
        if begun is None or parse_budget(file.budget or USUAL_BUDGET).unit != "seconds":
            return file
        settings = load_yaml(begun, RunFile).training
        assert settings is not None
        return replace(file, budget=f"{settings.steps}steps", validate_every=settings.validate_every)

    # --- what came of it

    def _rankings(self) -> list[Ranking]:
        groups: dict[tuple[Any, ...], list[Cell]] = {}
        for cell in self.cells:
            # A cell of which a run failed is not compared with those that went through.
            if cell.figures and not cell.reason:
                first = next(each for each in self.members if each.cell is cell and each.outcome.figures)
                groups.setdefault(first.question, []).append(cell)
        rankings = []
        for number, cells in enumerate(groups.values(), 1):
            settings = {key: {_shown(cell.settings[key]) for cell in cells} for key in self.grid}
            alike = [f"{key}={min(values)}" for key, values in settings.items() if len(values) == 1]
            ranked = sorted(cells, key=lambda cell: cell.mean)
            several = len(groups) > 1
            repeat = self._repeat(ranked[0], f"-{number}" if several else "")
            unit = cells[0].unit.replace("_", " ")
            rankings.append(Ranking(unit, ", ".join(alike) if several else "", ranked, repeat))
        return rankings

    def _repeat(self, cell: Cell, number: str) -> str:
        budget = parse_budget(self.file.budget or USUAL_BUDGET)
        more = 10 * budget.amount
        amount = (
            f"{int(more) if more == int(more) else more}{'s' if budget.unit == 'seconds' else budget.unit}"
        )
        data = "" if self.file.data or "data" in self.grid else " --data ..."
        target = shlex.quote(f"runs/{self.folder.name}-best{number}")
        config = shlex.quote(str(self.folder / cell.runs[0].folder / "run.yaml"))
        # A time was measured once, with as many validations as fit into it.
        usual = "" if self.file.validate_every else " --set validate_every=null"
        return f"etymon pretrain {self.file.family}{data} --config {config} --budget {amount}{usual} --out {target}"

    def _write(self, rankings: list[Ranking]) -> None:
        ranked = [
            {**asdict(ranking), "cells": [[cell.name, cell.mean, cell.spread] for cell in ranking.cells]}
            for ranking in rankings
        ]
        note = {
            "etymon": etymon.__version__, "settings": plain(asdict(self.file)), "grid": list(self.grid.items()), "seeds": self.seeds,
            "cells": [asdict(cell) for cell in self.cells], "rankings": ranked,
        }  # fmt: skip
        write_json(self.folder / NOTE, finite(note))

    def _report(self, rankings: list[Ranking]) -> Path:
        """One page with all curves and the table."""
        figures: dict[str, str | float | None] = {
            "cells": len(self.cells),
            "seeds": self.seeds,
            "budget of a run": self.file.budget or USUAL_BUDGET,
        }
        sections: list[Section] = [Figures(figures)]
        for ranking in rankings:
            curves = {cell.name: _mean_curve(self._curves(cell)) for cell in ranking.cells}
            title = ranking.shared or "Validation"
            sections.append(Curve(curves, x_label="tokens", y_label=ranking.unit, title=title))
            rows = [
                (place, cell.name, cell.mean, cell.spread, max(run.steps for run in cell.runs))
                for place, cell in enumerate(ranking.cells, 1)
            ]
            sections.append(ReportTable(("", "cell", ranking.unit, "deviation", "steps"), rows))
            sections.append(Code(ranking.repeat, title="The best one with ten times the budget"))
        failed = [(cell.name, cell.reason) for cell in self.cells if cell.reason]
        if failed:
            sections.append(ReportTable(("cell", "why it is not ranked"), failed, title="Left out"))
        path = self.folder / "report.html"
        write_report(path, f"A sweep over {', '.join(self.grid) or 'seeds'}", sections)
        return path

    def _curves(self, cell: Cell) -> list[list[tuple[float, float]]]:
        return [member.curve() for member in self.members if member.cell is cell and member.outcome.figures]


def _mean_curve(curves: list[list[tuple[float, float]]]) -> list[tuple[float, float]]:
    """The mean over the seeds, validation by validation."""
    return [(fmean(x for x, _ in points), fmean(y for _, y in points)) for points in zip(*curves)]


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _distinct(names: list[str]) -> list[str]:
    """The same names, with a number behind those that were there before."""
    return [name if name not in names[:i] else f"{name}-{i + 1}" for i, name in enumerate(names)]
