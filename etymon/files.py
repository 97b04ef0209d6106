"""Files: writing that is never half done (build aside, flush to the disk, then rename into place), and JSON
on disk."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import secrets
import shutil
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, is_dataclass
from functools import cache
from numbers import Real
from pathlib import Path
from typing import IO, Any

from etymon.errors import EtymonError

# What a full, broken or read-only disk says in the middle of a write. Other OSErrors raised by the
# caller's own code inside the `with` block are bugs of that code and keep their traceback.
DISK_ERRORS = {errno.ENOSPC, errno.EROFS, errno.EFBIG, errno.EIO, getattr(errno, "EDQUOT", errno.ENOSPC)}

ASIDE = re.compile(
    r"\.(?P<name>.*)\.(?P<pid>\d+)-(?:(?P<host>[0-9a-f]{8})-)?[0-9a-f]+\.(?P<kind>partial|replaced)",
    re.DOTALL,
)
"""The name of something half written, or of an old folder that is being replaced: whose it is, by process
and host (older releases did not say which), and a random part."""
ABANDONED = 24 * 3600
"""Seconds without a change after which something half written by a process on another host is taken for left
over."""
CLOCKS_APART = 600
"""Seconds that the clocks of this host and of a disk may differ."""
_swept: set[Path] = set()
"""Folders that this process has swept."""


@contextmanager
def atomic_write(path: str | os.PathLike[str], mode: str = "w") -> Iterator[IO[Any]]:
    """Open `path` for writing ("w" for UTF-8 text, "wb" for bytes); it appears only when complete.

    On any error the old file, if there was one, is left untouched. Missing parent folders are made.
    """
    if mode not in ("w", "wb"):
        raise ValueError(f"atomic_write takes mode 'w' or 'wb', not {mode!r}")
    path = Path(path)
    aside = _aside(path)
    try:
        with _disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            sweep_left_over(path.parent)
            text = {} if "b" in mode else {"encoding": "utf-8", "newline": "\n"}
            file = open(aside, mode.replace("w", "x"), **text)  # type: ignore[call-overload]  # noqa: SIM115
        with _disk_errors(path, only=DISK_ERRORS), file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        with _disk_errors(path):
            os.replace(aside, path)
            _sync_folder(path.parent)
    finally:
        with suppress(OSError):
            aside.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield an empty folder beside `path`; when the block ends well it takes the place of `path`.

    On any error the new folder is removed and an old one stays as it was.
    """
    path = Path(path)
    aside, old = _aside(path), _aside(path, "replaced")
    try:
        with _disk_errors(path):
            if path.exists() and not path.is_dir():
                raise EtymonError(
                    f"cannot write the folder {path}: a file of that name is in the way; remove it"
                )
            path.parent.mkdir(parents=True, exist_ok=True)
            sweep_left_over(path.parent)
            aside.mkdir()
        with _disk_errors(path, only=DISK_ERRORS):
            yield aside
        with _disk_errors(path):
            for folder, _, names in os.walk(aside):
                for name in names:
                    # Windows refuses fsync on a handle that was opened for reading only.
                    with open(Path(folder, name), "r+b") as file:
                        os.fsync(file.fileno())
                _sync_folder(Path(folder))
            if path.exists():
                os.rename(path, old)  # a non-empty folder cannot be replaced in one call
            try:
                os.rename(aside, path)
            except OSError:
                if old.exists():
                    os.rename(old, path)
                raise
            _sync_folder(path.parent)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        if path.exists():
            shutil.rmtree(old, ignore_errors=True)


def sweep_left_over(folder: Path) -> None:
    """Removes what killed processes left half written in `folder`; once a folder in the life of this process.

    A process of this host is asked for by its number. Of those on other hosts, and in other containers,
    which share folders over a network, only the age of what they wrote can be known.
    """
    folder = folder.absolute()
    if folder in _swept:
        return
    _swept.add(folder)
    with suppress(OSError), os.scandir(folder) as entries:
        for path in [Path(entry.path) for entry in entries if ASIDE.fullmatch(entry.name)]:
            if _is_left_over(path):
                remove(path)


def remove(path: Path) -> None:
    """Removes a file or a folder, as far as that is possible."""
    with suppress(OSError):
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)


def sha256(path: str | os.PathLike[str]) -> str:
    """The hex SHA-256 digest of a file, read in bounded memory."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


DEEPEST = 100
"""Lists and objects inside one another that a JSON text may have: Python's reader and writer end at about a
thousand."""
LARGEST_JSON = 100_000_000
"""Bytes of a file that is read as JSON in one go."""


def parse_json(text: str, place: str, advice: str = "correct or replace it") -> Any:
    """The value of a JSON text; `place` and `advice` are for the message about one that is broken or too
    deep."""
    try:
        value = json.loads(text)
        if is_deep(value):
            raise RecursionError
    except (ValueError, RecursionError) as error:
        raise EtymonError(f"{place} is not valid JSON ({json_fault(error, text)}); {advice}") from error
    return value


def json_fault(error: ValueError | RecursionError, text: str = "") -> str:
    """Why a text could not be read as JSON."""
    if isinstance(error, json.JSONDecodeError):
        line = f"line {error.lineno}, " if "\n" in text else ""
        return f"{error.msg} at {line}column {error.colno}"
    return "nested too deeply" if isinstance(error, RecursionError) else "a number of too many digits"


def is_deep(value: Any) -> bool:
    """Whether lists and objects lie inside one another more than `DEEPEST` times."""
    layer = [value] if isinstance(value, dict | list) else []
    for _ in range(DEEPEST):
        inner = (part for each in layer for part in (each.values() if isinstance(each, dict) else each))
        layer = [part for part in inner if isinstance(part, dict | list)]
    return bool(layer)


def read_json(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The JSON object in the file `path`."""
    value = read_any_json(path)
    if not isinstance(value, dict):
        raise EtymonError(
            f"{path} holds a JSON {type(value).__name__} where an object was expected; replace it"
        )
    return value


