"""A run as it was asked for, and its folder, which belongs to one run at a time."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock, Timeout

from etymon.checkpoints.folder import ensure_replaceable
from etymon.checkpoints.settings import pass_over
from etymon.errors import EtymonError
from etymon.families import get_family
from etymon.families.family import Recipe
from etymon.registry import LOGGERS
from etymon.runs.run_file import find_difference, read_run_file, require_plugins, shown
from etymon.runs.training_settings import training_settings
from etymon.training.distributed import World, open_world
from etymon.training.progress import Progress
from etymon.training.sharding import require_compiler

Built = TypeVar("Built")

RUN_FILES = frozenset(
    "checkpoints loggers metrics.jsonl milestones model report.html run.yaml source tensorboard "
    "tokenizer".split()
)
"""What a run's folder holds, beside its stores."""
LOCK = ".lock"


@dataclass(frozen=True)
class Job:
    """A run as it was asked for, and the part of this process in it."""

    folder: Path
    file: Any
    """`RunFile` or `TaskFile`."""
    progress: Progress = field(default_factory=Progress)
    resuming: bool = False
    device: str | None = None
    workers: int = 0
    """Processes that prepare samples; 0: a thread does it."""
    fixed_steps: bool = False
    """Whether the steps that fit a time budget by measurement stay as they are, however busy the machine."""
    shard: str = "none"
    """`full` or `hybrid`: processes have parts of the model."""
    recompute: bool = False
    compile: bool = False
    changed_plugins: bool = False
    """Whether a resumed run goes on though a plugin of it has changed."""
    world: World = field(default_factory=World)

    @property
    def note(self) -> Callable[[str], None]:
        """Prints a line that stays."""
        return self.progress.note


def resume_job(job: Job) -> Job:
    """Returns the job with the settings that the run in its folder began with.

    `job.file` may repeat them, or leave them out; a setting that differs is refused.
    """
    folder, given = job.folder, job.file
    require_plugins(folder, changed=job.changed_plugins)
    file = read_run_file(folder, type(given))
    # By family, not by name: upper case and hyphens do not matter.
    if get_family(file.family) is not get_family(given.family):
        raise EtymonError(f"the run in {folder} trains {file.family}, not {given.family}", code="run-changed")
    if (difference := find_difference(given, file)) is not None:
        name, now, then = difference
        before = f"began with {name} {shown(then)}, not"
        if then in (None, ()):
            before = "began from scratch, not with" if name == "start" else f"began without {name}, not with"
        raise EtymonError(
            f"the run in {folder} {before} {shown(now)}: it goes on as it "
            "began; leave that out, or give another --out for a new run",
            code="run-changed",
        )
    return replace(job, file=file, resuming=True)


def check_job(job: Job, recipe: Recipe, model_name: str = "model") -> None:
    """Refuses settings that contradict each other and folders that are in use, before any work."""
    # Made only to see that recipe and options go together.
    training_settings(recipe, job.file, steps=1, validations=1)
    if job.workers < 0:
        raise EtymonError(f"workers cannot be fewer than 0, and {job.workers} were asked for")
    if not job.resuming:
        require_free(job.folder)
    ensure_replaceable(job.folder / model_name)
    for name in job.file.logger_names:
        LOGGERS.find(name).require()
    if job.compile:
        require_compiler()


@contextmanager
def join_processes(job: Job) -> Iterator[Job]:
    """Yields the job with its place among the processes of `torchrun`, of which only the first prints."""
    with open_world(job.device, job.shard) as world, pass_over(job.file.ignore_config_key):
        if job.file.slices % world.size:
            raise EtymonError(
                f"a step of {job.file.slices} slices cannot be shared by {world.size} processes: "
                f"make --slices a multiple of {world.size}"
            )
        if world.is_sharded and getattr(job.file, "features", None) and not job.file.tune_body:
            raise EtymonError(
                "features of a frozen body are computed once and kept, each by one process, which alone has "
                "not all of its weights: say --tune-body, or leave --shard out"
            )
        # Without a shared file system, one process would resume what another begins.
        require_agreement(job.folder, job.resuming, world)
        yield replace(job, world=world, progress=job.progress if world.first else Progress())


def require_free(folder: Path) -> None:
    """Refuses a folder that holds a run, or files that no run wrote."""
    if (folder / "run.yaml").exists():
        raise EtymonError(
            f"{folder} holds a run already: go on with --resume, or give another --out", code="run-exists"
        )
    # The nearest folder that exists is where new ones would be made.
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
    foreign = {path.name for path in folder.iterdir() if not path.name.startswith(".")} - RUN_FILES - stores
    if foreign:
        raise EtymonError(
            f"{folder} holds something else ({', '.join(sorted(foreign)[:5])}): give another --out",
            code="folder-taken",
        )


@contextmanager
def lock_folder(folder: Path, world: World) -> Iterator[None]:
    """Locks the folder, made if need be, for the processes of one run: a second run would overwrite its
    files.

    A new folder is removed again if it is empty in the end, or if the run was refused before it began, unless
    it holds a text that was encoded.
    """
    # The operating system's lock, not a mark in a file: it is freed however the process ends.
    lock = FileLock(folder / LOCK)
    with world.first_alone() as mine:
        # Noted before the folder is made, to be taken away again with it.
        missing = [path for path in (folder, *folder.parents) if not path.exists()]
        if mine:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                lock.acquire(timeout=0)
            except Timeout as error:
                raise EtymonError(
                    f"another process is training in {folder}: wait for it, or give another --out",
                    code="run-locked",
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
            worthless |= RUN_FILES - {"run.yaml"}
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
    """Refuses a run that some processes begin and others resume."""
    if world.add({"resuming": float(resuming)})["resuming"] not in (0, world.size):
        raise EtymonError(
            f"some processes find a run in {folder} to resume, and others find none: give an --out that all "
            "of them see"
        )


def build_once(world: World, build: Callable[[bool], Built]) -> Built:
    """Returns `build(True)` in the first process; the others wait, then read its files by `build(False)`."""
    # Processes that write the same files at once would spoil them for each other.
    with world.first_alone() as is_first:
        if is_first:
            return build(True)
    return build(False)
