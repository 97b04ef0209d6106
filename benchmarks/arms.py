"""Experiments of several arms and seeds, each trained for the same number of counted operations.

Counting operations and not seconds lets runs share a machine. Runs are kept in ETYMON_BENCH_RUNS and go on where they were stopped; what was
measured of them is kept in the folder of results (`Figures`), so that an experiment of hours goes on on another machine.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import etymon
from benchmarks.harness import TOY, machine, results_folder, sized, write_result
from etymon.families import get_family

OPERATIONS = sized(os.environ.get("ETYMON_BENCH_FLOPS", "27Tflops"), "1step")
"""About five minutes of two quiet cores; at toy size one step."""
SEEDS = range(sized(int(os.environ.get("ETYMON_BENCH_SEEDS", "3")), 1))
RARELY = ["validate_every=1000000", "save_every=200"]
TOY_SHAPE = {
    "dim": 32, "layers": 1, "heads": 2, "head_dim": 16, "inner_dim": 64, "embedding_dim": 16, "rotary_dim": 8,
    "cells": 32, "letter_dim": 4, "filters": "1x8 2x8", "highways": 1, "word_dim": 16, "readout_dim": 16,
    "decoder_layers": 1, "band": 8,
}  # fmt: skip


def small(family: str) -> list[str]:
    """Settings that make a family's pocket size a toy; none at real size."""
    fields = get_family(family).shape.__dataclass_fields__ if TOY else {}
    return [f"shape.{name}={value}" for name, value in TOY_SHAPE.items() if name in fields]


def folder(experiment: str) -> Path:
    return Path(os.environ.get("ETYMON_BENCH_RUNS", "runs")) / experiment


def recipe_of(family: str) -> dict[str, Any]:
    """The values of the family's pocket recipe."""
    return get_family(family).recipe_for("pocket").values()


def conditions_of(arm: Mapping[str, Any], **told: Any) -> dict[str, Any]:
    """What the figures of an arm depend on beside the code: its settings, its family's recipe, and what all arms are told."""
    return {"operations": OPERATIONS, "arm": arm, "recipe": recipe_of(arm["family"]), **told}


class Figures:
    """The figures of an experiment, by name, in `results/EXPERIMENT.json`. They outlive the runs that they were measured of.

    Every entry says under which conditions it was measured. Under others, such as another recipe, it counts as none.
    """

    def __init__(self, experiment: str) -> None:
        self.experiment = experiment

    @property
    def file(self) -> Path:
        return results_folder() / f"{self.experiment}.json"

    def entries(self) -> dict[str, dict[str, Any]]:
        if not self.file.is_file():
            return {}
        kept: dict[str, dict[str, Any]] = json.loads(self.file.read_text(encoding="utf-8"))
        return kept

    def get(self, name: str, conditions: Mapping[str, Any]) -> dict[str, Any]:
        """Empty where nothing was measured under these conditions."""
        entry = self.entries().get(name)
        # As they are read back: without tuples.
        matches = entry is not None and entry["conditions"] == json.loads(json.dumps(conditions))
        return entry if entry is not None and matches else {}

    def keep(self, name: str, conditions: Mapping[str, Any], **figures: Any) -> None:
        """Adds figures to those of the same name; several processes may do so at a time."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            told = {"conditions": conditions, "machine": machine()}
            everything = {**self.entries(), name: {**self.get(name, conditions), **figures, **told}}
            self.file.write_text(json.dumps(everything, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def run_of(out: Path, seed: int, start: Callable[[dict[str, Any]], Any]) -> Path:
    """One run: begun, gone on with, or found done. `start` gets what all runs have in common."""
    if (out / "done").is_file():
        return out
    common = {
        "out": out, "budget": OPERATIONS, "seed": seed, "progress": "plain", "resume": (out / "run.yaml").is_file()
    }  # fmt: skip
    begin = time.perf_counter()
    result = start(common)
    print(f"{out.name}: {time.perf_counter() - begin:.0f} s", flush=True)
    if result.stopped:
        sys.exit("stopped: the same command goes on")
    (out / "done").touch()
    return out


def tuned(out: Path, start: Any, told: dict[str, Any], budget: str) -> None:
    """Fine-tunes a model, or goes on with that, and keeps the score of the last step in `out`/result.json."""
    begin = time.perf_counter()
    result = etymon.finetune(
        start, **told, out=out, budget=budget, baselines=False, progress="silent", resume=(out / "run.yaml").is_file()
    )  # fmt: skip
    if result.stopped:
        sys.exit("stopped: the same command goes on")
    metric = told["metric"] if isinstance(told["metric"], str) else told["metric"][0]
    score = result.scores[metric]
    found = {
        "metric": metric, "value": score.value, "low": score.low, "high": score.high, "steps": result.steps,
        "seconds": time.perf_counter() - begin, "metrics": result.metrics,
    }  # fmt: skip
    (out / "result.json").write_text(json.dumps(found, indent=2), encoding="utf-8")
    shutil.rmtree(out / "checkpoints", ignore_errors=True)
    print(
        f"{out.name}: {metric} {score.value:.2f} after {result.steps} steps, {found['seconds']:.0f} s",
        flush=True,
    )


def probed(run: Path, **asked: Any) -> dict[str, dict[str, float]]:
    """Test accuracies by task, of the best layer by validation, the last and the scalar mix; kept with the run."""
    kept = run / "probes.json"
    if not kept.is_file():
        probes = etymon.probe(run, twin=False, **asked)
        found = {
            task.task: {
                "best": task.best.accuracy,
                "last": task.layers[-1].accuracy,
                "mix": task.mix_accuracy,
            }
            for task in probes.tasks
        }
        kept.write_text(json.dumps(found), encoding="utf-8")
    read: dict[str, dict[str, float]] = json.loads(kept.read_text(encoding="utf-8"))
    return read


def keep(name: str, record: Mapping[str, Any]) -> None:
    """The figures of an experiment, with the machine, in the folder of results."""
    write_result(name, {"operations": OPERATIONS, **record, "machine": machine()})
