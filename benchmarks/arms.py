"""Experiments of several arms and seeds, each trained for the same number of counted operations.

Counting operations and not seconds lets runs share a machine. Runs are kept in ETYMON_BENCH_RUNS and go on where they were stopped.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import etymon
from benchmarks.harness import RESULTS, machine

OPERATIONS = os.environ.get("ETYMON_BENCH_FLOPS", "27Tflops")
"""About five minutes of two quiet cores."""
SEEDS = range(int(os.environ.get("ETYMON_BENCH_SEEDS", "3")))
RARELY = ["validate_every=1000000", "save_every=200"]


def folder(experiment: str) -> Path:
    return Path(os.environ.get("ETYMON_BENCH_RUNS", "runs")) / experiment


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
    """The figures of an experiment, with the machine, in `benchmarks/results/`."""
    whole = {"operations": OPERATIONS, **record, "machine": machine()}
    (RESULTS / f"{name}.json").write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")
