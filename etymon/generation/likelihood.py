"""How likely a model finds a text: by the chain rule, given a source, or token by token from both sides.

Legend: N tokens, D width, n scored tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from etymon.errors import EtymonError
from etymon.families.model import Model
from etymon.generation.decoding import check_ids, first_token, first_tokens, start_token
from etymon.generation.input_rows import InputRow, Reader, Scored, read_log_probs, score_rows
from etymon.generation.text import source_tokenizer_of, tokenizer_of
from etymon.nn.batch import Batch
from etymon.nn.layers import eval_mode
from etymon.nn.vocabulary import Context
from etymon.report.inline import DARKEST, Inline, ShadedText
from etymon.text.readable import readable_tokens

if TYPE_CHECKING:
    from etymon.report.page import Section

SEGMENT = 256
"""Tokens of a text that a model with a memory reads at once."""

Kind = Literal["likelihood", "pseudo-likelihood"]


@dataclass(frozen=True)
class WordScore:
    """A word of a text. Words that share a token count as one."""

    word: str
    surprisal: float
    """In bits, the sum over its tokens."""
    tokens: int
    start: int = 0
    stop: int = 0
    """The characters of the text that it is."""


@dataclass(frozen=True)
class Score(Inline):
    """Logarithms are natural. Figures by the token count every scored token; the end token of a target is
    one."""

    text: str
    kind: Kind
    """Pseudo: every token was predicted from all the others, so the sum is no probability of the text."""
    log_likelihood: float
    tokens: int
    bytes: int
    bits_per_byte: float | None
    """None for pseudo-likelihoods, which are no code length."""
    perplexity: float
    pieces: list[str]
    """The scored tokens, as people read them. Empty for a file that is read in segments, as are
    `log_probs`."""
    log_probs: list[float]
    words: list[WordScore] | None = None
    """Of every word its surprisal, where that was asked for."""

    def inline_sections(self) -> Iterator[Section]:
        from etymon.report.page import Figures

        bits = [-each / math.log(2) for each in self.log_probs]
        parts = [(piece, min(1.0, bit / DARKEST), f"{bit:.1f} bits") for piece, bit in zip(self.pieces, bits)]
        yield ShadedText(parts or [(self.text, None, "")], "the darker a token, the less it was expected")
        figures = {"bits per byte": self.bits_per_byte, "perplexity": self.perplexity, "tokens": self.tokens}
        yield Figures({name: value for name, value in figures.items() if value is not None})


def score_texts(
    model: Model,
    texts: Sequence[str],
    targets: Sequence[str] | None = None,
    *,
    window: int | None = None,
    overlap: int | None = None,
    memory: int | None = None,
    segment: int | None = None,
) -> list[Score]:
    """The score of every text, or of its target given the text (T5 and decoders).

    A decoder predicts the first token from its end-of-text token (without one, the first is given and not
    scored). Long texts are read in windows of `window` tokens (by default the positions that it learnt,
    `Model.window`) that overlap by `overlap` tokens (half of that); each token is scored once, with at least
    that many tokens before it. Families with a memory read a text of any length once, in segments of
    `segment` tokens that remember `memory` tokens (by default as many as the model's shape says). An encoder
    masks every token in turn.
    """
    tokenizer, title = tokenizer_of(model), model.family.title
    model.require_vocabulary("score")
    if targets is not None and len(targets) != len(texts):
        raise EtymonError(f"there are {len(texts)} texts and {len(targets)} targets: give a target for each")
    if model.encoder_decoder and targets is None:
        raise EtymonError(f"{title} scores a target given a source text: give the target too")
    is_causal = "causal" in model.capabilities
    windowed = window is not None or overlap is not None
    if memory is None and not windowed and is_causal and "memory" in model.capabilities:
        # As the model was trained: without a memory, every segment would begin without any context.
        memory = getattr(model.shape, "memory", None) or None
    if memory is not None:
        check_memory(model, memory, segment, windowed)
    elif windowed and (model.encoder_decoder or not is_causal):
        raise EtymonError(f"{title} reads a text as a whole: leave window and overlap out")
    scored_texts = list(texts if targets is None else targets)
    encoded = source_tokenizer_of(model).encode_batch(list(texts))
    # A tokenizer with added tokens may know more of them than the model has rows.
    check_ids([ids.tolist() for ids in encoded], model.source_vocabulary)
    encoded_targets = None if targets is None else tokenizer.encode_batch(scored_texts)
    scored_ids = encoded if encoded_targets is None else encoded_targets
    for text, ids in zip(scored_texts, scored_ids, strict=True):
        if not len(ids) and not model.encoder_decoder:
            raise EtymonError(f"{text[:40]!r} has no tokens: there is nothing to score")
    if memory is not None:
        scored = _score_with_memory(model, encoded, encoded_targets, memory, segment)
    elif model.encoder_decoder:
        scored = score_rows(model, _conditional_rows(model, encoded, scored_ids))
    elif is_causal:
        scored = score_rows(model, causal_rows(model, encoded, encoded_targets, window, overlap))
    elif "bidirectional" in model.capabilities and tokenizer.id("mask") is not None:
        if targets is not None:
            raise EtymonError(
                f"{title} reads both sides at once and has no likelihood of a target: leave it out"
            )
        scored = score_rows(model, _masked_rows(model, encoded))
    else:
        raise EtymonError(f"{title} gives no likelihood of a text", code="wrong-family")
    kind: Kind = "likelihood" if is_causal or model.encoder_decoder else "pseudo-likelihood"
    ids_by_text: list[list[int]] = [[] for _ in texts]
    log_probs_by_text: list[list[float]] = [[] for _ in texts]
    for number, ids, log_probs in scored:
        ids_by_text[number] += ids.tolist()
        log_probs_by_text[number] += log_probs
    scores = []
    for number, text in enumerate(scored_texts):
        log_probs = log_probs_by_text[number]
        pieces = readable_tokens(tokenizer, ids_by_text[number])
        # Where there is no token to predict the first one from, its characters do not count either.
        begin = 0 if len(pieces) >= len(scored_ids[number]) else int(tokenizer.offsets(text)[2][0])
        # fsum: adding a book's log-probabilities one by one loses digits.
        total, size = math.fsum(log_probs), len(text[begin:].encode())
        bits, perplexity = _rates(total, len(pieces), size)
        bits = bits if kind == "likelihood" else None
        scores.append(Score(text, kind, total, len(pieces), size, bits, perplexity, pieces, log_probs))
    return scores


def _rates(total: float, tokens: int, size: int) -> tuple[float | None, float]:
    """Bits per byte (None if there are no bytes) and perplexity."""
    mean = -total / tokens  # above 700 nats a token, exp has no number
    return -total / math.log(2) / size if size else None, math.exp(mean) if mean < 700 else math.inf


# --- in segments, with a memory


def check_memory(model: Model, memory: int, segment: int | None, windowed: bool = False) -> None:
    """Refuses models and settings that a text cannot be read in segments with."""
    model.require_vocabulary("score")
    if not {"causal", "memory"} <= model.capabilities:
        is_causal = "causal" in model.capabilities
        windows = " (its long texts are read in overlapping windows)" if is_causal else ""
        raise EtymonError(
            f"{model.family.title} carries nothing from one segment of a text to the next: "
            f"leave memory out{windows}"
        )
    if windowed:
        raise EtymonError(
            "windows overlap and segments remember: give window and overlap or memory, not both"
        )
    if memory < 0 or (segment is not None and segment < 1):
        raise EtymonError(f"a memory of {memory} tokens and segments of {segment or SEGMENT} cannot be")


def _score_with_memory(
    model: Model,
    encoded: list[np.ndarray],
    targets: list[np.ndarray] | None,
    memory: int,
    segment: int | None,
) -> Iterator[Scored]:
    for number, ids in enumerate(encoded):
        parts = [(ids, True)] if targets is None else [(ids, False), (targets[number], True)]
        for scored, log_probs in read_segments(model, parts, memory, segment):
            yield number, scored, log_probs


def score_parts(
    model: Model,
    text: str,
    parts: Iterable[tuple[np.ndarray, int, bool]],
    memory: int,
    segment: int | None = None,
    on_tokens: Callable[[int], None] | None = None,
) -> Score:
    """The score of one text that may be far larger than the machine's memory: its parts are tokens, their
    bytes and whether they are scored. `text` is the name of it; `on_tokens` is called with the tokens scored
    so far."""
    size, total, tokens = 0, 0.0, 0

    def count_bytes() -> Iterator[tuple[np.ndarray, bool]]:
        nonlocal size
        for ids, width, is_scored in parts:
            # The ends alone: all of the ids are in a part of megabytes.
            check_ids([[int(ids.min()), int(ids.max())]] if len(ids) else [], model.shape.vocabulary)
            size += width * is_scored
            yield ids, is_scored

    for _, log_probs in read_segments(model, count_bytes(), memory, segment):
        total, tokens = total + math.fsum(log_probs), tokens + len(log_probs)
        if on_tokens is not None:
            on_tokens(tokens)
    if not tokens:
        raise EtymonError(f"{text[:40]!r} has no tokens: there is nothing to score")
    return Score(text, "likelihood", total, tokens, size, *_rates(total, tokens, size), [], [])


@torch.inference_mode()
def read_segments(
    model: Model,
    parts: Iterable[tuple[np.ndarray, bool]],
    memory: int,
    segment: int | None = None,
    read: Reader = read_log_probs,
) -> Iterator[tuple[np.ndarray, list[Any]]]:
    """The scored tokens of one text and their log-probabilities, segment by segment, in a memory of constant
    size.

    The text comes as parts of any length: tokens, and whether they are scored or only read.
    """
    # What is remembered has a fixed length: a book takes no more memory than a sentence.
    state = model.remember(1, memory) if memory else None
    head: Any = model.heads["vocabulary"]
    device = model.device
    with eval_mode(model):
        for ids, is_scored in _segments(first_token(model), parts, segment or SEGMENT):
            batch = Batch.of([ids[:-1]], device=device)
            hidden_ND, state = model.hidden(batch, state)
            if is_scored.any():
                targets = ids[1:][is_scored]
                at, targets_n = (torch.from_numpy(c).to(device) for c in (np.flatnonzero(is_scored), targets))
                log_probs_n = read(head, hidden_ND, at, targets_n, Context(batch))
                yield targets, log_probs_n.tolist()


def _segments(
    first: int, parts: Iterable[tuple[np.ndarray, bool]], length: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The parts cut anew, behind a first token: `length` + 1 tokens each, overlapping by one, and which of
    all but the first are scored."""
    ids, is_scored = np.array([first], np.int64), np.zeros(0, bool)
    for part, flag in parts:
        ids, is_scored = (
            np.append(ids, part.astype(np.int64)),
            np.append(is_scored, np.full(len(part), flag)),
        )
        whole = (len(ids) - 1) // length * length
        for start in range(0, whole, length):
            yield ids[start : start + length + 1], is_scored[start : start + length]
        ids, is_scored = ids[whole:], is_scored[whole:]
    if len(is_scored):
        yield ids, is_scored


# --- in rows


def windows(length: int, context: int, overlap: int) -> Iterator[tuple[int, int, int]]:
    """(begin, end, first new) of the windows over a sequence: the new parts are every position exactly
    once."""
    done = 0
    while done < length:
        end = min(length, context if done == 0 else done + context - overlap)
        yield max(0, end - context), end, done
        done = end


def causal_rows(
    model: Model,
    encoded: list[np.ndarray],
    targets: list[np.ndarray] | None,
    window: int | None,
    overlap: int | None,
) -> Iterator[InputRow]:
    start = np.array(first_tokens(model), np.int32)
    positions = model.positions
    if window is not None and (window < 1 or (positions is not None and window > positions)):
        limit = "" if positions is None else f", and the model has {positions} positions"
        raise EtymonError(f"window is {window}: it must be 1 or more{limit}")
    for number, ids in enumerate(encoded):
        whole = np.concatenate((start, ids) if targets is None else (start, ids, targets[number]))
        if len(whole) < 2:
            raise EtymonError(
                "a text is one token, and the model has none to predict it from: give more text"
            )
        given = 0 if targets is None else len(start) + len(ids)  # tokens that are not scored
        # Of a long text, a token near the beginning of a window has little before it: windows overlap, and
        # only their new parts are scored.
        context = window or model.window or len(whole) - 1
        shared = context // 2 if overlap is None else overlap
        if not 0 <= shared < context:
            raise EtymonError(
                f"overlap is {shared}: it must be 0 or more and below the window of {context} tokens"
            )
        for begin, end, new in windows(len(whole) - 1, context, shared):
            new = max(new, given - 1)
            if new < end:
                prefix = max(0, given - begin)
                yield InputRow(number, whole[begin:end], new - begin, whole[new + 1 : end + 1], prefix=prefix)


def _conditional_rows(
    model: Model, sources: list[np.ndarray], targets: list[np.ndarray]
) -> Iterator[InputRow]:
    reader, writer = source_tokenizer_of(model).framing, tokenizer_of(model).framing
    start = np.array([start_token(model)], np.int32)
    for number, (source, target) in enumerate(zip(sources, targets, strict=True)):
        # The end token that framing adds is a target: a text that does not stop is another one.
        framed = writer.frame(target).ids
        inputs = np.concatenate((start, framed[:-1]))
        yield InputRow(number, inputs, 0, framed, reader.frame(source).ids)


def _masked_rows(model: Model, encoded: list[np.ndarray]) -> Iterator[InputRow]:
    tokenizer = tokenizer_of(model)
    for number, ids in enumerate(encoded):
        framed = tokenizer.framing.frame(ids)
        if model.positions is not None and len(framed.ids) > model.positions:
            raise EtymonError(
                f"a text has {len(framed.ids)} tokens, but the model reads {model.positions}: cut it into "
                "sentences (for a file: --lines)",
                code="too-long",
            )
        # Pseudo-log-likelihood (Salazar et al. 2020): each token masked in turn, one row a token.
        for place in np.flatnonzero(~framed.special):
            masked = framed.ids.copy()
            masked[place] = tokenizer.id("mask")
            yield InputRow(number, masked, int(place), framed.ids[place : place + 1])
