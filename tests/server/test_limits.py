"""Limits hold, and what is refused says what to do; nothing of the disk is told."""

from __future__ import annotations

import json
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from etymon.errors import EtymonError
from etymon.families.loading import load
from etymon.families.model import Model
from etymon.server.guard import GuardSettings
from etymon.server.state import Limits
from etymon.server.store import ModelStore, ServedModel, named_folders
from tests.server.conftest import Running, running, wait_until


def test_a_body_that_is_too_large_is_refused(folders: dict[str, Path]) -> None:
    with running(folders, Limits(body=1000)) as server:
        refused = server.post("/v1/completions", model="gpt2", prompt="a" * 2000)
        assert refused.status_code == 413
        assert refused.json()["error"]["message"].endswith("or start the server with a larger --max-body")

        def parts() -> Any:  # without a length in the header
            yield b'{"model": "gpt2", "prompt": "'
            for _ in range(20):
                yield b"a" * 100

        answer = httpx2.post(
            f"{server.url}/v1/completions",
            content=parts(),
            headers={"content-type": "application/json"},
            timeout=60,
        )
        assert answer.status_code == 413
        assert server.post("/v1/completions", model="gpt2", prompt="a", max_tokens=1).status_code == 200


def test_texts_have_a_limit_of_tokens(folders: dict[str, Path]) -> None:
    with running(folders, Limits(tokens=20)) as server:
        with pytest.raises(openai.APIStatusError, match="takes 20: shorten it") as refused:
            server.client.completions.create(model="gpt2", prompt="a b c d", max_tokens=19)
        assert refused.value.status_code == 413
        for path, body in {
            "/score": {"model": "gpt2", "texts": ["a b " * 20]},
            "/v1/embeddings": {"model": "t5", "input": "a b " * 20},
            "/translate": {"model": "t5", "texts": ["a b " * 20]},
        }.items():
            assert server.post(path, **body).status_code == 413, path


def test_a_full_queue_is_told_so(folders: dict[str, Path]) -> None:
    with running(folders, Limits(queue=3), rows=1) as server:
        decoder = server.state.store.get("gpt2", "vocabulary").build_decoder()
        gate, tick = threading.Event(), decoder.tick

        def waiting_tick() -> None:
            gate.wait(60)
            tick()

        decoder.tick = waiting_tick  # type: ignore[method-assign]
        with ThreadPoolExecutor(4) as pool:
            asked = [
                pool.submit(server.post, "/v1/completions", model="gpt2", prompt="a", max_tokens=2)
                for _ in range(3)
            ]
            wait_until(lambda: server.state.scheduler.waiting >= 3)
            refused = server.post("/v1/completions", model="gpt2", prompt="a", max_tokens=2)
            gate.set()
            assert refused.status_code == 429 and refused.headers["retry-after"] == "1"
            assert refused.json()["error"]["code"] == "queue_full"
            assert [each.result().status_code for each in asked] == [200] * 3


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_request_that_takes_too_long_is_ended(folders: dict[str, Path], is_streamed: bool) -> None:
    with running(folders, Limits(seconds=0.3)) as server:
        decoder = server.state.store.get("gpt2", "vocabulary").build_decoder()
        step = decoder._step
        decoder._step = lambda writing: (threading.Event().wait(0.02), step(writing))  # type: ignore
        options: dict[str, Any] = {"model": "gpt2", "prompt": "a", "max_tokens": 200, "temperature": 0}
        options["extra_body"] = {"min_tokens": 200}
        if is_streamed:
            with pytest.raises(openai.APIError, match=r"not there after 0.3 seconds"):
                list(server.client.completions.create(stream=True, **options))
        else:
            with pytest.raises(openai.APIStatusError, match=r"not there after 0.3 seconds") as refused:
                server.client.completions.create(**options)
            assert refused.value.status_code == 408
        wait_until(lambda: server.state.scheduler.rows == 0)


def test_what_does_not_fit_into_memory_is_refused(folders: dict[str, Path]) -> None:
    with running({"gpt2": folders["gpt2"]}, memory=384 * 100) as server:
        with pytest.raises(
            openai.APIStatusError, match="do not fit into the memory of this server"
        ) as refused:
            server.client.completions.create(model="gpt2", prompt="a", max_tokens=200)
        assert refused.value.status_code == 413
        assert server.client.completions.create(model="gpt2", prompt="a", max_tokens=5).choices

    def no_room(folder: Path) -> Model:
        raise EtymonError(f"to open {folder} takes 9 TB, and 1 GB are free: take a machine with more memory")

    with running({"gpt2": folders["gpt2"]}, open_model=no_room) as server:
        answer = server.post("/v1/completions", model="gpt2", prompt="a")
        assert answer.status_code == 503
        assert answer.json()["error"]["message"] == (
            "the model 'gpt2' cannot be opened: to open gpt2 takes 9 TB, and 1 GB are free: take a machine with "
            "more memory"
        )


