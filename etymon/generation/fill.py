"""Filling blanks: an encoder reads what stands on both sides, an encoder-decoder writes the missing spans.

Legend: n blanks, V vocabulary.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

import numpy as np
import torch
from torch import Tensor

from etymon.errors import EtymonError
from etymon.families.model import Model
from etymon.generation.decoding import absent_ids, decode, eval_mode
from etymon.generation.settings import DecodingSettings
from etymon.generation.text import encode_prompts, tokenizer_of
from etymon.nn.batch import Batch
from etymon.text.tokenizer import Tokenizer

MARKERS = r"\[MASK\]|<mask>|<extra_id_\d+>|_{3,}"
SPAN_TOKENS = 10
"""How long a span may become, unless told."""


@dataclass(frozen=True)
class FillCandidate:
    """One way to fill a blank."""

    text: str
    probability: float
    sentence: str
    """The whole text: with this blank filled (an encoder), or with all blanks as this search result has them."""


@dataclass(frozen=True)
class Filling:
    """A text with blanks: for each blank its candidates, best first, and one text with all blanks filled.

    An encoder judges every blank by itself, and `filled` is made by filling the blank it is surest of first and
    reading again. An encoder-decoder's candidates are whole results of a beam search: the probability is that of
    all spans together, and `filled` is the best one.
    """

    text: str
    blanks: list[list[FillCandidate]]
    filled: str


def fill_texts(
    model: Model,
    texts: Sequence[str],
    *,
    top_k: int = 5,
    max_new_tokens: int | None = None,
    batch_size: int = 32,
) -> list[Filling]:
    """Fills `[MASK]`, `<mask>`, `<extra_id_0>` or `___`, whatever the tokenizer's own mask is."""
    tokenizer, title = tokenizer_of(model), model.family.title
    if batch_size < 1:
        raise EtymonError(f"batch_size is {batch_size}: it must be 1 or more")
    if top_k < 1:
        raise EtymonError(f"top_k is {top_k}: ask for at least 1 filling")
    model.require_vocabulary("fill blanks")
    reads_both = model.encoder_decoder or "bidirectional" in model.capabilities
    marks = tokenizer.id("mask") is not None or (model.encoder_decoder and tokenizer.sentinels)
    if not (reads_both and marks):
        raise EtymonError(
            f"{title} cannot fill blanks: use an encoder or BART with a mask token, or T5 with its sentinels"
        )
    own = re.escape(tokenizer.roles.get("mask", "<mask>"))
    marker = re.compile(f"{own}|{MARKERS}")
    blanked = [Blanked(text, [match.span() for match in marker.finditer(text)]) for text in texts]
    for one in blanked:
        if not one.spans:
            raise EtymonError(
                f"there is no blank in {one.text[:60]!r}: mark it with {tokenizer.roles.get('mask', '___')}"
            )
    filled: list[Filling] = []
    for first in range(0, len(blanked), batch_size):
        part = blanked[first : first + batch_size]
        if model.encoder_decoder:
            filled += _fill_spans(model, part, top_k, max_new_tokens)
        else:
            filled += _fill_masks(model, part, top_k)
    return filled


@dataclass(frozen=True)
class Blanked:
    """A text and where its blanks are."""

    text: str
    spans: list[tuple[int, int]]

    def marked(self, marks: Sequence[str]) -> str:
        """The text with a mark in each blank."""
        return self.with_words([(mark, False) for mark in marks])

    def with_words(self, words: Sequence[tuple[str, bool] | None]) -> str:
        """The text with words in its blanks (None: left as it is); a word that is glued takes no space before it."""
        parts, end = [], 0
        for (start, stop), word in zip(self.spans, words, strict=True):
            before = self.text[end:start]
            if word is None:
                parts += [before, self.text[start:stop]]
            else:
                parts += [before.rstrip(" ") if word[1] else before, word[0]]
            end = stop
        return "".join(parts) + self.text[end:]


# --- encoders


@torch.inference_mode()
def _fill_masks(model: Model, blanked: list[Blanked], top_k: int) -> list[Filling]:
    tokenizer = tokenizer_of(model)
    mask = tokenizer.id("mask")
    assert mask is not None
    token = tokenizer.roles["mask"]
    encoded = tokenizer.encode_batch([one.marked([token] * len(one.spans)) for one in blanked])
    rows = [tokenizer.framing.frame(ids).ids for ids in encoded]
    places = [np.flatnonzero(row == mask) for row in rows]
    for one, own in zip(blanked, places, strict=True):
        if len(own) != len(one.spans):
            raise EtymonError(
                f"the tokenizer does not keep {token} whole in {one.text[:60]!r}: set spaces around it"
            )
    unfit = torch.tensor(sorted(tokenizer.special_ids), device=model.device)  # they make no word of a text
    found = _mask_probabilities(model, rows, places)
    blanks = []
    for one, own_nV in zip(blanked, found, strict=True):
        best = own_nV.topk(min(top_k, own_nV.shape[1], tokenizer.size))
        blanks.append([
            [
                _candidate(tokenizer, one, number, id_, probability)
                for id_, probability in zip(ids, probabilities, strict=True)
            ]
            for number, (ids, probabilities) in enumerate(zip(best.indices.tolist(), best.values.tolist(), strict=True))
        ])  # fmt: skip
    words: list[list[tuple[str, bool] | None]] = [[None] * len(one.spans) for one in blanked]
    left = [list(range(len(one.spans))) for one in blanked]
    while True:
        for text, own_nV in enumerate(found):
            if not left[text]:
                continue
            probabilities, ids = own_nV.index_fill(1, unfit, -1.0).max(1)
            surest = int(probabilities.argmax())
            blank = left[text].pop(surest)
            rows[text][places[text][blank]] = int(ids[surest])
            words[text][blank] = _word(tokenizer, int(ids[surest]))
        if not any(left):
            break
        found = _mask_probabilities(model, rows, [places[text][left[text]] for text in range(len(rows))])
    return [Filling(one.text, blanks[text], one.with_words(words[text])) for text, one in enumerate(blanked)]


