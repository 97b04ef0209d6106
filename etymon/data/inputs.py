"""Bytes of a file or of standard input: unpacked, counted, recognised again, decoded."""

from __future__ import annotations

import bz2
import codecs
import gzip
import hashlib
import io
import lzma
import os
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

from etymon.data.document import Errors, Identity, Reading, Tally
from etymon.errors import EtymonError

STANDARD_INPUT = Path("-")
BUFFER = 1 << 20


def _zstandard(file: IO[bytes]) -> Any:
    import pyarrow

    if not pyarrow.Codec.is_available("zstd"):
        raise EtymonError("this pyarrow cannot read .zst files: install another build of it, or unpack them")
    return pyarrow.CompressedInputStream(pyarrow.PythonFile(file, mode="r"), "zstd")


UNPACKERS: dict[str, Callable[[IO[bytes]], Any]] = {
    ".gz": lambda file: gzip.GzipFile(fileobj=file, mode="rb"),
    ".bz2": bz2.BZ2File,
    ".xz": lzma.LZMAFile,
    ".zst": _zstandard,
}
PACKERS = {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz", ".zst": "zstandard"}
DAMAGE = (gzip.BadGzipFile, EOFError, zlib.error, lzma.LZMAError)


def shown_name(path: Path) -> str:
    return "standard input" if path == STANDARD_INPUT else str(path)


@contextmanager
def open_input(path: Path, tally: Tally) -> Iterator[io.BufferedReader]:
    """The unpacked bytes of a file or of standard input; when all of it was read, the tally knows the file."""
    packing = path.suffix.lower() if path.suffix.lower() in UNPACKERS else ""
    standard = path == STANDARD_INPUT
    source: Any = sys.stdin.buffer if standard else None
    try:
        source = source or open(path, "rb", buffering=0)  # noqa: SIM115
        before = None if standard else os.fstat(source.fileno())
        watched = Watched(source, tally)
        raw = cast(IO[bytes], io.BufferedReader(watched, BUFFER))
        unpacked = UNPACKERS[packing](raw) if packing else None
        yield io.BufferedReader(unpacked, BUFFER) if unpacked is not None else raw  # type: ignore[misc]
        while raw.read(BUFFER):  # what follows the last record belongs to the file too
            pass
        after = None if standard else os.fstat(source.fileno())
        size, time = (watched.bytes, 0) if after is None else (after.st_size, after.st_mtime_ns)
        if before is None or (before.st_size, before.st_mtime_ns) == (size, time):
            key = str(path if standard else path.resolve())
            tally.files[key] = Identity(size, time, watched.digest.hexdigest())
    except DAMAGE as error:
        raise EtymonError(_damaged(path, packing, error)) from error
    except OSError as error:
        if packing and error.errno is None:  # what bz2 and pyarrow say of damage
            raise EtymonError(_damaged(path, packing, error)) from error
        raise EtymonError(f"cannot read {shown_name(path)}: {error.strerror or error}") from error
    finally:
        if source is not None and not standard:
            source.close()


def _damaged(path: Path, packing: str, error: Exception) -> str:
    return f"{path} is a damaged {PACKERS.get(packing, 'compressed')} file ({error}); compress it again"


class Watched(io.RawIOBase):
    """Counts and hashes the bytes that pass."""

    def __init__(self, source: Any, tally: Tally) -> None:
        self.source, self.tally, self.digest, self.bytes = source, tally, hashlib.sha256(), 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self.source.readinto(buffer) or 0
        self.digest.update(memoryview(buffer)[:count])
        self.bytes += count
        self.tally.bytes += count
        return count


class Decoder:
    """UTF-8 to text, a piece at a time, knowing byte and line of what is no UTF-8.

    To be skipped, bad bytes are first marked: they become lone surrogates, which no good text holds.
    """

    MODES: dict[Errors, str] = {"strict": "strict", "replace": "replace", "skip": "surrogateescape"}

    def __init__(self, name: str, errors: Errors, line: int = 1, offset: int = 0) -> None:
        self.name, self.mode, self.line, self.offset = name, self.MODES[errors], line, offset
        self._rest = b""

    def feed(self, data: bytes, final: bool = False) -> str:
        """The text of the next bytes; an unfinished character waits for the rest of it."""
        data = self._rest + data if self._rest else data
        try:
            text, used = codecs.utf_8_decode(data, self.mode, final)
        except UnicodeDecodeError as error:
            line = self.line + data.count(b"\n", 0, error.start)
            utf16 = self.offset == 0 and data[:2] in (b"\xff\xfe", b"\xfe\xff")
            raise EtymonError(
                f"{self.name} is not UTF-8 at byte {self.offset + error.start} (line {line}); convert it, e.g. "
                f"iconv -f {'UTF-16' if utf16 else 'LATIN1'} -t UTF-8, or go on with --errors replace or skip"
            ) from error
        if self.offset == 0:
            text = text.removeprefix("\ufeff")
        self._rest = data[used:]
        self.offset += used
        self.line += data.count(b"\n", 0, used)
        return text


class Checked(io.RawIOBase):
    """Bytes for a reader that does not say where bad UTF-8 is: refused or replaced before it sees them."""

    def __init__(self, stream: IO[bytes], decoder: Decoder) -> None:
        self.stream, self.decoder, self._ready = stream, decoder, b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            data = self.stream.read(BUFFER)
            self._ready = self.decoder.feed(data, final=not data).encode()
            if not data:
                break
        count = min(len(buffer), len(self._ready))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count


def bounded_lines(
    stream: io.BufferedReader, name: str, reading: Reading, tally: Tally
) -> Iterator[tuple[int, int, bytes]]:
    """Number, byte offset and bytes of every line; one that is too long is refused or skipped, not held."""
    offset = 0
    number = 1
    while raw := stream.readline(reading.max_document + 1):
        if len(raw) <= reading.max_document or raw.endswith(b"\n"):
            yield number, offset, raw
            offset += len(raw)
        else:
            if reading.errors != "skip":
                raise EtymonError(too_long(f"{name}, line {number}", reading))
            tally.skipped += 1
            offset += len(raw)
            while raw and not raw.endswith(b"\n"):
                raw = stream.readline(BUFFER)
                offset += len(raw)
        number += 1


def too_long(place: str, reading: Reading) -> str:
    return (
        f"{place}: the record is longer than {reading.max_document:,} bytes; allow more with --max-document, "
        "or leave such records out with --errors skip"
    )
