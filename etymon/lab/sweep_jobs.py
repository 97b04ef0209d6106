"""A run of a sweep or a comparison as a job: all that another process, or another machine, needs to begin it
or to go on."""

from __future__ import annotations

import errno
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
    """A run of several."""

    folder: Path
    file: RunFile
    source: TextSource | None
    """Its text, where a program gave it; else the file says where it is."""
    shared: Path | None
    """The store of that text, where another run has made it."""
    progress: Any
    options: dict[str, Any]
    """Of `Job`: device and workers."""
    marker: Path
    """The file by which a machine knows that it sees the folder of the whole."""
    later: float = 0.0
    """Seconds that the runs after it will take, as far as that is known."""


@dataclass(frozen=True)
class RunEnd:
    """How a run ended; its figures are in its folder."""

    is_stopped: bool = False
    signal: int | None = None
    """The signal that stopped it."""
    reason: str = ""
    """Why it failed."""
    diverged: bool = False
    is_disk_full: bool = False


class RunTrainer:
    """Trains a run. A run that has begun goes on, also if that was in a process that is
    lost."""

    def __call__(self, job: RunJob) -> RunEnd:
        progress = make_progress(job.progress)
        progress.later = job.later
        try:
            # On another machine, a folder of the same name would be filled where nobody looks for it.
            if not job.marker.is_file():
                raise EtymonError(
                    f"{job.marker.parent} is not there on {socket.gethostname()}: give --out on a disk that "
                    "all machines have in the same place"
                )
            # Its own file is followed, which has the steps that a budget of time once came to.
            if (job.folder / "run.yaml").is_file():
                resumed = Job(job.folder, RunFile(family=job.file.family), progress, **job.options)
                resumed = resume_job(resumed)
                result = run(resumed, TextData(resumed, None))
            else:
                new = Job(job.folder, job.file, progress, fixed_steps=True, **job.options)
                result = run(new, TextData(new, _text(job)))
        except EtymonError as error:
            # Told, not raised: a rate at which a run diverges is a result, and the other cells go on.
            return RunEnd(
                reason=str(error), diverged=isinstance(error, Diverged), is_disk_full=is_disk_full(error)
            )
        return RunEnd(result.stopped, result.signal)


def is_disk_full(error: BaseException | None) -> bool:
    """Whether there was no room left on the disk, which is no fault of the run."""
    while error is not None:
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
            return True
        error = error.__cause__ or error.__context__
    return False


def _text(job: RunJob) -> TextSource:
    source = job.source
    if source is None and job.file.data:
        source = text_source(job.file.data, job.file)
    if source is None:
        raise EtymonError("the texts of this sweep were given by a program: give them again as data")
    source = filter_text(source, job.file)
    if job.shared is not None and not isinstance(source, PreparedText):
        # Encoded by the first run: the same text with the same tokenizer is the same store.
        source = PreparedText(job.shared, source.description)
    return source
