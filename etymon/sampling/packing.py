"""Packing: whole sentences put together into samples, as RoBERTa and ELECTRA do.

Plans like those of `etymon.sampling.plans`. Which sentence a sample begins with depends on where the one
before it ended, so samples are found one after another, but over the lengths of sentences only.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np

from etymon.errors import EtymonError
from etymon.sampling.plans import key, order_rows, uniforms
from etymon.text.framing import Framing
from etymon.text.store import Split

SINGLE, SHORT = 0.1, 0.05
"""The shares of ELECTRA's samples that have one text, and that are gathered up to a smaller length."""


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
    share `SHORT` of the time a random smaller target); the first half of the target goes to the first text,
    and the sentence that crosses the middle to either with equal chance; a share `SINGLE` of the samples has
    no second text; what exceeds `length` with its special tokens is cut off. Unlike there, no later sentence
    returns to the first text.
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
            target = length if next(uniform) >= SHORT else min(5, length) + int(next(uniform) * (length - 4))
            start = bounds[here]
            stop = min(bisect_left(bounds, start + target, here + 1), last)
            middle = stop
            if next(uniform) >= SINGLE:
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
