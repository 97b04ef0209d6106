"""The hub through a server of our own on this machine: no network, no cache but the test's."""

from __future__ import annotations

import errno
import hashlib
import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch

from etymon.checkpoints.folder import read_config
from etymon.checkpoints.hub import resolve
from etymon.checkpoints.weights import open_weights, write_weights
from etymon.errors import EtymonError

COMMIT = "a" * 40
DEAD = "http://127.0.0.1:9"


class Hub:
    """The few routes that a snapshot download uses, over repositories held in memory."""

    def __init__(self) -> None:
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.refused: dict[str, tuple[int, str]] = {}  # repository -> status and error code
        self.downloads: list[str] = []
        self.requests = 0
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                hub.answer(self, send_body=True)

            def do_HEAD(self) -> None:
                hub.answer(self, send_body=False)

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def answer(self, request: BaseHTTPRequestHandler, send_body: bool) -> None:
        self.requests += 1
        status, body, headers = self.route(request.path.partition("?")[0])
        request.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            request.send_header(name, value)
        request.end_headers()
        if send_body:
            request.wfile.write(body)
            if "ETag" in headers:
                self.downloads.append(request.path.rpartition("/")[2])

    def route(self, path: str) -> tuple[int, bytes, dict[str, str]]:
        parts = path.strip("/").split("/")
        if parts[:2] == ["api", "models"] and len(parts) >= 6:
            name, route, revision = "/".join(parts[2:4]), parts[4], parts[5]
        elif len(parts) >= 5 and parts[2] == "resolve":
            name, route, revision = "/".join(parts[:2]), "resolve", parts[3]
        else:
            return 404, b"", {}
        if name in self.refused:
            status, code = self.refused[name]
            return status, b"{}", {"X-Error-Code": code} if code else {}
        files = self.repositories.get(name)
        if files is None:
            return 404, b"{}", {"X-Error-Code": "RepoNotFound"}
        if revision not in ("main", COMMIT):
            return 404, b"{}", {"X-Error-Code": "RevisionNotFound"}
        if route == "revision":
            siblings = [{"rfilename": file} for file in files]
            return 200, json.dumps({"id": name, "sha": COMMIT, "siblings": siblings}).encode(), {}
        if route == "tree":
            tree = [
                {"type": "file", "path": file, "size": len(body), "oid": hashlib.sha1(body).hexdigest()}
                for file, body in files.items()
            ]
            return 200, json.dumps(tree).encode(), {}
        body = files["/".join(parts[4:])]
        return 200, body, {"ETag": f'"{hashlib.sha1(body).hexdigest()}"', "X-Repo-Commit": COMMIT}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    from huggingface_hub import constants

    server = Hub()
    monkeypatch.setenv("HF_ENDPOINT", server.address)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.delenv("TRANSFORMERS_OFFLINE", raising=False)
    # The library read its environment when it was imported: nothing may leave this machine or touch the user's
    # files. Its own idea of the endpoint is a dead port, so that what works does so through HF_ENDPOINT.
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, DEAD)
    monkeypatch.setattr(constants, "ENDPOINT", DEAD)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_IMPLICIT_TOKEN", True)
    monkeypatch.setattr(constants, "AGENT_HARNESSES_PATH", str(tmp_path / "harnesses.json"), raising=False)
    monkeypatch.chdir(tmp_path)
    look_up = socket.getaddrinfo

    def only_this_machine(host: object, *arguments: Any, **options: Any) -> Any:
        assert host in ("127.0.0.1", b"127.0.0.1"), f"the test reached for {host!r}"
        return look_up("127.0.0.1", *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", only_this_machine)
    yield server
    server.close()


def content(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def repository(tmp_path: Path, kind: str) -> dict[str, bytes]:
    folder = tmp_path / f"source {kind}"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "gpt2"}')
    (folder / "tokenizer.json").write_text("{}")
    tensors = {"a": torch.arange(4.0), "b": torch.ones(3, 2)}
    if kind in ("whole", "sharded"):
        write_weights(folder, tensors, shard_size=16 if kind == "sharded" else None)
    torch.save(tensors, folder / "pytorch_model.bin")
    for other in (
        "tf_model.h5",
        "flax_model.msgpack",
        "README.md",
        "onnx/model.safetensors",
        "onnx/config.json",
    ):
        (folder / other).parent.mkdir(exist_ok=True)
        (folder / other).write_bytes(b"not wanted")
    return content(folder)


def assert_opens(folder: Path) -> None:
    assert read_config(folder) == {"model_type": "gpt2"}
    found = open_weights(folder)
    assert torch.equal(found["a"], torch.arange(4.0))
    assert torch.equal(found["b"], torch.ones(3, 2))


@pytest.mark.parametrize(
    ("kind", "weights"),
    [
        ("whole", {"model.safetensors"}),
        (
            "sharded",
            {
                "model-00001-of-00002.safetensors",
                "model-00002-of-00002.safetensors",
                "model.safetensors.index.json",
            },
        ),
        ("pickled", {"pytorch_model.bin"}),
    ],
)
def test_only_what_is_read_is_downloaded_and_only_once(
    hub: Hub, tmp_path: Path, kind: str, weights: set[str]
) -> None:
    hub.repositories["someone/model"] = repository(tmp_path, kind)
    folder = resolve("someone/model")
    assert folder.is_relative_to(tmp_path / "cache")
    assert_opens(folder)
    assert set(content(folder)) == {"config.json", "tokenizer.json"} | weights
    assert sorted(hub.downloads) == sorted(content(folder))
    assert resolve("someone/model", revision=COMMIT) == resolve("someone/model") == folder
    assert len(hub.downloads) == len(content(folder))


def test_adapters_are_downloaded_without_looking_for_a_model(hub: Hub, tmp_path: Path) -> None:
    wanted = {"adapter_config.json": b"{}", "adapter_model.safetensors": b"weights", "history.json": b"{}"}
    hub.repositories["someone/adapters"] = {**wanted, "README.md": b"", "training_args.bin": b""}
    assert content(resolve("someone/adapters")) == wanted
    hub.repositories["someone/older"] = {"adapter_config.json": b"{}", "adapter_model.bin": b"weights"}
    assert set(content(resolve("someone/older"))) == {"adapter_config.json", "adapter_model.bin"}


def test_the_tokenizer_of_the_source_comes_along(hub: Hub) -> None:
    wanted = {
        "config.json": b'{"source_vocabulary": 9}', "model.safetensors": b"weights", "tokenizer.json": b"{}",
        "source/tokenizer.json": b"{}", "source/tokenizer_config.json": b"{}",
    }  # fmt: skip
    hub.repositories["someone/pairs"] = {**wanted, "onnx/tokenizer.json": b"", "source/README.md": b""}
    assert content(resolve("someone/pairs")) == wanted


def test_what_makes_vectors_of_sentences_comes_along(hub: Hub) -> None:
    wanted = {
        "config.json": b"{}", "model.safetensors": b"weights", "modules.json": b"[]",
        "sentence_bert_config.json": b"{}", "config_sentence_transformers.json": b"{}", "1_Pooling/config.json": b"{}",
    }  # fmt: skip
    hub.repositories["someone/sentences"] = {
        **wanted,
        "2_Dense/model.safetensors": b"",
        "onnx/config.json": b"",
    }
    assert content(resolve("someone/sentences")) == wanted


@pytest.mark.parametrize("kind", ["whole", "pickled"])
def test_offline_uses_the_cache(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    hub.repositories["someone/model"] = repository(tmp_path, kind)
    folder = resolve("someone/model")
    seen = hub.requests
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert resolve("someone/model") == folder
    assert hub.requests == seen
    with pytest.raises(EtymonError, match="offline mode is on") as error:
        resolve("someone/other")
    assert "\n" not in str(error.value)
    assert "someone/other" in str(error.value)
    assert hub.requests == seen


def test_a_folder_of_a_similar_name_is_proposed(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs" / "reviews").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    for typed in ("runs/revews", "./runs/revews", str(tmp_path / "runs" / "revews")):
        with pytest.raises(EtymonError, match=r"did you mean .*reviews\?\)"):
            resolve(typed)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(EtymonError, match=r"no folder here \(did you mean runs/reviews\?\)"):
        resolve("runs/revews")
    with pytest.raises(EtymonError, match="nobody/knows is no folder here and not complete"):
        resolve("nobody/knows")


def test_a_dead_hub(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repositories["someone/model"] = repository(tmp_path, "whole")
    folder = resolve("someone/model")
    hub.close()
    assert resolve("someone/model") == folder  # what is in the cache still opens
    with pytest.raises(EtymonError, match="cannot be reached") as error:
        resolve("someone/other")
    assert "\n" not in str(error.value)
    assert hub.address in str(error.value)
    monkeypatch.setattr(hub, "close", lambda: None)


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (404, "RepoNotFound", "there is no model someone/model"),
        (401, "RepoNotFound", "there is no model someone/model"),
        (401, "", "refused access"),
        (403, "GatedRepo", "accept its terms"),
        (403, "", "refused access"),
        (404, "RevisionNotFound", "has no revision"),
        (500, "", "answered 500"),
    ],
)
def test_refusals_are_one_line(hub: Hub, status: int, code: str, expected: str) -> None:
    hub.refused["someone/model"] = (status, code)
    with pytest.raises(EtymonError, match=expected) as error:
        resolve("someone/model", revision="main")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", ["disk", "transfer"])
def test_a_broken_transfer_is_one_line(hub: Hub, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError

    def fail(*arguments: object, **options: object) -> None:
        if kind == "disk":
            raise OSError(errno.ENOSPC, "No space left on device")
        raise HfHubHTTPError.__bases__[0]("the peer hung up\nlong story")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    expected = {"disk": "No space left on device", "transfer": "the peer hung up"}[kind]
    with pytest.raises(EtymonError, match=expected) as error:
        resolve("someone/model")
    assert "\n" not in str(error.value)


def test_an_unknown_revision(hub: Hub, tmp_path: Path) -> None:
    hub.repositories["someone/model"] = repository(tmp_path, "whole")
    with pytest.raises(EtymonError, match="no revision 'old'"):
        resolve("someone/model", revision="old")


def test_local_folders_never_reach_the_hub(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "someone" / "model").mkdir(parents=True)
    (tmp_path / "file.txt").touch()
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve("someone/model") == Path("someone/model")
    assert resolve(tmp_path / "someone") == tmp_path / "someone"
    assert resolve("~/someone") == tmp_path / "someone"
    for missing in ("./x", "../x", "/x/y", "~/x", "a/b/c", Path("x"), Path("a/b")):
        with pytest.raises(EtymonError, match="no such folder"):
            resolve(missing)
    with pytest.raises(EtymonError, match="is a file"):
        resolve("file.txt")
    with pytest.raises(EtymonError, match="is empty"):
        resolve("")
    with pytest.raises(EtymonError, match="no revisions"):
        resolve("someone/model", revision="v1")
    with pytest.raises(EtymonError, match="neither a folder here nor a possible hub id"):
        resolve("not a model!")
    assert hub.requests == 0