def test_a_key_is_asked_for(folders: dict[str, Path]) -> None:
    with running(folders, guard=GuardSettings(key="right key")) as server:
        with pytest.raises(openai.AuthenticationError, match="the key is missing or wrong"):
            server.client.models.list()
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="right key")
        assert client.models.list().data
        assert httpx2.get(f"{server.url}/health", timeout=60).status_code == 200
        assert httpx2.get(f"{server.url}/docs", timeout=60).status_code == 200
        for path in ("/metrics", "/v1/models"):
            assert httpx2.get(server.url + path, timeout=60).status_code == 401
        strange = {"Authorization": "Bearer ключ".encode()}
        assert httpx2.get(f"{server.url}/v1/models", headers=strange, timeout=60).status_code == 401


def test_other_pages_may_not_ask_unless_allowed(server: Running, folders: dict[str, Path]) -> None:
    foreign = {"Origin": "https://example.org"}
    answer = httpx2.get(f"{server.url}/v1/models", headers=foreign, timeout=60)
    assert "access-control-allow-origin" not in answer.headers
    with running(folders, guard=GuardSettings(origins=("https://example.org",))) as open_server:
        answer = httpx2.get(f"{open_server.url}/v1/models", headers=foreign, timeout=60)
        assert answer.headers["access-control-allow-origin"] == "https://example.org"
        asked = httpx2.request("OPTIONS", f"{open_server.url}/v1/completions", headers=foreign, timeout=60)
        assert asked.status_code == 204 and "Content-Type" in asked.headers["access-control-allow-headers"]
        other = httpx2.get(
            f"{open_server.url}/v1/models", headers={"Origin": "https://example.com"}, timeout=60
        )
        assert "access-control-allow-origin" not in other.headers


def test_a_local_server_is_called_by_local_names(folders: dict[str, Path]) -> None:
    """A page of another name that leads to this machine would otherwise be of the same origin."""
    with running(folders, guard=GuardSettings(hosts=("127.0.0.1", "localhost", "[::1]"))) as server:
        assert httpx2.get(f"{server.url}/health", timeout=60).status_code == 200
        for name, status in (
            ("example.org:80", 403),
            ("localhost:8000", 200),
            ("[::1]:8000", 200),
            ("[::1]", 200),
        ):
            assert (
                httpx2.get(f"{server.url}/health", headers={"Host": name}, timeout=60).status_code == status
            ), name


def test_nothing_of_the_disk_is_sent(server: Running, folders: dict[str, Path]) -> None:
    secret = str(folders["gpt2"].parent)
    for path in (
        "/static/../app.py", "/static/%2e%2e/app.py", "/static//etc/passwd", "/static/..%2f..%2fapp.py",
        f"/v1/models/{secret}/gpt2", "/v1/models/../../etc/passwd", "/etc/passwd", "/static/", "//etc/passwd",
    ):  # fmt: skip
        answer = httpx2.get(server.url + path, timeout=60)
        assert answer.status_code == 404, path
        assert "root:" not in answer.text and "import" not in answer.text
    for name in (f"{secret}/gpt2", "../gpt2", "gpt2/../bert", "/etc"):
        answer = server.post("/v1/completions", model=name, prompt="a")
        assert answer.status_code == 404
    refused = server.post("/predict", model="classifier", rows=[{"text": 3}])
    assert refused.status_code == 400 and secret not in refused.text


def test_watching(server: Running) -> None:
    assert httpx2.get(f"{server.url}/health", timeout=60).json() == {"status": "ok"}
    assert httpx2.get(f"{server.url}/ready", timeout=60).json() == {"status": "ready"}
    server.post("/v1/completions", model="gpt2", prompt="a", max_tokens=3)

    def lines_of(answer: httpx2.Response) -> dict[str, str]:
        return dict(line.rsplit(" ", 1) for line in answer.text.splitlines() if not line.startswith("#"))

    def metrics() -> httpx2.Response:
        return httpx2.get(f"{server.url}/metrics", timeout=60)

    assert metrics().headers["content-type"].startswith("text/plain; version=0.0.4")
    # A request is counted when its answer has been sent: the client may be faster.
    wait_until(lambda: 'etymon_requests_total{path="/v1/completions",status="200"}' in lines_of(metrics()))
    lines = lines_of(metrics())
    assert float(lines["etymon_new_tokens_total"]) >= 3
    buckets = [
        key for key in lines if key.startswith("etymon_request_seconds_bucket") and "completions" in key
    ]
    counts = [float(lines[key]) for key in buckets]
    assert counts == sorted(counts) and 'le="+Inf"' in buckets[-1]


