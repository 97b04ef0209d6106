"""How the loss falls with size and budget: `make bench-scaling`, which `--size auto` chooses by.

GPT-2, BERT and T5, each at four sizes (GPT-2 at five) and four budgets of counted operations, on the same novels; a law of parameters and tokens is fitted to the
losses of a family, with intervals by resampled residuals. Batch and rate follow the rules of `--size auto` (`etymon/runs/sizing.py`), and a few
runs with half and twice the batch show what the rule for batches is worth. Operations are counted, not seconds, so runs may share the machine. Every run
is kept in ETYMON_BENCH_RUNS and goes on where it was stopped. Arguments are families; `--table` prints what there is, `--write` writes laws and picture.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from scipy.optimize import least_squares

import etymon
from benchmarks.arms import RARELY, folder, keep
from benchmarks.harness import machine, needed_corpora, sized
from etymon.files import write_json
from etymon.runs import report
from etymon.runs.folder import Job
from etymon.runs.memory import TOKENS_A_STEP
from etymon.runs.run_file import RunFile, assemble
from etymon.runs.scaling_laws import FILE, ScalingLaw
from etymon.runs.size_ladder import Ladder, SizeCandidate, batch_tokens, learning_rate
from etymon.runs.text_data import TextData
from etymon.training.state import RunFolder

RUNS = folder("scaling")
FAMILIES = sized(("gpt2", "bert", "t5"), ("gpt2", "bert"))
SIZES = sized({"gpt2": (1, 2, 3, 4, 6)}, {})
USUAL_SIZES = sized((1, 2, 4, 6), (1, 2))
"""Of the ladder of `--size auto`: heads of 64, of a pocket size four."""
BUDGETS = sized((3e11, 9e11, 2.7e12, 8e12), (2e8, 4e8))
"""Operations."""
BATCHES = sized((0.5, 2.0), (2.0,))
"""Times the rule's batch, of the first family at the pocket size and the middle budgets."""
LENGTH = sized(128, 16)
VOCABULARY = sized(None, 300)
"""At real size that of the family's pocket size."""
NOVELS = sized(slice(0, None, 4), slice(None))
HELD_OUT = sized(0.0025, 0.1)
PRECISION = sized(os.environ.get("ETYMON_BENCH_PRECISION", "bf16"), "float32")
PUBLISHED, SPREAD, NOISE = (0.34, 0.28), 0.05, 0.01
"""Slopes of parameters and tokens in Hoffmann et al. 2022, to which few cells are drawn: a deviation of SPREAD counts as much as one of NOISE in the
logarithm of a cell's loss."""
FEWEST_TOKENS = sized(30_000, 0)
"""Of a cell that is fitted: before that, a model has learnt the frequencies of words and nothing else, which no power law describes."""
REFITS = sized(200, 8)
KEPT_REFITS = 80
"""In the package."""
PAGE = Path(__file__).parents[1] / "docs" / "choosing-a-size.md"
MARKS = ("<!-- curves -->", "<!-- end -->")
PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "scaling-curves.svg"


@dataclass(frozen=True)
class Cell:
    family: str
    step: int
    operations: float
    batch: float = 1.0
    """Times what the rule says."""

    @property
    def folder(self) -> Path:
        batch = "" if self.batch == 1 else f"-batch-{self.batch:g}"
        return RUNS / self.family / f"{self.step}-{self.operations:g}{batch}"

    @property
    def result(self) -> dict[str, Any] | None:
        path = self.folder / "result.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def cells(families: Sequence[str]) -> Iterator[Cell]:
    """Small budgets of all families first: a stopped experiment is of use."""
    for budgets in (BUDGETS[:-1], BUDGETS[-1:]):
        for family in families:
            for operations in budgets:
                for step in SIZES.get(family, USUAL_SIZES):
                    yield Cell(family, step, operations)
    if FAMILIES[0] in families:
        for operations in BUDGETS[1:3]:
            for factor in BATCHES:
                yield Cell(FAMILIES[0], USUAL_SIZES[-2], operations, factor)


