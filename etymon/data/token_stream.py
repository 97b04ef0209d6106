"""Tokens to text as they come, never half a character; and the bytes behind byte-level tokens."""

from __future__ import annotations

import codecs
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from etymon.data.tokenizer import Tokenizer

BYTE_KINDS = ("byte-bpe", "byte")
"""Kinds of tokenizers whose tokens are bytes, and may begin or end inside a character."""
BYTE_PIECE = re.compile(r"<0x[0-9A-F]{2}>")
# Byte-level BPE writes bytes as printable characters: this is the byte behind each of the 256.
PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
OTHERS = sorted(set(range(256)) - set(PRINTABLE))
BYTE_OF = {chr(byte): byte for byte in PRINTABLE} | {chr(256 + n): byte for n, byte in enumerate(OTHERS)}


class TokenStream:
    """Incremental decoding: what `feed` and `finish` return adds up to `decode` of all ids.

    Never half a character: bytes are held back until they are complete. Constant work a token.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip = tokenizer.hidden_ids if skip_special else frozenset()
        self._bytes = incremental_decoder()
        # Spaces depend on the neighbour: decode each token after the one before it and cut that one's text.
        self._before: list[int] = []
        self._held: list[int] = []

    def feed(self, number: int) -> str:
        """The text that became certain with this token."""
        if number in self._skip:
            return ""
        token = self._tokenizer.tokens[number]
        if self._tokenizer.kind in BYTE_KINDS:
            return self._bytes.decode(token_bytes(token))
        self._held.append(number)
        # A run of byte pieces is decoded as a whole, once it has ended.
        return "" if BYTE_PIECE.fullmatch(token) else self._release()

    def finish(self, *, whole: bool = False) -> str:
        """The rest; the stream is new afterwards. As in `decode`, only `whole` characters if asked."""
        half = self._bytes.decode(b"", final=True)
        rest = ("" if whole else half) + self._release()
        self._before = []
        return rest

    def _release(self) -> str:
        if not self._held:
            return ""
        decode = self._tokenizer.backend.decode
        known = decode(self._before, skip_special_tokens=False)
        text = decode(self._before + self._held, skip_special_tokens=False)[len(known) :]
        self._before, self._held = self._held[-1:], []
        return text


def incremental_decoder() -> codecs.IncrementalDecoder:
    """Bytes to text, as far as they are whole characters."""
    return codecs.getincrementaldecoder("utf-8")("replace")


def token_bytes(token: str) -> bytes:
    """The bytes of a byte-level token; one outside the byte alphabet (an added token) stands for itself."""
    try:
        return bytes([BYTE_OF[character] for character in token])
    except KeyError:
        return token.encode()
