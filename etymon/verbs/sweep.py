"""`etymon sweep`: a small grid of settings, tried one after the other under the same budget, and ranked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Annotated, Any, Literal

from etymon.verbs.options import Column, Documents, Errors, IgnoreConfigKey, Resume, opens_models, resumes
from etymon.verbs.pretrain import texts

if TYPE_CHECKING:
    from etymon.text.sources import TextSource


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


@opens_models
def sweep(
    family: Annotated[str, "as for pretrain: gpt2, bert, t5, ..."],
    *,
    grid: Annotated[
        Sequence[str] | Mapping[str, Sequence[Any]],
        "values of a setting by its dotted name, e.g. learning_rate=3e-4,1e-3; repeat it for others",
    ] = (),
    seeds: Annotated[int | None, "runs of every cell, each with another seed (1)"] = None,
    data: Annotated[
        Sequence[str | Path] | Path | TextSource | None, "text files, folders or globs, or a prepared store"
    ] = None,
    size: Annotated[str | None, "a published or pocket size of the family (pocket)"] = None,
    budget: Annotated[
        str | None, "of every single run: 90s, 10m; 5000steps, 20Mtokens, 3epochs, 100Mwords (10m)"
    ] = None,
    objective: Annotated[str | None, "what to learn from the text (the family's own)"] = None,
    batch: Annotated[int | None, "samples a step (about 2,048 tokens unless told)"] = None,
    length: Annotated[int | None, "tokens a sample (up to 256, as the model allows)"] = None,
    vocabulary: Annotated[int | None, "size of the tokenizer to train (the size's own)"] = None,
    from_: Annotated[str | Path | None, "folder or hub id of a model to go on from"] = None,
    documents: Documents = None,
    column: Column = None,
    errors: Errors = None,
    out: Annotated[str | Path | None, "the sweep's folder (sweeps/FAMILY-SIZE)"] = None,
    config: Annotated[Path | None, "a YAML file with the settings of a run; options beat it"] = None,
    set: Annotated[Sequence[str] | None, "a setting of all runs by its dotted name: batch=16"] = None,
    ignore_config_key: IgnoreConfigKey = None,
    device: Annotated[str | None, "cpu or cuda (cuda where there is one)"] = None,
    workers: Annotated[int, "processes that prepare samples (a thread does it unless told)"] = 0,
    resume: Resume = False,
    progress: Annotated[Literal["auto", "rich", "plain", "silent"], "how to show progress"] = "auto",
) -> Swept:
    """Try every combination of some settings and rank them by validation.

    The budget is that of one run: all have the same, and the whole takes cells x seeds times as long, which is said
    before it starts. Text and tokenizer are prepared once. Every run is an ordinary one in a folder of OUT; a table, OUT/sweep.json
    and OUT/report.html compare them. Ctrl-C saves the run at hand, and `--resume` goes on from there.
    """
    asked = dict(locals())
    from etymon.lab.sweep import NOTE, Sweep, read_grid
    from etymon.runs.run_file import RunFile, assemble, settings_of

    paths, source = texts(data)
    given = settings_of(RunFile, asked, data=paths, start=from_)
    file = assemble(RunFile, given, config, tuple(set or ()))
    folder = Path(out or Path("sweeps") / f"{file.family}-{file.size}")
    options: dict[str, Any] = {"progress": progress, "device": device, "workers": workers}
    if resumes(resume, folder, NOTE):
        return Sweep.resumed(folder, file, read_grid(grid), seeds, source, **options).go()
    return Sweep(folder, file, read_grid(grid), seeds or 1, source, **options).go()


def present(result: Swept) -> None:
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
