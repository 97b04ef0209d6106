"""Runs one job after the other, as `torchrun` starts it on every process: python -m tests.training.processes JOBS.

A job is a run: family (or a model to fine-tune), folder, changes to the small runs of the tests, and a step at which the last process is asked
to stop, or dies in the first of several attempts. `deaths` are moments of writing a checkpoint, one an attempt, and who dies then. What every
process has to say about it goes to FOLDER.RANK.json, and what attempts find on the disk to FOLDER.found.jsonl.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import FileSystemWriter, filesystem

import etymon
from etymon.errors import EtymonError
from etymon.training import checkpoint_writer
from etymon.training.distributed import open_world
from etymon.training.loop import Trainer
from etymon.training.state import RunFolder
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


LAST_SAVED = "step-00000004"
"""The checkpoint whose writing is interrupted."""


def die(*_: Any, **__: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)  # a signal may take a moment to arrive


def half_a_part(*given: Any) -> Any:
    """Instead of the first tensor of a part: a few bytes of it, on the disk, and the end."""
    stream = given[1]
    stream.write(b"half of a tensor")
    stream.flush()
    die()


def name_and_die(source: Any, target: Any) -> None:
    RENAME(source, target)
    die()


RENAME = os.rename
ASIDE, NAMED = f"/\\.{LAST_SAVED}\\.", f"/{LAST_SAVED}$"
MOMENTS: dict[str, tuple[Any, str, Callable[..., Any], str, Any]] = {
    "in the middle of a part": (filesystem, "_write_item", lambda *given: given[1].name, ASIDE, half_a_part),
    "before the table of parts": (FileSystemWriter, "finish", lambda self, **_: self.path, ASIDE, die),
    "before the table has its name": (os, "rename", lambda _, to: to, rf"{ASIDE}.*/\.metadata$", die),
    "before the checksums": (checkpoint_writer, "checksums", lambda folder: folder, ASIDE, die),
    "before it has its name": (os, "rename", lambda _, to: to, NAMED, die),
    "when it has its name": (os, "rename", lambda _, to: to, NAMED, name_and_die),
}
"""Where a process dies while a checkpoint is written in the background: what is replaced, how its arguments say
where it writes, at which place, and by what."""


def die_while_saving(moment: str) -> None:
    owner, name, where, place, instead = MOMENTS[moment]
    plain = getattr(owner, name)

    def passing(*given: Any, **named: Any) -> Any:
        return (instead if re.search(place, str(where(*given, **named))) else plain)(*given, **named)

    setattr(owner, name, passing)


def slow_parts(seconds: float) -> None:
    """Every tensor of a checkpoint takes so long to write, so that somebody can look on."""
    plain = filesystem._write_item

    def passing(*given: Any, **named: Any) -> Any:
        time.sleep(seconds)
        return plain(*given, **named)

    filesystem._write_item = passing


def tell_what_is_there(folder: Path) -> None:
    """A line about the checkpoints that an attempt finds: which there are, which is taken, which are broken."""
    run, notes = RunFolder(folder), list[str]()
    newest = run.latest(notes.append)
    told = {"checkpoints": run.checkpoints(), "newest": newest and newest.name, "broken": notes}
    with open(f"{folder}.found.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(told) + "\n")


def do(job: dict[str, Any]) -> dict[str, Any]:
    folder = Path(job["folder"])
    attempt, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), int(os.environ["RANK"])
    try:
        if "deaths" in job and rank == 0:
            tell_what_is_there(folder)
        for number, (moment, who) in enumerate(job.get("deaths", [])):
            if (number, who) == (attempt, rank):
                die_while_saving(moment)
        if job.get("slow_parts"):
            slow_parts(job["slow_parts"])
        if job.get("stop_at"):
            stop_at(job["stop_at"])
        if job.get("pause"):
            stop_at(0, pause=job["pause"])
        if job.get("die_at") and attempt == 0:
            stop_at(job["die_at"], signal.SIGKILL, job.get("die_rank"))
        elif job.get("die_at") and rank == 0:
            # The others come first, and must not take the address of the one that died for its own.
            time.sleep(2)
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
            # Families with a memory of their own (Transformer-XL, XLNet, ELMo) keep it.
            with carrying() if job["family"] in ("gpt2", "names") else nullcontext():
                said = {"error": different_names()} if job["family"] == "names" else do(job)
            Path(f"{job['folder']}.{rank}.json").write_text(json.dumps(said), encoding="utf-8")


if __name__ == "__main__":
    main()
