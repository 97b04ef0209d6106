"""The folder of a run as a place that belongs to one process at a time and to nobody else."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from etymon.errors import EtymonError
from etymon.training.distributed import World

OWN = {
    *"checkpoints metrics.jsonl milestones model report.html run.yaml source tensorboard tokenizer".split()
}
"""What a run's folder holds, beside its stores."""
LOCK = ".lock"


def require_free(folder: Path) -> None:
    """Refuses a folder with a run, and one with anything that a run did not write: it would be in the way or be lost."""
    if (folder / "run.yaml").exists():
        raise EtymonError(f"{folder} holds a run already: go on with --resume, or give another --out")
    place = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not place.is_dir():
        raise EtymonError(f"{place} is a file, and the run needs a folder there: give another --out")
    if not os.access(place, os.W_OK):
        raise EtymonError(f"cannot write to {place}: give another --out")
    if place != folder:
        return
    if any((folder / "checkpoints").glob("step-*")):  # they would be taken for the new run's
        raise EtymonError(
            f"{folder} holds checkpoints of a run, but no run.yaml: bring that back, or give another --out"
        )
    stores = {path.parent.name for path in folder.glob("store*/store.json")}
    foreign = {path.name for path in folder.iterdir() if not path.name.startswith(".")} - OWN - stores
    if foreign:
        raise EtymonError(
            f"{folder} holds something else ({', '.join(sorted(foreign)[:5])}): give another --out"
        )


@contextmanager
def claimed(folder: Path, world: World) -> Iterator[None]:
    """The folder, made if need be, for the processes of one run alone: a second run in it would tear it apart.

    The lock is the operating system's, which frees it however the process ends. A folder in which nothing came about
    is removed again, and so is a new one whose run was refused before it began, unless it holds a text that was encoded.
    """
    lock = FileLock(folder / LOCK)
    with world.first_alone() as mine:
        missing = [path for path in (folder, *folder.parents) if not path.exists()]
        if mine:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                lock.acquire(timeout=0)
            except Timeout as error:
                raise EtymonError(
                    f"another process is training in {folder}: wait for it, or give another --out"
                ) from error
            except OSError as error:
                raise EtymonError(
                    f"cannot write to {folder}: {error.strerror or error}; give another --out"
                ) from error
    worthless = {LOCK}
    try:
        yield
    except EtymonError:
        if world.size == 1:  # another process may still be at work there
            worthless |= OWN - {"run.yaml"}
        raise
    finally:
        if mine:
            if missing and {path.name for path in folder.iterdir()} <= worthless:
                shutil.rmtree(folder, ignore_errors=True)
                for parent in missing[1:]:
                    with suppress(OSError):  # it may hold something else by now
                        parent.rmdir()
            lock.release()


def require_agreement(folder: Path, resuming: bool, world: World) -> None:
    """Refuses to begin in one process what another one goes on with."""
    if world.add({"resuming": float(resuming)})["resuming"] not in (0, world.size):
        raise EtymonError(
            f"some processes find a run in {folder} to go on with, and others find none: give an --out that all of them see"
        )


def made_once(world: World, make: Callable[[], Any]) -> Any:
    """What the first process makes, and the others then find in the run's folder."""
    made = None
    with world.first_alone() as mine:
        if mine:
            made = make()
    return make() if made is None else made
