"""CRC-32C (Castagnoli) of large arrays with NumPy alone, as TensorFlow's files are checked by it.

A checksum goes through its bytes one after the other. It is linear, though: the bytes are cut into lanes of
equal length, all lanes go on side by side, and their results are joined by shifting each past the ones behind
it. Measured, 200 MB take a quarter of a second; a loop over bytes would take half a minute.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

POLYNOMIAL = 0x82F63B78
"""Castagnoli's, with its bits reversed."""
LANES = 4096
"""A power of two; one column of all lanes fits into a processor's second cache."""
MASK = 0xA282EAD8
"""Added to stored checksums, so that a checksum of checksums is still one."""

ONE = np.uint32(1)
Words = npt.NDArray[np.uint32]


def crc32c(data: bytes | memoryview | npt.NDArray[np.uint8]) -> int:
    """The checksum of some bytes."""
    values = np.frombuffer(data, np.uint8)
    register = 0xFFFFFFFF
    steps = len(values) // (4 * LANES)
    if steps:
        whole = 4 * LANES * steps
        # Lane after lane in the file; side by side, each step takes one column.
        words = values[:whole].view(np.dtype("<u4")).reshape(LANES, steps)
        lanes = np.zeros(LANES, np.uint32)
        lanes[0] = register  # the others begin at zero: what came before them is added when they are joined
        low, high = _word_tables()
        for step in range(steps):
            lanes ^= words[:, step]
            lanes = low[lanes & 0xFFFF] ^ high[lanes >> np.uint32(16)]
        size = 4 * steps
        while len(lanes) > 1:  # neighbours are joined, and then twice as long
            lanes = _shift(lanes[::2], size) ^ lanes[1::2]
            size *= 2
        register, values = int(lanes[0]), values[whole:]
    # At most 16 kB are left, for which Python's own numbers are faster than NumPy's.
    table = _byte_table().tolist()
    for value in values.tolist():
        register = table[(register ^ value) & 0xFF] ^ register >> 8
    return register ^ 0xFFFFFFFF


def unmasked(stored: int) -> int:
    """The checksum behind one as TensorFlow stores it."""
    rotated = (stored - MASK) & 0xFFFFFFFF
    return (rotated >> 17 | rotated << 15) & 0xFFFFFFFF


@cache
def _byte_table() -> Words:
    """What a byte at the low end of the register becomes after eight steps."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & ONE, np.uint32(POLYNOMIAL), np.uint32(0)) ^ table >> ONE
    return table


@cache
def _word_tables() -> tuple[Words, Words]:
    """What the low and the high half of the register become after thirty-two steps."""
    halves = np.arange(1 << 16, dtype=np.uint32)
    bytes_table = _byte_table()

    def after_bytes(values: Words, count: int) -> Words:
        for _ in range(count):
            values = bytes_table[values & 0xFF] ^ values >> np.uint32(8)
        return values

    return after_bytes(halves, 4), after_bytes(halves << np.uint32(16), 4)


def _shift(registers: Words, size: int) -> Words:
    """Registers after `size` more bytes of zeros."""
    result = np.zeros_like(registers)
    for bit, image in enumerate(_shift_matrix(size)):
        result ^= np.where(registers >> np.uint32(bit) & ONE, image, np.uint32(0))
    return result


@cache
def _shift_matrix(size: int) -> tuple[np.uint32, ...]:
    """What each bit of a register becomes after `size` bytes of zeros."""
    if size == 1:
        bits = ONE << np.arange(32, dtype=np.uint32)
        return tuple(_byte_table()[bits & 0xFF] ^ bits >> np.uint32(8))
    half = np.array(_shift_matrix(size // 2), np.uint32)
    twice = _shift(half, size // 2)
    return tuple(twice) if size % 2 == 0 else tuple(_shift(twice, 1))
