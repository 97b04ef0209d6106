"""A suite's results as files: results.json, a table in Markdown, one in LaTeX, and a page with curves."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from statistics import fmean

from etymon.display import align_left, align_right, display_width
from etymon.files import atomic_write, json_text
from etymon.lab.suites import SuiteResult, SuiteRow
from etymon.report.page import Cell, Curve, ReportTable, Section, write_report

LATEX = re.compile(r"[&%$#_{}]")


def average(result: SuiteResult, row: SuiteRow) -> float | None:
    """The mean of all parts; None where one is missing, or some rise and others fall."""
    scores = [row.scores.get(part) for part in result.parts]
    present = [score for score in scores if score is not None]
    if len(present) < len(scores) or len(present) < 2 or any(score.falls for score in present):
        return None
    return fmean(score.value for score in present)


def table(result: SuiteResult) -> tuple[list[str], list[list[str]]]:
    """Header and rows; what is missing is a dash."""
    header = ["model", "words", "words read", *result.parts]
    averages = [average(result, row) for row in result.rows]
    rows = []
    for row, mean in zip(result.rows, averages, strict=True):
        counts = (row.words, row.words_read)
        cells = [row.name, *("–" if count is None else f"{count:,}" for count in counts)]
        for part in result.parts:
            score = row.scores.get(part)
            digits = 3 if score is not None and score.falls else 1
            cells.append("–" if score is None else f"{score.value:.{digits}f}")
        rows.append([*cells, "–" if mean is None else f"{mean:.1f}"])
    if all(mean is None for mean in averages):
        return header, [cells[:-1] for cells in rows]
    return [*header, "mean"], rows


def metric_notes(result: SuiteResult) -> list[str]:
    """What each part's figure is; where models are scored in different ways, all of them."""
    notes = []
    for part in result.parts:
        metrics = {row.scores[part].metric: None for row in result.rows if part in row.scores}
        if metrics:
            notes.append(f"{part}: {'; '.join(metrics)}")
    return notes


def table_lines(result: SuiteResult, translate: Callable[[str], str] = str) -> Iterator[str]:
    """For a terminal."""
    header, rows = table(result)
    header = [*map(translate, header)]
    widths = [max(display_width(cells[place]) for cells in (header, *rows)) for place in range(len(header))]
    for cells in (header, *rows):
        first, *rest = zip(cells, widths, strict=True)
        yield "  ".join([align_left(*first), *(align_right(*cell) for cell in rest)])
    yield ""
    yield from map(translate, metric_notes(result))
    for row in result.rows:
        yield from (translate(f"{row.name}, {part}: {reason}") for part, reason in row.reasons.items())


def write_suite(result: SuiteResult) -> None:
    """Writes results.json, results.md, results.tex and report.html into the suite's folder."""
    folder = Path(result.folder)
    header, rows = table(result)
    notes = metric_notes(result)
    with atomic_write(folder / "results.json") as file:
        file.write(json_text(asdict(result), indent=2) + "\n")
    lines = [header, ["---", *("---:" for _ in header[1:])], *rows]
    markdown = "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |" for cells in lines)
    with atomic_write(folder / "results.md") as file:
        file.write(markdown + "\n\n" + "\n".join(f"- {note}" for note in notes) + "\n")
    with atomic_write(folder / "results.tex") as file:
        file.write(_latex(header, rows, notes))
    sections: list[Section] = [*_curves(result)]
    cells: list[list[Cell]] = [[*row] for row in rows]
    sections.append(ReportTable(header, cells, title=f"Suite {result.suite}"))
    write_report(folder / "report.html", f"Suite {result.suite}", sections, "; ".join(notes))


def _latex(header: list[str], rows: list[list[str]], notes: list[str]) -> str:
    """A table for booktabs; the comments say what the figures are."""

    def line(cells: list[str]) -> str:
        escaped = (LATEX.sub(lambda mark: "\\" + mark[0], cell).replace("–", "--") for cell in cells)
        return " & ".join(escaped) + r" \\"

    comments = [f"% {note}" for note in notes]
    columns = "l" + "r" * (len(header) - 1)
    body = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", line(header), r"\midrule", *map(line, rows)]
    return "\n".join([*comments, *body, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _curves(result: SuiteResult) -> Iterator[Curve]:
    """Of runs with milestones, every part by words read."""
    for part in result.parts:
        series: dict[str, list[tuple[float, float]]] = {}
        for row in result.rows:
            if row.run and row.words_read is not None and part in row.scores:
                series.setdefault(row.run, []).append((row.words_read, row.scores[part].value))
        if any(len(points) > 1 for points in series.values()):
            metric = next(row.scores[part].metric for row in result.rows if part in row.scores)
            yield Curve(series, x_label="words read", y_label=metric, title=part)
