"""How likely a model finds a text: by the chain rule, given a source, or token by token from both sides.

Legend: N tokens, n scored tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from etymon.errors import EtymonError
from etymon.families.model import Model
from etymon.generation.decoding import check_ids, eval_mode, first_token, first_tokens, start_token
from etymon.generation.text import source_tokenizer_of, tokenizer_of
from etymon.nn.batch import Batch
from etymon.nn.vocabulary import Context

BATCH_TOKENS = 8192
"""Tokens that are computed together."""
SEGMENT = 256
"""Tokens of a text that a model with a memory reads at once."""


@dataclass(frozen=True)
class TextScore:
    """The logarithm is natural. Figures by the token count every scored token; the end token of a target is one."""

    text: str
    kind: Literal["likelihood", "pseudo-likelihood"]
    """Pseudo: every token was predicted from all the others, so the sum is no probability of the text."""
    log_likelihood: float
    tokens: int
    bytes: int
    bits_per_byte: float | None
    """None for pseudo-likelihoods, which are no code length."""
    perplexity: float
    pieces: list[str]
    """The scored tokens, as the tokenizer spells them; of a file that is read in segments neither they nor all of the text
    are kept."""
    log_probs: list[float]


@dataclass(frozen=True)
class ScoredRow:
    """A model input, and which of its positions to score against which tokens."""

    text: int
    ids: np.ndarray
    at: np.ndarray
    targets: np.ndarray
    source: np.ndarray | None = None
    given: int = 0
    """How many of its ids are the text that a target is scored given: a model that reads prefixes reads them as one."""


def score_texts(
    model: Model,
    texts: Sequence[str],
    targets: Sequence[str] | None = None,
    *,
    window: int | None = None,
    overlap: int | None = None,
    memory: int | None = None,
    segment: int | None = None,
) -> list[TextScore]:
    """The score of every text, or of its target given the text (T5 and decoders).

    A decoder predicts the first token from its end-of-text token (without one, the first is given and not scored). Long texts are
    read in windows of `window` tokens (the positions that it learnt, `Model.window`, unless told) that overlap by `overlap` tokens
    (half of that unless told); each token is scored once, with at least that many tokens before it. Families with a memory read a
    text of any length once, in segments of `segment` tokens that remember `memory` tokens (as many as the model's shape says,
    unless told). An encoder masks every token in turn.
    """
    tokenizer, title = tokenizer_of(model), model.family.title
    model.require_vocabulary("score")
    if targets is not None and len(targets) != len(texts):
        raise EtymonError(f"there are {len(texts)} texts and {len(targets)} targets: give a target for each")
    if model.encoder_decoder and targets is None:
        raise EtymonError(f"{title} scores a target given a source text: give the target too")
    windowed = window is not None or overlap is not None
    if memory is None and not windowed and {"causal", "memory"} <= model.capabilities:
        memory = getattr(model.shape, "memory", None) or None
    if memory is not None:
        check_memory(model, memory, segment, windowed)
    elif windowed and (model.encoder_decoder or "causal" not in model.capabilities):
        raise EtymonError(f"{title} reads a text as a whole: leave window and overlap out")
    encoded = source_tokenizer_of(model).encode_batch(list(texts))
    check_ids([ids.tolist() for ids in encoded], model.source_vocabulary)
    wanted = encoded if targets is None else tokenizer.encode_batch(list(targets))
    scored = list(texts if targets is None else targets)
    for text, ids in zip(scored, wanted, strict=True):
        if not len(ids) and not model.encoder_decoder:
            raise EtymonError(f"{text[:40]!r} has no tokens: there is nothing to score")
    kind: Literal["likelihood", "pseudo-likelihood"] = "likelihood"
    rows: Iterable[ScoredRow] = ()
    if memory is not None:
        computed = _remembering(model, encoded, None if targets is None else wanted, memory, segment)
    elif model.encoder_decoder:
        rows = _conditional_rows(model, encoded, wanted)
    elif "causal" in model.capabilities:
        rows = _causal_rows(model, encoded, None if targets is None else wanted, window, overlap)
    elif "bidirectional" in model.capabilities and tokenizer.id("mask") is not None:
        if targets is not None:
            raise EtymonError(
                f"{title} reads both sides at once and has no likelihood of a target: leave it out"
            )
        kind, rows = "pseudo-likelihood", _masked_rows(model, encoded)
    else:
        raise EtymonError(f"{title} gives no likelihood of a text")
    ids_of: list[list[int]] = [[] for _ in scored]
    log_probs_of: list[list[float]] = [[] for _ in scored]
    for row, log_probs in _computed(model, rows) if memory is None else computed:
        ids_of[row.text] += row.targets.tolist()
        log_probs_of[row.text] += log_probs
    scores = []
    for text, own, numbers, log_probs in zip(scored, wanted, ids_of, log_probs_of, strict=True):
        # Where there is no token to predict the first one from, its characters do not count either.
        begin = 0 if len(numbers) >= len(own) else int(tokenizer.offsets(text)[2][0])
        pieces = [tokenizer.tokens[number] for number in numbers]
        total, size = math.fsum(log_probs), len(text[begin:].encode())
        bits, perplexity = _figures(total, len(log_probs), size)
        bits = bits if kind == "likelihood" else None
        scores.append(TextScore(text, kind, total, len(log_probs), size, bits, perplexity, pieces, log_probs))
    return scores


def _figures(total: float, tokens: int, size: int) -> tuple[float | None, float]:
    """Bits per byte and perplexity."""
    mean = -total / tokens
    return -total / math.log(2) / size if size else None, math.exp(mean) if mean < 700 else math.inf


def check_memory(model: Model, memory: int, segment: int | None, windowed: bool = False) -> None:
    """Refuses to read a text in segments where that cannot be."""
    model.require_vocabulary("score")
    if not {"causal", "memory"} <= model.capabilities:
        windows = (
            " (its long texts are read in overlapping windows)" if "causal" in model.capabilities else ""
        )
        raise EtymonError(
            f"{model.family.title} carries nothing from one segment of a text to the next: leave memory out{windows}"
        )
    if windowed:
        raise EtymonError(
            "windows overlap and segments remember: give window and overlap or memory, not both"
        )
    if memory < 0 or (segment is not None and segment < 1):
        raise EtymonError(f"a memory of {memory} tokens and segments of {segment or SEGMENT} cannot be")


@torch.inference_mode()
def read_segments(
    model: Model, parts: Iterable[tuple[np.ndarray, bool]], memory: int, segment: int | None = None
) -> Iterator[tuple[np.ndarray, list[float]]]:
    """The scored tokens of one text and their log-probabilities, segment by segment, in a memory of constant size.

    The text comes as parts of any length, its tokens and whether they are scored or only read.
    """
    state = model.remember(1, memory) if memory else None
    head, device = model.heads["vocabulary"], model.device
    with eval_mode(model):
        for ids, asked in _segments(first_token(model), parts, segment or SEGMENT):
            batch = Batch.of([ids[:-1]], device=device)
            hidden_ND, state = model.hidden(batch, state)
            if asked.any():
                at, targets_n = (
                    torch.from_numpy(c).to(device) for c in (np.flatnonzero(asked), ids[1:][asked])
                )
                log_probs_n = head.target_log_probs(hidden_ND, at, targets_n, Context(batch))  # type: ignore[operator]
                yield ids[1:][asked], log_probs_n.tolist()


def _segments(
    first: int, parts: Iterable[tuple[np.ndarray, bool]], length: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Parts cut anew, behind a first token: `length` + 1 tokens each, overlapping by one, and which but the first are asked."""
    ids, asked = np.array([first], np.int64), np.zeros(0, bool)
    for part, scored in parts:
        ids, asked = np.append(ids, part.astype(np.int64)), np.append(asked, np.full(len(part), scored))
        whole = (len(ids) - 1) // length * length
        for start in range(0, whole, length):
            yield ids[start : start + length + 1], asked[start : start + length]
        ids, asked = ids[whole:], asked[whole:]
    if len(asked):
        yield ids, asked


