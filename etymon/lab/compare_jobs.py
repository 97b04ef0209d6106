"""A run of a comparison as a job: the arm is trained, fine-tuned on every task and scored. What is done in
its folder is not done again."""

from __future__ import annotations

import logging
import math
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import numpy as np
import torch

from etymon.errors import EtymonError
from etymon.executors import open_executor
from etymon.families.loading import load, model_folder, read_history
from etymon.families.model import Model
from etymon.files import atomic_write, finite, first_line, write_json
from etymon.generation.likelihood import score_texts
from etymon.lab.compare_text import MOST_SHORT, SHORT_PASSAGE, TaskTable, read_passages
from etymon.lab.model_rows import ModelRow
from etymon.lab.pairs import PairColumns, judge_pairs, outcomes, read_pairs
from etymon.lab.probe import probe_model
from etymon.lab.probe_files import ProbeColumns, read_tasks
from etymon.lab.suites import read_suite, run_suite
from etymon.lab.sweep_jobs import RunEnd, RunJob, RunTrainer, is_disk_full
from etymon.runs.folder import Job, resume_job
from etymon.runs.run import run
from etymon.runs.run_file import assemble
from etymon.runs.table_data import TableData
from etymon.runs.task_file import TaskFile
from etymon.settings.decoding import DecodingSettings
from etymon.settings.reading import EncodingSettings
from etymon.tables.table import read_table
from etymon.tasks import task_for
from etymon.tasks.classify import Classify
from etymon.text.sentences import cut_texts
from etymon.training.loop import Diverged
from etymon.training.progress import ProgressNotes, make_progress

TextKind = Literal["likelihood", "pseudo-likelihood", "none"]
"""What a model gives of a text: its probability, that of each token between all others, or neither."""
Part = Literal["validation", "test"]
KILLED = "its process was killed (out of memory?)"


@dataclass(frozen=True)
class ArmJob:
    """A run of an arm, and how it is scored."""

    run: RunJob
    text: Path
    """The folder of the text's parts."""
    kind: TextKind
    tasks: tuple[TaskTable, ...]
    task_budget: str
    pairs: Path | None
    """The folder of minimal pairs, if there are any."""
    part: Part
    """What it is scored on."""
    probes: Path | None = None
    """The folder of files to probe for, if there are any."""
    suite: tuple[str, str | None] | None = None
    """The name and the folder of a suite, which is opened with the test part."""
    reading: EncodingSettings = field(default_factory=EncodingSettings)
    """What the bytes of files to probe for mean."""

    @property
    def folder(self) -> Path:
        return self.run.folder

    @property
    def scores(self) -> Path:
        return self.folder / f"scores-{self.part}.json"


class ArmWorker:
    """Does an arm's run. Whatever goes wrong in it is the end of this arm alone."""

    def __call__(self, job: ArmJob) -> RunEnd:
        try:
            return self._run(job)
        except KeyboardInterrupt:
            return RunEnd(is_stopped=True, signal=signal.SIGINT)
        except EtymonError as error:
            diverged = isinstance(error, Diverged)
            return RunEnd(reason=str(error), diverged=diverged, is_disk_full=is_disk_full(error))
        except Exception as error:  # an objective or a family of the user's may raise anything
            if not is_disk_full(error):
                with atomic_write(job.folder.parent / f"{job.folder.name}.error.txt") as file:
                    file.write(traceback.format_exc())
            # The last frame: of an objective of the user's, the line that raised.
            place = traceback.extract_tb(error.__traceback__)[-1]
            reason = (
                f"{type(error).__name__}: {first_line(error)} ({Path(place.filename).name}:{place.lineno})"
            )
            return RunEnd(reason=reason, is_disk_full=is_disk_full(error))

    def _run(self, job: ArmJob) -> RunEnd:
        # After a kill the same jobs are given again: what is there is passed over, what was begun goes on.
        if job.scores.is_file():
            return RunEnd()
        if not has_ended(job.folder):
            end = RunTrainer()(job.run)
            if end.reason or end.is_stopped:
                return end
        for task in job.tasks:
            end = self._finetune(job, task)
            if end.is_stopped:
                return end
        # Scores come last: with them, the run is done.
        write_json(job.scores, finite(score_run(job)))
        return RunEnd()

    def _finetune(self, job: ArmJob, task: TaskTable) -> RunEnd:
        folder, file = job.folder / "tasks" / task.name, job.run.file
        if has_ended(folder):
            return RunEnd()
        # The seed of pretraining is that of fine-tuning, too: a run of an arm is one draw of both.
        start = model_folder(job.folder)
        given = {
            **task.settings,
            "family": file.family,
            "start": str(start),
            "task": task.task,
            "options": task.options,
            "train": [str(task.part("train"))],
            "validation": [str(task.part("validation"))],
            "seed": file.seed,
            "baselines": False,
        }
        given.setdefault("budget", job.task_budget)
        task_job = Job(
            folder,
            assemble(TaskFile, given),
            make_progress(job.run.progress),
            fixed_steps=True,
            **job.run.options,
        )
        # Killed in the middle: it goes on with the rows and steps that it began with.
        if (folder / "run.yaml").is_file():
            task_job = resume_job(task_job)
        result = run(task_job, TableData(task_job))
        return RunEnd(result.stopped, result.signal)


