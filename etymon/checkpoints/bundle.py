"""TensorFlow's checkpoints ("tensor bundles"), read without TensorFlow.

`PREFIX.index` is a sorted table in LevelDB's format: blocks of entries whose keys leave out what they share
with the key before, a block that lists the blocks, and a footer that says where it is. The first value is a
header, every other one a small protocol buffer that says where in `PREFIX.data-00000-of-00001` a variable
lies and how it is to be read. Nothing in either file is trusted: every offset is compared with the file's
length, every block and every variable with its checksum, and nothing of them is ever executed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from etymon.checkpoints.crc32c import crc32c, unmasked
from etymon.errors import EtymonError
from etymon.files import some

MAGIC = 0xDB4775248B80FB57
FOOTER, TRAILER = 48, 5
"""Bytes: of two block handles, padded, with the magic number; of a block's kind and checksum."""
LARGEST_INDEX = 256 << 20
"""Bytes. The index of the largest published T5 has 0.1 MB."""
FLOATS: dict[int, str] = {1: "<f4", 2: "<f8", 14: "<u2", 19: "<f2"}
"""TensorFlow's numbers of types that weights have; 14 is bfloat16, which NumPy does not know."""
BFLOAT16 = 14


class _Damage(ValueError):
    """What is wrong with a file, to be told with its name."""


@dataclass(frozen=True)
class BundleEntry:
    """Where a variable lies, and what it is."""

    kind: int
    """TensorFlow's number of its type."""
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    checksum: int
    """Masked, as it is stored."""
    in_slices: bool = False

    @property
    def is_float(self) -> bool:
        return self.kind in FLOATS


class Bundle:
    """The variables of a checkpoint by name; `bundle[name]` reads one and compares its checksum."""

    def __init__(self, prefix: Path) -> None:
        """`prefix` is the path without `.index`."""
        self.prefix = prefix
        self.index = prefix.with_name(f"{prefix.name}.index")
        try:
            if self.index.stat().st_size > LARGEST_INDEX:
                raise _Damage(f"it has more than {LARGEST_INDEX >> 20} MB")
            header, self.entries = _read_index(self.index.read_bytes())
        except OSError as error:
            raise EtymonError(f"cannot read {self.index}: {error.strerror or error}") from error
        except (_Damage, IndexError, KeyError, UnicodeDecodeError, struct.error) as error:
            reason = str(error) if isinstance(error, _Damage) else "it ends within an entry"
            raise EtymonError(
                f"{self.index} is no index of a TensorFlow checkpoint, or damaged ({reason}); "
                "download or copy it again"
            ) from error
        self.shards = [
            prefix.with_name(f"{prefix.name}.data-{number:05d}-of-{header:05d}") for number in range(header)
        ]
        self._check_shards()

    def _check_shards(self) -> None:
        """Refuses files that are missing or shorter than the index says, before anything is read."""
        missing = [path.name for path in self.shards if not path.is_file()]
        if missing:
            raise EtymonError(
                f"{len(missing)} of {len(self.shards)} files that {self.index} speaks of are missing: "
                f"{some(missing, 3)}; download or copy them again"
            )
        sizes = [path.stat().st_size for path in self.shards]
        for name, entry in self.entries.items():
            if entry.shard >= len(sizes):
                raise EtymonError(f"{self.index} is damaged: {name} is in a file that there is not")
            if entry.offset + entry.size > sizes[entry.shard]:
                raise EtymonError(
                    f"{self.shards[entry.shard]} is cut short: {name} would end at byte "
                    f"{entry.offset + entry.size:,} of {sizes[entry.shard]:,}; download or copy it again"
                )

    def __getitem__(self, name: str) -> torch.Tensor:
        entry = self.entries[name]
        path = self.shards[entry.shard]
        if entry.in_slices or not entry.is_float:
            problem = "is cut into slices" if entry.in_slices else f"holds no weights (type {entry.kind})"
            raise EtymonError(f"{name} in {self.index} {problem}, which is not read here")
        # The index is protected by checksums of its own, but not against one that was made to be wrong.
        kind = np.dtype(FLOATS[entry.kind])
        count = 1
        for length in entry.shape:  # of whole numbers without limits: a product in NumPy would wrap around
            count *= length
        if count * kind.itemsize != entry.size:
            raise EtymonError(
                f"{self.index} is damaged: {name} is {entry.shape}, but has {entry.size:,} bytes; "
                "download or copy it again"
            )
        try:
            stored = np.fromfile(path, np.uint8, entry.size, offset=entry.offset)
        except OSError as error:
            raise EtymonError(f"cannot read {path}: {error.strerror or error}") from error
        if len(stored) != entry.size or crc32c(stored) != unmasked(entry.checksum):
            raise EtymonError(
                f"{path} is damaged: {name} is not what was saved (its checksum differs); "
                "download or copy it again"
            )
        # Little-endian by the header, and so are all processors that PyTorch runs on.
        values = stored.view(kind)
        if entry.kind == BFLOAT16:
            tensor = torch.from_numpy(values.view(np.int16)).view(torch.bfloat16)
        else:
            tensor = torch.from_numpy(values)
        return tensor.to(torch.float32).reshape(entry.shape)


def find_bundle(folder: Path) -> Path | None:
    """The prefix of the checkpoint in a folder: the one that a `checkpoint` file names, or the only or newest
    one; None if there is none."""
    prefixes = {path.name.removesuffix(".index"): path for path in sorted(folder.glob("*.index"))}
    # An index by itself may be anything: search engines and browsers have files of that ending, too.
    prefixes = {name: path for name, path in prefixes.items() if any(folder.glob(f"{name}.data-*"))}
    if not prefixes:
        return None
    named = _named_prefix(folder / "checkpoint")
    # Without one, the highest step: `model.ckpt-1000000` is newer than `model.ckpt-999900`.
    best = named if named in prefixes else max(prefixes, key=lambda name: (_step(name), name))
    return folder / best


