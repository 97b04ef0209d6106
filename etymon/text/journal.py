"""What is finished of a long job, kept in a folder beside its result, so that one that was killed goes on.

A journal has a line for every part that is finished, in the order of the text, with a checksum of the text of
that part. Whoever goes on reads the text again, which is fast beside what is done with it, and takes over
part after part for as long as the text is the one that was there before.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from numpy.lib import format as npy

from etymon.errors import EtymonError
from etymon.files import DISK_ERRORS


class Rows:
    """A file of rows of numbers that grows, and is read back a slice at a time.

    Reads go through the file, not a mapping: mapped pages count as memory.
    """

    def __init__(self, path: Path, dtype: np.dtype | str = "i8", width: int = 1) -> None:
        self.path, self.dtype, self.width, self.length = path, np.dtype(dtype), width, 0
        path.touch()  # rows may be there already: they count when they are taken over

    def __len__(self) -> int:
        return self.length

    def append(self, rows: np.ndarray) -> bytes:
        """Returns what was written."""
        data = np.ascontiguousarray(rows, self.dtype).tobytes()
        with self.path.open("ab") as file:
            file.write(data)
        self.length += len(rows)
        return data

    def read(self, start: int, stop: int) -> np.ndarray:
        count, offset = max(0, min(stop, self.length) - start), start * self.width
        rows = np.fromfile(self.path, self.dtype, count * self.width, offset=offset * self.dtype.itemsize)
        return rows if self.width == 1 else rows.reshape(-1, self.width)

    def take_over(self, length: int) -> bytes:
        """The rows that are in the file already, behind those that count, up to `length`; from now on, they
        count."""
        size = self.width * self.dtype.itemsize
        start, self.length = self.length, length
        with self.path.open("rb") as file:
            file.seek(start * size)
            return file.read((length - start) * size)

    def forget_rest(self, length: int | None = None) -> None:
        """Rows behind `length`, or those that do not count, are removed."""
        self.length = self.length if length is None else length
        os.truncate(self.path, self.length * self.width * self.dtype.itemsize)

    def find(self, value: int) -> int:
        """The first row that does not begin with less than `value`, of rows in order; touches a few pages
        only."""
        if not self.length:
            return 0
        mapped = np.memmap(self.path, self.dtype, "r", shape=(self.length, self.width))
        return int(np.searchsorted(mapped[:, 0], value))

    def as_npy(self) -> None:
        """Make a .npy file of it."""
        header = {"descr": self.dtype.str, "fortran_order": False, "shape": (self.length,)}
        with self.path.open("rb") as rows, self.path.with_suffix(".npy").open("wb") as file:
            npy.write_array_header_1_0(file, header)
            shutil.copyfileobj(rows, file, 1 << 20)
        self.path.unlink()


class Journal:
    """The lines of a file. `key` is what all of them depend on: those that were written under another are
    forgotten."""

    def __init__(self, path: Path, key: dict[str, Any]) -> None:
        self.path, self._place = path, 0
        self._lines: list[bytes] = []
        first = json.dumps(key, sort_keys=True).encode() + b"\n"
        if path.is_file():
            lines = path.read_bytes().splitlines(keepends=True)
            if lines and lines[0] == first:
                # A process that is killed may leave half a line.
                self._lines = [line for line in lines[1:] if line.endswith(b"\n")]
        if not self._lines:
            path.write_bytes(first)
        self._size = len(first)

    def next(self, text: str) -> dict[str, Any] | None:
        """The entry of the next part, if it was made from the text of that checksum; None from the first part
        on that was not."""
        if self._place < len(self._lines):
            entry: dict[str, Any] = json.loads(self._lines[self._place])
            if entry["text"] == text:
                return entry
        return None

    def keep(self) -> None:
        """The entry that `next` gave is taken over."""
        self._size += len(self._lines[self._place])
        self._place += 1

    def forget_rest(self) -> None:
        """Entries that were not taken over are removed."""
        self._lines = []
        os.truncate(self.path, self._size)

    def add(self, text: str, **entry: Any) -> None:
        """A part is finished: what is said of it is on the disk already."""
        line = json.dumps({"text": text, **entry}).encode() + b"\n"
        with self.path.open("ab") as file:
            file.write(line)
        self._size += len(line)


@contextmanager
def unfinished_folder(folder: Path) -> Iterator[Path]:
    """A folder beside `folder` for what is finished of it. It is removed when the block ends well, and kept
    when it does not, if a journal in it says that something is finished."""
    place = folder.parent / f".{folder.name}.unfinished"
    is_kept = False
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EtymonError(f"cannot write {folder}: {error.strerror}; give another place") from error
    lock = FileLock(place / "lock")
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise EtymonError(
            f"another process is making {folder}: wait for it, or give another --out", code="run-locked"
        ) from None
    try:
        yield place
    except BaseException as error:
        is_kept = any(path.read_bytes().count(b"\n") > 1 for path in place.glob("*.journal"))
        if is_kept and isinstance(error, EtymonError):
            raise EtymonError(f"{error} (what is finished is kept: the same command goes on)") from error
        if isinstance(error, OSError) and error.errno in DISK_ERRORS:
            raise EtymonError(f"cannot write {folder}: {error.strerror}; make room there") from error
        raise
    finally:
        if not is_kept:
            shutil.rmtree(place, ignore_errors=True)
        lock.release()