def has_ended(folder: Path) -> bool:
    """Whether a folder holds a run that came to its end."""
    if not (folder / "run.yaml").is_file():
        return False
    history = read_history(model_folder(folder))
    return bool(history) and bool(history[-1]["seen"].get("ended"))


# --- scores


def score_run(job: ArmJob) -> dict[str, Any]:
    """The scores of a run by item, on the text and on every task."""
    model = load(model_folder(job.folder))
    scores: dict[str, Any] = {"parameters": model.parameter_count(), "tasks": {}}
    if job.kind != "none":
        scores["text"] = score_text(model, job)
    if job.pairs is not None:
        scores["pairs"] = score_pairs(load(job.folder), job.pairs / f"{job.part}.jsonl")
    if job.probes is not None:
        scores["probes"] = score_probes(model, job.probes, job.part, job.reading)
    for task in job.tasks:
        scores["tasks"][task.name] = score_task(load(job.folder / "tasks" / task.name), task, job.part)
    if job.suite is not None and job.part == "test":
        scores |= score_suite(job)
    return scores


def score_text(model: Model, job: ArmJob) -> dict[str, Any]:
    """Bits per byte of every passage. Of likelihoods, those of all tokens are kept beside, to mix them with
    others."""
    path = job.text / f"{job.part}.jsonl"
    if job.kind == "likelihood":
        passages = read_passages(path)
        scores = score_texts(model, passages)
        # Floats of all tokens: as JSON they would take ten times the room.
        log_probs = np.concatenate([np.array(score.log_probs) for score in scores])
        with atomic_write(job.folder / f"log-probs-{job.part}.npy", "wb") as file:
            np.save(file, log_probs)
        likelihoods = [score.log_likelihood for score in scores]
        tokens = [score.tokens for score in scores]
    else:
        passages = read_passages(path, SHORT_PASSAGE, MOST_SHORT)
        pieces = [list(_fitting_pieces(model, passage)) for passage in passages]
        # All pieces in one call: rows of similar length are computed together.
        rest = iter(score_texts(model, [piece for row in pieces for piece in row]))
        likelihoods = [math.fsum(next(rest).log_likelihood for _ in row) for row in pieces]
        tokens = []
    # By the bytes of the whole passage, so that items weigh the same for every arm.
    sizes = [len(passage.encode()) for passage in passages]
    values = [-total / math.log(2) / size for total, size in zip(likelihoods, sizes, strict=True)]
    return {"values": values, "weights": sizes, "tokens": tokens}


