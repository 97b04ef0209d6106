"""Plans: which spans of the store make up an epoch's samples, and in which order.

A plan is a numpy table, a pure function of (split, seed, epoch), one sample a row: ranks and workers only
decide who reads which rows. All randomness is keyed through `key`, so any row can be made again at any time.
"""

from __future__ import annotations

import hashlib
import logging
from bisect import bisect_left
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from etymon.errors import EtymonError
from etymon.text.framing import Framing
from etymon.text.store import Split

logger = logging.getLogger("etymon.text")

SHORT = 0.1
"""The share of documents whose pairs are gathered up to a smaller length."""
ELECTRA_SINGLE, ELECTRA_SHORT = 0.1, 0.05
"""The shares of ELECTRA's samples that have one text, and that are gathered up to a smaller length."""
RETRIES = 10  # how often BERT's pipeline draws again to find another document


def key(seed: int, *parts: int | str) -> np.random.Generator:
    """The generator for (seed, *parts): the one place where randomness is keyed.

    Different parts give independent streams; the same parts always give the same stream.
    """
    plain = [part if isinstance(part, str) else int(part) for part in (seed, *parts)]
    # Hashed, not fed to a SeedSequence: that takes (1,) and (1, 0) for the same.
    digest = hashlib.blake2b(repr(plain).encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))


def stream_windows(split: Split, length: int, seed: int, epoch: int, shuffle: bool = True) -> np.ndarray:
    """Windows [start, stop) of the virtual stream, `length` + 1 tokens each and overlapping by one.

    Inputs are all but a window's last token, targets all but its first, so every token of the text (and
    every separator) is a target exactly once; the last window is short. The first window starts at -1, the
    separator before the text. In order if not `shuffle`, as for validation.
    """
    _require_length(length)
    # The last start is before the last token: a window of one token would have no target.
    starts = np.arange(-1, split.stream_length - 1, length, dtype=np.int64)
    table = np.column_stack((starts, np.minimum(starts + length + 1, split.stream_length)))
    return order_rows(table, shuffle, seed, "stream windows", epoch)


def chunks(
    split: Split, length: int, seed: int, epoch: int, separator: int | None = None, shuffle: bool = True
) -> np.ndarray:
    """T5's samples: all documents end to end, cut into spans [start, stop) of `length` tokens.

    With a `separator` the spans are of the virtual stream (`split.stream`), else of `split.tokens`, where
    documents meet without a mark, as in T5's own data. Where the cuts fall changes from epoch to epoch, so
    the first and the last span may be short; a single token, which cannot be corrupted, is left out.
    (T5 concatenates random chunks of at most 65,536 tokens; end to end and in order they are the text.)
    """
    _require_length(length)
    total = len(split.tokens) if separator is None else split.stream_length
    # Other cuts in every epoch: else the same tokens would always meet at the edges of samples.
    phase = int(key(seed, "chunk phase", epoch).integers(length)) if shuffle else 0
    starts = np.arange(phase - length if phase else 0, total, length, dtype=np.int64)
    table = np.column_stack((np.maximum(starts, 0), np.minimum(starts + length, total)))
    table = table[table[:, 1] - table[:, 0] > 1]
    return order_rows(table, shuffle, seed, "chunks", epoch)


def sentence_pairs(
    split: Split, max_length: int, seed: int, epoch: int, overhead: int = 3, shuffle: bool = True
) -> np.ndarray:
    """BERT's next-sentence samples: rows (a_start, a_stop, b_start, b_stop, is_random), spans of `tokens`.

    As in BERT's released pipeline: sentences of a document are gathered up to `max_length` - `overhead`
    tokens (a random smaller target for a share `SHORT` of the documents) and divided at random into A and B;
    half the time, and always for a single sentence, B comes from another document and the unused sentences go
    back; then the longer of the two loses tokens from front or back. Unlike there, a random B never comes
    from the same document.

    With a single document there is no other: then every pair is a true continuation (and the log says so).
    """
    if len(split) == 1 and shuffle and epoch == 0:
        logger.warning("the text is one document: no random second sentence exists, every pair is a true one")
    table = _gather_pairs(split, max_length, overhead, seed, epoch, only_true=len(split) == 1)
    return order_rows(table, shuffle, seed, "pair order", epoch)


