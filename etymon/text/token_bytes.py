"""The bytes behind tokens of byte-level tokenizers."""

from __future__ import annotations

import codecs
import re

BYTE_KINDS = ("byte-bpe", "byte")
"""Kinds of tokenizers whose tokens are bytes, and may begin or end inside a character."""
BYTE_PIECE = re.compile(r"<0x[0-9A-F]{2}>")
# Byte-level BPE writes bytes as printable characters: this is the byte behind each of the 256.
PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
OTHERS = sorted(set(range(256)) - set(PRINTABLE))
BYTE_OF = {chr(byte): byte for byte in PRINTABLE} | {chr(256 + n): byte for n, byte in enumerate(OTHERS)}


def incremental_decoder() -> codecs.IncrementalDecoder:
    """Bytes to text, as far as they are whole characters."""
    return codecs.getincrementaldecoder("utf-8")("replace")


def token_bytes(token: str) -> bytes:
    """The bytes of a byte-level token; one outside the byte alphabet (an added token) stands for itself."""
    try:
        return bytes([BYTE_OF[character] for character in token])
    except KeyError:
        return token.encode()
