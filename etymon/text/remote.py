"""Files behind URLs, read from beginning to end through `fsspec`."""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from etymon.errors import EtymonError
from etymon.files import first_line

PACKAGES = {
    "s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "az": "adlfs",
    "http": "'etymon[remote]'", "https": "'etymon[remote]'", "hf": "huggingface_hub",
}  # fmt: skip
"""What to install for a kind of URL."""
VERSIONS = ("ETag", "etag", "md5Hash", "Content-MD5", "Digest", "generation", "xet_hash", "blob_id")
TIMES = ("Last-Modified", "LastModified", "last_modified", "mtime", "updated", "modified", "created")
"""What stores say of a file that changes whenever the file does, the surest first."""
SECONDS = 60  # without an answer, or without a byte, after which a server is given up


def is_remote(path: Any) -> bool:
    return isinstance(path, str) and "://" in path


@dataclass(frozen=True, order=True)
class RemoteFile:
    """A file behind a URL: as much of a `Path` as reading it needs."""

    url: str

    def __str__(self) -> str:
        """The URL as it may be shown: without name, password and query, which may hold secrets."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    @property
    def key(self) -> str:
        """What it is called where it is written down."""
        query = urlsplit(self.url).query
        return str(self) + (f"?{hashlib.sha256(query.encode()).hexdigest()[:8]}" if query else "")

    @property
    def name(self) -> str:
        return PurePosixPath(urlsplit(self.url).path).name or urlsplit(self.url).netloc

    @property
    def suffix(self) -> str:
        return PurePosixPath(self.name).suffix

    @property
    def stem_suffix(self) -> str:
        """The suffix before the last one: of notes.txt.gz, .txt."""
        return PurePosixPath(self.name).with_suffix("").suffix

    @cached_property
    def _place(self) -> tuple[Any, str]:
        return _file_system(self.url, str(self))

    def stamp(self) -> dict[str, Any]:
        """Its size and version, by which it is recognised without reading it; nothing if the store does not
        say which version it has."""
        with _one_line(self):
            fs, path = self._place
            fs.invalidate_cache()  # another process may have replaced it
            info = fs.info(path)
        version = next((info[name] for name in (*VERSIONS, *TIMES) if info.get(name)), None)
        size = info.get("size")
        return {} if version is None or size is None else {"bytes": int(size), "version": str(version)}

    def size(self) -> int | None:
        with _one_line(self):
            fs, path = self._place
            size = fs.info(path).get("size")
        return None if size is None else int(size)

    @contextmanager
    def open(self) -> Iterator[RemoteReader]:
        size = self.size()
        with _one_line(self):
            fs, path = self._place
            # Over HTTP one request for all of it: not every server gives parts of a file.
            stream = fs.open(path, "rb", **({"block_size": 0} if "http" in fs.protocol else {}))
        with stream:
            yield RemoteReader(stream, size)

    def list_files(self) -> list[RemoteFile] | None:
        """The files that a glob or a folder stands for, hidden ones left out; None if it is a file."""
        with _one_line(self):
            fs, path = self._place
            is_http = "http" in fs.protocol  # where ? begins a query, and a folder is a page of links at best
            if any(mark in path for mark in ("*[" if is_http else "*?[")):
                entries = fs.glob(path, detail=True)
                paths = [name for name, info in entries.items() if info.get("type", "file") == "file"]
            elif path.endswith("/") or (not is_http and fs.isdir(path)):
                paths = fs.find(path)
            else:
                return None
            files = [RemoteFile(fs.unstrip_protocol(entry)) for entry in paths]
        return sorted(file for file in files if not file.name.startswith("."))


class RemoteReader:
    """Reads a stream; whatever goes wrong is an `OSError` with a number, and so is an early end."""

    def __init__(self, stream: Any, size: int | None) -> None:
        self.stream, self.size, self.count = stream, size, 0

    def readinto(self, buffer: Any) -> int:
        try:
            data = self.stream.read(len(buffer))
        except Exception as error:  # every store has errors of its own
            raise OSError(errno.EIO, f"after {self.count:,} bytes: {_reason(error)}") from error
        if not data and self.size is not None and self.count < self.size:
            raise OSError(errno.EIO, f"it ended after {self.count:,} of {self.size:,} bytes")
        buffer[: len(data)] = data
        self.count += len(data)
        return len(data)


def _file_system(url: str, shown: str) -> tuple[Any, str]:
    import fsspec

    protocol = urlsplit(url).scheme
    options: dict[str, Any] = {}
    try:
        if protocol in ("http", "https"):
            import aiohttp

            # The usual limit is five minutes for a whole file.
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=SECONDS, sock_read=SECONDS)
            options["client_kwargs"] = {"timeout": timeout}
        fs, path = fsspec.core.url_to_fs(url, **options)
    except ImportError as error:
        package = PACKAGES.get(protocol)
        advice = f"pip install {package}" if package else first_line(error)
        raise EtymonError(
            f"cannot read {shown}: {protocol}:// needs another package: {advice}", code="missing-package"
        ) from error
    except ValueError as error:
        raise EtymonError(f"cannot read {shown}: {first_line(error)}") from error
    return fs, path


@contextmanager
def _one_line(file: RemoteFile) -> Iterator[None]:
    try:
        yield
    except EtymonError:
        raise
    except Exception as error:  # every store has errors of its own
        raise EtymonError(f"cannot read {file}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        # fsspec calls every failure over HTTP a missing file.
        if not isinstance(cause := error.__cause__, Exception) or getattr(cause, "status", None) == 404:
            return "there is no such file"
        error = cause
    if status := getattr(error, "status", None):
        return f"the server answers {status} ({getattr(error, 'message', '') or type(error).__name__})"
    return getattr(error, "strerror", None) or first_line(error)
