"""Kills a run again and again, and lets it go on every time: python -m tests.training.crashes FOLDER.

Every attempt is a fork of this process, which has imported everything but never trained: a second of imports is paid
once, and what dies is a whole process all the same. Prints what happened as JSON.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.backends.backend_svg
import matplotlib.figure
import torch
import torch._dynamo

from etymon import generation
from etymon.checkpoints import weights
from etymon.runs import dry_run, text_data
from etymon.training import state as runs
from etymon.training.speed import matmul_peak
from tests.verbs.small_runs import pretrain, with_test_sizes

SETTINGS: dict[str, Any] = {
    "steps": 40,
    "save_every": 3,
    "validate_every": 10,
    "keep": 2,
    "save_at": ["20steps"],
}
KILLED = 9
IMPORTED = (matplotlib.backends.backend_svg, matplotlib.figure, torch._dynamo, generation, dry_run, text_data)
"""What a run imports on its way; here it is there already."""


def attempt(folder: Path, prepare: Callable[[], None] = lambda: None) -> int:
    """A process that begins the run or goes on with it, by the same call; it inherits nothing but imported modules."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        prepare()
        pretrain("gpt2", folder, resume="auto", **SETTINGS)
        code = 0
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(code)
    return 0


def ending(child: int) -> int:
    """The exit code of a process, or the signal that ended it as a negative number."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def die(*_: Any, **__: Any) -> None:
    os._exit(KILLED)


def at_call(
    module: Any, name: str, number: int, instead: Callable[..., Any], only: str = ""
) -> Callable[[], None]:
    """Replaces the `number`th call of a function (with a path that holds `only`) in the process to come."""

    def prepare() -> None:
        plain, calls = getattr(module, name), 0

        def counting(*arguments: Any, **named: Any) -> Any:
            nonlocal calls
            calls += any(only in str(argument) for argument in arguments)
            return (instead if calls == number else plain)(*arguments, **named)

        setattr(module, name, counting)

    return prepare


def half_written(tensors: Any, path: Path, **_: Any) -> None:
    path.write_bytes(b"half of a file")
    die()


def renamed(source: Path, target: Path) -> None:
    REAL_RENAME(source, target)
    die()


def half_removed(folder: Path, **_: Any) -> None:
    next(path for path in sorted(Path(folder).rglob("*")) if path.is_file()).unlink()
    die()


REAL_RENAME = os.rename
INJECTED = {
    "in the middle of the weights": at_call(weights, "save_file", 2, half_written),
    "in the middle of the optimiser": at_call(runs, "save_file", 2, half_written),
    "before a flush": at_call(os, "fsync", 9, die),
    "before the rename": at_call(os, "rename", 2, die, "step-"),
    "after the rename": at_call(os, "rename", 2, renamed, "step-"),
    "while removing": at_call(shutil, "rmtree", 2, half_removed, "checkpoints/step-"),
}


def main() -> None:
    torch.set_num_threads(1)
    matmul_peak()  # measured once for all
    folder, draw = Path(sys.argv[1]), random.Random(0)
    told: dict[str, Any] = {"killed": [], "injected": {}, "leftovers": [], "broken": []}
    with with_test_sizes():
        assert ending(attempt(folder / "straight")) == 0
        run = folder / "crashed"
        curve = run / "metrics.jsonl"
        for number in range(4):
            before, wanted = lines(curve), draw.randint(1, 7)
            child = attempt(run)
            while lines(curve) < before + wanted or not (run / "run.yaml").exists():
                if os.waitpid(child, os.WNOHANG)[0]:
                    raise SystemExit(f"attempt {number} ended by itself")
                before = min(before, lines(curve))  # what comes after the checkpoint is taken again
                time.sleep(0.0005)
            time.sleep(draw.random() * 0.03)
            os.kill(child, signal.SIGKILL)
            told["killed"].append(ending(child))
            look(run, told)
        for name, prepare in INJECTED.items():
            told["injected"][name] = ending(attempt(run, prepare))
            look(run, told)
        told["finished"] = ending(attempt(run))
        # A finished run that is asked to go on writes its model again: now between the old one's going and the new one's coming.
        told["between"] = ending(attempt(run, at_call(os, "rename", 1, renamed, "/model")))
        told["model gone"] = not (run / "model").exists()
        told["finished again"] = ending(attempt(run))
    print(json.dumps(told))


def look(folder: Path, told: dict[str, Any]) -> None:
    """What a death has left: something half written beside, but never a newest checkpoint that is not whole."""
    told["leftovers"].append(len(list(folder.rglob("*.partial"))))
    runs.RunFolder(folder).latest(told["broken"].append)


def lines(file: Path) -> int:
    return file.read_bytes().count(b"\n") if file.exists() else 0


if __name__ == "__main__":
    main()