def test_the_page_of_documents_needs_nothing_from_elsewhere(server: Running) -> None:
    page = httpx2.get(f"{server.url}/docs", timeout=60).text
    for path in ("/v1/completions", "/fill", "/predict", "/attention", "/metrics"):
        assert path in page
    assert "<script" not in page and "https://" not in page and "src=" not in page
    assert httpx2.get(server.url, follow_redirects=True, timeout=60).status_code == 200
    assert "/v1/completions" in httpx2.get(f"{server.url}/openapi.json", timeout=60).json()["paths"]


def test_the_log_has_no_texts_unless_asked(
    folders: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    logging.getLogger("etymon.server").addHandler(caplog.handler)
    try:
        with running(folders) as server:
            for logs_texts in (False, True):
                caplog.clear()
                server.state.logs_texts = logs_texts
                server.post("/v1/completions", model="gpt2", prompt="a secret text", max_tokens=2)
                wait_until(lambda: bool(caplog.messages))
                told = json.loads(caplog.messages[-1])
                assert (told.get("texts") == ["a secret text"]) is logs_texts
                assert told["path"] == "/v1/completions" and told["status"] == 200
                assert told["completion_tokens"] == 2
                assert logs_texts or "secret" not in caplog.text
    finally:
        logging.getLogger("etymon.server").removeHandler(caplog.handler)


def test_models_have_names(folders: dict[str, Path]) -> None:
    gpt2, bert = str(folders["gpt2"]), str(folders["bert"])
    assert named_folders([gpt2, f"other={bert}"]) == {"gpt2": gpt2, "other": bert}
    with pytest.raises(EtymonError, match=r"would both be called gpt2: give one another name \(NAME="):
        named_folders([gpt2, f"gpt2={bert}"])
    with pytest.raises(EtymonError, match="names no model"):
        named_folders(["name="])
    with pytest.raises(EtymonError, match="no such folder"):
        ModelStore({"x": "./nothing/here"}, lambda folder: None, 1, 1.0)  # type: ignore[arg-type, return-value]


def test_models_are_opened_when_they_are_asked_for(folders: dict[str, Path]) -> None:
    with running(folders) as server:
        assert not server.state.store.opened
        server.post("/tokenize", model="bert", text="a")
        server.post("/tokenize", model="bert", text="b")
        assert [served.name for served in server.state.store.opened.values()] == ["bert"]
        cards = {card.id: card.is_open for card in server.client.models.list()}  # type: ignore[attr-defined]
        assert cards["bert"] and not cards["gpt2"]


def test_a_model_that_is_being_opened_keeps_nobody_else_waiting(folders: dict[str, Path]) -> None:
    gate, opening = threading.Event(), threading.Event()

    def slow_for_gpt2(folder: Path) -> Model:
        if folder.name == "gpt2":
            opening.set()
            assert gate.wait(60)
        return load(folder)

    with running(folders, open_model=slow_for_gpt2) as server, ThreadPoolExecutor(40) as pool:
        # More of them than a process has threads for such things.
        waiting = [
            pool.submit(server.post, "/v1/completions", model="gpt2", prompt="a", max_tokens=2, seed=1)
            for _ in range(40)
        ]
        assert opening.wait(60)
        server.state.store.opened[folders["bert"].resolve()] = ServedModel(
            "bert", load(folders["bert"]), 8, 1e8
        )
        assert server.post("/fill", model="bert", texts=["The [MASK] sat."]).status_code == 200
        assert not any(each.done() for each in waiting)
        gate.set()
        texts = {each.result().json()["choices"][0]["text"] for each in waiting}
        assert (
            len(texts) == 1
            and [served.name for served in server.state.store.opened.values()].count("gpt2") == 1
        )


def test_a_decoder_is_made_by_the_thread_that_computes(folders: dict[str, Path]) -> None:
    """A model that is traced for another request would otherwise record what is not of that request."""
    makers: list[str] = []

    class Watched(Model):
        def start(self, *arguments: Any, **values: Any) -> Any:
            makers.append(threading.current_thread().name)
            return super().start(*arguments, **values)

    def open_model(folder: Path) -> Model:
        model = load(folder)
        model.__class__ = Watched
        return model

    with running({"gpt2": folders["gpt2"]}, open_model=open_model) as server:
        assert server.post("/v1/completions", model="gpt2", prompt="a", max_tokens=2).status_code == 200
    assert set(makers) == {"etymon-scheduler"}
