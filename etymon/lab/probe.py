"""Probing: what a linear classifier finds in every layer of a frozen model, beside what it could find
anywhere.

A high accuracy alone says little: a probe may have learnt the task by itself. So every layer is also asked
for a control task, whose labels are random but always the same for the same type (Hewitt and Liang 2019);
accuracy minus control accuracy is its *selectivity*. And a model of the same shape that has learnt nothing is
asked the same.

Legend: L layers with the input of the first as number 0, N examples, U units (a text or a word of it), D
width.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from etymon.config import did_you_mean
from etymon.display import align_right
from etymon.errors import EtymonError
from etymon.families.model import Model
from etymon.files import atomic_write, json_text
from etymon.lab.probe_classifiers import (
    Problem,
    best_strength,
    logistic_regression,
    majority_labels,
    predict_labels,
    scalar_mix,
    standardise,
)
from etymon.lab.probe_tasks import SPLITS, Example, ProbeTask
from etymon.lab.representations import POOLINGS, Pieces, Place, Representations, represent
from etymon.report.inline import Inline
from etymon.report.page import Cell, Curve, Paragraph, ReportTable, Section, write_report
from etymon.tables.formats import write_table


@dataclass(frozen=True)
class LayerScore:
    """Test accuracies of one layer; `random` is the untrained twin's, `mix` the layer's weight in the
    scalar mix."""

    layer: int
    accuracy: float
    control: float
    validation: float
    strength: float
    random: float | None
    mix: float

    @property
    def selectivity(self) -> float:
        return self.accuracy - self.control


@dataclass(frozen=True)
class TaskScore:
    """`reading` says what was read of a text; `majority` is the accuracy of always saying the commonest
    label, and `control_seen` the share of test examples whose type was seen in training: no control can be
    learnt beyond it."""

    task: str
    level: str
    reading: str
    labels: int
    train: int
    validation: int
    test: int
    majority: float
    control_seen: float
    mix_accuracy: float
    layers: list[LayerScore]

    @property
    def best(self) -> LayerScore:
        """The layer that is best on the validation split."""
        return max(self.layers, key=lambda score: score.validation)

    @property
    def margin(self) -> float:
        """Half the 95% interval of the best layer's accuracy, for the number of test examples."""
        # The normal approximation; not quite 0 where everything is right.
        return 1.96 * (max(self.best.accuracy * (1 - self.best.accuracy), 1e-9) / self.test) ** 0.5


@dataclass(frozen=True)
class Probes(Inline):
    """The scores of all tasks."""

    model: str
    family: str
    seed: int
    tasks: list[TaskScore]
    notes: list[str]

    def inline_sections(self) -> Iterator[Section]:
        yield from _sections(self)


