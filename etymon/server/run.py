"""A server from its start to its end: the socket, the scheduler, and an end that loses no answer."""

from __future__ import annotations

import logging
import signal
import socket
import sys
from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI

from etymon.errors import EtymonError
from etymon.server.state import ServerState

LOG = logging.getLogger("etymon.server")


class DrainingServer(uvicorn.Server):
    """At the first signal it takes no more requests, answers those it has, and leaves with exit code 0."""

    def __init__(self, config: uvicorn.Config, state: ServerState, on_start: Callable[[], None]) -> None:
        super().__init__(config)
        self.state, self.on_start = state, on_start

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.on_start()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.state.is_draining = True
        # At the second Ctrl-C nobody is waited for.
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True


def open_socket(host: str, port: int) -> socket.socket:
    """A socket that listens there; 0 is any free port."""
    try:
        # Names and IPv6 addresses, too.
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        # Bound here and not by uvicorn, which would log an error and leave with a traceback.
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise EtymonError(
            f"cannot listen on {host}:{port}: {error.strerror or error}; stop what uses it, or give another "
            "--port (0: any that is free)",
            code="port-taken",
        ) from error
    except OverflowError:
        raise EtymonError(f"port is {port}: it must be between 0 and 65535") from None


def run_server(
    app: FastAPI,
    state: ServerState,
    listener: socket.socket,
    seconds: int,
    on_start: Callable[[], None],
    on_server: Callable[[DrainingServer], None] = lambda server: None,
) -> None:
    """Serves until a signal comes; then those who are being answered have so many seconds. `on_server` is
    given the server before it starts."""
    # A program that has set up its own log keeps it.
    if not LOG.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(message)s"))
        LOG.addHandler(handler)
        LOG.propagate = False
    LOG.setLevel(logging.INFO)
    config = uvicorn.Config(
        app,
        log_level="warning",
        # `Guard` writes lines of its own, without addresses that hold texts.
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=seconds,
        lifespan="off",
    )
    # Before the first request, and after the socket: a port that is taken starts nothing.
    state.scheduler.start()
    try:
        server = DrainingServer(config, state, on_start)
        on_server(server)
        server.run(sockets=[listener])
    finally:
        state.opening.shutdown(wait=False, cancel_futures=True)
        state.scheduler.stop()
        listener.close()
