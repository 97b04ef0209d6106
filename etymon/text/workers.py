"""Encoding on all cores. Batches are the same whatever the number of processes and come back in order, so the result
does not depend on it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import chain, islice
from types import ModuleType

import numpy as np
import tokenizers

from etymon.errors import EtymonError
from etymon.text.encoding import Encoded, Encoder, Part
from etymon.text.tokenizer import Tokenizer

AT_HOME = 8  # batches that are encoded before it is worth while to start processes


def encoded_batches(
    batches: Iterator[list[Part]], tokenizer: Tokenizer, dtype: np.dtype, workers: int | None = None
) -> Iterator[tuple[list[Part], Encoded]]:
    """Every batch with its encoding, in order. `workers` is a number of processes (1: this one alone); None is
    one a core, once there is enough text for it to pay."""
    here = Encoder(tokenizer, dtype)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    number = cores if workers is None else workers
    if workers is None or number == 1:
        for batch in islice(batches, AT_HOME) if number > 1 else batches:
            yield batch, here(batch)
    if (first := next(batches, None)) is None:
        return
    waiting: deque[tuple[list[Part], Future[Encoded]]] = deque()
    setup = (tokenizer.backend.to_str(), tokenizer.roles, dtype)
    team = ProcessPoolExecutor(number, multiprocessing.get_context("spawn"), _begin, setup)
    try:
        for batch in chain([first], batches):
            with _without_main():
                waiting.append((batch, team.submit(_encode, batch)))
            if len(waiting) > 2 * number:
                yield waiting[0][0], waiting.popleft()[1].result()
        while waiting:
            yield waiting[0][0], waiting.popleft()[1].result()
    except BrokenProcessPool:
        raise EtymonError(
            "a worker process ended early (out of memory?): try again with fewer --workers"
        ) from None
    finally:
        team.shutdown(cancel_futures=True)


@contextmanager
def _without_main() -> Iterator[None]:
    """Processes that are started now do not run the user's script again: many have no `__main__` guard."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


_encoder: Encoder


def _begin(description: str, roles: dict[str, str], dtype: np.dtype) -> None:
    """A worker process begins: it knows a tokenizer and nothing else of the program."""
    global _encoder
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _encoder = Encoder(Tokenizer(tokenizers.Tokenizer.from_str(description), roles), dtype)


def _encode(batch: list[Part]) -> Encoded:
    return _encoder(batch)