def read_any_json(path: str | os.PathLike[str]) -> Any:
    """The JSON value in the file `path`, whatever it is."""
    path = Path(path)
    try:
        if path.stat().st_size > LARGEST_JSON:
            raise EtymonError(
                f"{path} has {path.stat().st_size:,} bytes, too many for a JSON file; replace it"
            )
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise EtymonError(f"no such file: {path}") from None
    except UnicodeDecodeError as error:
        raise EtymonError(f"{path} is not UTF-8 text; replace it") from error
    except OSError as error:
        raise EtymonError(f"cannot read {path}: {error.strerror or error}") from error
    value = parse_json(text, str(path))
    # JSON can spell half of a pair, which is no character and cannot be saved.
    try:
        json.dumps(value if "\\u" in text else None, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise EtymonError(
            f"{path} holds half of a character (a lone surrogate); correct or replace it"
        ) from error
    return value


def write_json(path: str | os.PathLike[str], value: dict[str, Any]) -> None:
    """Write `value` the way Transformers writes its configs: two spaces, sorted keys, a last newline.

    Numbers that JSON does not have (NaN, infinity) are a ValueError: other readers would choke on them.
    """
    text = json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)
    with atomic_write(path) as file:
        file.write(text + "\n")


def json_text(value: Any, *, indent: int | None = None, ascii: bool = False) -> str:
    """The value as JSON that every reader takes: null for NaN and infinity, dataclasses as objects, others
    as text."""
    return json.dumps(finite(value), indent=indent, ensure_ascii=ascii, default=str, allow_nan=False)


def finite(value: Any) -> Any:
    """The value with None for what JSON has no number for, at any depth, and with dataclasses as
    dictionaries."""
    if is_dataclass(value) and not isinstance(value, type):
        return finite(asdict(value))
    if isinstance(value, Mapping):
        return {key: finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [finite(part) for part in value]
    number = isinstance(value, Real) and not isinstance(value, int)  # of which some are too large for a float
    return None if number and not math.isfinite(value) else value


def first_line(error: BaseException) -> str:
    """The first line of what an error says, for a message of one line."""
    return str(error).strip().partition("\n")[0][:200] or type(error).__name__


def some(names: Sequence[str], limit: int = 8) -> str:
    """Names for an error message: "a, b, c and 4 more"."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def holds(folder: Path) -> str:
    """What is in `folder`, for an error message."""
    names = sorted(entry.name for entry in os.scandir(folder))
    return f"it holds: {some(names)}" if names else "it is empty"


def _aside(path: Path, kind: str = "partial") -> Path:
    # Same folder, hence same file system, hence a rename and not a copy. A long name would have no room for
    # the rest.
    name = path.name.encode()[:100].decode(errors="ignore")
    return path.parent / f".{name}.{os.getpid()}-{_host()}-{secrets.token_hex(4)}.{kind}"


@cache
def _host() -> str:
    """Eight digits for where the numbers of processes mean the same: the host, and in it the container."""
    try:
        container = os.readlink("/proc/self/ns/pid")
    except OSError:
        container = ""
    return hashlib.sha256(f"{socket.gethostname()}/{container}".encode()).hexdigest()[:8]


def _is_left_over(path: Path) -> bool:
    """Whether nobody writes there any more, as far as its name and its age tell, and nobody misses it."""
    match = ASIDE.fullmatch(path.name)
    try:
        changes = [path.lstat().st_mtime]
        for folder, folders, files in os.walk(path):
            changes += [Path(folder, name).lstat().st_mtime for name in (*folders, *files)]
    except OSError:  # it is gone, or cannot be read
        return False
    if match is None or (match["kind"] == "replaced" and not (path.parent / match["name"]).exists()):
        return False  # where the process died between two renames, this is the only whole folder
    if match["host"] != _host():
        return time.time() - max(changes) > ABANDONED
    import psutil  # hardly ever needed, and this module is imported by every command

    try:
        # A process that began after the last change has only inherited the number of the one that wrote. A
        # disk on the network may have another clock.
        return psutil.Process(int(match["pid"])).create_time() > max(changes) + CLOCKS_APART
    except psutil.NoSuchProcess:
        return True
    except (psutil.Error, OverflowError):
        return False


@contextmanager
def _disk_errors(path: Path, only: set[int] | None = None) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if only is not None and error.errno not in only:
            raise
        reason = error.strerror or str(error)
        raise EtymonError(f"cannot write {path}: {reason}; nothing was changed there") from error


def _sync_folder(path: Path) -> None:
    """Make a rename in `path` durable, where the platform can open a folder at all."""
    if os.name == "nt":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems refuse to sync a folder
            os.fsync(handle)
    finally:
        os.close(handle)


NEARLY = 0.9995
"""From here on, three digits are rounded to a thousand."""


def format_bytes(number: float) -> str:
    """A short size: 640 MB, 1.23 GB (powers of a thousand)."""
    for size, unit in ((1e18, "EB"), (1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(number) >= NEARLY * size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.0f} B"
