"""The results of a sweep, and the page that shows them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from etymon.report.inline import Inline
from etymon.report.page import Code, Curve, Figures, ReportTable, Section, write_report
from etymon.training.state import VALIDATION_PREFIX, RunFolder


@dataclass
class RunOutcome:
    """The result of a run, as sweep.json has it."""

    folder: str
    """Its name in the sweep's folder."""
    seed: int
    steps: int = 0
    figures: dict[str, float] | None = None
    """The last validation, if the run ended as planned."""
    reason: str = ""
    """Why it did not."""
    diverged: bool = False


@dataclass
class Cell:
    """One combination of the grid's values: a run for every seed."""

    name: str
    settings: dict[str, Any]
    runs: list[RunOutcome] = field(default_factory=list)

    @property
    def unit(self) -> str:
        """The metric that cells are ranked by; lower is better."""
        # Bits per target depend on the tokenizer; bits per byte compare across them, where there are any.
        has_bytes = any("bits_per_byte" in (run.figures or {}) for run in self.runs)
        return "bits_per_byte" if has_bytes else "bits_per_target"

    @property
    def figures(self) -> list[float]:
        return [run.figures[self.unit] for run in self.runs if run.figures]

    @property
    def mean(self) -> float:
        return fmean(self.figures)

    @property
    def spread(self) -> float | None:
        """The standard deviation over the seeds; None with a single seed."""
        return stdev(self.figures) if len(self.figures) > 1 else None

    @property
    def reason(self) -> str:
        """Why the cell is not ranked; empty if it is."""
        for run in self.runs:
            if run.reason:
                return f"seed {run.seed}: {run.reason}" if len(self.runs) > 1 else run.reason
        return ""


@dataclass
class Ranking:
    """Cells whose figures can be compared, the best first."""

    unit: str
    shared: str
    """The settings that set these cells apart from those of other rankings."""
    cells: list[Cell]
    repeat: str
    """The command that runs the best cell again with a larger budget."""


@dataclass
class Swept(Inline):
    """The result of a sweep."""

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
        # As shells report a process that a signal has ended.
        return 128 + self.signal if self.signal else 0

    def inline_sections(self) -> Iterator[Section]:
        for ranking in self.rankings:
            yield from ranking_sections(self.folder, ranking)


def write_sweep_report(
    folder: Path,
    title: str,
    figures: Mapping[str, str | float | None],
    cells: Sequence[Cell],
    rankings: Sequence[Ranking],
) -> Path:
    """Writes report.html: a picture, a table and the command for the best cell of every ranking."""
    sections: list[Section] = [Figures(figures)]
    for ranking in rankings:
        sections += ranking_sections(folder, ranking)
    failed = [(cell.name, cell.reason) for cell in cells if cell.reason]
    if failed:
        sections.append(ReportTable(("cell", "why it is not ranked"), failed, title="Left out"))
    path = folder / "report.html"
    write_report(path, title, sections)
    return path


def ranking_sections(folder: Path, ranking: Ranking) -> Iterator[Section]:
    """The curves of a ranking, its table, and how to go on with the best cell."""
    curves = {}
    for cell in ranking.cells:
        of_seeds = [_curve(folder / run.folder, cell.unit) for run in cell.runs if run.figures]
        # The mean over the seeds, validation by validation.
        curves[cell.name] = [
            (fmean(x for x, _ in points), fmean(y for _, y in points)) for points in zip(*of_seeds)
        ]
    heading = ranking.shared or "Validation"
    yield Curve(curves, x_label="tokens", y_label=ranking.unit, title=heading)
    rows = [
        (place, cell.name, cell.mean, cell.spread, max(run.steps for run in cell.runs))
        for place, cell in enumerate(ranking.cells, 1)
    ]
    yield ReportTable(("", "cell", ranking.unit, "deviation", "steps"), rows)
    yield Code(ranking.repeat, title="The best one with ten times the budget")


def _curve(folder: Path, unit: str) -> list[tuple[float, float]]:
    """(tokens, validation metric) of a run. Lines of validations have no tokens: the step's line has them."""
    records, name = RunFolder(folder).metrics(), VALIDATION_PREFIX + unit
    tokens = {0: 0, **{record["step"]: record["tokens"] for record in records if "tokens" in record}}
    return [(tokens[record["step"]], record[name]) for record in records if name in record]
