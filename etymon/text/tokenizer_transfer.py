"""From one tokenizer to another: the old tokens that say most about each new one.

A model that goes on with another tokenizer, for another language, keeps the word vectors of pieces that both
have; a new piece starts as the mean of the old pieces, down to single characters or bytes, that spell it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from etymon.text.tokenizer import BYTE_KINDS, BYTE_OF, BYTE_PIECE, Tokenizer, token_bytes
from etymon.text.tokenizer_growing import spell_token

PRINTED = {byte: character for character, byte in BYTE_OF.items()}
WORD_END = "</w>"


class Surface(NamedTuple):
    """What a token stands for, whatever the tokenizer: bytes, and whether it begins a word."""

    text: bytes
    begins_word: bool


@dataclass(frozen=True)
class TokenTransfer:
    """For every id of the new tokenizer the old ids that it starts as the mean of; None if there are none."""

    spellings: list[list[int] | None]
    copied: int
    """Tokens that both have, special ones included."""
    composed: int
    """Those that are spelled by several old ones, or by one that is not the same."""

    @property
    def new(self) -> int:
        """Those of which the old tokenizer knows nothing."""
        return len(self.spellings) - self.copied - self.composed

    def describe(self, old: Tokenizer) -> dict[str, int]:
        """What a model's history says of it."""
        counts = {"copied": self.copied, "composed": self.composed, "new": self.new}
        return {"from": old.size, "to": len(self.spellings), **counts}


def transfer_tokens(tokenizer: Tokenizer, old: Tokenizer) -> TokenTransfer:
    """How the tokens of a tokenizer are made of those of another one."""
    numbers: dict[Surface, int] = {}
    for number in range(old.size):
        if number not in old.special_ids and old.tokens[number]:
            numbers.setdefault(_surface(old, old.tokens[number]), number)
    special = _special_tokens(tokenizer, old)
    unknown, space = old.id("unknown"), old.backend.token_to_id("▁")
    spellings: list[list[int] | None] = []
    copied = composed = 0
    for number, token in enumerate(tokenizer.tokens):
        if number in tokenizer.special_ids or not token:
            same = special.get(number)
            spellings.append(None if same is None else [same])
            copied += same is not None
            continue
        surface = _surface(tokenizer, token)
        same = _find_same(numbers, surface)
        if same is not None:
            spellings.append([same])
            copied += 1
            continue
        pieces = [piece for piece in _compose(old, surface) if piece != unknown]
        if pieces == [space]:  # of the text itself nothing is known
            pieces = []
        spellings.append(pieces or None)
        composed += bool(pieces)
    return TokenTransfer(spellings, copied, composed)


def _special_tokens(tokenizer: Tokenizer, old: Tokenizer) -> dict[int, int]:
    """The old ids of special tokens: by their spelling, their role, or their number among sentinels."""
    vocabulary = old.backend.get_vocab(with_added_tokens=True)
    pairs = {
        number: vocabulary[tokenizer.tokens[number]]
        for number in tokenizer.special_ids
        if tokenizer.tokens[number] in vocabulary
    }
    pairs |= dict(zip(tokenizer.sentinels, old.sentinels))
    for role in tokenizer.roles:
        number, same = tokenizer.id(role), old.id(role)
        if number is not None and same is not None:
            pairs[number] = same
    return pairs


def _surface(tokenizer: Tokenizer, token: str) -> Surface:
    kind, prefix = tokenizer.kind, tokenizer.prefix
    if kind in BYTE_KINDS:
        spelled = token_bytes(token)
        return Surface(spelled[1:], True) if spelled[:1] == b" " and spelled[1:] else Surface(spelled, False)
    if BYTE_PIECE.fullmatch(token):
        return Surface(bytes([int(token[3:5], 16)]), False)
    if kind == "wordpiece":
        return Surface(token.removeprefix(prefix).encode(), not token.startswith(prefix))
    if kind in ("unigram", "bpe") and token != "▁":
        return Surface(token.removeprefix("▁").encode(), token.startswith("▁"))
    if kind == "word-bpe":  # which marks ends of words: beginnings are not known
        return Surface(token.removesuffix(WORD_END).encode(), False)
    return Surface((" " if token == "▁" else token).encode(), kind == "word")


def _find_same(numbers: dict[Surface, int], surface: Surface) -> int | None:
    """The old token of the same text; else of the same text elsewhere in a word, or in lower case."""
    text = surface.text
    for spelled in (text, text.decode(errors="surrogateescape").lower().encode(errors="surrogateescape")):
        for begins_word in (surface.begins_word, not surface.begins_word):
            if (number := numbers.get(Surface(spelled, begins_word))) is not None:
                return number
    return None


def _compose(old: Tokenizer, surface: Surface) -> list[int]:
    """The old tokens that spell a text; where a part of it is unknown, those of its characters."""
    if old.kind in BYTE_KINDS:
        spelled = b" " + surface.text if surface.begins_word else surface.text
        return spell_token(old, "".join(PRINTED[byte] for byte in spelled))
    try:
        text = surface.text.decode()
    except UnicodeDecodeError:  # half a character, of which only byte pieces know something
        pieces = (old.backend.token_to_id(f"<0x{byte:02X}>") for byte in surface.text)
        return [piece for piece in pieces if piece is not None]
    if (normalizer := old.backend.normalizer) is not None:
        text = normalizer.normalize_str(text).replace("▁", "").strip() or text
    unknown = old.id("unknown")
    whole = spell_token(old, _old_form(old, text, surface.begins_word)) if text else []
    if unknown not in whole:
        return whole
    letters = (
        spell_token(old, _old_form(old, letter, surface.begins_word and not place))
        for place, letter in enumerate(text)
    )
    return [piece for pieces in letters for piece in pieces]


def _old_form(old: Tokenizer, text: str, begins_word: bool) -> str:
    """A text as the old tokenizer's model would see it inside of a sentence."""
    if old.kind == "wordpiece":
        return text if begins_word else old.prefix + text
    if old.kind in ("unigram", "bpe"):
        return "▁" + text if begins_word else text
    return text