@cache
def store(family: str) -> Path:
    """The novels as tokens of the family's own tokenizer."""
    novels = sorted((needed_corpora("the novels") / "eltec-novels").glob("*.txt"))[NOVELS]
    place = RUNS / family
    if not (place / "tokenizer").is_dir():
        etymon.tokenizer(
            data=novels,
            family=family,
            size=ladder(family).data.model_plan.vocabulary,
            out=place / "tokenizer",
            progress="silent",
        )
    etymon.prepare(
        data=novels, tokenizer=place / "tokenizer", out=place / "store", validation=HELD_OUT, documents="file",
        workers=1, progress="silent",
    )  # fmt: skip
    return place / "store"


@cache
def ladder(family: str) -> Ladder:
    asked = {"family": family, "size": "pocket", "length": LENGTH, "vocabulary": VOCABULARY}
    return Ladder(TextData(Job(RUNS / "new", assemble(RunFile, asked)), None))


def shape_at(family: str, step: int) -> SizeCandidate:
    shape = ladder(family).at(step)
    assert shape is not None
    return shape


def run(cell: Cell) -> None:
    """Trains a cell, or goes on with it, and keeps its figures; of its folder nothing else is left."""
    if cell.result is not None:
        return
    data, shape = store(cell.family), shape_at(cell.family, cell.step)
    recipe = ladder(cell.family).data.model_plan.recipe
    usual = recipe.batch_tokens or TOKENS_A_STEP
    step_tokens = batch_tokens(usual, cell.operations / shape.operations) * cell.batch
    begin = time.perf_counter()
    out = cell.folder / "run"
    result = etymon.pretrain(
        cell.family,
        data=str(data),
        size="pocket",
        length=LENGTH,
        batch=max(2, round(step_tokens / LENGTH)),
        learning_rate=learning_rate(recipe.learning_rate, shape.shape.dim / ladder(cell.family).data.model_plan.shape.dim),
        budget=f"{round(cell.operations)}flops",
        precision=PRECISION,
        set=[*RARELY, *(f"shape.{name}={value}" for name, value in shape.fields.items())],
        out=out,
        progress="silent",
        resume="auto",
    )  # fmt: skip
    if result.stopped:
        sys.exit("stopped: the same command goes on")
    trained = [record for record in RunFolder(out).metrics() if "tokens_per_second" in record]
    record = {
        "step": cell.step, "batch": cell.batch, "parameters": shape.parameters, "tokens": trained[-1]["tokens"],
        "operations": cell.operations, "loss": target_loss(result.metrics), "steps": result.steps,
        "dim": shape.shape.dim, "layers": shape.shape.layers, "recipe": recipe.name,
        "recipe_values": json.loads(json.dumps(recipe.values(), default=str)),
        "seconds": time.perf_counter() - begin,
    }  # fmt: skip
    write_json(cell.folder / "result.json", record)
    shutil.rmtree(out)
    print(
        f"{cell.folder.relative_to(RUNS)}: loss {record['loss']:.4f} after {result.steps} steps, "
        f"{record['tokens']:,} tokens, {record['seconds']:.0f} s",
        flush=True,
    )


def target_loss(metrics: Mapping[str, float]) -> float:
    """Nats a target of the held-out text."""
    return metrics["bits_per_target"] * math.log(2) if "bits_per_target" in metrics else metrics["loss"]


# --- laws


def fit(parameters_C: np.ndarray, tokens_C: np.ndarray, losses_C: np.ndarray) -> ScalingLaw:
    """The law of the smallest error in the logarithm of the loss; far-off cells count less (Huber)."""

    def unpack(values: np.ndarray) -> ScalingLaw:
        floor, parameters_scale, parameters_slope, tokens_scale, tokens_slope = values
        return ScalingLaw(
            float(floor), float(np.exp(parameters_scale)), float(parameters_slope), float(np.exp(tokens_scale)), float(tokens_slope)
        )  # fmt: skip

    def errors(values: np.ndarray) -> np.ndarray:
        floor, parameters_scale, parameters_slope, tokens_scale, tokens_slope = values
        expected_C = (
            floor
            + np.exp(parameters_slope * (parameters_scale - np.log(parameters_C)))
            + np.exp(tokens_slope * (tokens_scale - np.log(tokens_C)))
        )
        open_C = np.array([parameters_slope - PUBLISHED[0], tokens_slope - PUBLISHED[1]]) * NOISE / SPREAD
        return np.concatenate([np.log(expected_C) - np.log(losses_C), open_C])

    best = None
    # Several beginnings: the floor and the slopes can stand in for each other.
    for floor in (0.1, 0.5):
        for slope in (0.2, 0.4, 0.7):
            start = [floor * losses_C.min(), np.log(parameters_C.min()), slope, np.log(tokens_C.min()), slope]
            bounds = ([0, 0, 0.05, 0, 0.05], [losses_C.min(), 40, 1.5, 40, 1.5])
            solved = least_squares(errors, start, bounds=bounds, loss="huber", f_scale=0.02)
            if best is None or solved.cost < best.cost:
                best = solved
    assert best is not None
    return unpack(best.x)


