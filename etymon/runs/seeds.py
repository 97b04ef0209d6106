"""Fine-tuning runs that differ in their seed alone: the scores of each, their mean and deviation."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from etymon.errors import EtymonError
from etymon.files import finite, write_json
from etymon.runs.folder import Job, resume_job
from etymon.runs.result import Finetuned
from etymon.runs.run import run
from etymon.runs.table_data import TableData
from etymon.tasks.task import value_to_minimise

SUMMARY = "seeds.json"


def finetune_seeds(job: Job, seeds: Sequence[int], train: Any, validation: Any, *, resume: bool) -> Finetuned:
    """Fine-tunes in `folder/seed-N` for each seed; returns the run with the best first metric."""
    if len(set(seeds)) < 2:
        raise EtymonError(
            f"several seeds are at least two different ones, not {', '.join(map(str, seeds))}: "
            "give others, or --seed"
        )
    if job.file.mixture is not None:
        raise EtymonError("a mixture is trained with one seed: leave --seeds out")
    results: dict[int, Finetuned] = {}
    for seed in seeds:
        seed_job = replace(job, folder=job.folder / f"seed-{seed}", file=replace(job.file, seed=seed))
        if resume and (seed_job.folder / "run.yaml").is_file():
            seed_job = resume_job(seed_job)
        data = TableData(seed_job, train, validation)
        results[seed] = result = run(seed_job, data)
        if result.stopped:
            result.command = "the same command and --resume"
            return result
    metrics = {
        seed: {name: result.metrics[name] for name in data.metrics if name in result.metrics}
        for seed, result in results.items()
    }
    # Smaller is better for every metric: it negates those that rise.
    criterion = value_to_minimise(data.metrics[0])
    best = min(results, key=lambda seed: criterion(results[seed].metrics) or 0.0)
    if not results[best].quiet:  # of several processes, only the first has the scores
        summary = {"seeds": {str(seed): metrics[seed] for seed in metrics}, **spread(metrics), "best": best}
        write_json(job.folder / SUMMARY, finite(summary))
    return replace(results[best], seeds=metrics)


def spread(metrics: dict[int, dict[str, float]]) -> dict[str, dict[str, float]]:
    """Returns the mean and the standard deviation (of a sample) of each metric over the seeds."""
    names = dict.fromkeys(name for of_seed in metrics.values() for name in of_seed)
    values = {name: [of_seed[name] for of_seed in metrics.values() if name in of_seed] for name in names}
    return {
        "mean": {name: statistics.fmean(each) for name, each in values.items()},
        "deviation": {
            name: statistics.stdev(each) if len(each) > 1 else 0.0 for name, each in values.items()
        },
    }
