"""How well a tokenizer fits a text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from etymon.text import cutting
from etymon.text.tokenizer import Tokenizer

BATCH = 64  # pieces that are encoded together


@dataclass(frozen=True)
class TokenizerReport:
    """Counts over a text, and what follows from them."""

    bytes: int
    words: int
    tokens: int
    unknown: int
    longest: str
    """The text of the longest token of the vocabulary, special ones aside."""

    @property
    def fertility(self) -> float:
        """Tokens a white-space word; says little about scripts without spaces."""
        return self.tokens / max(1, self.words)

    @property
    def bytes_per_token(self) -> float:
        return self.bytes / max(1, self.tokens)

    @property
    def unknown_rate(self) -> float:
        """The share of tokens that stand for something that the vocabulary has not."""
        return self.unknown / max(1, self.tokens)


def measure_tokenizer(tokenizer: Tokenizer, texts: Iterable[str]) -> TokenizerReport:
    """Encode the texts and count."""
    unknown_id = tokenizer.id("unknown")
    size = words = tokens = unknown = 0
    pieces = (text[start:stop] for text in texts for start, stop in cutting.pieces(text))
    while batch := list(islice(pieces, BATCH)):
        size += sum(len(text.encode()) for text in batch)
        words += sum(len(text.split()) for text in batch)
        for ids in tokenizer.encode_batch(batch):
            tokens += len(ids)
            unknown += 0 if unknown_id is None else int((ids == unknown_id).sum())
    plain = (number for number in range(tokenizer.size) if number not in tokenizer.special_ids)
    widest = max(plain, key=lambda number: len(tokenizer.tokens[number]), default=None)
    longest = "" if widest is None else tokenizer.decode([widest])
    return TokenizerReport(size, words, tokens, unknown, longest)
