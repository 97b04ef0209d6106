"""`etymon sweep`: a small grid of settings, tried one after the other under the same budget, and ranked."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Annotated, Any

from etymon.settings import PathText, Spelling, argument, group, option, settings
from etymon.settings.training import PretrainSettings, StartOptions
from etymon.verbs.pretrain import TextLike, split_text
from etymon.verbs.verb import resumes, verb


@dataclass
class Outcome:
    """What came of a run."""

    folder: str
    """Its name in the sweep's folder."""
    seed: int
    steps: int = 0
    figures: dict[str, float] | None = None
    """The last validation, if it took all its steps."""
    reason: str = ""
    """Why it did not."""
    diverged: bool = False


@dataclass
class Cell:
    """One combination of the grid: a run for every seed."""

    name: str
    settings: dict[str, Any]
    runs: list[Outcome] = field(default_factory=list)

    @property
    def unit(self) -> str:
        """What it is judged by: fewer bits are better."""
        told = any("bits_per_byte" in (run.figures or {}) for run in self.runs)
        return "bits_per_byte" if told else "bits_per_target"

    @property
    def figures(self) -> list[float]:
        return [run.figures[self.unit] for run in self.runs if run.figures]

    @property
    def mean(self) -> float:
        return fmean(self.figures)

    @property
    def spread(self) -> float | None:
        """The standard deviation over the seeds."""
        return stdev(self.figures) if len(self.figures) > 1 else None

    @property
    def reason(self) -> str:
        """Why it is not ranked."""
        seeds = len(self.runs) > 1
        told = (f"seed {run.seed}: {run.reason}" if seeds else run.reason for run in self.runs if run.reason)
        return next(told, "")


@dataclass
class Ranking:
    """Cells that answered the same question, the best first."""

    unit: str
    shared: str
    """The settings that set these cells apart from those of other rankings."""
    cells: list[Cell]
    repeat: str
    """The command that runs the best one again with a larger budget."""


@dataclass
class Swept:
    folder: Path
    rankings: list[Ranking]
    failed: list[Cell]
    """Cells of which a run diverged or could not be run."""
    report: Path
    runs: int
    done: int
    command: str
    """How to go on, when it was stopped."""
    signal: int | None = None
    """What it was stopped by."""

    @property
    def exit_code(self) -> int:
        return 128 + self.signal if self.signal else 0


@settings
class SweepOptions(StartOptions):
    family: str = argument("as for pretrain: gpt2, bert, t5, ...")
    grid: Annotated[Any, Spelling("Sequence[str] | Mapping[str, Sequence[Any]]", list[str])] = option(
        (), "values of a setting by its dotted name, e.g. learning_rate=3e-4,1e-3; repeat it for others"
    )
    seeds: int | None = option(None, "runs of every cell, each with another seed (1)")
    data: TextLike = option(None, "text files, folders or globs, or a prepared store")
    out: PathText = option(None, "the sweep's folder (sweeps/FAMILY-SIZE)")
    run: dict[str, Any] = group(
        PretrainSettings,
        "size budget objective batch length vocabulary start documents column errors",
    )


@verb(SweepOptions)
def sweep(options: SweepOptions) -> Swept:
    """The budget is that of one run: all have the same, and the whole takes cells x seeds times as long,
    which is said before it starts. Text and tokenizer are prepared once. Every run is an ordinary one in a
    folder of OUT; a table, OUT/sweep.json and OUT/report.html compare them. Ctrl-C saves the run at hand,
    and `--resume` goes on from there.
    """
    from etymon.lab.sweep import NOTE, Sweep, read_grid
    from etymon.runs.run_file import RunFile, assemble

    paths, source = split_text(options.data)
    given = options.run | {
        "family": options.family,
        "data": paths,
        "ignore_config_key": options.ignore_config_key or None,
    }
    file = assemble(RunFile, given, options.config, options.set)
    folder = Path(options.out or Path("sweeps") / f"{file.family}-{file.size}")
    grid = read_grid(options.grid)
    running: dict[str, Any] = {
        "progress": options.progress,
        "device": options.device,
        "workers": options.workers,
    }
    if resumes(options.resume, folder, NOTE):
        return Sweep.resumed(folder, file, grid, options.seeds, source, **running).go()
    return Sweep(folder, file, grid, options.seeds or 1, source, **running).go()


def present(result: Swept, options: SweepOptions) -> None:
    for ranking in result.rankings:
        common = f" ({ranking.shared})" if ranking.shared else ""
        print(f"\nvalidation {ranking.unit}{common}, the best first:")
        for place, cell in enumerate(ranking.cells, 1):
            spread = "" if cell.spread is None else f" ±{cell.spread:.4f}"
            print(f"{place:>4}  {cell.mean:.4f}{spread}  {cell.name}")
    if len(result.rankings) > 1:
        print("\nfigures of different rankings answer different questions: they cannot be compared")
    for cell in result.failed:
        print(f"   -  {cell.name}: {cell.reason}")
    print(f"\nreport  {result.report}")
    if result.signal:
        print(f"stopped after {result.done} of {result.runs} runs; go on with: {result.command}")
        return
    for ranking in result.rankings:
        print(f"the best one with ten times the budget:\n  {ranking.repeat}")