def _remembering(
    model: Model,
    encoded: list[np.ndarray],
    targets: list[np.ndarray] | None,
    memory: int,
    segment: int | None,
) -> Iterator[tuple[ScoredRow, list[float]]]:
    for text, ids in enumerate(encoded):
        parts = [(ids, True)] if targets is None else [(ids, False), (targets[text], True)]
        for scored, log_probs in read_segments(model, parts, memory, segment):
            yield ScoredRow(text, scored, np.zeros(0, np.int64), scored), log_probs


def score_parts(
    model: Model,
    text: str,
    parts: Iterable[tuple[np.ndarray, int, bool]],
    memory: int,
    segment: int | None = None,
    tell: Callable[[int], None] | None = None,
) -> TextScore:
    """The score of one text that may be far larger than the machine's memory: its tokens, their bytes and whether they
    are scored come in parts. `text` is what to call it; `tell` gets the tokens scored so far."""
    size = 0

    def counted() -> Iterator[tuple[np.ndarray, bool]]:
        nonlocal size
        for ids, width, scored in parts:
            check_ids([[int(ids.min()), int(ids.max())]] if len(ids) else [], model.shape.vocabulary)
            size += width * scored
            yield ids, scored

    total, tokens = 0.0, 0
    for _, log_probs in read_segments(model, counted(), memory, segment):
        total, tokens = total + math.fsum(log_probs), tokens + len(log_probs)
        if tell is not None:
            tell(tokens)
    if not tokens:
        raise EtymonError(f"{text[:40]!r} has no tokens: there is nothing to score")
    return TextScore(text, "likelihood", total, tokens, size, *_figures(total, tokens, size), [], [])


