"""Single tokens as people read them."""

from __future__ import annotations

from collections.abc import Iterable

from etymon.text.tokenizer import BYTE_KINDS, Tokenizer, token_bytes

SPACES = {" ": "␣", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def readable_tokens(tokenizer: Tokenizer, ids: Iterable[int]) -> list[str]:
    """Tokens as people read them, one by one: with their spaces, and bytes spelled out."""
    return [_readable_token(tokenizer, int(number)) for number in ids]


def _readable_token(tokenizer: Tokenizer, number: int) -> str:
    if number >= tokenizer.size:  # of a padded vocabulary: a model may guess it all the same
        return f"id:{number}"
    text = tokenizer.decode([number], skip_special=False)
    if text.strip() and "\ufffd" not in text:
        return text
    if text.strip() and tokenizer.kind in BYTE_KINDS:  # bytes that are no whole character: 好\xe4\xb8
        return token_bytes(tokenizer.tokens[number]).decode(errors="backslashreplace")
    if tokenizer.kind in BYTE_KINDS and text and not text.strip():  # Ċ and Ġ are how vocabularies spell them
        return "".join(SPACES.get(letter, letter) for letter in text)
    return tokenizer.tokens[number]  # only space, as the vocabulary spells it
