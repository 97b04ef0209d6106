"""Runs cases in worker processes of bounded memory and time, and says which promises they break."""

from __future__ import annotations

import io
import multiprocessing
import os
import random
import re
import resource
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from etymon import cli
from etymon.tables.table import read_table
from tests.fuzz.case import Case
from tests.fuzz.kinds import KINDS
from tests.fuzz.workspace import Workspace

CPU_SECONDS = 15
"""What a case may take on a processor; counted so, a busy machine is no hang."""
WALL_SECONDS = 120
"""After which a worker that says nothing is ended."""
MEMORY = 3 << 30
"""Bytes that a worker may take beyond what it begins with."""
BUG = "this is a bug in etymon"
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
LONGEST_LINE = 1200


class Hang(BaseException):
    """A case took too long."""


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Result:
    """What became of a case: `fault` is the promise that it breaks, or None."""

    number: int
    kind: str
    code: int
    seconds: float
    fault: str | None = None
    input: str = ""


class Stream(io.TextIOWrapper):
    """Standard output in memory, which may pass for a terminal."""

    def __init__(self, is_terminal: bool) -> None:
        self.bytes = io.BytesIO()
        self.is_terminal = is_terminal
        super().__init__(self.bytes, encoding="utf-8", write_through=True)

    def isatty(self) -> bool:
        return self.is_terminal

    def text(self) -> str:
        return self.bytes.getvalue().decode("utf-8", "replace")


def case_of(seed: int, number: int, space: Workspace) -> tuple[str, Case]:
    """The case of a number: always the same for a seed."""
    rng = random.Random(f"{seed} {number}")
    space.clear()
    kind = list(KINDS)[number % len(KINDS)]
    return kind, KINDS[kind](rng, space)


def run_case(case: Case) -> Outcome:
    """One command line in this process."""
    out, err = Stream(case.is_terminal), Stream(case.is_terminal)
    before = sys.stdin, sys.stdout, sys.stderr
    sys.stdin = io.TextIOWrapper(io.BytesIO(case.stdin), encoding="utf-8")
    sys.stdout, sys.stderr = out, err
    try:
        with _limited_files(case.file_limit):
            cli.main(case.arguments)
    except SystemExit as leaving:
        code = leaving.code
        return Outcome(code if isinstance(code, int) else 0 if code is None else 1, out.text(), err.text())
    finally:
        sys.stdin, sys.stdout, sys.stderr = before
    raise AssertionError("the command line always leaves with an exit code")


@contextmanager
def _limited_files(limit: int | None) -> Iterator[None]:
    if limit is None:
        yield
        return
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # writing then fails with an error instead
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


def fault_of(case: Case, outcome: Outcome, scratch: Path) -> str | None:
    """The first promise that is broken."""
    lines = [line for line in outcome.err.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("etymon: error: ")]
    if "Traceback" in outcome.err or BUG in outcome.err:
        return "a traceback"
    if outcome.code not in (0, 2):
        return f"exit code {outcome.code}"
    if outcome.code == 2:
        is_usage = "Usage: " in outcome.err and "Error: " in outcome.err
        if not is_usage and (len(errors) != 1 or lines[-1] != errors[0] or len(errors[0]) > LONGEST_LINE):
            return "a mistake that is not told in one line"
    if case.must_fail and outcome.code == 0:
        return "damaged weights were accepted"
    if any(CONTROLS.search(line) for line in errors):
        return "control characters in an error"
    shown = outcome.out + outcome.err if case.is_terminal else ""
    if CONTROLS.search(shown.replace("\r\033[K", "")):
        return "control characters on a terminal"
    if left := [path.name for path in scratch.rglob("*.partial")]:
        return f"half-written {left[0]} was left"
    return next((found for path in case.outputs if (found := _output_fault(path, outcome.code))), None)


def _output_fault(path: Path, code: int) -> str | None:
    if not path.exists():
        return None
    if code != 0:
        return f"{path.name} was written by a command that failed"
    if path.suffix in (".csv", ".tsv", ".jsonl", ".parquet"):
        try:
            read_table([path])
        except Exception as error:
            return f"{path.name} cannot be read back: {error!r}"
    return None


# --- workers


def work(space: Workspace, seed: int, numbers: list[int], connection: Any) -> None:
    """Runs cases and tells of each, before and after it."""
    limit = psutil.Process().memory_info().vms + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    signal.signal(signal.SIGPROF, _hang)
    os.chdir(space.clear())
    for number in numbers:
        connection.send(number)
        connection.send(try_case(space, seed, number))
    connection.close()


def _hang(*_: Any) -> None:
    raise Hang


def try_case(space: Workspace, seed: int, number: int) -> Result:
    kind, case = case_of(seed, number, space)
    os.chdir(space.scratch)
    started, outcome, fault = time.perf_counter(), Outcome(0, "", ""), None
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    try:
        outcome = run_case(case)
        fault = fault_of(case, outcome, space.scratch)
    except Hang:
        fault = f"no end after {CPU_SECONDS} seconds"
    except BaseException as error:
        fault = f"{error!r} left the command line"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    told = ""
    if fault is not None:
        words = " ".join(repr(word)[:200] for word in case.arguments)
        told = f"etymon {words}\n{outcome.out[-500:]}{outcome.err[-3000:]}"
    return Result(number, kind, outcome.code, time.perf_counter() - started, fault, told)


def run_cases(folder: Path, seed: int, numbers: list[int], seconds: float | None = None) -> Iterator[Result]:
    """The results of cases, worked off by one process after the other: one that dies or hangs is a fault, and another goes on.
    After `seconds` no new case is begun."""
    space = Workspace(folder)
    context = multiprocessing.get_context("fork")
    end = None if seconds is None else time.monotonic() + seconds
    while numbers:
        ours, theirs = context.Pipe(duplex=False)
        worker = context.Process(target=work, args=(space, seed, numbers, theirs), daemon=True)
        worker.start()
        theirs.close()
        current = numbers[0]
        try:
            while ours.poll(WALL_SECONDS):
                message = ours.recv()
                if isinstance(message, Result):
                    numbers = numbers[1:]
                    yield message
                elif end is not None and time.monotonic() > end:
                    numbers = []
                    break
                else:
                    current = message
            else:
                raise EOFError
        except EOFError:
            if numbers:
                kind = list(KINDS)[current % len(KINDS)]
                yield Result(current, kind, -1, WALL_SECONDS, "the process died or hung")
                numbers = numbers[1:]
        finally:
            worker.kill()
            worker.join()
