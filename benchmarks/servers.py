"""The servers of `benchmarks.serving`: each in a process of its own, at toy size in a thread."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx2

import etymon
from benchmarks.harness import THREADS, TOY
from benchmarks.sentence_encoding import model_folder

STARTING = 300.0  # seconds that a server may take until it answers


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextmanager
def process(command: Sequence[str], port: int) -> Iterator[str]:
    """A server in a process of its own, from when it answers."""
    url = f"http://127.0.0.1:{port}"
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": str(THREADS),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    started = subprocess.Popen(
        list(command), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment,
        cwd=Path(__file__).parents[1],
    )  # fmt: skip
    assert started.stderr is not None
    last: list[str] = []
    threading.Thread(target=lambda: last.extend(line for line in started.stderr or ()), daemon=True).start()
    try:
        end = time.monotonic() + STARTING
        while not _answers(url):
            if started.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"{command[:4]} does not answer: {''.join(last[-3:]).strip()}")
            time.sleep(0.2)
        yield url
    finally:
        started.terminate()
        try:
            started.wait(20)
        except subprocess.TimeoutExpired:
            started.kill()


def _answers(url: str) -> bool:
    try:
        return httpx2.get(f"{url}/health", timeout=5).status_code == 200
    except httpx2.TransportError:
        return False


@contextmanager
def etymon_server(folder: Path, *options: str) -> Iterator[str]:
    port = free_port()
    if not TOY:
        command = [
            sys.executable,
            "-m",
            "etymon",
            "serve",
            f"model={folder}",
            "--port",
            str(port),
            "--preload",
            *options,
        ]
        with process(command, port) as url:
            yield url
        return
    from etymon.server.app import create_app
    from etymon.server.run import open_socket, run_server
    from etymon.server.scheduler import Scheduler
    from etymon.server.state import Limits, ServerState
    from etymon.server.store import ModelStore

    quantize: Any = "int8" if "int8" in options else None
    store = ModelStore({"model": str(folder)}, lambda place: etymon.load(place, quantize=quantize), 64, 1e9)
    state, ready, servers = ServerState(store, Scheduler(512), Limits()), threading.Event(), []
    arguments = create_app(state), state, open_socket("127.0.0.1", port), 5, ready.set, servers.append
    thread = threading.Thread(target=run_server, args=arguments, daemon=True)
    thread.start()
    ready.wait(30)
    yield f"http://127.0.0.1:{port}"
    servers[0].should_exit = True
    thread.join(30)


@contextmanager
def transformers_server(folder: Path, *options: str) -> Iterator[str]:
    port = free_port()
    if not TOY:
        command = [str(Path(sys.executable).parent / "transformers"), "serve", str(folder), "--device", "cpu", "--dtype", "float32",
                   "--port", str(port), "--host", "127.0.0.1", *options]  # fmt: skip
        with process(command, port) as url:
            yield url
        return
    from transformers.cli.serve import Serve

    server = Serve(
        str(folder), device="cpu", dtype="float32", port=port, host="127.0.0.1", non_blocking=True,
        continuous_batching="--continuous-batching" in options,
    )  # fmt: skip
    while not _answers(f"http://127.0.0.1:{port}"):
        time.sleep(0.05)
    yield f"http://127.0.0.1:{port}"
    server.kill_server()


@contextmanager
def sentence_transformers_server() -> Iterator[str]:
    port = free_port()
    if not TOY:
        with process(
            [sys.executable, "-m", "benchmarks.peers.embedding_server", str(model_folder()), str(port)], port
        ) as url:
            yield url
        return
    import uvicorn

    app = import_module("benchmarks.peers.embedding_server").make_app(str(model_folder()))
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not _answers(f"http://127.0.0.1:{port}"):
        time.sleep(0.05)
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join(30)
