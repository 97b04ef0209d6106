"""Text behind URLs: through fsspec's file systems in memory, on this disk and over HTTP."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fsspec
import pyarrow
import pyarrow.parquet
import pytest

from etymon.errors import EtymonError
from etymon.executors import LocalExecutor
from etymon.text import encoding
from etymon.text.remote import RemoteFile
from etymon.text.sources import TextFiles, text_source
from etymon.text.store_building import build_store, ensure_store
from etymon.text.tokenizer import Tokenizer

from .conftest import story
from .test_resuming import files

TEXTS = [story(number, 6) for number in range(30)]
LINES = "\n".join(json.dumps({"text": text}) for text in TEXTS).encode()


def packed(suffix: str) -> bytes:
    if suffix == ".parquet":
        file = io.BytesIO()
        pyarrow.parquet.write_table(pyarrow.table({"text": TEXTS}), file)
        return file.getvalue()
    if suffix.endswith(".zst"):
        return bytes(pyarrow.compress(LINES, "zstd", asbytes=True))
    packers: dict[str, Callable[[bytes], bytes]] = {
        "gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "jsonl": bytes,
    }  # fmt: skip
    return packers[suffix.rpartition(".")[2]](LINES)


@pytest.fixture
def memory() -> Iterator[Any]:
    """fsspec's file system in memory, empty."""
    fs = fsspec.filesystem("memory")
    yield fs
    fs.rm("/", recursive=True)