def fit_family(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The law of a family's cells, laws of the same cells with resampled residuals, and the residuals of all."""
    columns = [np.array([each[name] for each in results], float) for name in ("parameters", "tokens", "loss")]
    fitted = columns[1] >= FEWEST_TOKENS
    parameters_C, tokens_C, losses_C = (column[fitted] for column in columns)
    law = fit(parameters_C, tokens_C, losses_C)
    expected_C = np.array([law.loss(n, d) for n, d in zip(parameters_C, tokens_C, strict=True)])
    residuals_C = np.log(losses_C) - np.log(expected_C)
    draw = np.random.default_rng(0)
    # Five fitted numbers make residuals smaller than the noise was.
    larger = (len(losses_C) / max(1, len(losses_C) - 5)) ** 0.5
    refits = []
    for _ in range(REFITS):
        noise_C = larger * draw.choice(residuals_C, len(losses_C))
        refits.append(fit(parameters_C, tokens_C, expected_C * np.exp(noise_C)))
    intervals = {
        name: [
            float(each) for each in np.quantile([getattr(refit, name) for refit in refits], (0.025, 0.975))
        ]
        for name in asdict(law)
    }
    return {
        "law": asdict(law),
        "intervals": intervals,
        "refits": [[float(f"{value:.6g}") for value in asdict(refit).values()] for refit in refits],
        "fitted": fitted.tolist(),
        "residuals": [
            round(math.log(each["loss"] / law.loss(each["parameters"], each["tokens"])), 5)
            for each in results
        ],
        "rms_residual": float(np.sqrt(np.mean(residuals_C**2))),
    }


def measured(family: str, *, batches: bool = False) -> list[dict[str, Any]]:
    """What is known of a family's cells."""
    wanted = (cell for cell in cells([family]) if (cell.batch != 1) == batches)
    return [result for cell in wanted if (result := cell.result) is not None]


def summary() -> dict[str, Any]:
    curves = {}
    for family in FAMILIES:
        results = measured(family)
        # A prefix of the budgets is of use; five numbers want more than five cells.
        if len(results) >= sized(10, 4):
            curves[family] = {"title": etymon_title(family), "cells": results, **fit_family(results)}
    return curves


def etymon_title(family: str) -> str:
    return ladder(family).data.model_plan.family.title


def table(curves: Mapping[str, Any]) -> str:
    lines = []
    for family, curve in curves.items():
        law, intervals = curve["law"], curve["intervals"]
        described = ", ".join(
            f"{name} {value:.4g} ({intervals[name][0]:.3g} to {intervals[name][1]:.3g})"
            for name, value in law.items()
        )
        lines.append(f"{family}: {described}; residuals {curve['rms_residual']:.2%}")
        for cell, residual in zip(curve["cells"], curve["residuals"], strict=True):
            lines.append(
                f"  {cell['operations'] / 1e12:g} Tflop, {cell['dim']} x {cell['layers']}: loss {cell['loss']:.3f} "
                f"after {cell['tokens']:,} tokens ({residual:+.1%})"
            )
    for family in FAMILIES[:1]:
        for cell in measured(family, batches=True):
            lines.append(
                f"{family}, {cell['dim']} x {cell['layers']}, {cell['operations'] / 1e12:g} Tflop, {cell['batch']:g} times the batch: "
                f"loss {cell['loss']:.3f} after {cell['steps']} steps"
            )
    return "\n".join(lines)


def write_page(curves: Mapping[str, Any]) -> None:
    """The table of laws, between its marks in the page."""
    header = ["family", "E", "A", "a", "B", "b", "cells fitted", "residuals"]
    lines = ["| " + " | ".join(header) + " |", "|---" * len(header) + "|"]
    for curve in curves.values():
        law, intervals = curve["law"], curve["intervals"]
        numbers = [f"{law[name]:.3g} ({intervals[name][0]:.2g} to {intervals[name][1]:.2g})" for name in law]
        cells = [
            curve["title"],
            *numbers,
            f"{sum(curve['fitted'])} of {len(curve['cells'])}",
            f"{curve['rms_residual']:.1%}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    text = PAGE.read_text(encoding="utf-8")
    before, after = text.split(MARKS[0])[0], text.split(MARKS[1])[1]
    PAGE.write_text(
        before + MARKS[0] + "\n\n" + "\n".join(lines) + "\n\n" + MARKS[1] + after, encoding="utf-8"
    )


def write_package(curves: Mapping[str, Any]) -> None:
    """The laws, as `--size auto` reads them."""
    kept = {
        family: {
            "title": curve["title"],
            "law": curve["law"],
            "intervals": curve["intervals"],
            "rms_residual": curve["rms_residual"],
            "recipe": curve["cells"][0]["recipe_values"],
            "refits": curve["refits"][:KEPT_REFITS],
            "cells": [
                {name: cell[name] for name in ("dim", "layers", "parameters", "tokens", "operations", "loss")}
                for cell in curve["cells"]
            ],
        }
        for family, curve in curves.items()
    }
    text = {"text": "novels of ELTeC, every fourth", "length": LENGTH, "precision": PRECISION}
    write_json(FILE, {**text, "processor": machine()["processor"], "curves": kept})


def draw_picture(curves: Mapping[str, Any], path: Path) -> None:
    """Losses by parameters at every budget with the laws through them, and the residuals below."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        2, len(curves), figsize=(4 * len(curves), 6), height_ratios=(3, 1), squeeze=False
    )
    for column, curve in enumerate(curves.values()):
        top, below = axes[0][column], axes[1][column]
        law = ScalingLaw(**curve["law"])
        for number, operations in enumerate(BUDGETS):
            group = [
                (cell, residual)
                for cell, residual in zip(curve["cells"], curve["residuals"], strict=True)
                if cell["operations"] == operations
            ]
            if not group:
                continue
            colour = f"C{number}"
            parameters = [cell["parameters"] for cell, _ in group]
            for cell, _ in group:
                face = colour if cell["tokens"] >= FEWEST_TOKENS else "none"
                top.plot(cell["parameters"], cell["loss"], "o", color=colour, markerfacecolor=face)
            # Between cells, tokens follow a line in logarithms.
            grid = np.geomspace(parameters[0], parameters[-1], 50)
            tokens = np.exp(
                np.interp(np.log(grid), np.log(parameters), [np.log(cell["tokens"]) for cell, _ in group])
            )
            losses = [law.loss(n, d) for n, d in zip(grid, tokens, strict=True)]
            top.plot(grid, losses, color=colour, label=f"{operations / 1e12:g} Tflop")
            lowest = int(np.argmin(losses))
            top.plot(grid[lowest], losses[lowest], "*", color=colour, markersize=12)
            for cell, residual in group:
                if cell["tokens"] >= FEWEST_TOKENS:
                    below.plot(cell["parameters"], 100 * residual, "o", color=colour)
        top.set(xscale="log", title=curve["title"], ylabel="validation loss (nats a target)")
        below.set(xscale="log", xlabel="parameters beside words", ylabel="residual (%)")
        below.axhline(0, color="grey", linewidth=0.8)
        top.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def main(arguments: Sequence[str]) -> None:
    names = [each for each in arguments if not each.startswith("--")] or list(FAMILIES)
    if "--table" not in arguments and "--write" not in arguments:
        # Reports of these runs are not read, and xz would take longer than most of them.
        with mock.patch.object(report, "XZ_LIMIT", 0):
            for cell in cells(names):
                run(cell)
    curves = summary()
    print(table(curves), flush=True)
    keep("scaling", {"curves": curves, "batches": measured(FAMILIES[0], batches=True)})
    if "--write" in arguments:
        write_package(curves)
        write_page(curves)
        draw_picture(curves, PICTURE)
    elif sized(False, True):
        draw_picture(curves, RUNS / "scaling-curves.svg")


if __name__ == "__main__":
    main(sys.argv[1:])
