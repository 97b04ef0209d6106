"""The one thread that computes: the steps of every model's texts in turns with calls of everything else.

One thread, since a step uses all processors by itself, and since a model that is traced (attention, hidden
layers) records whatever goes through it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Hashable

import torch

from etymon.errors import EtymonError
from etymon.server.decoder import Decoder
from etymon.server.jobs import Call, TextJob

logger = logging.getLogger("etymon.server")

# Items of equal calls that are computed together between two steps.
TOGETHER = 64


class QueueFullError(Exception):
    """There are more requests than may wait."""


class Scheduler:
    """Takes jobs from any thread; answers come through their futures."""

    def __init__(self, queue: int) -> None:
        """At most `queue` jobs wait at a time."""
        self.queue = queue
        self.decoders: list[Decoder] = []
        # Decoders belong to the thread: others put their jobs here, under the lock.
        self.arriving: deque[tuple[Decoder, TextJob]] = deque()
        self.calls: OrderedDict[Hashable, deque[Call]] = OrderedDict()
        self.is_stopping = False
        self.busy_seconds = 0.0
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="etymon-scheduler", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread after the step that it is in; whoever still waits is told."""
        with self._changed:
            self.is_stopping = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()
        self._fail_all(RuntimeError("the server has stopped"))

    @property
    def waiting(self) -> int:
        """Jobs that nothing has been done for yet."""
        with self._changed:  # whoever submits holds it already, and may
            texts = len(self.arriving) + sum(len(decoder.waiting) for decoder in self.decoders)
            return texts + sum(map(len, self.calls.values()))

    @property
    def rows(self) -> int:
        """Texts that are being written."""
        return sum(decoder.rows for decoder in list(self.decoders))

    def submit_texts(self, decoder: Decoder, jobs: list[TextJob]) -> None:
        """All of them, or none if there is no room in the queue."""
        with self._changed:
            # All prompts of a request or none: half an answer is of no use.
            self._require_room(len(jobs))
            if decoder not in self.decoders:
                self.decoders.append(decoder)
            for job in jobs:
                decoder.require_room(job)
            self.arriving.extend((decoder, job) for job in jobs)
            self._changed.notify()

    def submit_call(self, call: Call) -> None:
        with self._changed:
            self._require_room(1)
            self.calls.setdefault(call.key, deque()).append(call)
            self._changed.notify()

    def _require_room(self, jobs: int) -> None:
        if self.is_stopping or self.waiting + jobs > self.queue:
            raise QueueFullError(f"{self.waiting} requests wait already, and at most {self.queue} may")

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self.is_stopping or self.arriving or self.calls or self._busy_decoders()):
                    self._changed.wait()
                if self.is_stopping:
                    return
                while self.arriving:
                    decoder, job = self.arriving.popleft()
                    decoder.waiting.append(job)
                # Computing goes on without the lock, so that others can submit meanwhile.
                decoders, calls = self._busy_decoders(), self._next_calls()
            begin = time.monotonic()
            for decoder in decoders:
                try:
                    decoder.tick()
                except Exception as error:
                    # A mistake of ours or too little memory ends these texts, and not the server.
                    logger.exception("texts that were being written are lost")
                    decoder.fail(error)
            if calls:
                run_together(calls)
            self.busy_seconds += time.monotonic() - begin

    def _busy_decoders(self) -> list[Decoder]:
        return [decoder for decoder in self.decoders if decoder.has_work]

    def _next_calls(self) -> list[Call]:
        """Calls of one kind, the one that waits longest first; then it is another kind's turn."""
        if not self.calls:
            return []
        # Behind the others afterwards: nobody is starved by a kind that is asked for all the time.
        key, waiting = self.calls.popitem(last=False)
        chosen: list[Call] = []
        size = 0
        # A call that is larger by itself is computed alone.
        while waiting and (not chosen or size + waiting[0].size <= TOGETHER):
            chosen.append(waiting.popleft())
            size += chosen[-1].size
        if waiting:
            self.calls[key] = waiting
        return chosen

    def _fail_all(self, error: BaseException) -> None:
        for _, job in self.arriving:
            job.fail(error)
        for decoder in self.decoders:
            decoder.fail(error)
        for waiting in self.calls.values():
            for call in waiting:
                call.fail(error)


def run_together(calls: list[Call]) -> None:
    """Answers calls of one kind by one computation; where that is refused, each by itself, so that a mistake
    in one request is nobody else's."""
    now = time.monotonic()
    calls = [call for call in calls if not call.drop_if_over(now)]
    if not calls:
        return
    try:
        with torch.inference_mode():
            answers = calls[0].run([item for call in calls for item in call.items])
    except Exception as error:
        # One of them is wrong, and only it is to be told.
        if len(calls) > 1:
            for call in calls:
                run_together([call])
            return
        if not isinstance(error, EtymonError):
            logger.exception("a request has failed")
        calls[0].fail(error)
        return
    first = 0
    for call in calls:
        if not call.future.done():
            call.future.set_result(answers[first : first + call.size])
        first += call.size