def windows(length: int, context: int, overlap: int) -> Iterator[tuple[int, int, int]]:
    """(begin, end, first new) of the windows over a sequence: the new parts are every position exactly once."""
    done = 0
    while done < length:
        end = min(length, context if done == 0 else done + context - overlap)
        yield max(0, end - context), end, done
        done = end


def _causal_rows(
    model: Model,
    encoded: list[np.ndarray],
    targets: list[np.ndarray] | None,
    window: int | None,
    overlap: int | None,
) -> Iterator[ScoredRow]:
    first = np.array(first_tokens(model), np.int32)
    room = model.positions
    if window is not None and (window < 1 or (room is not None and window > room)):
        raise EtymonError(
            f"window is {window}: it must be 1 or more{'' if room is None else f', and the model has {room} positions'}"
        )
    for text, ids in enumerate(encoded):
        whole = np.concatenate((first, ids) if targets is None else (first, ids, targets[text]))
        if len(whole) < 2:
            raise EtymonError(
                "a text is one token, and the model has none to predict it from: give more text"
            )
        given = 0 if targets is None else len(first) + len(ids) - 1
        inputs, following = whole[:-1], whole[1:]
        context = window or model.window or len(inputs)
        shared = context // 2 if overlap is None else overlap
        if not 0 <= shared < context:
            raise EtymonError(
                f"overlap is {shared}: it must be 0 or more and below the window of {context} tokens"
            )
        for begin, end, new in windows(len(inputs), context, shared):
            new = max(new, given)
            if new < end:
                prefix = 0 if targets is None else max(0, given + 1 - begin)
                yield ScoredRow(
                    text,
                    inputs[begin:end],
                    np.arange(new - begin, end - begin),
                    following[new:end],
                    given=prefix,
                )


def _conditional_rows(
    model: Model, encoded: list[np.ndarray], targets: list[np.ndarray]
) -> Iterator[ScoredRow]:
    framing, start = tokenizer_of(model).framing, start_token(model)
    source_framing = source_tokenizer_of(model).framing
    for text, (source, target) in enumerate(zip(encoded, targets, strict=True)):
        following = framing.frame(target).ids
        inputs = np.concatenate((np.array([start], np.int32), following[:-1]))
        yield ScoredRow(text, inputs, np.arange(len(inputs)), following, source_framing.frame(source).ids)


def _masked_rows(model: Model, encoded: list[np.ndarray]) -> Iterator[ScoredRow]:
    tokenizer = tokenizer_of(model)
    for text, ids in enumerate(encoded):
        framed = tokenizer.framing.frame(ids)
        if model.positions is not None and len(framed.ids) > model.positions:
            raise EtymonError(
                f"a text has {len(framed.ids)} tokens, but the model reads {model.positions}: cut it into "
                "sentences (for a file: --lines)"
            )
        for place in np.flatnonzero(~framed.special):
            masked = framed.ids.copy()
            masked[place] = tokenizer.id("mask")
            yield ScoredRow(text, masked, np.array([place]), framed.ids[place : place + 1])


@torch.inference_mode()
def _computed(model: Model, rows: Iterable[ScoredRow]) -> Iterator[tuple[ScoredRow, list[float]]]:
    head = model.heads["vocabulary"]
    with eval_mode(model):
        for part in _batches(rows):
            batch = Batch.of(
                [row.ids for row in part],
                segments=tokenizer_of(model).framing.segments([row.ids for row in part]),
                prefix=[row.given for row in part] if model.reads_prefix else None,
                device=model.device,
            )
            if model.encoder_decoder:
                sources = [row.source for row in part if row.source is not None]
                hidden_ND, _ = model.decode(batch, model.encode(Batch.of(sources, device=model.device)))
            elif "causal" in model.capabilities:
                hidden_ND, _ = model.hidden(batch)
            at = batch.layout.flat([row.at for row in part])
            following = np.concatenate([row.targets for row in part]).astype(np.int64)
            targets_n = torch.from_numpy(following).to(model.device)
            if not model.encoder_decoder and "causal" not in model.capabilities:  # behind masks
                hidden_ND, at = (
                    model.hidden_behind_masks(batch, at),
                    torch.arange(len(at), device=model.device),
                )
            log_probs_n = head.target_log_probs(hidden_ND, at, targets_n, Context(batch))  # type: ignore[operator]
            for row, own in zip(part, log_probs_n.split([len(row.at) for row in part]), strict=True):
                yield row, own.tolist()


def _batches(rows: Iterable[ScoredRow]) -> Iterator[list[ScoredRow]]:
    part: list[ScoredRow] = []
    tokens = 0
    for row in rows:
        size = len(row.ids) + (0 if row.source is None else len(row.source))
        if part and tokens + size > BATCH_TOKENS:
            yield part
            part, tokens = [], 0
        part.append(row)
        tokens += size
    if part:
        yield part
