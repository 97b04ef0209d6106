"""Tokens to text, one by one as they are generated."""

from __future__ import annotations

from etymon.text.tokenizer import BYTE_KINDS, BYTE_PIECE, Tokenizer, byte_decoder, token_bytes


class TokenStream:
    """Incremental decoding: what `feed` and `finish` return adds up to `decode` of all ids.

    Never half a character: bytes are held back until they are complete. Constant work a token.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip = tokenizer.hidden_ids if skip_special else frozenset()
        self._bytes = byte_decoder()
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
        before = decode(self._before, skip_special_tokens=False)
        text = decode(self._before + self._held, skip_special_tokens=False)[len(before) :]
        self._before, self._held = self._held[-1:], []
        return text
