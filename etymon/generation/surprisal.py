"""Surprisal, entropy and guesses, word by word, over sentences or whole texts.

Most tokenizers write the space before a word into its first token. The sum over a word's tokens then counts
the end of the word before it, and not its own. `corrected` moves the space to where it belongs (Pimentel and
Meister 2024, Oh and Schuler 2024): to the sum is added the log-probability that a new word begins here, and
taken away that one begins behind it,

    -log p(tokens | before) + log p(new word | before) - log p(new word | before, tokens).

Over a text all but the last of these cancel. Where tokens mark the end of a word, or a script has no spaces,
there is nothing to move.

Legend: N tokens, D width, V vocabulary, n targets, C targets of a chunk.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from etymon.errors import EtymonError
from etymon.families.model import Model
from etymon.generation.decoding import check_ids
from etymon.generation.input_rows import score_rows
from etymon.generation.likelihood import causal_rows, check_memory, read_segments
from etymon.generation.sentence_scores import (
    Method,
    PllWay,
    blank_rows,
    hidden_rows,
    ordered_log_probs,
    scoring_method,
)
from etymon.generation.text import tokenizer_of
from etymon.generation.word_scores import word_spans
from etymon.nn.vocabulary import Context, chunks
from etymon.text.tokenizer import Tokenizer

BITS = 1 / math.log(2)


@dataclass(frozen=True)
class Guess:
    """What a model expected to begin a word."""

    token: str
    probability: float


@dataclass(frozen=True)
class WordSurprisal:
    """All figures are in bits."""

    word: str
    start: int
    stop: int
    """Its characters in the text."""
    tokens: int
    surprisal: float
    """The sum over its tokens."""
    corrected: float | None
    """The same with the space where it belongs; None for models that read both sides."""
    entropy: float
    """Of the model's guess at the word's first token."""
    guesses: list[Guess]
    """The likeliest first tokens, best first."""


@dataclass(frozen=True)
class ReadingWays:
    """How long texts are read (`likelihood.score_texts`), and tokens hidden."""

    window: int | None = None
    overlap: int | None = None
    memory: int | None = None
    segment: int | None = None
    pll: PllWay = "token"


class DistributionReader:
    """Reads of a distribution, for every target: its log-probability, the entropy, the log-probability that a
    new word begins, and the likeliest tokens with theirs."""

    def __init__(self, tokenizer: Tokenizer, words: int, guesses: int) -> None:
        # A special token ends a text, and so a word as well.
        spaced = tokenizer.spaced[:words]
        self.new_word = None if spaced.all() else torch.from_numpy(np.flatnonzero(spaced))
        self.guesses = min(guesses, words)

    def __call__(
        self, head: Any, hidden_ND: Tensor, at: Tensor | None, targets_n: Tensor, context: Context
    ) -> Tensor:
        """`[n, 3 + 2 * guesses]`, in float64, which ids fit into."""
        at = torch.arange(len(hidden_ND), device=hidden_ND.device) if at is None else at
        parts = []
        for part in chunks(len(at), int(head.size)):
            log_p_CV = head.log_probs(hidden_ND, at[part], context)
            target_C1 = log_p_CV.gather(1, targets_n[part, None])
            # `entr` is 0 at 0, where p log p would be NaN.
            entropy_C1 = torch.special.entr(log_p_CV.exp()).sum(-1, keepdim=True)
            begins_C1 = torch.zeros_like(target_C1)  # every token begins a word: for certain
            if self.new_word is not None:
                begins_CW = log_p_CV.index_select(1, self.new_word.to(log_p_CV.device))
                begins_C1 = begins_CW.logsumexp(-1, keepdim=True)
            # Ids are exact in float64: one array carries everything.
            best = log_p_CV.topk(self.guesses)
            columns = (target_C1, entropy_C1, begins_C1, best.indices, best.values)
            parts.append(torch.cat([column.double() for column in columns], 1))
        return torch.cat(parts) if parts else hidden_ND.new_zeros(0, 3 + 2 * self.guesses).double()


def word_surprisals(
    model: Model,
    text: str,
    begins_word: np.ndarray,
    *,
    ways: ReadingWays | None = None,
    guesses: int = 3,
) -> list[WordSurprisal]:
    """The words of a text; `begins_word` says of each of its tokens whether one begins there
    (`text.encoding.mark_words`)."""
    ways = ways or ReadingWays()
    method = scoring_method(model, ways.pll)
    check_reading(model, method, ways)
    tokenizer = tokenizer_of(model)
    head: Any = model.heads["vocabulary"]
    reader = DistributionReader(tokenizer, int(head.size), guesses)
    ids = tokenizer.encode(text)
    check_ids([ids.tolist()], model.shape.vocabulary)
    if not len(ids):
        return []
    readings = np.array(_read_tokens(model, method, text, ids, ways, reader))
    return list(_words(text, ids, readings, begins_word, tokenizer, reader.guesses, method))


def check_reading(model: Model, method: Method, ways: ReadingWays) -> None:
    """Refuses models without a distribution of every word, and ways of reading that do not fit."""
    title = model.family.title
    if method in ("no token replaced", "likelihood of both directions", "likelihood of the target"):
        raise EtymonError(
            f"this {title} gives no distribution of a word in its text: give a decoder, an encoder with a "
            "vocabulary head, T5 or BART"
        )
    is_windowed = ways.window is not None or ways.overlap is not None
    if ways.memory is not None:
        check_memory(model, ways.memory, ways.segment, is_windowed)
    elif is_windowed and method != "likelihood":
        raise EtymonError(f"{title} reads a text as a whole: leave window and overlap out")


def _read_tokens(
    model: Model, method: Method, text: str, ids: np.ndarray, ways: ReadingWays, reader: DistributionReader
) -> list[list[float]]:
    """What the reader gives for every token that can be predicted; of a causal model, for what follows the
    text as well."""
    if method != "likelihood":
        if method == "likelihood in its own order":
            return [row for _, rows in ordered_log_probs(model, [text], [ids], reader) for row in rows]
        if method == "infilling":
            rows = blank_rows(model, [text], [ids])
        else:
            rows = hidden_rows(model, [text], [ids], ways.pll == "within-word")
        return [row for _, _, part in score_rows(model, rows, reader) for row in part]
    # One more token, whichever: of its distribution only the share of new words is used.
    followed = np.append(ids, ids[-1:])
    # Without a memory, every segment would begin without any context: the model's own is the default.
    memory = ways.memory
    if memory is None and "memory" in model.capabilities and ways.window is None and ways.overlap is None:
        memory = getattr(model.shape, "memory", None) or None
    if memory is not None:
        segments = read_segments(model, [(followed, True)], memory, ways.segment, reader)
        return [row for _, part in segments for row in part]
    windows = causal_rows(model, [followed], None, ways.window, ways.overlap)
    return [row for _, _, part in score_rows(model, windows, reader) for row in part]


def _words(
    text: str,
    ids: np.ndarray,
    readings: np.ndarray,
    begins_word: np.ndarray,
    tokenizer: Tokenizer,
    guesses: int,
    method: Method,
) -> Iterator[WordSurprisal]:
    is_causal = method == "likelihood"
    # Without a token to begin from, the first one is given, and has no reading.
    given = max(0, len(ids) + is_causal - len(readings))
    log_probs, entropies, begins = readings[:, 0], readings[:, 1], readings[:, 2]
    is_new = tokenizer.spaced[ids]
    for span in word_spans(text, begins_word, tokenizer):
        first, last = span.first - given, span.last - given
        if first < 0:
            continue
        total = -math.fsum(log_probs[first:last])
        corrected = None
        if is_causal:
            # A boundary without a space, as between Chinese words, has nothing to move.
            before = begins[first] if is_new[span.first] else 0.0
            behind = begins[last] if span.last == len(ids) or is_new[span.last] else 0.0
            corrected = BITS * float(total + before - behind)
        # A word is expected, or not, before its first token: entropy and guesses are those of that place.
        best_ids, best_log_probs = readings[first, 3 : 3 + guesses], readings[first, 3 + guesses :]
        yield WordSurprisal(
            text[span.start : span.stop],
            span.start,
            span.stop,
            last - first,
            BITS * total,
            corrected,
            BITS * float(entropies[first]),
            [
                Guess(_spelled(tokenizer, int(number)), math.exp(log_prob))
                for number, log_prob in zip(best_ids, best_log_probs, strict=True)
            ],
        )


def _spelled(tokenizer: Tokenizer, number: int) -> str:
    """A token as text; special ones, and ids without one, by their names."""
    if number >= tokenizer.size:
        return f"<{number}>"
    text = "" if number in tokenizer.special_ids else tokenizer.decode([number]).strip()
    return text or tokenizer.tokens[number]