def probe_model(
    model: Model,
    tasks: Sequence[ProbeTask],
    *,
    name: str = "",
    poolings: Sequence[str] = ("mean",),
    pieces: Pieces = "first",
    twin: bool = True,
    batch_size: int = 32,
    seed: int = 0,
    on_progress: Callable[[str], None] = lambda note: None,
) -> Probes:
    """Probes every layer for every task; representations are computed once a model and text, for all of
    them."""
    logistic_regression()  # better missed now than when all texts are read
    for pooling in poolings:
        if pooling not in POOLINGS:
            raise EtymonError(f"there is no pooling {pooling!r}: {did_you_mean(pooling, POOLINGS)}")
    # Tasks share texts (a pooling each, a word each): all units are numbered before anything is read.
    unit_numbers: dict[tuple[str, Place], int] = {}
    problems = [
        _problem(task, reading, unit_numbers, pieces, seed)
        for task in tasks
        for reading in (poolings if task.level == "sentence" else (pieces,))
    ]
    notes = [note for task in tasks for note in task.notes]

    def read(reader: Model, action: str) -> Representations:
        return represent(
            reader,
            list(unit_numbers),
            pieces=pieces,
            batch_size=batch_size,
            on_batch=lambda done, total: on_progress(f"{action}: {done:,} of {total:,} texts"),
        )

    # One pass over all texts, then classifiers: `represent` has checked that all states fit into memory.
    vectors = read(model, "reading")
    if vectors.cut:
        notes.append(f"{vectors.cut:,} texts were cut at the model's {model.positions} tokens")
    problems = [_without_absent(problem, vectors.present, notes) for problem in problems]
    scores = []
    for problem in problems:
        on_progress(f"probing {problem.task.name}")
        scores.append(_probe(problem, vectors.states))
    del vectors  # the twin's take as much memory
    if twin:
        states = read(untrained_twin(model, seed), "reading with the untrained twin").states
        # Random weights alone give useful features: an accuracy only counts beyond the twin's. Its penalty
        # is chosen by validation, too: anything else would make it look worse.
        for place, problem in enumerate(problems):
            on_progress(f"probing the untrained twin: {problem.task.name}")
            layers = []
            for layer, x_UD in zip(scores[place].layers, states):
                _, accuracy, _ = best_strength(problem, standardise(x_UD, problem))
                layers.append(replace(layer, random=accuracy))
            scores[place] = replace(scores[place], layers=layers)
    for score in scores:
        if score.control_seen < 0.5:
            notes.append(
                f"{score.task}: only {score.control_seen:.0%} of the test examples have a type that "
                "training has, so that selectivity says little"
            )
    return Probes(name or model.family.title, model.family.name, seed, scores, notes)


def untrained_twin(model: Model, seed: int) -> Model:
    """A model of the same shape that has learnt nothing."""
    twin = Model(model.family, model.shape, model.head_names, model.labels).initialise(seed)
    twin.tokenizer, twin.source_tokenizer = model.tokenizer, model.source_tokenizer
    return twin.to(model.device).eval()


def control_labels(examples: Sequence[Example], seed: int) -> list[str]:
    """A label for every example, random but the same for the same type (of the same group).

    Types get theirs the most frequent first, each with chances as large as what the labels still lack of
    their number in training: so the control has about the task's distribution, and the two accuracies can be
    compared. Only training counts: were the test balanced too, training's surplus would give away what the
    test lacks.
    """
    draw = np.random.default_rng(seed)
    by_group: dict[str, list[Example]] = {}
    for example in examples:
        by_group.setdefault(example.group, []).append(example)
    chosen: dict[tuple[str, str], str] = {}
    for group, members in by_group.items():
        trained = [example for example in members if example.split == "train"]
        lacking = Counter(example.label for example in trained)
        names = sorted(lacking) or sorted({example.label for example in members})
        # Types that training does not have draw by the shares of the labels in training.
        shares = np.array([lacking[name] for name in names]) + 1e-6
        counts = Counter(dict.fromkeys((example.type for example in members), 0))
        counts.update(example.type for example in trained)
        for word, count in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])):
            chances = np.maximum([lacking[name] for name in names], 1e-6) if count else shares
            label = names[draw.choice(len(names), p=chances / chances.sum())]
            lacking[label] -= count
            chosen[group, word] = label
    return [chosen[example.group, example.type] for example in examples]


def _problem(
    task: ProbeTask, reading: str, unit_numbers: dict[tuple[str, Place], int], pieces: Pieces, seed: int
) -> Problem:
    examples = task.examples
    units: list[int] = []
    for example in examples:
        place: Place = reading if example.span is None else example.span
        units.append(unit_numbers.setdefault((example.text, place), len(unit_numbers)))
    labels = sorted({example.label for example in examples})
    groups = list(dict.fromkeys(example.group for example in examples))
    # Every task draws by its name; `hash` would differ from process to process.
    control = control_labels(examples, seed + zlib.crc32(task.name.encode()))
    return Problem(
        task,
        reading if task.level == "sentence" else {"first": "first piece", "mean": "mean of pieces"}[pieces],
        np.array(units),
        _numbers([example.label for example in examples], labels),
        _numbers(control, labels),
        _numbers([example.group for example in examples], groups),
        _numbers([example.split for example in examples], SPLITS),
    )


