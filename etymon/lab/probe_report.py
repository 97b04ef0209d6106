"""What probes found, as a table on the terminal, as files, and as a page with curves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from etymon.files import atomic_write, json_text
from etymon.lab.probe import Probes, TaskScore
from etymon.report.page import Cell, Curve, Paragraph, Section, Table, write_report
from etymon.tables.writing import write_table

HOW_TO_READ = """Every layer is frozen and read by a linear classifier; layer 0 is what goes into the first one. Accuracies are those \
of the test split; the penalty of each classifier, and the best layer, are chosen by the validation split.

Selectivity is accuracy minus control accuracy. The control has random labels that are always the same for the same \
type: for tokens the word itself, for sentences their first word, for pseudo-words the word before. A probe can only learn \
it by heart; where it does that as well as the task, its accuracy says little about the model. The untrained twin has the \
same shape and has learnt nothing."""


def table(score: TaskScore) -> tuple[list[str], list[list[Cell]]]:
    """A row a layer, in percent."""
    twin = score.layers[0].random is not None
    header = ["layer", "accuracy", "control", "selectivity", *["untrained"] * twin, "mix weight"]
    rows: list[list[Cell]] = []
    for layer in score.layers:
        values = [layer.accuracy, layer.control, layer.selectivity, layer.random, layer.mix]
        rows.append([layer.layer, *(round(100 * value, 1) for value in values if value is not None)])
    return header, rows


def lines(score: TaskScore) -> Iterator[str]:
    """The table of a task, for a terminal."""
    yield described(score)
    header, rows = table(score)
    yield "  ".join(f"{name:>11}" for name in header)
    for row in rows:
        mark = " *" if row[0] == score.best.layer else ""
        yield "  ".join(f"{cell:>11}" if isinstance(cell, int) else f"{cell:>11.1f}" for cell in row) + mark
    yield summary(score)


def described(score: TaskScore) -> str:
    return (
        f"{score.task} ({score.level}, {score.reading}): {score.labels} labels, "
        f"{score.train:,} + {score.validation:,} + {score.test:,} examples, commonest label {score.majority:.1%}"
    )


def summary(score: TaskScore) -> str:
    best = score.best
    return (
        f"layer {best.layer} is best: accuracy {best.accuracy:.1%} ± {score.margin:.1%}, "
        f"selectivity {100 * best.selectivity:.1f} points; mix of all layers {score.mix_accuracy:.1%}"
    )


def record(probes: Probes) -> dict[str, Any]:
    """Everything, for JSON."""
    tasks = []
    for score in probes.tasks:
        layers = [{**asdict(layer), "selectivity": layer.selectivity} for layer in score.layers]
        tasks.append(
            {**asdict(score), "best_layer": score.best.layer, "margin": score.margin, "layers": layers}
        )
    return {**asdict(probes), "tasks": tasks}


def write(probes: Probes, folder: Path) -> None:
    """results.json, results.csv (a row a task and layer, and one for the mix) and report.html."""
    with atomic_write(folder / "results.json") as file:
        file.write(json_text(record(probes), indent=2))
    names = "task level reading layer accuracy control selectivity validation strength random mix".split()
    rows: list[dict[str, Any]] = []
    for score in probes.tasks:
        same = {"task": score.task, "level": score.level, "reading": score.reading}
        rows += [{**same, **asdict(layer), "selectivity": layer.selectivity} for layer in score.layers]
        rows.append({**same, "layer": "mix", "accuracy": score.mix_accuracy})
    write_table(folder / "results.csv", [{name: row.get(name) for name in names} for row in rows])
    write_report(folder / "report.html", f"Probes of {probes.model}", list(_sections(probes)))


def _sections(probes: Probes) -> Iterator[Section]:
    named = {_name(score, probes): score for score in probes.tasks}
    header = ["task", "best layer", "accuracy %", "±", "selectivity", "mix %", "commonest label %"]
    rows: list[list[Cell]] = [
        [
            name,
            score.best.layer,
            *(
                round(100 * value, 1)
                for value in (score.best.accuracy, score.margin, score.best.selectivity)
                + (score.mix_accuracy, score.majority)
            ),
        ]
        for name, score in named.items()
    ]
    yield Table(header, rows, title="In short")
    yield Paragraph(HOW_TO_READ, title="How to read this")
    if len(named) > 1:
        yield Curve(
            {
                name: [(layer.layer, 100 * layer.selectivity) for layer in score.layers]
                for name, score in named.items()
            },
            x_label="layer",
            y_label="selectivity, points",
            title="Selectivity, all tasks",
        )
    yield Curve(
        {name: [(layer.layer, 100 * layer.mix) for layer in score.layers] for name, score in named.items()},
        x_label="layer",
        y_label="weight, %",
        title="Which layers a learnt mix of all takes",
    )
    for name, score in named.items():
        curves = {
            "accuracy": [(layer.layer, 100 * layer.accuracy) for layer in score.layers],
            "control": [(layer.layer, 100 * layer.control) for layer in score.layers],
        }
        if score.layers[0].random is not None:
            curves["untrained twin"] = [(layer.layer, 100 * (layer.random or 0)) for layer in score.layers]
        references = {"commonest": 100 * score.majority, "mix": 100 * score.mix_accuracy}
        caption = f"{described(score)}. {score.control_seen:.0%} of the test examples have a type that training has."
        yield Curve(curves, references, "layer", "accuracy, %", name, caption)
        yield Table(*table(score))
    if probes.notes:
        yield Paragraph("\n\n".join(probes.notes), title="Notes")


def _name(score: TaskScore, probes: Probes) -> str:
    twice = sum(other.task == score.task for other in probes.tasks) > 1
    return f"{score.task}, {score.reading}" if twice else score.task
