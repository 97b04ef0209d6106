"""Being asked to stop: Ctrl-C and SIGTERM let a step finish."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class StopRequest(threading.Event):
    signal: int | None = None
    """The first one that asked."""


@contextmanager
def stop_requested() -> Iterator[StopRequest]:
    """An event that Ctrl-C and SIGTERM set; a second Ctrl-C interrupts at once. Only in the main thread."""
    asked = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def ask(number: int, frame: Any) -> None:
        if asked.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked.signal = asked.signal or number
        asked.set()

    previous = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: not set from Python