def _numbers(values: Sequence[str], names: Sequence[str]) -> np.ndarray:
    """The place of every value among the names."""
    places = {name: place for place, name in enumerate(names)}
    return np.array([places[value] for value in values])


def _without_absent(problem: Problem, present: np.ndarray, notes: list[str]) -> Problem:
    """The problem without words that no token stands for."""
    kept = present[problem.units]
    if kept.all():
        return problem
    notes.append(
        f"{problem.task.name}: {(~kept).sum():,} words are left out, cut off or without a token of their own"
    )
    examples = [example for example, here in zip(problem.task.examples, kept) if here]
    task = ProbeTask(problem.task.name, problem.task.level, examples)
    task.check()
    # Labels keep their numbers: only rows go.
    columns = (problem.units, problem.labels, problem.control, problem.groups, problem.splits)
    return Problem(task, problem.reading, *(column[kept] for column in columns))


def _probe(problem: Problem, states_LUD: np.ndarray) -> TaskScore:
    """The scores of a task but for the twin's accuracies."""
    layers = []
    for x_UD in states_LUD:
        x_ND = standardise(x_UD, problem)
        validation, accuracy, strength = best_strength(problem, x_ND)
        # The control has the strength that was chosen for the task: it is not tuned again.
        (control,) = predict_labels(x_ND, problem.control, problem, (strength,))
        layers.append((accuracy, problem.accuracy(control, control=True), validation, strength))
    # The mix takes the penalty that the best layer has chosen: like the control, it is not tuned again.
    strength = max(layers, key=lambda layer: layer[2])[3]
    weights, mixed = scalar_mix(states_LUD, problem, strength)
    types: dict[str, list[tuple[str, str]]] = {split: [] for split in SPLITS}
    for example in problem.task.examples:
        types[example.split].append((example.group, example.type))
    trained = set(types["train"])
    return TaskScore(
        task=problem.task.name,
        level=problem.task.level,
        reading=problem.reading,
        labels=len(np.unique(problem.labels[problem.fitted])),
        train=int(problem.fitted.sum()),
        validation=int(problem.rows_of("validation").sum()),
        test=len(types["test"]),
        majority=problem.accuracy(majority_labels(problem)),
        control_seen=sum(type in trained for type in types["test"]) / len(types["test"]),
        mix_accuracy=problem.accuracy(mixed),
        layers=[
            LayerScore(number, *layer, None, float(weights[number])) for number, layer in enumerate(layers)
        ],
    )


HOW_TO_READ = """\
Every layer is frozen and read by a linear classifier; layer 0 is what goes into the first one. Accuracies \
are those of the test split; the penalty of each classifier, and the best layer, are chosen by the \
validation split.

Selectivity is accuracy minus control accuracy. The control has random labels that are always the same for \
the same type: for tokens the word itself, for sentences their first word, for pseudo-words the word \
before. A probe can only learn it by heart; where it does that as well as the task, its accuracy says \
little about the model. The untrained twin has the same shape and has learnt nothing."""


def layer_table(score: TaskScore) -> tuple[list[str], list[list[Cell]]]:
    """A row a layer, in percent."""
    twin = score.layers[0].random is not None
    header = ["layer", "accuracy", "control", "selectivity", *["untrained"] * twin, "mix weight"]
    rows: list[list[Cell]] = []
    for layer in score.layers:
        values = [layer.accuracy, layer.control, layer.selectivity, layer.random, layer.mix]
        rows.append([layer.layer, *(round(100 * value, 1) for value in values if value is not None)])
    return header, rows


def report_lines(score: TaskScore, translate: Callable[[str], str] = str) -> Iterator[str]:
    """The table of a task, for a terminal."""
    yield translate(describe(score))
    header, rows = layer_table(score)
    yield "  ".join(align_right(translate(name), 11) for name in header)
    for row in rows:
        mark = " *" if row[0] == score.best.layer else ""
        yield "  ".join(f"{cell:>11}" if isinstance(cell, int) else f"{cell:>11.1f}" for cell in row) + mark
    best = score.best
    yield translate(
        f"layer {best.layer} is best: accuracy {best.accuracy:.1%} ± {score.margin:.1%}, "
        f"selectivity {100 * best.selectivity:.1f} points; mix of all layers {score.mix_accuracy:.1%}"
    )


