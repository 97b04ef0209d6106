"""Several runs that differ in their seed alone: their scores, with mean and deviation."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from etymon.errors import EtymonError
from etymon.files import finite, write_json
from etymon.runs.finetuning import Finetuning
from etymon.runs.result import Finetuned
from etymon.runs.task_file import TaskFile
from etymon.tasks.task import value_to_minimise

SUMMARY = "seeds.json"


def finetune_seeds(
    folder: Path, file: TaskFile, seeds: Sequence[int], *, resume: bool, **options: Any
) -> Finetuned:
    """Runs in `folder/seed-N`. What comes back is the run whose first metric was best, with the metrics of all."""
    if len(set(seeds)) < 2:
        raise EtymonError(
            f"several seeds are at least two different ones, not {', '.join(map(str, seeds))}: give others, or --seed"
        )
    if file.mixture is not None:
        raise EtymonError("a mixture is trained with one seed: leave --seeds out")
    runs: dict[int, Finetuned] = {}
    for seed in seeds:
        own, wanted = folder / f"seed-{seed}", replace(file, seed=seed)
        going = resume and (own / "run.yaml").is_file()
        run = Finetuning.resumed(own, wanted, **options) if going else Finetuning(own, wanted, **options)
        runs[seed] = done = run.go()
        if done.stopped:
            done.command = "the same command and --resume"
            return done
        metrics = run.metrics
    first = metrics[0]
    known = {
        seed: {name: done.metrics[name] for name in metrics if name in done.metrics}
        for seed, done in runs.items()
    }
    judged = value_to_minimise(first)
    best = min(runs, key=lambda seed: judged(runs[seed].metrics) or 0.0)
    if not runs[best].quiet:  # of several processes, the first alone knows the scores
        summary = {"seeds": {str(seed): known[seed] for seed in known}, **spread(known), "best": best}
        write_json(folder / SUMMARY, finite(summary))
    return replace(runs[best], seeds=known)


def spread(known: dict[int, dict[str, float]]) -> dict[str, dict[str, float]]:
    """Mean and standard deviation (of a sample) of every metric."""
    names = dict.fromkeys(name for own in known.values() for name in own)
    values = {name: [own[name] for own in known.values() if name in own] for name in names}
    return {
        "mean": {name: statistics.fmean(each) for name, each in values.items()},
        "deviation": {
            name: statistics.stdev(each) if len(each) > 1 else 0.0 for name, each in values.items()
        },
    }
