"""Is a pocket model too wide for ten minutes? `python -m benchmarks.widths` trains narrower ones for the operations of the panel.

The same novels, recipes, tasks and pairs as in `benchmarks.panel`, whose figures of the pocket sizes these stand beside. Decoders read every
paragraph as a document, so that they learn how sentences begin. Figures of runs are kept in `results/widths.json`: what was measured is not
trained again. Arguments are arms and `--seed=0`; `--table` prints what there is.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import etymon
from benchmarks import panel, tasks
from benchmarks.arms import RARELY, Figures, conditions_of, folder, run_of, small, tuned
from benchmarks.harness import sized
from etymon.training.state import VALIDATION_PREFIX

RUNS, FIGURES = folder("widths"), Figures("widths")
NARROW = ["shape.dim=128", "shape.heads=2"]
ARMS: dict[str, dict[str, Any]] = {
    "bert-128x4": {"family": "bert", "set": NARROW},
    "gpt2-256x4": {"family": "gpt2", "set": [], "documents": "line"},
    "gptj-128x2": {"family": "gptj", "set": [*NARROW, "shape.layers=2"], "documents": "line"},
}
TASKS = sized((f"UD-EWT{panel.FEW}", "UD-EWT", "SST-2"), (f"UD-EWT{panel.FEW}",))
TUNED = ("bert-128x4",)
"""Arms that are fine-tuned, too."""


def conditions(arm: str) -> dict[str, Any]:
    return conditions_of(ARMS[arm], operations=panel.PRETRAINING, tuning=panel.TUNING, few=panel.FEW_TUNING)


def pretrained(arm: str, seed: int) -> Path:
    asked = dict(ARMS[arm])
    family, shape = asked.pop("family"), asked.pop("set")
    toy = sized({}, {"length": 32, "batch": 2, "vocabulary": 300})

    def start(common: dict[str, Any]) -> Any:
        common |= {
            "budget": panel.PRETRAINING,
            "precision": panel.PRECISION,
            "set": [*RARELY, *shape, *small(family)],
        }
        return etymon.pretrain(
            family, size="pocket", data=tasks.text("en"), **{"documents": "file", **asked, **toy, **common}
        )

    return run_of(RUNS / f"{arm}-{seed}", seed, start)


def fine_tuned(arm: str, seed: int, task: str, start: str) -> float:
    """The score of the last step, of the arm's pretrained model or of new weights of its shape."""
    run, told = pretrained(arm, seed), panel.asked(task)
    family, scratch = ARMS[arm]["family"], {}
    if start == panel.NEW:
        told["set"] = [*told["set"], *ARMS[arm]["set"], *small(family)]
        scratch = {"from_scratch": True, "size": "pocket", "tokenizer": run / "tokenizer"}
    told |= {"precision": panel.PRECISION, "seed": seed, **scratch}
    budget = panel.FEW_TUNING if task.endswith(panel.FEW) else panel.TUNING
    out = RUNS / f"{arm}-{seed}-{task}-{start}"
    tuned(out, family if scratch else run, told, budget)
    return float(json.loads((out / "result.json").read_text(encoding="utf-8"))["value"])


def bits_per_byte(run: Path) -> float:
    """Of the run's last validation."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    name = f"{VALIDATION_PREFIX}bits_per_byte"
    return float([record[name] for record in records if name in record][-1])


def measure(arm: str, seed: int) -> None:
    name, asked = f"{arm}-{seed}", conditions(arm)
    kept = FIGURES.get(name, asked)
    if "pairs" not in kept:
        run = pretrained(arm, seed)
        figures: dict[str, Any] = {"pairs": panel.minimal_pairs(run)}
        if ARMS[arm]["family"] in panel.MASKED_FAMILIES:
            figures |= panel.masked_loss(run)
        else:
            figures["bits_per_byte"] = bits_per_byte(run)
        FIGURES.keep(name, asked, **figures)
    for task in TASKS if arm in TUNED else ():
        for start in (panel.NEW, panel.PRETRAINED):
            if f"{task} {start}" not in FIGURES.get(name, asked):
                FIGURES.keep(name, asked, **{f"{task} {start}": fine_tuned(arm, seed, task, start)})


def table() -> None:
    for name, figures in sorted(FIGURES.entries().items()):
        shown = {key: value for key, value in figures.items() if isinstance(value, float)}
        scores = ", ".join(f"{key} {value:.3f}" for key, value in shown.items())
        print(f"{name}: BLiMP {figures['pairs']['accuracy']:.1f}{', ' if scores else ''}{scores}")


def main(arguments: Sequence[str]) -> None:
    torch.set_num_threads(1)
    seeds = [
        int(word.removeprefix("--seed=")) for word in arguments if word.startswith("--seed=")
    ] or panel.SEEDS
    arms = [word for word in arguments if not word.startswith("--")] or ARMS
    if "--table" not in arguments:
        for seed in seeds:
            for arm in arms:
                measure(arm, seed)
    table()


if __name__ == "__main__":
    main(sys.argv[1:])