def describe(score: TaskScore) -> str:
    return (
        f"{score.task} ({score.level}, {score.reading}): {score.labels} labels, "
        f"{score.train:,} + {score.validation:,} + {score.test:,} examples, commonest label "
        f"{score.majority:.1%}"
    )


def as_record(probes: Probes) -> dict[str, Any]:
    """Everything, for JSON."""
    tasks = []
    for score in probes.tasks:
        layers = [{**asdict(layer), "selectivity": layer.selectivity} for layer in score.layers]
        tasks.append(
            {**asdict(score), "best_layer": score.best.layer, "margin": score.margin, "layers": layers}
        )
    return {**asdict(probes), "tasks": tasks}


def write_results(probes: Probes, folder: Path) -> None:
    """results.json, results.csv (a row a task and layer, and one for the mix) and report.html."""
    with atomic_write(folder / "results.json") as file:
        file.write(json_text(as_record(probes), indent=2))
    # The mix has fewer figures than a layer: what it lacks is empty in the table.
    names = "task level reading layer accuracy control selectivity validation strength random mix".split()
    rows: list[dict[str, Any]] = []
    for score in probes.tasks:
        same = {"task": score.task, "level": score.level, "reading": score.reading}
        rows += [{**same, **asdict(layer), "selectivity": layer.selectivity} for layer in score.layers]
        rows.append({**same, "layer": "mix", "accuracy": score.mix_accuracy})
    write_table(folder / "results.csv", [{name: row.get(name) for name in names} for row in rows])
    write_report(folder / "report.html", f"Probes of {probes.model}", list(_sections(probes)))


def _sections(probes: Probes) -> Iterator[Section]:
    # With several poolings a task has several scores: their names say which.
    names = Counter(score.task for score in probes.tasks)
    by_name = {
        f"{score.task}, {score.reading}" if names[score.task] > 1 else score.task: score
        for score in probes.tasks
    }

    def series(score: TaskScore, field: str) -> list[tuple[float, float]]:
        return [(layer.layer, 100 * (getattr(layer, field) or 0)) for layer in score.layers]

    header = ["task", "best layer", "accuracy %", "±", "selectivity", "mix %", "commonest label %"]
    rows: list[list[Cell]] = []
    for name, score in by_name.items():
        best = score.best
        shares = (best.accuracy, score.margin, best.selectivity, score.mix_accuracy, score.majority)
        rows.append([name, best.layer, *(round(100 * share, 1) for share in shares)])
    yield ReportTable(header, rows, title="In short")
    yield Paragraph(HOW_TO_READ, title="How to read this")
    if len(by_name) > 1:
        yield Curve(
            {name: series(score, "selectivity") for name, score in by_name.items()},
            x_label="layer",
            y_label="selectivity, points",
            title="Selectivity, all tasks",
        )
    yield Curve(
        {name: series(score, "mix") for name, score in by_name.items()},
        x_label="layer",
        y_label="weight, %",
        title="Which layers a learnt mix of all takes",
    )
    for name, score in by_name.items():
        curves = {"accuracy": series(score, "accuracy"), "control": series(score, "control")}
        if score.layers[0].random is not None:
            curves["untrained twin"] = series(score, "random")
        references = {"commonest": 100 * score.majority, "mix": 100 * score.mix_accuracy}
        seen = f"{score.control_seen:.0%} of the test examples have a type that training has."
        yield Curve(curves, references, "layer", "accuracy, %", name, f"{describe(score)}. {seen}")
        yield ReportTable(*layer_table(score))
    if probes.notes:
        yield Paragraph("\n\n".join(probes.notes), title="Notes")
