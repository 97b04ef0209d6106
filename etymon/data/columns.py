"""Columns of numbers on the disk: they grow, and are read back a slice at a time."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.lib import format as npy

BLOCK = 1 << 20  # numbers that are copied at once


class Column:
    """A file of numbers of one type. Reads go through the file, not a mapping: mapped pages count as memory."""

    def __init__(self, path: Path, dtype: np.dtype | type) -> None:
        self.path, self.dtype, self.length = path, np.dtype(dtype), 0
        self._file = open(path, "wb")  # noqa: SIM115

    def __len__(self) -> int:
        return self.length

    def append(self, values: np.ndarray) -> None:
        self._file.write(np.ascontiguousarray(values, self.dtype).tobytes())
        self.length += len(values)

    def flush(self) -> None:
        """Make everything that was written readable."""
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def read(self, start: int, stop: int) -> np.ndarray:
        offset = start * self.dtype.itemsize
        return np.fromfile(self.path, self.dtype, max(0, min(stop, self.length) - start), offset=offset)

    def sum(self, start: int, stop: int) -> int:
        return sum(int(self.read(low, min(low + BLOCK, stop)).sum()) for low in range(start, stop, BLOCK))

    def find(self, value: int) -> int:
        """Where `value` belongs in an ascending column, before its equals; touches a few pages only."""
        if not self.length:
            return 0
        return int(np.searchsorted(np.memmap(self.path, self.dtype, "r", shape=(self.length,)), value))

    def replace(self, place: int, removed: int, values: list[int]) -> None:
        """Put `values` in the place of `removed` numbers."""
        self.close()
        old = self.path.with_suffix(".old")
        self.path.rename(old)
        length, self.length = self.length, 0
        self._file = open(self.path, "wb")  # noqa: SIM115
        source = Column.__new__(Column)
        source.path, source.dtype, source.length = old, self.dtype, length
        for low in range(0, place, BLOCK):
            self.append(source.read(low, min(low + BLOCK, place)))
        self.append(np.array(values, self.dtype))
        for low in range(place + removed, length, BLOCK):
            self.append(source.read(low, low + BLOCK))
        self.flush()
        old.unlink()


class ArrayFile:
    """A one-dimensional .npy file whose length is known only at the end."""

    def __init__(self, path: Path, dtype: np.dtype | type) -> None:
        self.dtype, self.length = np.dtype(dtype), 0
        self._file = open(path, "wb")  # noqa: SIM115
        self._header()
        self._data = self._file.tell()

    def _header(self) -> None:
        description = npy.dtype_to_descr(self.dtype)
        npy.write_array_header_1_0(
            self._file, {"descr": description, "fortran_order": False, "shape": (self.length,)}
        )

    def append(self, values: np.ndarray) -> None:
        self._file.write(np.ascontiguousarray(values, self.dtype).tobytes())
        self.length += len(values)

    def __enter__(self) -> ArrayFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._file.seek(0)
            self._header()
            assert self._file.tell() == self._data, "numpy pads headers so that lengths fit"
        self._file.close()
