"""Tiny models behind a real server, in a thread of the tests' process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from etymon.families.loading import load
from etymon.families.model import Model
from etymon.families.saving import save
from etymon.server.app import create_app
from etymon.server.decoder import Decoder
from etymon.server.guard import GuardSettings
from etymon.server.run import open_socket, run_server
from etymon.server.scheduler import Scheduler
from etymon.server.state import Limits, ServerState
from etymon.server.store import ModelStore
from tests import tiny
from tests.generation.conftest import tiny_model


@dataclass
class Running:
    """A server that listens."""

    url: str
    state: ServerState
    models: dict[str, Model] = field(default_factory=dict)

    @property
    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="any", max_retries=0, timeout=60)

    def post(self, path: str, **body: Any) -> httpx2.Response:
        return httpx2.post(self.url + path, json=body, timeout=60)


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return make_folders(tmp_path_factory.mktemp("secret-place"))


def make_folders(place: Path) -> dict[str, Path]:
    """A decoder, an encoder, an encoder-decoder, a recurrent one, a classifier and a discriminator."""
    models = {
        "gpt2": tiny_model("gpt2", positions=256),
        "bert": tiny_model("bert"),
        "t5": tiny_model("t5"),
        "rnn": tiny_model("rnn"),
        "classifier": tiny.model("bert", frozenset({"classification"}), labels=("bad", "good")),
        "discriminator": tiny.model("electra", frozenset({"replaced"})),
    }
    # Its explanations hide as much as its training did.
    models["bert"].history = [{"objective": "masked", "options": {"density": 0.4, "masking": "whole-words"}}]
    for name, model in models.items():
        save(model, place / name)
    return {name: place / name for name in models}


@contextmanager
def running(
    folders: dict[str, Path],
    limits: Limits | None = None,
    guard: GuardSettings | None = None,
    *,
    rows: int = 8,
    memory: float = 1e8,
    open_model: Callable[[Path], Model] = load,
) -> Iterator[Running]:
    limits = limits or Limits()
    store = ModelStore({name: str(folder) for name, folder in folders.items()}, open_model, rows, memory)
    state = ServerState(store, Scheduler(limits.queue), limits)
    listener = open_socket("127.0.0.1", 0)
    started, servers = threading.Event(), []
    app = create_app(state, guard)
    thread = threading.Thread(
        target=run_server, args=(app, state, listener, 5, started.set, servers.append), daemon=True
    )
    thread.start()
    assert started.wait(60)
    try:
        yield Running(f"http://127.0.0.1:{listener.getsockname()[1]}", state)
    finally:
        servers[0].should_exit = True
        thread.join(60)
        assert not thread.is_alive()


@pytest.fixture(scope="session")
def server(folders: dict[str, Path]) -> Iterator[Running]:
    with running(folders) as started:
        started.models = {name: load(folder) for name, folder in folders.items()}
        yield started


def wait_until(happens: Callable[[], bool], seconds: float = 60.0) -> None:
    """Returns when it happens; fails if it does not."""
    end = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def hold_until_cancelled(monkeypatch: pytest.MonkeyPatch, decoder: Decoder, steps: int) -> list[int]:
    """Texts stop after so many steps until whoever asked for them has gone; then the list has the number of
    tokens that had been written by all."""
    tick, held = decoder.tick, list[int]()

    def holding_tick() -> None:
        rows = [row for writing in decoder.writing for row in writing.rows]
        if rows and len(rows[0].ids) >= steps:
            held.append(decoder.new_tokens)
            wait_until(lambda: all(row.job.is_cancelled for row in rows), 60)
        tick()

    monkeypatch.setattr(decoder, "tick", holding_tick)
    return held