def ordered_pairs(
    split: Split, max_length: int, seed: int, epoch: int, overhead: int = 3, shuffle: bool = True
) -> np.ndarray:
    """ALBERT's sentence-order samples: rows (a_start, a_stop, b_start, b_stop, is_swapped), spans of
    `tokens`.

    Gathered and cut like `sentence_pairs`, but A and B are always consecutive, and half of the time they
    change places. A single sentence, for which ALBERT's pipeline takes B from another document and says that
    it was swapped, gets the next one for its B, or is divided if it is the document's last: a strange topic
    would give the answer away.
    """
    table = _gather_pairs(split, max_length, overhead, seed, epoch, only_true=True)
    swapped = key(seed, "pair swaps", epoch).random(len(table)) < 0.5
    table[swapped] = table[swapped][:, [2, 3, 0, 1, 4]]
    table[:, 4] = swapped
    return order_rows(table, shuffle, seed, "pair order", epoch)


def _gather_pairs(
    split: Split, max_length: int, overhead: int, seed: int, epoch: int, *, only_true: bool
) -> np.ndarray:
    """Rows (a_start, a_stop, b_start, b_stop, is_random) in the order of the text. If `only_true`, no B is
    random."""
    room = max_length - overhead
    if room < 2:
        raise EtymonError(f"sentence pairs need room for two tokens: use a length of at least {overhead + 2}")
    # Sentences lie end to end, so sentences i to j are the one span [bounds[i], bounds[j + 1]).
    bounds: list[int] = [*split.sentences.tolist(), len(split.tokens)]
    firsts: list[int] = split.first_sentences.tolist()
    rows = []
    # A generator for each document: its pairs do not depend on the documents before it.
    for document, (here, last) in enumerate(pairwise(firsts)):
        rng = key(seed, "pairs", epoch, document)
        uniform = uniforms(rng)
        target = room
        if next(uniform) < SHORT:
            target = 2 + int(next(uniform) * (room - 1))
        while here < last:
            stop = min(bisect_left(bounds, bounds[here] + target, here + 1), last)
            if only_true and stop == here + 1:  # a lone sentence needs a true neighbour
                stop = min(stop + 1, last)
            count = stop - here
            if only_true and count == 1:  # the last sentence has none: divide it
                middle = (bounds[here] + bounds[stop]) // 2
                if middle > bounds[here]:
                    rows.append((*_trim(bounds[here], middle, middle, bounds[stop], room, rng), False))
                break
            middle = here + 1 + (int(next(uniform) * (count - 1)) if count > 1 else 0)
            a_start, a_stop = bounds[here], bounds[middle]
            is_random = not only_true and (count == 1 or next(uniform) < 0.5)
            if is_random:
                # As in the released pipeline: sentences that were gathered for B are used again.
                for _ in range(RETRIES):
                    other = int(next(uniform) * len(split))
                    if other != document:
                        break
                else:
                    other = (document + 1) % len(split)
                first, end = firsts[other : other + 2]
                b_first = first + int(next(uniform) * (end - first))
                b_last = min(
                    bisect_left(bounds, bounds[b_first] + target - (a_stop - a_start), b_first + 1), end
                )
                b_start, b_stop, here = bounds[b_first], bounds[b_last], middle
            else:
                b_start, b_stop, here = a_stop, bounds[stop], stop
            rows.append((*_trim(a_start, a_stop, b_start, b_stop, room, rng), is_random))
    return np.array(rows, np.int64).reshape(-1, 5)


def _trim(
    a_start: int, a_stop: int, b_start: int, b_stop: int, room: int, rng: np.random.Generator
) -> tuple[int, int, int, int]:
    """Take single tokens from the longer of A and B, front or back with equal chance, until both fit into
    `room`."""
    a, b = a_stop - a_start, b_stop - b_start
    excess = a + b - room
    if excess <= 0:
        return a_start, a_stop, b_start, b_stop
    # How many each one loses is certain: the longer one first, then, from a tie on, B and A in turn.
    uneven = min(excess, abs(a - b))
    rest = excess - uneven
    lost_a = (uneven if a > b else 0) + rest // 2
    lost_b = (uneven if b > a else 0) + (rest + 1) // 2
    front_a, front_b = int(rng.binomial(lost_a, 0.5)), int(rng.binomial(lost_b, 0.5))
    return a_start + front_a, a_stop - lost_a + front_a, b_start + front_b, b_stop - lost_b + front_b


def uniforms(rng: np.random.Generator) -> Iterator[float]:
    """Uniform numbers in [0, 1), drawn in blocks: a call of numpy for each would take most of a plan's
    time."""
    size = 16
    while True:
        yield from rng.random(size).tolist()
        size = min(2 * size, 1024)


