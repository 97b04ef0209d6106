"""Tables of characters that are replaced before a text is cut into tokens, as sentencepiece and llama.cpp
store them.

A table is a trie in an array of 32-bit units, and the replacements, each with a zero at its end. A node has a
base, and its child by a byte is the unit at `base ^ byte`. A unit has the byte that leads to it in bits 0 to
7, a flag in bit 8 if a key ends there, and from bit 10 on its own index xor the base of its children. The
value of a key, the place of its replacement, is the unit at the base itself, with bit 31 set.

Bytes that go on with a character share their two highest bits, so that the children of nearly every node lie
in one aligned run of 64 units: such runs are what is given out here.
"""

from __future__ import annotations

import struct
import unicodedata
from collections.abc import Callable, Container, Mapping
from typing import Any

RUN = 64
LEAF, VALUE = 1 << 8, 1 << 31
Trie = dict[int, Any]
"""By their bytes, the children of a node; by -1, the value of the key that ends there."""


def build_charsmap(rules: Mapping[str, str]) -> bytes:
    """The table that replaces every key by its value, the longest key first."""
    # Many characters become a space: each replacement is stored once.
    replacements, places = bytearray(), {}
    for text in dict.fromkeys(rules.values()):
        places[text] = len(replacements)
        replacements += text.encode() + b"\0"
    trie: Trie = {}
    for key, text in rules.items():
        node = trie
        for byte in key.encode():
            node = node.setdefault(byte, {})
        node[-1] = places[text]
    units = _lay_out(trie)
    return struct.pack("<I", 4 * len(units)) + struct.pack(f"<{len(units)}I", *units) + bytes(replacements)


def _lay_out(trie: Trie) -> list[int]:
    # Unit 0 is the root, with a run to itself.
    units, taken, bases, free = [0] * RUN, {0}, {0}, 1
    childless: list[tuple[int, int]] = []
    waiting: list[tuple[int, Trie]] = [(0, trie)]
    while waiting:
        index, node = waiting.pop()
        children = [byte for byte in node if byte >= 0]
        if not children:
            childless.append((index, node[-1]))
            continue
        wanted = {byte // RUN for byte in children} | ({0} if -1 in node else set())
        base = free
        # No two nodes have one base: a child of the one would be taken for the other's.
        while base in bases or any(base ^ run in taken for run in wanted):
            base += 1
        bases.add(base)
        given = {base ^ run for run in wanted}
        taken |= given
        while free in taken and free in bases:
            free += 1
        units += [0] * (RUN * (max(given) + 1) - len(units))
        units[index] |= (index ^ base * RUN) << 10
        if -1 in node:
            units[index] |= LEAF
            units[base * RUN] = VALUE | node[-1]
        for byte in children:
            units[base * RUN ^ byte] = byte
            waiting.append((base * RUN ^ byte, node[byte]))
    # Values of keys that nothing goes on from lie in the gaps; a base is no gap.
    gaps = iter([place for place, unit in enumerate(units) if unit == 0 and place % RUN])
    for index, value in childless:
        place = next(gaps, len(units))
        if place == len(units):
            units.append(0)
        units[index] |= LEAF | (index ^ place) << 10
        units[place] = VALUE | value
    return units


def replace_by(charsmap: bytes, text: str) -> str:
    """What a table makes of a text, for tests and for reading tables."""
    size = struct.unpack_from("<I", charsmap)[0]
    units = struct.unpack_from(f"<{size // 4}I", charsmap, 4)
    replacements, data, written, start = charsmap[4 + size :], text.encode(), bytearray(), 0
    while start < len(data):
        index, longest, value = _base(units, 0), 0, 0
        for place in range(start, len(data)):
            index ^= data[place]
            if index >= len(units) or units[index] & (VALUE | 0xFF) != data[place]:
                break
            is_leaf = units[index] & LEAF
            index ^= _base(units, index)
            if is_leaf:
                longest, value = place - start + 1, units[index] & (VALUE - 1)
        if longest:
            written += replacements[value : replacements.index(b"\0", value)]
        else:
            # Not replaced: a byte at a time, as a key may begin with any byte.
            longest = 1
            written += data[start : start + 1]
        start += longest
    return written.decode()


def _base(units: tuple[int, ...], index: int) -> int:
    return (units[index] >> 10) << ((units[index] & 1 << 9) >> 6)


# --- the rules of a tokenizer

BETWEEN = "\u2581"
"""sentencepiece's sign for a space, which no normaliser makes of anything else."""


def character_rules(normalise: Callable[[str], str], alphabet: Container[str]) -> dict[str, str]:
    """What a normaliser makes of every character, and of letters with marks that are one character, where
    that is something else and something of the `alphabet` is in it: the rest is unknown one way or the other.
    Syllables of Hangul stay: nobody writes them letter by letter."""
    spellings: dict[str, None] = {}
    for code in range(1, 0x110000):
        character = chr(code)
        if unicodedata.category(character) in ("Cn", "Co", "Cs") or 0xAC00 <= code <= 0xD7A3:
            continue
        # Canonical spellings of one character: as it is, all marks apart, and the last one apart.
        apart = unicodedata.normalize("NFD", character)
        joined = unicodedata.normalize("NFC", apart[:-1]) + apart[-1]
        spellings |= dict.fromkeys((character, apart, joined))
    keys = [key for key in spellings if key != BETWEEN]
    # In one call: 300,000 took a quarter of a minute. Nothing joins with the mark between them.
    texts = normalise(BETWEEN + BETWEEN.join(keys) + BETWEEN).split(BETWEEN)[1:-1]
    return {
        key: text
        for key, text in zip(keys, texts, strict=True)
        if key != text and (text in ("", " ") or any(letter in alphabet for letter in text))
    }
