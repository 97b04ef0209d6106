"""Where independent jobs run: in this process, in others of this machine, or on a Ray cluster.

    with open_executor(on, workers) as executor:
        for job, result in executor.run(make, arguments, jobs):
            ...

Every worker calls `make(*arguments)` once, and what that returns with each of its jobs. Jobs and results are
pickled, so `make` is a function or class of a module. Results come in the order of the jobs, wherever and in
whatever order they were done; jobs are taken from their iterator only a little ahead of that. So a result
that depends on its job alone is the same everywhere.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import logging
import multiprocessing
import os
import pickle
import platform
import signal
import socket
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from types import ModuleType
from typing import Any, Protocol
from urllib.parse import urlsplit

from etymon.errors import EtymonError

AT_HOME = 8  # jobs that are done in this process before it is worth while to start others
AHEAD = 2  # jobs a worker that are begun before their results are asked for
RETRIES = 8  # times that a job whose worker is lost is done again
REACHED_IN = 5  # seconds in which a cluster must answer
OBJECT_BYTES = 1 << 29  # of a Ray that is started here: jobs that wait, and their results
COMPARED = ("etymon", "numpy", "tokenizers", "torch")
"""Packages of which a cluster must have the version that is here, for results to be the same."""

Make = Callable[..., Callable[[Any], Any]]


class Executor(Protocol):
    def run(
        self, make: Make, arguments: tuple[Any, ...], jobs: Iterable[Any], *, at_home: int = AT_HOME
    ) -> Iterator[tuple[Any, Any]]:
        """Yields every job with its result, in the order of the jobs. What a job raises is raised. After
        `at_home` jobs it pays to start other processes."""


@contextmanager
def open_executor(
    on: str | None = None, workers: int | None = None, threads: int = 1, gpus: int = 0
) -> Iterator[Executor]:
    """An executor for the time of the block: `on` is None for this machine, `ray` or `ray://HOST:PORT`.

    `workers` is a number of processes on this machine; None is one a core, once there are enough jobs for it
    to pay. `threads` and `gpus` are what a job takes on a cluster.
    """
    if on is None:
        yield LocalExecutor(workers)
        return
    with ExitStack() as stack:
        yield RayExecutor(on, workers, threads, gpus, stack)


# ---------------------------------------------------------------- this machine


@dataclass(frozen=True)
class LocalExecutor:
    """`workers` processes (1: this one alone); None is one a core, once there is enough to do."""

    workers: int | None = None

    def run(
        self, make: Make, arguments: tuple[Any, ...], jobs: Iterable[Any], *, at_home: int = AT_HOME
    ) -> Iterator[tuple[Any, Any]]:
        jobs = iter(jobs)
        # What this process may use: in a container or under a scheduler that is less than the machine has.
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        number = cores if self.workers is None else self.workers
        if self.workers is None or number == 1:
            function = make(*arguments)
            for job in islice(jobs, at_home) if number > 1 else jobs:
                yield job, function(job)
        if (first := next(jobs, None)) is None:
            return
        waiting: deque[tuple[Any, Future[Any]]] = deque()
        errors: list[EtymonError] = []
        team = ProcessPoolExecutor(
            number, multiprocessing.get_context("spawn"), _start_worker, (make, arguments)
        )
        main = sys.modules["__main__"]
        try:
            for job in _until_error(chain([first], jobs), errors):
                # A process that is started now would run the user's script again: many have no `__main__`
                # guard.
                sys.modules["__main__"] = ModuleType("__main__")
                try:
                    waiting.append((job, team.submit(_run_job, job)))
                finally:
                    sys.modules["__main__"] = main
                # In order: the oldest is waited for, while the others go on.
                if len(waiting) > AHEAD * number:
                    yield waiting[0][0], waiting.popleft()[1].result()
            while waiting:
                yield waiting[0][0], waiting.popleft()[1].result()
            if errors:
                raise errors[0]
        except BrokenProcessPool:
            raise EtymonError(
                "a worker process ended early (out of memory?): try again with fewer --workers"
            ) from None
        finally:
            team.shutdown(cancel_futures=True)


def _until_error(jobs: Iterable[Any], errors: list[EtymonError]) -> Iterator[Any]:
    """The jobs up to the first that cannot be read: those that are begun by then are worth finishing."""
    try:
        yield from jobs
    except EtymonError as error:
        errors.append(error)


_function: Callable[[Any], Any]


def _start_worker(make: Make, arguments: tuple[Any, ...]) -> None:
    """A worker process begins: it has what `make` builds and nothing else of the program."""
    global _function
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _function = make(*arguments)


def _run_job(job: Any) -> Any:
    return _function(job)


# ---------------------------------------------------------------- a cluster


class RayExecutor:
    """Jobs as tasks of Ray, which does those of a lost worker again. It is connected when there is something
    to do, until the `stack` is closed."""

    def __init__(self, on: str, workers: int | None, threads: int, gpus: int, stack: ExitStack) -> None:
        require_ray(on)
        self.on, self.workers, self.threads, self.gpus, self.stack = on, workers, threads, gpus, stack

    @cached_property
    def ray(self) -> Any:
        return self.stack.enter_context(_connect(self.on, self.workers))

    def run(
        self, make: Make, arguments: tuple[Any, ...], jobs: Iterable[Any], *, at_home: int = AT_HOME
    ) -> Iterator[tuple[Any, Any]]:
        jobs = iter(jobs)
        if (first := next(jobs, None)) is None:
            return
        ray = self.ray
        self._require_room()
        needs = {"num_cpus": self.threads, "num_gpus": self.gpus}
        # A worker may be lost with its machine: Ray gives the job to another one.
        task = ray.remote(max_retries=RETRIES, **needs)(_run_remote_job)
        # Sent once and kept by its checksum: a tokenizer of megabytes does not travel with every job.
        setup = pickle.dumps((make, arguments))
        key, stored = hashlib.sha256(setup).hexdigest(), [ray.put(setup)]
        plugins = os.environ.get("ETYMON_PLUGINS", "")  # those of this command
        most = AHEAD * max(1, int(ray.cluster_resources().get("CPU", 1)) // self.threads)
        waiting: deque[tuple[Any, Any]] = deque()
        errors: list[EtymonError] = []
        try:
            for job in _until_error(chain([first], jobs), errors):
                waiting.append((job, task.remote(key, stored, self.threads, os.getcwd(), plugins, job)))
                if len(waiting) > most:
                    yield waiting[0][0], self._result(waiting.popleft()[1])
            while waiting:
                yield waiting[0][0], self._result(waiting.popleft()[1])
            if errors:
                raise errors[0]
        finally:
            # Whoever stops reading wants no further work done: others may use the cluster, too.
            for _, reference in waiting:
                ray.cancel(reference)

    def _require_room(self) -> None:
        """Refuses jobs that no machine of the cluster has room for: they would wait for ever."""
        for name, needed in (("CPU", self.threads), ("GPU", self.gpus)):
            most = max(node["Resources"].get(name, 0) for node in self.ray.nodes() if node["Alive"])
            if needed > most:
                raise EtymonError(
                    f"a job takes {needed} {name}s, and no machine of {self.on} has more than {most:g}"
                    + ("; set OMP_NUM_THREADS to fewer" if name == "CPU" else "")
                )

    def _result(self, reference: Any) -> Any:
        errors = self.ray.exceptions
        try:
            return self.ray.get(reference)
        except errors.RayTaskError as error:
            raise error.cause from None
        except (errors.RayError, ConnectionError) as error:
            raise EtymonError(
                f"the cluster lost a job for good ({type(error).__name__}, tried {RETRIES + 1} times): look "
                "whether its machines have enough memory, then give the same command again"
            ) from error


_functions: dict[str, Callable[[Any], Any]] = {}
"""What this worker has built, by the checksum of what it was built from."""


def _run_remote_job(key: str, stored: list[Any], threads: int, folder: str, plugins: str, job: Any) -> Any:
    if key not in _functions:
        import ray

        with suppress(OSError):  # a machine without that folder can do jobs that need no files
            os.chdir(folder)
        os.environ |= {"TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": str(threads)}
        # Before anything is unpickled that a plugin has defined.
        os.environ["ETYMON_PLUGINS"] = plugins
        # A worker lives as long as the cluster, and sees many commands.
        while len(_functions) > AHEAD:
            _functions.pop(next(iter(_functions)))
        make, arguments = pickle.loads(ray.get(stored[0]))
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(threads)
        _functions[key] = make(*arguments)
    return _functions[key](job)


def require_ray(on: str) -> Any:
    """The module of Ray; refuses what is no place to run on, and a machine that lacks Ray."""
    if on != "ray" and not on.startswith("ray://"):
        raise EtymonError(f"cannot run on {on!r}: give --on ray, or --on ray://HOST:PORT")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # nobody outside is told that it is used
    try:
        import ray
    except ImportError:
        raise EtymonError(
            "--on ray needs Ray: pip install 'etymon[cluster]'", code="missing-package"
        ) from None
    return ray


@contextmanager
def _connect(on: str, workers: int | None) -> Iterator[Any]:
    """Ray, connected. `ray` alone is the cluster of RAY_ADDRESS (jobs that were submitted to one have it),
    else one of this machine's own for the time of the block; `ray://auto` is that of `ray start` on this
    machine."""
    ray = require_ray(on)
    if ray.is_initialized():  # by the program, which also ends it
        yield ray
        return
    settings: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    address = {"ray": os.environ.get("RAY_ADDRESS", "local"), "ray://auto": "auto"}.get(on, on)
    if address == "local":
        settings |= {"num_cpus": workers, "include_dashboard": False, "object_store_memory": OBJECT_BYTES}
    try:
        _require_answer(address)
        with warnings.catch_warnings(action="ignore"):  # what goes wrong is said in one line
            ray.init(address=address, **settings)
    except (OSError, ValueError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0].partition(". ")[0]
        advice = "is the cluster up?"
        if "timeout" in reason:  # somebody listens there
            advice = (
                "if it asks for a token, RAY_AUTH_MODE=token and that token are needed here, too; "
                "a busy head may need longer (RAY_CLIENT_INITIAL_CONNECTION_TIMEOUT_S=60)"
            )
        raise EtymonError(f"cannot run on {on}: {reason or type(error).__name__}; {advice}") from error
    try:
        _require_versions(ray, on)
        yield ray
    finally:
        ray.shutdown()


def _require_answer(address: str) -> None:
    """Refuses an address where nobody listens: Ray itself would try for half a minute, or for ever."""
    if address in ("local", "auto"):
        return
    place = urlsplit(address if "://" in address else f"//{address}")
    if not place.hostname or place.port is None:
        raise ValueError("the address needs a host and a port, such as ray://head:10001")
    with socket.create_connection((place.hostname, place.port), timeout=REACHED_IN):
        pass


def _require_versions(ray: Any, on: str) -> None:
    here, there = _versions(), _remote_versions(ray)
    # Another version of tokenizers may cut a text otherwise, and nobody would see it.
    for package, version in here.items():
        if there[package] != version:
            raise EtymonError(
                f"the workers of {on} have {package} {there[package] or 'not at all'}, and {version} is "
                "here: install the same there, so that results are the same"
            )


def _remote_versions(ray: Any) -> dict[str, str]:
    try:
        versions: dict[str, str] = ray.get(ray.remote(num_cpus=0)(_versions).remote())
    except ray.exceptions.RayError as error:
        reason = str(error).strip().splitlines()[-1][:200]
        raise EtymonError(
            f"the cluster's workers cannot run etymon ({reason}): install the version that is here there, too"
        ) from error
    return versions


def _versions() -> dict[str, str]:
    versions = {"Python": platform.python_version()} | dict.fromkeys(COMPARED, "")
    for package in COMPARED:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return versions