def _fitting_pieces(model: Model, passage: str) -> Iterator[str]:
    """The passage, in halves until each has no more tokens than the model has positions."""
    assert model.tokenizer is not None
    framed = len(model.tokenizer.framing.frame(model.tokenizer.encode(passage)).ids)
    if model.positions is None or framed <= model.positions or len(passage) < 8:
        yield passage
        return
    for piece in cut_texts([passage], len(passage) // 2 + 1):
        yield from _fitting_pieces(model, piece)


def score_pairs(model: Model, path: Path) -> dict[str, Any]:
    """100 for every pair whose good sentence is likelier, 50 for a tie. Paradigms count the same, as in
    BLiMP's tables."""
    pairs = read_pairs([path], PairColumns(paradigm="paradigm", field="field"))
    sizes = Counter(pair.paradigm for pair in pairs)
    values = 100 * outcomes(judge_pairs(model, pairs, "").scores, "sum")
    return {"values": values.tolist(), "weights": [1 / sizes[pair.paradigm] for pair in pairs]}


def score_probes(model: Model, folder: Path, part: Part, how: EncodingSettings) -> dict[str, Any]:
    """The accuracy of a linear classifier for every task, on the layer that is best by validation."""
    tasks = read_tasks(sorted(folder.iterdir()), ProbeColumns(), how=how)
    # Test examples are scored again with the test part: nothing of them is kept before.
    layers = [task.best for task in probe_model(model, tasks, twin=False).tasks]
    values = [100 * (each.accuracy if part == "test" else each.validation) for each in layers]
    return {"values": values, "weights": [1.0] * len(values)}


def score_suite(job: ArmJob) -> dict[str, Any]:
    """What a suite says of a run, by part, and why it says nothing where it does not."""
    assert job.suite is not None
    name, data = job.suite
    row = ModelRow(job.folder.name, model_folder(job.folder), "")
    result = run_suite(
        [row], name, job.folder / "suite", data=None if data is None else Path(data), open_model=load
    )
    (scored,) = result.rows
    kinds = {part.name: part.kind for part in read_suite(name)[1].parts}
    # A score that falls, but for bits, counts as one that rises.
    values = {
        part: -score.value if score.falls and kinds[part] != "text" else score.value
        for part, score in scored.scores.items()
    }
    return {"suite": values, "suite_reasons": scored.reasons}


def score_task(model: Model, table: TaskTable, part: Part) -> dict[str, Any]:
    """The score of a task in percent: of every row where rows are right or wrong, else of all rows
    together."""
    task = task_for(model, None, {})
    # Never the rows that the best checkpoint was chosen by, unless a round is decided.
    rows = read_table([table.part(part)])
    predictions = task.predict(model, rows, DecodingSettings())
    inner: Any = getattr(task, "task", task)
    if isinstance(inner, Classify):
        return {
            "metric": "accuracy",
            "values": label_items(inner, rows, [each.label for each in predictions]),
        }
    # Tags, spans and numbers are scored over all rows: seeds alone tell how sure that is.
    metric = task.default_metrics[0]
    score = task.score(predictions, rows, [metric])[metric]
    return {"metric": metric, "values": [-score.value if score.falls else score.value]}


def label_items(task: Any, rows: Any, labels: list[Any]) -> list[float]:
    """100 for every row whose label is right, 0 for the others."""
    given = [set(label) if isinstance(label, tuple | list) else {label} for label in labels]
    return [100.0 * (label == set(names)) for label, names in zip(given, task.row_labels(rows), strict=True)]


# --- where jobs run


@contextmanager
def open_arm_executor(on: str | None, threads: int, gpus: int) -> Iterator[Any]:
    """Runs jobs one after the other in a process of its own, which may die without harm to the others; or on
    a cluster."""
    if on is None:
        executor = IsolatedExecutor(threads)
        try:
            yield executor
        finally:
            executor.close()
        return
    with open_executor(on, None, threads, gpus) as cluster:
        yield ClusterExecutor(cluster)


@dataclass
class ClusterExecutor:
    cluster: Any

    def run(self, jobs: Iterable[ArmJob]) -> Iterator[tuple[ArmJob, RunEnd]]:
        yield from self.cluster.run(ArmWorker, (), jobs)


class IsolatedExecutor:
    """One worker process for all jobs; where it is lost, the job has failed and the next has another
    worker."""

    pool: ProcessPoolExecutor | None = None

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.signal: int | None = None

    def run(self, jobs: Iterable[ArmJob]) -> Iterator[tuple[ArmJob, RunEnd]]:
        for job in jobs:
            with self._forwarded_signals():
                try:
                    end = self._submit(job).result()
                except BrokenProcessPool:
                    self.close()
                    end = RunEnd(reason=KILLED)
            # Whatever the worker said: a second signal may have ended it before it could.
            if self.signal is not None:
                end = RunEnd(is_stopped=True, signal=self.signal)
            yield job, end

    def _submit(self, job: ArmJob) -> Future[RunEnd]:
        # A process that is started now would run the user's script again: many have no `__main__` guard.
        # (`LocalExecutor` does the same; but what it does not forgive is a worker that dies.)
        main = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            if self.pool is None:
                spawning = multiprocessing.get_context("spawn")
                self.pool = ProcessPoolExecutor(1, spawning, _start_worker, (self.threads,))
            return self.pool.submit(_run_job, job)
        finally:
            sys.modules["__main__"] = main

    @contextmanager
    def _forwarded_signals(self) -> Iterator[None]:
        """Ctrl-C and SIGTERM go to the worker, which finishes its step, saves and says so; a second one, too,
        and it ends at once."""
        # Python allows handlers in the main thread only; a notebook's cell may run in another.
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def forward(number: int, frame: Any) -> None:
            self.signal = self.signal or number
            for pid in list(self.pool._processes) if self.pool is not None else ():
                os.kill(pid, signal.SIGINT)

        previous = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def close(self) -> None:
        if self.pool is not None:
            self.pool.shutdown(cancel_futures=True)
            self.pool = None


def _start_worker(threads: int) -> None:
    """The worker leaves the terminal's process group, so that its parent alone hears Ctrl-C; and it ends with
    its parent, however that ends: else it would hold the lock of the run that is to go on."""
    if hasattr(os, "setpgrp"):
        os.setpgrp()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    torch.set_num_threads(threads)
    logging.getLogger("etymon").addHandler(ProgressNotes(make_progress("plain")))
    parent = multiprocessing.parent_process()
    assert parent is not None

    # Not a signal from the parent, which may be killed by one that leaves no time to send any.
    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _run_job(job: ArmJob) -> RunEnd:
    return ArmWorker()(job)
