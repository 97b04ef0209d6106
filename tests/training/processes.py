"""Runs one job after the other, as `torchrun` starts it on every process: python -m tests.training.processes JOBS.

A job is a run: family (or a model to fine-tune), folder, changes to the small runs of the tests, and a step at which the last process is asked
to stop, or dies in the first of several attempts. What every process has to say about it goes to FOLDER.RANK.json.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

import etymon
from etymon.errors import EtymonError
from etymon.training.distributed import open_world
from etymon.training.loop import Trainer
from etymon.verbs import pretrain as verb
from tests.carrying import carrying
from tests.verbs.small_runs import pretrain, resume, with_test_sizes


def stop_at(
    step: int, by: signal.Signals = signal.SIGTERM, rank: int | None = None, pause: float = 0.0
) -> None:
    """A signal, to one process alone (the last), when it has taken a step; `pause` is slept after each."""
    plain = Trainer._show

    def passing(trainer: Trainer, *arguments: Any) -> Any:
        found = plain(trainer, *arguments)
        time.sleep(pause)
        told = trainer.world.size - 1 if rank is None else rank
        if trainer.state.step == step and trainer.world.rank == told:
            Trainer._show = plain  # type: ignore[method-assign]
            os.kill(os.getpid(), by)
        return found

    Trainer._show = passing  # type: ignore[method-assign]


def do(job: dict[str, Any]) -> dict[str, Any]:
    folder = Path(job["folder"])
    try:
        if job.get("stop_at"):
            stop_at(job["stop_at"])
        if job.get("pause"):
            stop_at(0, pause=job["pause"])
        if job.get("die_at") and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            stop_at(job["die_at"], signal.SIGKILL, job.get("die_rank"))
        elif job.get("die_at") and os.environ["RANK"] == "0":
            time.sleep(
                2
            )  # the others come first, and must not take the address of the one that died for its own
        if job.get("finetune"):
            result: Any = etymon.finetune(job["finetune"], out=folder, progress="silent", **job["changes"])
        else:
            run = resume if job.get("resume") else pretrain
            result = run(job["family"], folder, **job.get("changes", {}))
    except EtymonError as error:
        return {"error": str(error)}
    if job.get("present"):
        verb.present(result)
    return {"steps": result.steps, "stopped": result.stopped, "metrics": result.metrics}


def different_names() -> str:
    """What happens when processes add up different things."""
    with open_world() as world:
        try:
            world.add({f"only here {world.rank}": 1.0})
        except RuntimeError as error:
            return str(error)
    return ""


def main() -> None:
    torch.set_num_threads(1)
    rank = os.environ["RANK"]
    with with_test_sizes():
        for job in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")):
            # Families with a memory of their own keep it.
            has_own = job["family"] in ("xlnet", "transformer-xl")
            with nullcontext() if has_own else carrying():
                said = {"error": different_names()} if job["family"] == "names" else do(job)
            Path(f"{job['folder']}.{rank}.json").write_text(json.dumps(said), encoding="utf-8")


if __name__ == "__main__":
    main()
