"""Encoding on all cores: worker processes that know a tokenizer and nothing else of the program.

They are started as fresh interpreters with two pipes, not through `multiprocessing`: that would import the
user's main script again, which fails for scripts without the `__main__` guard. Batches are the same whatever
the number of workers and come back in order, so the result does not depend on it.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import IO

import numpy as np
import tokenizers

from etymon.data.encoding import Encoded, Encoder, Part
from etymon.data.tokenizer import Tokenizer
from etymon.errors import EtymonError

AT_HOME = 8  # batches that are encoded before it is worth while to start processes
SERVE = "from etymon.data.workers import serve; serve()"


def cores() -> int:
    """The processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def encoded_batches(
    batches: Iterator[list[Part]], tokenizer: Tokenizer, dtype: np.dtype, workers: int | None = None
) -> Iterator[tuple[list[Part], Encoded]]:
    """Every batch with its encoding, in order. `workers` is a number of processes (1: this one alone); None is
    one a core, once there is enough text for it to pay."""
    here = Encoder(tokenizer, dtype)
    number = cores() if workers is None else workers
    if workers is None or number == 1:
        for batch in islice(batches, AT_HOME) if number > 1 else batches:
            yield batch, here(batch)
    first = next(batches, None)
    if first is None:
        return
    setup = pickle.dumps((tokenizer.backend.to_str(), tokenizer.roles, dtype.name))
    waiting: deque[tuple[list[Part], Future[Encoded]]] = deque()
    idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
    team: list[Worker] = []

    def encode(batch: list[Part]) -> Encoded:
        worker = idle.get()
        try:
            return worker.encode(batch)
        finally:
            idle.put(worker)

    with ThreadPoolExecutor(number) as threads:
        try:
            for _ in range(number):
                team.append(Worker(setup))
                idle.put(team[-1])
            waiting.append((first, threads.submit(encode, first)))
            for batch in batches:
                waiting.append((batch, threads.submit(encode, batch)))
                if len(waiting) > 2 * number:
                    done, future = waiting.popleft()
                    yield done, future.result()
            while waiting:
                done, future = waiting.popleft()
                yield done, future.result()
        finally:
            for _, future in waiting:
                future.cancel()
            for worker in team:
                worker.close()


class Worker:
    """One process: a batch goes in, its encoding comes out."""

    def __init__(self, setup: bytes) -> None:
        home = str(Path(__file__).resolve().parents[2])
        paths = [home, *filter(None, [os.environ.get("PYTHONPATH")])]
        threads = {"TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **threads, "PYTHONPATH": os.pathsep.join(paths)},
        )
        self._send(setup)

    def _send(self, data: bytes) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(len(data).to_bytes(8, "little") + data)
            self.process.stdin.flush()
        except BrokenPipeError:
            raise EtymonError(self._death()) from None

    def encode(self, batch: list[Part]) -> Encoded:
        self._send(pickle.dumps(batch))
        assert self.process.stdout is not None
        data = _receive(self.process.stdout)
        if data is None:
            raise EtymonError(self._death())
        answer = pickle.loads(data)
        if isinstance(answer, BaseException):
            raise answer
        encoded: Encoded = answer
        return encoded

    def _death(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        return (
            f"a worker process ended early (exit code {self.process.returncode}; out of memory?): "
            "try again with fewer --workers"
        )

    def close(self) -> None:
        self.process.terminate()  # it holds nothing that could be lost
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        self.process.wait()


def _receive(pipe: IO[bytes]) -> bytes | None:
    size = pipe.read(8)
    data = pipe.read(int.from_bytes(size, "little")) if len(size) == 8 else b""
    return data if len(size) == 8 and len(data) == int.from_bytes(size, "little") else None


def serve() -> None:
    """A worker's life: the tokenizer, then batches until the pipe ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints must not get between the answers
    setup = _receive(sys.stdin.buffer)
    if setup is None:
        return
    description, roles, dtype = pickle.loads(setup)
    encoder = Encoder(Tokenizer(tokenizers.Tokenizer.from_str(description), roles), np.dtype(dtype))
    while (data := _receive(sys.stdin.buffer)) is not None:
        try:
            answer: Encoded | Exception = encoder(pickle.loads(data))
        except Exception as error:
            answer = error
        packed = pickle.dumps(answer)
        answers.write(len(packed).to_bytes(8, "little") + packed)
        answers.flush()
