"""What a processor's allocator holds for tensors that come and go: more than they need, since it leaves gaps.

A simulation of glibc's malloc as PyTorch uses it (`posix_memalign` with 64 bytes), with its rules for large
blocks: best fit, free neighbours merge, blocks beyond a threshold are mapped one by one, and the threshold
grows with what was mapped. The gaps have a reason. To align a block, malloc takes 96 bytes more than it
keeps and gives the two ends back. Small objects settle in these ends, so a freed block can rarely merge with
its neighbours, and alone it is too small for a tensor of the same size.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Any

ALIGNMENT, PAGE = 64, 4096
SMALLEST, HEADER = 32, 8
"""Bytes of the smallest block, and of what stands before every block."""
FIRST_THRESHOLD, LAST_THRESHOLD = 128 << 10, 32 << 20
"""Blocks of so many bytes are mapped, at first and at most."""
PADDING = 128 << 10
"""Kept at the end of the heap when it grows or is cut."""
CACHED_SIZE, CACHED = 1040, 7
"""Small blocks that are freed stay as they are for the next of their size: up to so many bytes and blocks."""
CUT_AFTER = 64 << 10
"""A freed block of so many bytes may cut the heap's end."""
OBJECTS = (40, 56, 72, 88)
"""Bytes of small objects that come and go with a tensor (its storage, its gradient's node and edges), of
sizes that fit into the ends of aligned blocks. Chosen by eight measured runs (docs/lab-notes.md): without
them, tensors would leave hardly a gap."""

Block = tuple[int, int]
"""Where it begins, and its bytes."""


class Heap:
    """The heap of a process; blocks have keys."""

    def __init__(self) -> None:
        self.peak = 0
        """The most bytes that were resident."""
        self._threshold = self._cut_beyond = FIRST_THRESHOLD
        # Everything behind `_top` is free, up to `_end`; `_touched` of it are resident.
        self._top = self._end = self._touched = 0
        self._mapped: dict[Any, int] = {}
        self._mapped_bytes = 0
        self._blocks: dict[Any, Block] = {}
        self._objects: dict[Any, list[Block]] = {}
        self._free_sizes: list[tuple[int, int]] = []
        self._free_starts: dict[int, int] = {}
        self._free_ends: dict[int, int] = {}
        self._cache: dict[int, list[int]] = {}

    @property
    def resident(self) -> int:
        return self._touched + self._mapped_bytes

    def allocate(self, key: Any, size: int) -> None:
        """Makes room for a tensor of so many bytes."""
        half = len(OBJECTS) // 2
        objects = [self._allocate_object(each) for each in OBJECTS[:half]]
        kept = _rounded(size)
        taken = kept + ALIGNMENT + SMALLEST
        # Mapped blocks are given back when they are freed: they leave no gap.
        if self._must_map(taken):
            self._mapped[key] = -(-(taken + HEADER) // PAGE) * PAGE
            self._mapped_bytes += self._mapped[key]
        else:
            start, taken = self._take(taken)
            # A block's memory begins 16 bytes behind its start.
            lead = (ALIGNMENT - 16 - start) % ALIGNMENT
            if lead:
                # What is given back has to be a block of its own.
                lead += ALIGNMENT if lead < SMALLEST else 0
                self._release((start, lead))
            rest = taken - lead - kept
            if rest > SMALLEST:
                self._release((start + lead + kept, rest))
                rest = 0
            self._blocks[key] = (start + lead, kept + rest)
        self._objects[key] = objects + [self._allocate_object(each) for each in OBJECTS[half:]]
        self.peak = max(self.peak, self.resident)

    def free(self, key: Any) -> None:
        if (size := self._mapped.pop(key, None)) is not None:
            self._mapped_bytes -= size
            # From now on blocks of this size stay on the heap (M_MMAP_THRESHOLD is dynamic in glibc).
            if self._threshold < size <= LAST_THRESHOLD:
                self._threshold, self._cut_beyond = size, 2 * size
        else:
            self._release(self._blocks.pop(key))
        for block in self._objects.pop(key):
            self._release(block)

    def _allocate_object(self, size: int) -> Block:
        size = _rounded(size)
        if cached := self._cache.get(size):
            return cached.pop(), size
        return self._take(size)

    def _must_map(self, size: int) -> bool:
        has_room = bool(self._free_sizes) and self._free_sizes[-1][0] >= size
        return not has_room and self._end - self._top < size + SMALLEST and size >= self._threshold

    def _take(self, size: int) -> Block:
        """The smallest free block that is large enough, or one at the end of the heap."""
        # Best fit, the oldest address first: sizes are sorted together with their places.
        place = bisect_left(self._free_sizes, (size, -1))
        if place < len(self._free_sizes):
            free_size, start = self._free_sizes[place]
            self._remove_free(start)
            if free_size - size < SMALLEST:
                return start, free_size
            self._add_free(start + size, free_size - size)
            return start, size
        if (missing := size + SMALLEST - (self._end - self._top)) > 0:
            self._end += -(-(missing + PADDING) // PAGE) * PAGE
        start = self._top
        self._top += size
        self._touched = max(self._touched, self._top)
        return start, size

    def _release(self, block: Block) -> None:
        start, size = block
        # Cached blocks count as used: their free neighbours do not merge over them.
        if size <= CACHED_SIZE and len(cached := self._cache.setdefault(size, [])) < CACHED:
            cached.append(start)
            return
        end = start + size
        if (before := self._free_ends.get(start)) is not None:
            self._remove_free(before)
            start = before
        if (behind := self._free_starts.get(end)) is not None:
            self._remove_free(end)
            end += behind
        if end != self._top:
            self._add_free(start, end - start)
            return
        self._top = start
        if end - start >= CUT_AFTER and self._end - self._top >= self._cut_beyond:
            self._end = min(self._end, -(-(self._top + PADDING + SMALLEST) // PAGE) * PAGE)
            self._touched = min(self._touched, self._end)

    def _add_free(self, start: int, size: int) -> None:
        self._free_starts[start], self._free_ends[start + size] = size, start
        insort(self._free_sizes, (size, start))

    def _remove_free(self, start: int) -> None:
        size = self._free_starts.pop(start)
        del self._free_ends[start + size]
        del self._free_sizes[bisect_left(self._free_sizes, (size, start))]


def _rounded(size: int) -> int:
    return max(SMALLEST, -(-(size + HEADER) // 16) * 16)