def _mask_probabilities(model: Model, rows: list[np.ndarray], places: list[np.ndarray]) -> list[Tensor]:
    """`[n, V]` for every row: what the model expects at the places."""
    asked = [number for number, found in enumerate(places) if len(found)]
    with eval_mode(model):
        framed = [rows[number] for number in asked]
        segments = tokenizer_of(model).framing.segments(framed)
        batch = Batch.of(framed, segments=segments, device=model.device)
        hidden_nD = model.hidden_behind_masks(batch, batch.layout.flat([places[number] for number in asked]))
        probabilities = model.heads["vocabulary"].log_probs(hidden_nD).exp()  # type: ignore[operator]
    absent = absent_ids(model, probabilities.shape[1])
    if absent is not None:
        probabilities = probabilities.index_fill(1, absent, 0.0)
    split = iter(probabilities.split([len(places[number]) for number in asked]))
    return [next(split) if len(found) else torch.zeros(0, 0) for found in places]


def _candidate(
    tokenizer: Tokenizer, one: Blanked, number: int, id_: int, probability: float
) -> FillCandidate:
    word = _word(tokenizer, id_)
    words = [word if blank == number else None for blank in range(len(one.spans))]
    shown = tokenizer.tokens[id_] if tokenizer.kind == "wordpiece" else word[0]
    return FillCandidate(shown, probability, one.with_words(words))


def _word(tokenizer: Tokenizer, id_: int) -> tuple[str, bool]:
    """A token as text, and whether it goes on with the word before it."""
    token = tokenizer.tokens[id_]
    if id_ in tokenizer.special_ids:
        return token, False
    text = tokenizer.decode([id_]).strip()
    if tokenizer.kind == "wordpiece":
        text = text.removeprefix("##")
    return text, tokenizer.kind in ("wordpiece", "unigram", "bpe", "byte-bpe") and not tokenizer.spaced[id_]


# --- encoder-decoders: T5 writes what stands behind its sentinels, BART the whole text


def _fill_spans(
    model: Model, blanked: list[Blanked], top_k: int, max_new_tokens: int | None
) -> list[Filling]:
    tokenizer = tokenizer_of(model)
    most, sentinels = max(len(one.spans) for one in blanked), tokenizer.sentinels
    if sentinels and most > len(sentinels):
        raise EtymonError(
            f"there are {most} blanks, but the tokenizer has {len(sentinels)} sentinels: split the text"
        )
    marks = [tokenizer.tokens[id_] for id_ in sentinels[:most]] or [tokenizer.roles["mask"]] * most
    sources = encode_prompts(model, [one.marked(marks[: len(one.spans)]) for one in blanked])
    rooms = [(SPAN_TOKENS + 1) * len(one.spans) + 1 for one in blanked]
    if not sentinels:  # the text itself, too, as far as there are positions for it
        longest = model.positions or sys.maxsize
        rooms = [min(room + len(source), longest) for room, source in zip(rooms, sources, strict=True)]
    settings = DecodingSettings(max_new_tokens=max_new_tokens, beams=max(top_k, 4), returns=top_k)
    written = decode(model, sources, settings, limits=rooms if max_new_tokens is None else None)
    fillings = []
    for one, source, found in zip(blanked, sources, written, strict=True):
        blanks: list[list[FillCandidate]] = [[] for _ in one.spans]
        for sequence in found:
            if sentinels:
                words = spans_of(tokenizer, sequence.ids, len(one.spans))
                sentence = one.with_words([(word, False) for word in words])
            else:
                words = spans_between(tokenizer, source, sequence.ids)
                sentence = tokenizer.decode(sequence.ids).strip()
            for blank, word in zip(blanks, words, strict=True):
                blank.append(FillCandidate(word, math.exp(sequence.log_prob), sentence))
        fillings.append(Filling(one.text, blanks, blanks[0][0].sentence))
    return fillings


def spans_of(tokenizer: Tokenizer, ids: Sequence[int], count: int) -> list[str]:
    """What stands behind each of the first `count` sentinels, up to the next sentinel or the end."""
    spans: dict[int, list[int]] = {}
    current: list[int] = []
    for number in ids:
        if number in tokenizer.sentinels:
            current = spans.setdefault(tokenizer.sentinels.index(number), [])
        elif number == tokenizer.id("end"):
            break
        else:
            current.append(number)
    return [tokenizer.decode(spans.get(number, [])).strip() for number in range(count)]


def spans_between(tokenizer: Tokenizer, source: Sequence[int], written: Sequence[int]) -> list[str]:
    """What a text that was written anew has in the place of every mask of its source: what stands between the nearest tokens on
    both sides that the two texts have in common."""
    source, written = ([int(id_) for id_ in ids if id_ != tokenizer.id("end")] for ids in (source, written))
    common = SequenceMatcher(None, source, written, autojunk=False).get_matching_blocks()
    spans = []
    for place in (number for number, id_ in enumerate(source) if id_ == tokenizer.id("mask")):
        start = max((block.b + block.size for block in common if block.a < place), default=0)
        stop = min(block.b for block in common if block.a > place)  # the last one is empty, at the end
        spans.append(tokenizer.decode(written[start:stop]).strip())
    return spans