class Handler(SimpleHTTPRequestHandler):
    """Serves a folder. A file whose name has "cut" in it ends early, without a word."""

    requests: list[str] = []

    def log_message(self, *arguments: object) -> None: ...

    def do_GET(self) -> None:
        self.requests.append(self.path)
        if "forbidden" in self.path:
            self.send_error(403)
        elif "cut" in self.path and (path := Path(self.translate_path(self.path))).exists():
            data = path.read_bytes()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data[: len(data) * 2 // 3])
        else:
            super().do_GET()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder, and the URL that it is served under."""
    folder = tmp_path / "served"
    folder.mkdir()
    Handler.requests.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder))) as http:
        threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True).start()
        yield folder, f"http://127.0.0.1:{http.server_address[1]}"
        http.shutdown()


@pytest.mark.parametrize(
    "suffix", [".jsonl", ".jsonl.gz", ".jsonl.bz2", ".jsonl.xz", ".jsonl.zst", ".parquet"]
)
def test_every_format_is_read_from_a_store(memory: Any, suffix: str) -> None:
    memory.pipe(f"/corpus/a{suffix}", packed(suffix))
    source = TextFiles([f"memory://corpus/a{suffix}"])
    assert [document.text for document in source.documents()] == TEXTS
    assert source.bytes_read == source.size() == len(packed(suffix))


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet"])
def test_every_format_is_read_over_http(server: tuple[Path, str], suffix: str) -> None:
    folder, url = server
    (folder / f"a{suffix}").write_bytes(packed(suffix))
    assert [document.text for document in TextFiles([f"{url}/a{suffix}"]).documents()] == TEXTS


def test_folders_and_globs_in_a_store(memory: Any) -> None:
    for name in ("a.txt", "b/c.txt.gz", "b/d.dat", "b/.hidden.txt"):
        data = f"The text of {name}.".encode()
        memory.pipe(f"/corpus/{name}", gzip.compress(data) if name.endswith("gz") else data)
    listed = TextFiles(["memory://corpus"]).list_files()
    assert [str(file) for file in listed] == ["memory:///corpus/a.txt", "memory:///corpus/b/c.txt.gz"]
    assert [file.name for file in TextFiles(["memory://corpus/*.txt"]).list_files()] == ["a.txt"]
    assert [file.name for file in TextFiles(["memory://corpus/**/*.gz"]).list_files()] == ["c.txt.gz"]
    texts = [document.text for document in TextFiles(["memory://corpus"]).documents()]
    assert texts == ["The text of a.txt.", "The text of b/c.txt.gz."]


def test_a_store_of_remote_text_is_that_of_local_text(
    trained: dict[str, Tokenizer], server: tuple[Path, str], tmp_path: Path
) -> None:
    folder, url = server
    (folder / "a.jsonl.gz").write_bytes(packed(".jsonl.gz"))
    ensure_store(TextFiles([folder / "a.jsonl.gz"]), trained["byte-bpe"], tmp_path / "a")
    made = ensure_store(TextFiles([f"{url}/a.jsonl.gz"]), trained["byte-bpe"], tmp_path / "b")
    assert made.reused is False
    one, two = files(tmp_path / "a"), files(tmp_path / "b")
    assert all(one[name] == two[name] for name in one if name != "store.json")
    assert json.loads(one["store.json"])["source"] == json.loads(two["store.json"])["source"]


def test_remote_text_that_has_not_changed_is_not_read_again(
    trained: dict[str, Tokenizer], server: tuple[Path, str], tmp_path: Path
) -> None:
    folder, url = server
    (folder / "a.txt").write_text(TEXTS[0])

    def ensure() -> bool:
        Handler.requests.clear()
        return ensure_store(TextFiles([f"{url}/a.txt"]), trained["byte-bpe"], tmp_path / "s").reused

    assert ensure() is False and Handler.requests == ["/a.txt"]
    assert ensure() is True and Handler.requests == []
    (folder / "a.txt").write_text(TEXTS[1] + TEXTS[2])
    assert ensure() is False


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("missing.txt", "cannot read http://.*/missing.txt: there is no such file"),
        ("forbidden.txt", "forbidden.txt: the server answers 403"),
        ("cut.txt", "cut.txt: after [0-9,]+ bytes: "),
        ("cut.jsonl.gz", "cut.jsonl.gz: after [0-9,]+ bytes: "),
        ("cut.parquet", "cut.parquet: after [0-9,]+ bytes: "),
    ],
)
def test_what_cannot_be_read_over_http(server: tuple[Path, str], name: str, reason: str) -> None:
    folder, url = server
    if "missing" not in name:
        (folder / name).write_bytes(
            LINES * 30 if name.endswith("txt") else packed(name.partition("cut")[2]) * 9
        )
    with pytest.raises(EtymonError, match=reason) as error:
        list(TextFiles([f"{url}/{name}?key=secret"]).documents())
    assert "\n" not in str(error.value) and "secret" not in str(error.value)


def test_nobody_listens() -> None:
    with pytest.raises(EtymonError, match=r"cannot read http://127.0.0.1:9/a.txt: .*[Cc]onnect"):
        list(TextFiles(["http://me:secret@127.0.0.1:9/a.txt"]).documents())


def test_a_cut_connection_loses_nothing_that_was_finished(
    trained: dict[str, Tokenizer], server: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, url = server
    monkeypatch.setattr(encoding, "BATCH", 1000)
    (folder / "a.txt").write_text("\n".join(TEXTS))
    source = TextFiles([f"{url}/a.txt", f"{url}/cut.txt"], boundary="line")
    options: dict[str, Any] = {"resumable": True, "executor": LocalExecutor(1)}
    with pytest.raises(EtymonError, match=r"no such file \(what is finished is kept"):
        build_store(source.documents(), trained["byte-bpe"], tmp_path / "s", **options)
    (folder / "cut.txt").write_text("\n".join(TEXTS))
    with pytest.raises(EtymonError, match=r"cut.txt: .*what is finished is kept"):
        build_store(source.documents(), trained["byte-bpe"], tmp_path / "s", **options)
    (folder / "b.txt").write_text("\n".join(TEXTS))
    source = TextFiles([f"{url}/a.txt", f"{url}/b.txt"], boundary="line")
    made = build_store(source.documents(), trained["byte-bpe"], tmp_path / "s", source=source, **options)
    assert made.resumed_bytes > 0.8 * sum(len(text.encode()) for text in TEXTS)
    build_store(
        source.documents(), trained["byte-bpe"], tmp_path / "whole", source=source, executor=LocalExecutor(1)
    )
    assert files(tmp_path / "s") == files(tmp_path / "whole")


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("s3://bucket/a.txt", "pip install s3fs"),
        ("gs://bucket/a.txt", "pip install gcsfs"),
        ("nowhere://a/b.txt", "Protocol not known: nowhere"),
        ("memory://corpus/none.txt", "there is no such file"),
        ("memory://corpus/none/*.txt", "no text files at memory://corpus/none/"),
        ("memory://corpus/a.pdf", "save it as plain text"),
        ("memory://corpus/a.bin", "known text files are .txt"),
    ],
)
def test_what_is_missing_is_said_in_one_line(memory: Any, url: str, reason: str) -> None:
    for name in ("a.pdf", "a.bin"):
        memory.pipe(f"/corpus/{name}", b"x")
    with pytest.raises(EtymonError, match=reason) as error:
        list(TextFiles([url]).documents())
    assert "\n" not in str(error.value)


def test_secrets_in_urls_are_not_shown() -> None:
    file = RemoteFile("https://me:password@host.org:80/a/b.txt.gz?token=secret")
    assert str(file) == "https://host.org:80/a/b.txt.gz" and (file.name, file.suffix) == ("b.txt.gz", ".gz")
    assert file.key.startswith(f"{file}?") and "secret" not in file.key
    assert text_source([file.url]).description == str(file)
