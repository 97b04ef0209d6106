"""Filling blanks: an encoder reads what stands on both sides, an encoder-decoder writes the missing spans.

Legend: n blanks, V vocabulary, D width.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from etymon.errors import EtymonError
from etymon.families.model import Model
from etymon.generation.decoding import absent_ids, decode
from etymon.generation.text import encode_prompts, tokenizer_of
from etymon.nn.batch import Batch
from etymon.nn.layers import eval_mode
from etymon.report.inline import InlineRow
from etymon.settings.decoding import DecodingSettings
from etymon.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from etymon.report.cells import Cell

MARKERS = r"\[MASK\]|<mask>|<extra_id_\d+>|_{3,}|＿{2,}"
SPAN_TOKENS = 10
"""How long a span may become, unless `max_new_tokens` is given."""

Word = tuple[str, bool]
"""A text for a blank, and whether it goes on with the word before it, so that no space is between them."""


@dataclass(frozen=True)
class Candidate:
    """A way to fill a blank."""

    text: str
    probability: float
    sentence: str
    """The whole text: with this blank filled (an encoder), or with all blanks as this search result has
    them."""


@dataclass(frozen=True)
class Filling(InlineRow):
    """A text with blanks: for each blank its candidates, best first, and one text with all blanks filled.

    An encoder predicts every blank by itself, and `filled` is made by filling the blank it is surest of first
    and reading again. An encoder-decoder's candidates are whole results of a beam search: the probability is
    that of all spans together, and `filled` is the best one.
    """

    text: str
    blanks: list[list[Candidate]]
    filled: str

    def table_row(self) -> dict[str, Cell]:
        cells: dict[str, Cell] = {"text": self.text, "filled": self.filled}
        for number, candidates in enumerate(self.blanks, 1):
            shown = ", ".join(f"{each.text.strip()} {each.probability:.0%}" for each in candidates[:5])
            cells[f"blank {number}"] = shown
        return cells


@dataclass(frozen=True)
class BlankText:
    """A text with blanks, the texts around them (one more than blanks), and what marks them."""

    text: str
    between: list[str]
    marks: list[str]

    def fill(self, words: Sequence[Word | None]) -> str:
        """The text with words in its blanks; None leaves the mark."""
        parts = []
        for before, mark, word in zip(self.between, self.marks, words):
            filler, is_glued = word or (mark, False)
            parts += [before.rstrip(" ") if is_glued else before, filler]
        return "".join(parts) + self.between[-1]


def fill_texts(
    model: Model,
    texts: Sequence[str],
    *,
    top_k: int = 5,
    max_new_tokens: int | None = None,
    batch_size: int = 32,
) -> list[Filling]:
    """Fills `[MASK]`, `<mask>`, `<extra_id_0>` or `___`, whatever the tokenizer's mask is."""
    tokenizer = tokenizer_of(model)
    if batch_size < 1:
        raise EtymonError(f"batch_size is {batch_size}: it must be 1 or more")
    if top_k < 1:
        raise EtymonError(f"top_k is {top_k}: ask for at least 1 filling")
    model.require_vocabulary("fill blanks")
    reads_both = model.encoder_decoder or "bidirectional" in model.capabilities
    # T5 has no mask token; its sentinels mark the blanks, each another one.
    has_marks = tokenizer.id("mask") is not None or (model.encoder_decoder and tokenizer.sentinels)
    if not (reads_both and has_marks):
        raise EtymonError(
            f"{model.family.title} cannot fill blanks: use an encoder or BART with a mask token, "
            "or T5 with its sentinels",
            code="wrong-family",
        )
    marker = re.compile(f"{re.escape(tokenizer.roles.get('mask', '<mask>'))}|{MARKERS}")
    blank_texts = [BlankText(text, marker.split(text), marker.findall(text)) for text in texts]
    for text in blank_texts:
        if not text.marks:
            raise EtymonError(
                f"there is no blank in {text.text[:60]!r}: mark it with "
                f"{tokenizer.roles.get('mask', '<extra_id_0>')} or ___",
                code="no-blank",
            )
    fillings: list[Filling] = []
    for first in range(0, len(texts), batch_size):
        part = blank_texts[first : first + batch_size]
        if model.encoder_decoder:
            fillings += _fill_spans(model, part, top_k, max_new_tokens)
        else:
            fillings += _fill_masks(model, part, top_k)
    return fillings


# --- encoders


@torch.inference_mode()
def _fill_masks(model: Model, texts: list[BlankText], top_k: int) -> list[Filling]:
    tokenizer = tokenizer_of(model)
    mask, token = tokenizer.id("mask"), tokenizer.roles["mask"]
    encoded = tokenizer.encode_batch([text.fill([(token, False)] * len(text.marks)) for text in texts])
    rows = [tokenizer.framing.frame(ids).ids for ids in encoded]
    # Blanks that are still open: the number and the place in the row of each.
    blanks = [list(enumerate(np.flatnonzero(row == mask).tolist())) for row in rows]
    for text, places in zip(texts, blanks, strict=True):
        if len(places) != len(text.marks):
            raise EtymonError(
                f"the tokenizer does not keep {token} whole in {text.text[:60]!r}: set spaces around it"
            )
    probabilities = _mask_probabilities(model, rows, blanks)
    candidates = []
    for text, probs_nV in zip(texts, probabilities, strict=True):
        best = probs_nV.topk(min(top_k, probs_nV.shape[1], tokenizer.size))
        by_blank = enumerate(zip(best.indices.tolist(), best.values.tolist(), strict=True))
        candidates.append(
            [
                [_candidate(tokenizer, text, number, *pair) for pair in zip(*column, strict=True)]
                for number, column in by_blank
            ]
        )
    special = torch.tensor(sorted(tokenizer.special_ids), device=model.device)  # they make no word of a text
    words: list[list[Word | None]] = [[None] * len(text.marks) for text in texts]
    # One blank a turn, the surest first: what fills it is context for the others, which are then predicted
    # anew.
    while any(blanks):
        for number, probs_nV in enumerate(probabilities):
            if blanks[number]:
                best_n, ids_n = probs_nV.index_fill(1, special, -1.0).max(1)
                surest = int(best_n.argmax())
                blank, place = blanks[number].pop(surest)
                rows[number][place] = int(ids_n[surest])
                words[number][blank] = _word(tokenizer, int(ids_n[surest]))
        if any(blanks):
            probabilities = _mask_probabilities(model, rows, blanks)
    columns = zip(texts, candidates, words, strict=True)
    return [Filling(text.text, options, text.fill(chosen)) for text, options, chosen in columns]