def order_rows(table: np.ndarray, shuffle: bool, seed: int, plan: str, epoch: int) -> np.ndarray:
    """The rows of a plan, shuffled for the epoch if `shuffle`; its name keeps the orders of different plans
    apart."""
    return table[key(seed, plan, epoch).permutation(len(table))] if shuffle else table


def _require_length(length: int) -> None:
    if length < 2:
        raise EtymonError(f"a sample needs at least 2 tokens, not {length}")


# --- packing: whole sentences put together into samples. Which sentence a sample begins with depends on where
# the one before it ended, so samples are found one after another, but over the lengths of sentences only.


def whole_sentences(
    split: Split, room: int, seed: int, epoch: int, *, across: bool = True, shuffle: bool = True
) -> np.ndarray:
    """RoBERTa's samples: as many whole sentences as fit into `room` tokens, as spans [start, stop) of
    the virtual stream.

    `across` documents (FULL-SENTENCES), with one separator between them, which counts, or never
    (DOC-SENTENCES). No sample begins or ends with a separator: the framing marks its ends. A sentence longer
    than the room is cut. Every token is in exactly one sample; epochs differ in the order alone.
    """
    if room < 1:
        raise EtymonError("there is no room for text beside the special tokens: use a larger length")
    # Sentences longer than the room are divided: `number` counts the pieces of each. A document's number is
    # also how many separators come before it in the virtual stream.
    first = np.asarray(split.sentences)
    lengths = np.diff(first, append=len(split.tokens))
    counts = -(-lengths // room)
    owner = np.repeat(np.arange(len(first)), counts)
    number = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    documents = (np.searchsorted(split.documents, first, side="right") - 1)[owner]
    starts = first[owner] + number * room
    stops = np.minimum(starts + room, (first + lengths)[owner]) + documents
    starts += documents
    # For every piece, if a sample began with it: the first piece that does not fit any more.
    following = np.searchsorted(stops, starts + room, side="right")
    if not across:
        following = np.minimum(following, np.searchsorted(documents, documents, side="right"))
    # The next sample begins with that piece: a chain, followed over plain integers, which are faster than
    # numpy's.
    chain, next_piece, piece = [], following.tolist(), 0
    while piece < len(next_piece):
        chain.append(piece)
        piece = next_piece[piece]
    table = np.column_stack((starts[chain], stops[following[chain] - 1]))
    return order_rows(table, shuffle, seed, "whole sentences", epoch)


def segments(
    split: Split, length: int, framing: Framing, seed: int, epoch: int, *, shuffle: bool = True
) -> np.ndarray:
    """ELECTRA's samples: rows (a_start, a_stop, b_start, b_stop) of two consecutive texts, spans of `tokens`.

    As in the released pipeline: sentences of a document are gathered until they reach `length` tokens (a
    share `ELECTRA_SHORT` of the time a random smaller target); the first half of the target goes to the first
    text, and the sentence that crosses the middle to either with equal chance; a share `ELECTRA_SINGLE` of
    the samples has no second text; what exceeds `length` with its special tokens is cut off. Unlike there, no
    later sentence returns to the first text.
    """
    alone, both = length - framing.overhead(), length - framing.overhead(pair=True)
    if both < 2:
        raise EtymonError(f"two texts need room for two tokens: use a length of at least {length - both + 2}")
    bounds = [*split.sentences.tolist(), len(split.tokens)]
    uniform = uniforms(key(seed, "segments", epoch))
    rows, here = [], 0
    for last in split.first_sentences[1:].tolist():
        while here < last:
            # `here` and `last` are numbers of sentences; the others below, but for `stop` and `middle`, of
            # tokens.
            is_whole = next(uniform) >= ELECTRA_SHORT
            target = length if is_whole else min(5, length) + int(next(uniform) * (length - 4))
            start = bounds[here]
            stop = min(bisect_left(bounds, start + target, here + 1), last)
            middle = stop
            if next(uniform) >= ELECTRA_SINGLE:
                half = start + (target - length + both) // 2
                middle = max(bisect_left(bounds, half, here + 1, stop + 1) - 1, here + 1)
                if middle < stop and bounds[middle] < half and next(uniform) < 0.5:
                    middle += 1
            a_stop = min(bounds[middle], start + alone)
            b_stop = min(bounds[stop], bounds[middle] + max(0, both - (a_stop - start)))
            rows.append((start, a_stop, bounds[middle], b_stop))
            here = stop
    table = np.array(rows, np.int64).reshape(-1, 4)
    return order_rows(table, shuffle, seed, "segment order", epoch)
