"""What the handlers of requests share: models, the scheduler, limits, figures; and waiting for answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request

from etymon.errors import EtymonError
from etymon.server.decoder import Decoder
from etymon.server.errors import ApiError
from etymon.server.jobs import Call, DeadlineError, ServerJob
from etymon.server.metrics import Metrics
from etymon.server.scheduler import QueueFullError, Scheduler
from etymon.server.store import ModelStore, ServedModel


@dataclass(frozen=True)
class Limits:
    """What a server lets itself be asked for."""

    body: int = 4 << 20
    """Bytes of a request."""
    tokens: int = 4096
    """Tokens of a text, read and written."""
    queue: int = 512
    """Texts that may wait."""
    seconds: float = 300.0
    """That a request may take."""


@dataclass
class ServerState:
    store: ModelStore
    scheduler: Scheduler
    limits: Limits
    metrics: Metrics = field(default_factory=Metrics)
    logs_texts: bool = False
    is_draining: bool = False
    opening: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "etymon-opening"))

    async def open(self, name: str, head: str | None = None, *, ability: str) -> ServedModel:
        """The model of that name, if it can do what is asked."""
        self.store.require(name)
        # Told from the folder, so that a wrong wish does not open a model of gigabytes.
        abilities = self.store.summaries[name].abilities
        if ability not in abilities:
            raise ApiError(
                400,
                f"the model {name!r} ({self.store.summaries[name].family}) cannot do {ability}: it can do "
                f"{', '.join(abilities)}",
                param="model",
                code="unsupported",
            )
        return await self.open_folder(name, head)

    async def open_folder(self, name: str, head: str | None) -> ServedModel:
        """The model with that head among those of a name."""
        served = await asyncio.to_thread(self.store.find, name, head)
        if served is None:
            # In a thread of its own: however many wait for it, others are answered.
            loop = asyncio.get_running_loop()
            served = await loop.run_in_executor(self.opening, self.store.get, name, head)
        return served

    async def decoder(self, served: ServedModel, request: Request) -> Decoder:
        """Who writes the texts of a model; the first time it is made."""
        if served.decoder is None:
            # By the thread that computes: a model that is being traced would record its first reading.
            key = ("decoder", served.name)
            await self.call(request, key, [None], lambda items: [served.build_decoder() for _ in items])
        assert served.decoder is not None
        return served.decoder

    @property
    def deadline(self) -> float:
        return time.monotonic() + self.limits.seconds

    def require_tokens(self, count: int, title: str) -> None:
        if count > self.limits.tokens:
            raise ApiError(
                413,
                f"{title} has {count:,} tokens, and this server takes {self.limits.tokens:,}: shorten it, or "
                "start the server with a larger --max-tokens",
                code="request_too_large",
            )

    async def call(
        self, request: Request, key: Hashable, items: Sequence[Any], run: Callable[[list[Any]], list[Any]]
    ) -> list[Any]:
        """What `run` answers to these items, computed together with those of other requests of that key."""
        call = Call(key, items, run, self.deadline)
        self.submit(lambda: self.scheduler.submit_call(call))
        (answers,) = await self.wait(request, [call])
        return answers

    def submit(self, submit: Callable[[], None]) -> None:
        """Hands work to the scheduler, if it still takes some."""
        try:
            submit()
        except QueueFullError as error:
            raise ApiError(
                429,
                f"{error}: try again in a moment, or start the server with a larger --queue",
                code="queue_full",
                headers={"Retry-After": "1"},
            ) from error
        except EtymonError as error:
            raise ApiError(413, str(error), code="request_too_large") from error

    async def wait(self, request: Request, jobs: Sequence[ServerJob]) -> list[Any]:
        """The results of jobs. If the client goes away, or one of them fails, all are cancelled."""
        # Whichever is first: all answers, or the client's end.
        results: asyncio.Future[list[Any]] = asyncio.gather(
            *(asyncio.wrap_future(job.future) for job in jobs)
        )
        gone: asyncio.Future[None] = asyncio.create_task(_disconnected(request))
        try:
            waited: set[asyncio.Future[Any]] = {results, gone}
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if not results.done():
                raise ApiError(499, "the client has gone", code="cancelled")
            return await results
        except DeadlineError as error:
            raise self.too_late() from error
        finally:
            gone.cancel()
            # Of those that are done, nothing is left to cancel.
            for job in jobs:
                job.cancel()
            if not results.done():
                results.cancel()

    def too_late(self) -> ApiError:
        return ApiError(
            408,
            f"the answer was not there after {self.limits.seconds:g} seconds: ask for fewer tokens, or start "
            "the server with a larger --timeout",
            code="timeout",
        )


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
