"""A run of a sweep as a job: all that another process, or another machine, needs to begin it or to go on."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etymon.errors import EtymonError
from etymon.runs.folder import Job, resume_job
from etymon.runs.run import run
from etymon.runs.run_file import RunFile
from etymon.runs.text_data import TextData
from etymon.text.filtering import filter_text
from etymon.text.sources import PreparedText, TextSource, text_source
from etymon.training.loop import Diverged
from etymon.training.progress import make_progress

SWEEP_FILE = "sweep.json"


@dataclass(frozen=True)
class RunJob:
    """A run of a sweep."""

    folder: Path
    file: RunFile
    source: TextSource | None
    """Its text, where a program gave it; else the file says where it is."""
    shared: Path | None
    """The store of that text, where another run has made it."""
    progress: Any
    options: dict[str, Any]
    """Of `Job`: device and workers."""


@dataclass(frozen=True)
class RunEnd:
    """How a run ended; its figures are in its folder."""

    is_stopped: bool = False
    signal: int | None = None
    """The signal that stopped it."""
    reason: str = ""
    """Why it failed."""
    diverged: bool = False


class RunTrainer:
    """Trains the runs of a sweep. A run that has begun goes on, also if that was in a process that is
    lost."""

    def __call__(self, job: RunJob) -> RunEnd:
        progress = make_progress(job.progress)
        try:
            if not (job.folder.parent / SWEEP_FILE).is_file():
                raise EtymonError(
                    f"{job.folder.parent} is not there on {socket.gethostname()}: give --out on a disk that "
                    "all machines have in the same place"
                )
            if (job.folder / "run.yaml").is_file():
                resumed = Job(job.folder, RunFile(family=job.file.family), progress, **job.options)
                resumed = resume_job(resumed)
                result = run(resumed, TextData(resumed, None))
            else:
                new = Job(job.folder, job.file, progress, fixed_steps=True, **job.options)
                result = run(new, TextData(new, _text(job)))
        except EtymonError as error:
            return RunEnd(reason=str(error), diverged=isinstance(error, Diverged))
        return RunEnd(result.stopped, result.signal)


def _text(job: RunJob) -> TextSource:
    source = job.source
    if source is None and job.file.data:
        source = text_source(job.file.data, job.file)
    if source is None:
        raise EtymonError("the texts of this sweep were given by a program: give them again as data")
    source = filter_text(source, job.file)
    if job.shared is not None and not isinstance(source, PreparedText):
        source = PreparedText(job.shared, source.description)
    return source