def _named_prefix(path: Path) -> str | None:
    """The name in a folder's `checkpoint` file, a protocol buffer in text form; without its folder, which
    was another machine's."""
    if not path.is_file() or path.stat().st_size > 1 << 20:
        return None
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model_checkpoint_path":
            return value.strip().strip('"').rpartition("/")[2]
    return None


def _step(prefix: str) -> int:
    last = prefix.rpartition("-")[2]
    return int(last) if last.isdecimal() and len(last) < 16 else -1


# --- the index


def _read_index(data: bytes) -> tuple[int, dict[str, BundleEntry]]:
    """The number of data files, and the entries by name."""
    if len(data) < FOOTER or struct.unpack("<Q", data[-8:])[0] != MAGIC:
        raise _Damage("its last bytes are not those of a table")
    footer = data[-FOOTER:]
    place = 0
    handle = []
    for _ in range(4):  # offset and size of a block of statistics, which is passed over, and of the index
        number, place = _varint(footer, place)
        handle.append(number)
    shards, entries, last = 0, dict[str, BundleEntry](), b""
    for _, block in _block_entries(_block(data, handle[2], handle[3])):
        offset, place = _varint(block, 0)
        size, place = _varint(block, place)
        for key, value in _block_entries(_block(data, offset, size)):
            if shards == 0:
                if key:
                    raise _Damage("it does not begin with a header")
                shards = _read_header(value)
                continue
            # Sorted by bytes: an index in which they are not was put together by something else.
            if key <= last:
                raise _Damage("its names are not in order")
            last = key
            # A slice of a variable has a name that begins with a zero byte; the whole one says that it has
            # slices.
            if key[0]:
                entries[key.decode()] = _read_entry(value)
    if not entries:
        raise _Damage("it names no variables")
    return shards, entries


def _block(data: bytes, offset: int, size: int) -> bytes:
    end = offset + size
    if end + TRAILER > len(data):
        raise _Damage("a block lies beyond its end")
    # Snappy has the number 1; TensorFlow has never written an index with it.
    if data[end] != 0:
        raise _Damage("a block is compressed")
    (stored,) = struct.unpack_from("<I", data, end + 1)
    if crc32c(data[offset : end + 1]) != unmasked(stored):
        raise _Damage("the checksum of a block differs")
    return data[offset:end]


def _block_entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of a block, behind whose entries stands a list of places to begin at."""
    (restarts,) = struct.unpack("<I", block[-4:])
    end = len(block) - 4 * (restarts + 1)
    if end < 0:
        raise _Damage("a block is too short")
    place, key = 0, b""
    while place < end:
        shared, place = _varint(block, place)
        fresh, place = _varint(block, place)
        length, place = _varint(block, place)
        # All three come from the file, and Python's slices would be silent about too long ones.
        if shared > len(key) or place + fresh + length > end:
            raise _Damage("an entry is longer than its block")
        key = key[:shared] + block[place : place + fresh]
        place += fresh
        yield key, block[place : place + length]
        place += length


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):  # 64 bits, seven at a time
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
    raise _Damage("a number has more than ten bytes")


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """(field, value) of a protocol buffer: whole numbers, or bytes."""
    place = 0
    while place < len(message):
        tag, place = _varint(message, place)
        field, kind = tag >> 3, tag & 7
        if kind == 0:
            value: Any
            value, place = _varint(message, place)
        elif kind in (1, 2, 5):
            size, place = _varint(message, place) if kind == 2 else ({1: 8, 5: 4}[kind], place)
            if place + size > len(message):
                raise _Damage("an entry is cut short")
            value = message[place : place + size]
            place += size
        else:
            raise _Damage("an entry is of an unknown kind")
        yield field, value


def _number(value: Any) -> int:
    if not isinstance(value, int):
        raise _Damage("an entry has bytes where a number belongs")
    return value


def _message(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise _Damage("an entry has a number where bytes belong")
    return value


def _read_header(value: bytes) -> int:
    """How many data files there are."""
    fields = dict(_fields(value))
    shards = _number(fields.get(1, 1))
    if fields.get(2, 0) != 0:
        raise _Damage("its numbers are big-endian")
    if not 1 <= shards <= 10_000:
        raise _Damage(f"it has {shards} data files")
    return shards


def _read_entry(value: bytes) -> BundleEntry:
    # Fields that are zero are not written: the first shard, an offset at the beginning.
    numbers = dict.fromkeys((1, 3, 4, 5), 0)
    shape: list[int] = []
    checksum, in_slices = 0, False
    for field, content in _fields(value):
        if field in numbers:
            numbers[field] = _number(content)
        elif field == 2:
            shape = [_length(part) for place, part in _fields(_message(content)) if place == 2]
        elif field == 6:
            (checksum,) = struct.unpack("<I", _message(content))
        elif field == 7:
            in_slices = True
    kind, shard, offset, size = numbers.values()
    return BundleEntry(kind, tuple(shape), shard, offset, size, checksum, in_slices)


def _length(dimension: Any) -> int:
    length = _number(dict(_fields(_message(dimension))).get(1, 0))
    if length >= 1 << 40:  # negative ones, which say that a length is not known, are the largest here
        raise _Damage("a variable has an axis of no sensible length")
    return length