def _mask_probabilities(
    model: Model, rows: list[np.ndarray], blanks: list[list[tuple[int, int]]]
) -> list[Tensor]:
    """The probabilities `[n, V]` of the words in every row's open blanks."""
    read = [number for number, places in enumerate(blanks) if places]
    with eval_mode(model):
        framed = [rows[number] for number in read]
        segments = tokenizer_of(model).framing.segments(framed)
        batch = Batch.of(framed, segments=segments, device=model.device)
        places = [np.array([place for _, place in blanks[number]]) for number in read]
        hidden_nD = model.hidden_behind_masks(batch, batch.layout.flat(places))
        probs_nV = model.heads["vocabulary"].log_probs(hidden_nD).exp()  # type: ignore[operator]
    if (absent := absent_ids(model, probs_nV.shape[1])) is not None:
        probs_nV = probs_nV.index_fill(1, absent, 0.0)
    return list(probs_nV.split([len(places) for places in blanks]))


def _candidate(tokenizer: Tokenizer, text: BlankText, blank: int, id_: int, probability: float) -> Candidate:
    word = _word(tokenizer, id_)
    words = [word if number == blank else None for number in range(len(text.marks))]
    shown = tokenizer.tokens[id_] if tokenizer.kind == "wordpiece" else word[0]
    return Candidate(shown, probability, text.fill(words))


def _word(tokenizer: Tokenizer, id_: int) -> Word:
    """A token as text, and whether it goes on with the word before it."""
    token = tokenizer.tokens[id_]
    if id_ in tokenizer.special_ids:
        return token, False
    text = tokenizer.decode([id_]).strip()
    if tokenizer.kind == "wordpiece":
        text = text.removeprefix("##")
    return text, tokenizer.kind in ("wordpiece", "unigram", "bpe", "byte-bpe") and not tokenizer.spaced[id_]


# --- encoder-decoders: with sentinels (T5) the spans behind them are written, without (BART) the whole text


def _fill_spans(
    model: Model, texts: list[BlankText], top_k: int, max_new_tokens: int | None
) -> list[Filling]:
    tokenizer = tokenizer_of(model)
    most, sentinels = max(len(text.marks) for text in texts), tokenizer.sentinels
    if sentinels and most > len(sentinels):
        raise EtymonError(
            f"there are {most} blanks, but the tokenizer has {len(sentinels)} sentinels: split the text"
        )
    marks = [(tokenizer.tokens[id_], False) for id_ in sentinels] or [(tokenizer.roles["mask"], False)] * most
    sources = encode_prompts(model, [text.fill(marks) for text in texts])
    limits = None
    if max_new_tokens is None:
        limits = [(SPAN_TOKENS + 1) * len(text.marks) + 1 for text in texts]
        if not sentinels:  # the text itself, too, as far as there are positions for it
            positions = model.positions or sys.maxsize
            limits = [min(sum(pair), positions) for pair in zip(limits, map(len, sources), strict=True)]
    # Four beams at least: with one, the only candidate would be the greedy text.
    settings = DecodingSettings(max_new_tokens=max_new_tokens, beams=max(top_k, 4), returns=top_k)
    fillings = []
    for text, source, sequences in zip(
        texts, sources, decode(model, sources, settings, limits=limits), strict=True
    ):
        blanks: list[list[Candidate]] = [[] for _ in text.marks]
        for sequence in sequences:
            if sentinels:
                words = spans_of(tokenizer, sequence.ids, len(text.marks))
                sentence = text.fill([(word, False) for word in words])
            else:
                words = spans_between(tokenizer, source, sequence.ids)
                sentence = tokenizer.decode(sequence.ids).strip()
            for blank, word in zip(blanks, words, strict=True):
                blank.append(Candidate(word, math.exp(sequence.log_prob), sentence))
        fillings.append(Filling(text.text, blanks, blanks[0][0].sentence))
    return fillings


def spans_of(tokenizer: Tokenizer, ids: Sequence[int], count: int) -> list[str]:
    """The texts behind each of the first `count` sentinels, up to the next sentinel or the end."""
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
    """What a text that was written anew has in the place of every mask of its source: the tokens between the
    nearest ones on both sides that the two texts have in common."""
    source, written = ([int(id_) for id_ in ids if id_ != tokenizer.id("end")] for ids in (source, written))
    # Without `autojunk`, which ignores frequent tokens in long texts: they are the ones that anchor a blank.
    common = SequenceMatcher(None, source, written, autojunk=False).get_matching_blocks()
    spans = []
    for place in (number for number, id_ in enumerate(source) if id_ == tokenizer.id("mask")):
        start = max((block.b + block.size for block in common if block.a < place), default=0)
        stop = min(block.b for block in common if block.a > place)  # the last one is empty, at the end
        spans.append(tokenizer.decode(written[start:stop]).strip())
    return spans
