"""`etymon serve` as a process: it says where it listens, drains when it is told to stop, and refuses in one line."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import openai
import pytest

import etymon
from etymon import cli

ROOT = Path(__file__).parents[2]


@contextmanager
def started(*arguments: str, **variables: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server in a process of its own, and where it listens."""
    process = subprocess.Popen(
        [sys.executable, "-m", "etymon", "serve", *arguments, "--port", "0"],
        cwd=ROOT, env={**os.environ, **variables}, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        note = process.stderr.readline()
        match = re.search(r"at (http://127\.0\.0\.1:\d+)/v1", note)
        assert match is not None, note + process.stderr.read()
        yield process, match[1]
    finally:
        process.kill()
        process.wait()


def test_it_serves_drains_and_leaves(folders: dict[str, Path]) -> None:
    with started(str(folders["gpt2"]), f"words={folders['bert']}", "--api-key", "KEY", KEY="right") as (
        process,
        url,
    ):
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="right", max_retries=0)
        assert [model.id for model in client.models.list()] == ["gpt2", "words"]
        assert httpx2.get(f"{url}/v1/models", timeout=60).status_code == 401
        assert httpx2.get(f"{url}/health", headers={"Host": "example.org"}, timeout=60).status_code == 403
        model = etymon.load(folders["gpt2"])
        (expected,) = etymon.generate(
            model, ["The cat"], max_new_tokens=200, temperature=1.5, seed=1, min_new_tokens=200
        )
        stream = client.completions.create(
            model="gpt2", prompt="The cat", max_tokens=200, temperature=1.5, seed=1, stream=True,
            extra_body={"min_tokens": 200},
        )  # fmt: skip
        text, errors = "", []
        for number, event in enumerate(stream):
            text += event.choices[0].text
            if number == 3:
                process.send_signal(signal.SIGTERM)
                # It takes no more connections, and goes on with this one.
                thread = threading.Thread(target=lambda: errors.append(_refuses(url)))
                thread.start()
        assert text == expected.text
        thread.join()
        assert errors == [True]
        assert process.wait(30) == 0


def _refuses(url: str) -> bool:
    for _ in range(200):
        try:
            if httpx2.get(f"{url}/ready", timeout=60).status_code == 503:
                return True
        except httpx2.TransportError:
            return True
    return False


def test_mistakes_are_told_in_one_line(folders: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    def refusal(*arguments: str) -> str:
        with pytest.raises(SystemExit) as leaving:
            cli.main(["serve", *arguments])
        error = capsys.readouterr().err
        assert leaving.value.code == 2 and error.count("\n") == 1, error
        return error

    gpt2 = str(folders["gpt2"])
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert f"cannot listen on 127.0.0.1:{port}" in refusal(gpt2, "--port", port)
    assert "no such folder: ./nothing/here" in refusal("./nothing/here")
    assert "--api-key is the name of an environment variable" in refusal(gpt2, "--api-key", "sk-123")
    assert "would both be called gpt2" in refusal(gpt2, gpt2)
    assert "Missing argument" in refusal()
    assert "cannot listen on 203.0.113.7:0" in refusal(gpt2, "--host", "203.0.113.7", "--port", "0")


def test_the_extra_is_named_where_it_is_missing(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(etymon.EtymonError, match=r"pip install 'etymon\[serve\]'"):
        etymon.serve(str(folders["gpt2"]))
