"""A small server that speaks the part of the hub's protocol that uploads need, and keeps what it is sent."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

TOKEN = "hf_" + "x" * 34
Answer = tuple[int, object]


@dataclass
class Repository:
    private: bool
    branches: dict[str, dict[str, bytes]] = field(default_factory=lambda: {"main": {".gitattributes": b""}})
    commits: dict[str, list[str]] = field(default_factory=lambda: {"main": ["0" * 40]})


class HubServer:
    """`fail` may be a function of (method, path) that gives a status to answer with, or None."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.blobs: dict[str, bytes] = {}
        """Large files by their digests, as they were sent."""
        self.requests: list[tuple[str, str]] = []
        self.sent: list[str] = []
        """Digests of large files and names of small ones, in the order in which they came."""
        self.fail: Callable[[str, str], int | None] = lambda method, path: None
        self.user = "ada"
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                body = self._body()
                path = unquote(urlsplit(self.path).path)
                outer.requests.append((self.command, path))
                status = outer.fail(self.command, path)
                if status is None:
                    status, content = outer.route(
                        self.command, path, body, self.headers.get("authorization", "")
                    )
                else:
                    content = {"error": "as the test wanted it"}
                data = json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def _body(self) -> bytes:
                if self.headers.get("Transfer-Encoding", "") != "chunked":
                    return self.rfile.read(int(self.headers.get("Content-Length") or 0))
                body = b""
                while size := int(self.rfile.readline(), 16):
                    body += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
                return body

            do_GET = do_POST = do_PUT = _answer

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def files(self, name: str, branch: str = "main") -> dict[str, bytes]:
        return {
            file: data for file, data in self.repositories[name].branches[branch].items() if file[0] != "."
        }

    # --- the addresses

    def route(self, method: str, path: str, body: bytes, authorization: str) -> Answer:
        if path.startswith("/blobs/"):  # as a bucket, which is told by the address who may write
            digest = path.removeprefix("/blobs/")
            assert hashlib.sha256(body).hexdigest() == digest
            self.blobs[digest] = body
            self.sent.append(digest)
            return 200, {}
        if authorization != f"Bearer {TOKEN}":
            return 401, {"error": "Invalid username or password."}
        if path == "/api/whoami-v2":
            return 200, {"type": "user", "name": self.user, "auth": {"accessToken": {"role": "write"}}}
        if path == "/api/validate-yaml":
            return 200, {"errors": [], "warnings": []}
        if path == "/api/repos/create":
            return self._create(json.loads(body))
        if match := re.fullmatch(r"/(.+)\.git/info/lfs/objects/batch", path):
            return 200, {
                "transfer": "basic",
                "objects": [self._batch(each) for each in json.loads(body)["objects"]],
            }
        match = re.fullmatch(r"/api/models/([^/]+/[^/]+)/(revision|tree|branch|preupload|commit)/(.+)", path)
        if match is None or match[1] not in self.repositories:
            return 404, {"error": f"{method} {path}"}
        name, what, branch = match[1], match[2], match[3]
        repository = self.repositories[name]
        if what == "branch":
            if branch in repository.branches:
                return 409, {"error": "Reference already exists"}
            repository.branches[branch] = dict(repository.branches["main"])
            repository.commits[branch] = list(repository.commits["main"])
            return 200, {}
        if branch not in repository.branches:
            return 404, {"error": "Invalid rev id"}
        files = repository.branches[branch]
        if what == "revision":
            return 200, {"id": name, "sha": repository.commits[branch][-1], "private": repository.private}
        if what == "tree":
            return 200, [
                {"type": "file", "path": f, "size": len(d), "oid": _git_id(d)} for f, d in files.items()
            ]
        if what == "preupload":
            return 200, {"files": [self._mode(each, files) for each in json.loads(body)["files"]]}
        return self._commit(name, branch, body)

    def _create(self, wanted: dict[str, str]) -> Answer:
        name = f"{wanted.get('organization') or self.user}/{wanted['name']}"
        if name.partition("/")[0] != self.user:
            return 403, {"error": "You don't have the rights to create a model under this namespace"}
        if name in self.repositories:
            return 409, {"error": "You already created this model repo", "url": f"{self.address}/{name}"}
        self.repositories[name] = Repository(wanted.get("visibility") == "private")
        return 200, {"url": f"{self.address}/{name}", "name": name}

    def _mode(self, file: dict[str, str], files: dict[str, bytes]) -> dict[str, object]:
        name = file["path"]
        is_large = name.endswith((".safetensors", ".png"))
        stored = files.get(name)
        oid = None
        if stored is not None:
            oid = hashlib.sha256(stored).hexdigest() if is_large else _git_id(stored)
        return {
            "path": name,
            "uploadMode": "lfs" if is_large else "regular",
            "shouldIgnore": False,
            "oid": oid,
        }

    def _batch(self, wanted: dict[str, object]) -> dict[str, object]:
        answer = {"oid": wanted["oid"], "size": wanted["size"]}
        if wanted["oid"] in self.blobs:
            return answer  # without actions: it is here already
        return {
            **answer,
            "actions": {"upload": {"href": f"{self.address}/blobs/{wanted['oid']}", "header": {}}},
        }

    def _commit(self, name: str, branch: str, body: bytes) -> Answer:
        repository = self.repositories[name]
        files = dict(repository.branches[branch])
        for line in body.splitlines():
            key, value = (json.loads(line)[part] for part in ("key", "value"))
            if key == "file":
                files[value["path"]] = base64.b64decode(value["content"])
                self.sent.append(value["path"])
            elif key == "lfsFile":
                files[value["path"]] = self.blobs[value["oid"]]
            elif key == "deletedFile":
                del files[value["path"]]
        number = sum(map(len, repository.commits.values()))
        repository.branches[branch] = files
        repository.commits[branch].append(hashlib.sha1(str(number).encode()).hexdigest())
        oid = repository.commits[branch][-1]
        return 200, {
            "success": True,
            "commitOid": oid,
            "commitUrl": f"{self.address}/{name}/commit/{oid}",
            "hookOutput": "",
        }


def _git_id(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
