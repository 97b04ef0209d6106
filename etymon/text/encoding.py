"""Text to tokens, and where documents and sentences are among them, batch by batch.

Between words that are separated by a space or a line break no pipeline of ours joins anything, so the tokens
of a text are those of its words in a row, and each different word is encoded once. That is several times
faster than the library on running text. What is not certain to be like that goes to the library in longer
pieces.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pyarrow

from etymon.text.reading import Document
from etymon.text.segmenters import BatchWords, open_segmenter, segment_batch
from etymon.text.sentences import cut_front, cut_spans, is_wrapped, sentence_starts
from etymon.text.tokenizer import Tokenizer

BATCH = 1 << 20  # characters that are encoded together
CONTEXT = 512  # characters before a part that tell whether a sentence begins with it
REMEMBERED = 1 << 18  # words whose tokens are kept
LONGEST = 32  # characters of a word; longer ones count as several
MOST_ADDED = 1 << 10  # special and added tokens to look for in every text

SPACES = np.array([chr(code).isspace() for code in range(0x3001)] + [False])


class Part(NamedTuple):
    """A document, or a part of one: `before` is the end of the part before it, `wrapped` the document's
    nature."""

    text: str
    before: str
    wrapped: bool | None
    more: bool


@dataclass(frozen=True)
class Encoded:
    """A batch. A place is a row of three counts: the tokens, UTF-8 bytes and white-space words before it in
    the batch."""

    tokens: np.ndarray
    ends: np.ndarray
    """The places where parts end, one a part."""
    sentences: np.ndarray
    """The places where sentences begin, each at a token of its own."""
    word_starts: np.ndarray | None = None
    """For every token, whether a word of the segmenter begins with it; None without one."""


def batches(documents: Iterable[Document]) -> Iterator[list[Part]]:
    """Parts of documents, about BATCH characters together. The cut depends on the text alone."""
    batch: list[Part] = []
    size = 0
    before, wrapped, is_inside = "", None, False
    for document in documents:
        front, rest = cut_front(document.text)
        for text, more in [*((part, True) for part in front), (rest, document.more)]:
            if not is_inside and not text.strip() and not (text and more):
                continue  # an empty document
            if more and not is_inside:
                wrapped = is_wrapped(text)
            batch.append(Part(text, before, wrapped, more))
            size += len(text)
            is_inside = more
            before, wrapped = ((before + text)[-CONTEXT:], wrapped) if more else ("", None)
            if size >= BATCH:
                yield batch
                batch, size = [], 0
    if batch:
        yield batch


def batch_digest(batch: list[Part]) -> str:
    """A checksum of all that a batch's encoding depends on, but for the tokenizer."""
    digest = hashlib.blake2b(digest_size=16)
    for part in batch:
        text, before = part.text.encode(), part.before.encode()
        digest.update(f"{len(text)} {len(before)} {part.wrapped} {part.more} ".encode() + before)
        digest.update(text)
    return digest.hexdigest()


class Encoder:
    """Encodes batches with one tokenizer, into ids of one type. The segmenter of that name finds their
    `words`."""

    def __init__(self, tokenizer: Tokenizer, dtype: np.dtype, words: str | None = None) -> None:
        self.tokenizer, self.dtype, self.segmenter = tokenizer, dtype, open_segmenter(words)
        added = tokenizer.backend.get_added_tokens_decoder().values()
        self.added = ["▁", *(token.content for token in added)]  # where spaces become "▁", it is no letter
        self.by_word = keeps_words_apart(tokenizer.description) and len(self.added) <= MOST_ADDED
        # A line break parts words as a space does, unless spaces become "▁" and it stays what it is.
        cleaned = tokenizer.backend.normalizer and tokenizer.backend.normalizer.normalize_str("a\nb")
        spaces = (tokenizer.description["pre_tokenizer"] or {}).get("type") == "Metaspace"
        self.line_break = 0x20 if spaces and cleaned != "a b" else 0x0A
        self.space = tokenizer.backend.token_to_id("▁") if tokenizer.kind in ("unigram", "bpe") else None
        self._forget()

    def __call__(self, batch: list[Part]) -> Encoded:
        """Characters are counted in the batch as one text; everything below is an array over its characters,
        its units (what is encoded by itself) or its tokens."""
        words = None
        if self.segmenter is not None:
            is_cut = self.segmenter.way == "spaces"
            # Words are looked for in the text as the model reads it; all other figures are of the given one.
            read = str if is_cut else self.tokenizer.normalise
            texts, words = segment_batch(self.segmenter, [(read(part.text), part.before) for part in batch])
            if is_cut:
                batch = [part._replace(text=text) for part, text in zip(batch, texts, strict=True)]
        text = "".join(part.text for part in batch)
        sizes = [len(part.text) for part in batch]
        stops = np.cumsum(sizes)
        starts = stops - sizes
        codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
        space = SPACES[np.minimum(codes, len(SPACES) - 1)]
        new_word = ~space
        new_word[1:] &= space[:-1]
        sentences = []
        for start, part in zip(starts.tolist(), batch, strict=True):
            if part.text and not part.before[-1:].strip():  # a new document, or white space before
                new_word[start] = not space[start]
            first = sentence_starts(part.before + part.text, part.wrapped) - len(part.before)
            sentences.append(start + first[first >= 0])
            if part.text and not part.before:  # a document begins with a sentence
                sentences.append([start])
        if words is not None:
            words.count(new_word, text)
        widths = np.uint8(1) + (codes > 0x7F) + (codes > 0x7FF) + (codes > 0xFFFF)
        bytes_before, words_before = _sums_before(widths), _sums_before(new_word)

        units = self._units(text, codes, space, starts.tolist(), batch)
        tokens, lengths = self._encode(text.encode(), bytes_before[np.append(units, len(text))])
        tokens_before = _sums_before(lengths)
        ends = tokens_before[np.searchsorted(units, stops)]

        places = np.unique(np.concatenate(sentences))
        byte_lengths = self.tokenizer.byte_lengths
        spelled = np.zeros(1) if byte_lengths is None else np.cumsum(byte_lengths[tokens], dtype=np.int64)
        is_spelled = bool(len(spelled) and spelled[-1] == bytes_before[-1])

        def token_at(places: np.ndarray, *, before: bool = False) -> np.ndarray:
            """The number of the token with each character, or with the end of the one before it."""
            if is_spelled:  # the bytes of the tokens say where they are
                return np.searchsorted(spelled, bytes_before[places] - before, side="right")
            return self._locate(text, codes, units, tokens_before, places - before)

        word_starts = None
        if words is not None:
            word_starts = self._mark_words(words, tokens, space, starts, token_at)
        index = token_at(places)
        # What has no token of its own (white space, characters that the tokenizer drops) begins no sentence.
        has_token = index < ends[np.searchsorted(stops, places, side="right")]
        index, first = np.unique(index[has_token], return_index=True)
        places = places[has_token][first]
        return Encoded(
            tokens,
            np.column_stack((ends, bytes_before[stops], words_before[stops])),
            np.column_stack((index, bytes_before[places], words_before[places])),
            word_starts,
        )

    def _mark_words(
        self,
        words: BatchWords,
        tokens: np.ndarray,
        space: np.ndarray,
        part_starts: np.ndarray,
        token_at: Callable[..., np.ndarray],
    ) -> np.ndarray:
        """For every token, whether a word begins with it. Words that share a token are one word: what is
        hidden as a whole must not show in it. White space that is a token is a word."""
        begins = self.tokenizer.word_starts[tokens]
        if not len(tokens):
            return begins
        firsts, lasts = token_at(words.runs[:, 0]), token_at(words.runs[:, 1])
        inside = np.zeros(len(tokens) + 1, np.int32)
        np.add.at(inside, firsts, 1)
        np.add.at(inside, lasts, -1)
        begins[np.cumsum(inside)[:-1] > 0] = False
        bounds = np.unique(words.words)
        bounds = bounds[bounds < len(space)]
        is_apart = (bounds == 0) | space[bounds - 1] | np.isin(bounds, part_starts)
        inner = bounds[~is_apart]
        cuts = token_at(inner)
        cuts = cuts[token_at(inner, before=True) != cuts]
        marked = np.concatenate((firsts, token_at(bounds[is_apart]), cuts, token_at(part_starts)))
        begins[marked[marked < len(tokens)]] = True
        return begins

    def _units(
        self, text: str, codes: np.ndarray, space: np.ndarray, starts: list[int], batch: list[Part]
    ) -> np.ndarray:
        """The characters where units begin: words, each with the space before it, or longer pieces."""
        pieces = [
            (start + first, start + last)
            for start, part in zip(starts, batch, strict=True)
            for first, last in cut_spans(part.text)
            if first < last
        ]
        begins = np.zeros(len(text) + 1, bool)
        if self.by_word:
            # Other white space is left inside: libraries differ.
            begins[:-2] = ((codes[:-1] == 0x20) | (codes[:-1] == self.line_break)) & ~space[1:]
            begins[[first - 1 for first, _ in pieces]] = False
            present = [token for token in self.added if token in text]
            for first, last in pieces if present else ():
                if any(text.find(token, first, last) >= 0 for token in present):
                    begins[first:last] = False
        begins[[first for first, _ in pieces]] = True
        return np.flatnonzero(begins[:-1])

    def _forget(self) -> None:
        """Empties the memory of words: word number n has `_lengths[n]` tokens from `_firsts[n]` on in
        `_tokens`."""
        self._numbers: dict[str, int] = {}
        self._tokens, self._firsts, self._lengths = (np.zeros(0, kind) for kind in (self.dtype, "i8", "i8"))
        self._size = 0

    def _encode(self, data: bytes, bounds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The tokens of the units between those bytes, and how many each has."""
        # Arrow finds the distinct words without making a Python string of every word of the text.
        buffers = [None, pyarrow.py_buffer(bounds.astype(np.int32)), pyarrow.py_buffer(data)]
        units = pyarrow.Array.from_buffers(pyarrow.string(), len(bounds) - 1, buffers).dictionary_encode()
        words = units.dictionary.to_pylist()
        if self._size > REMEMBERED:
            self._forget()
        new = [word for word in words if word not in self._numbers]
        encodings = self.tokenizer.encode_texts(self.tokenizer.backend.encode_batch_fast, new)
        ids = [encoding.ids for encoding in encodings]
        self._numbers |= {word: number for number, word in enumerate(new, len(self._numbers))}
        self._size += sum(1 + len(word) // LONGEST for word in new)
        lengths = np.fromiter(map(len, ids), np.int64, len(ids))
        self._firsts = np.append(self._firsts, len(self._tokens) + np.cumsum(lengths) - lengths)
        self._lengths = np.append(self._lengths, lengths)
        self._tokens = np.append(self._tokens, np.fromiter(chain.from_iterable(ids), self.dtype))
        numbers = np.fromiter(map(self._numbers.__getitem__, words), np.int64, len(words))
        rows = numbers[units.indices.to_numpy()]
        lengths = self._lengths[rows]
        shift = self._firsts[rows] - (np.cumsum(lengths) - lengths)
        return self._tokens[np.repeat(shift, lengths) + np.arange(lengths.sum())], lengths

    def _locate(
        self, text: str, codes: np.ndarray, units: np.ndarray, tokens_before: np.ndarray, places: np.ndarray
    ) -> np.ndarray:
        """The number of the token that holds each character, or of the next one if none does; a space that
        is a token of its own belongs to what follows it."""
        unit = np.searchsorted(units, places, side="right") - 1
        inside = places - units[unit]
        index = tokens_before[unit]
        # The space before a word, unless tokens spell the text and it may be one of them.
        is_spaced = np.isin(codes[units[unit]], (0x20, self.line_break))
        first = self.by_word & (self.tokenizer.byte_lengths is None) & is_spaced
        deep = np.flatnonzero(inside > first)
        bounds = np.append(units, len(text))
        for group in np.split(deep, np.flatnonzero(np.diff(unit[deep])) + 1) if len(deep) else ():
            start, stop = bounds[unit[group[0]] : unit[group[0]] + 2]
            ids, _, stops = self.tokenizer.offsets(text[start:stop], quiet=True)
            numbers = np.searchsorted(np.maximum.accumulate(stops), inside[group], side="right")
            if self.space is not None and len(ids):
                numbers -= (numbers > 0) & (ids[np.maximum(numbers - 1, 0)] == self.space)
            index[group] += numbers
        return index


def mark_words(text: str, tokenizer: Tokenizer, way: str | None) -> np.ndarray:
    """For every token of a text, whether a word begins with it, by the segmenter of that name or, without
    one, as the tokens show it."""
    encoded = Encoder(tokenizer, np.dtype(np.int32), way)([Part(text, "", None, False)])
    return tokenizer.word_starts[encoded.tokens] if encoded.word_starts is None else encoded.word_starts


def _sums_before(sizes: np.ndarray) -> np.ndarray:
    """The sum of all sizes before each, and of all at the end."""
    return np.cumsum(np.append(np.zeros(1, sizes.dtype), sizes), dtype=np.int32)


def keeps_words_apart(description: dict[str, Any]) -> bool:
    """Whether a tokenizer, as its file describes it, never joins anything across a space or a line break."""
    splitter, normalizer = description["pre_tokenizer"] or {}, description["normalizer"] or {}
    steps = {step.get("type") for step in normalizer.get("normalizers", [normalizer])}
    harmless = steps <= {"BertNormalizer", "NFC", "NFKC", "NFD", "Lowercase", "StripAccents", None}
    letters = description["model"].get("merges") == []  # every character or byte is a token
    if description["model"].get("dropout") or any(
        token["normalized"] and not token["special"] for token in description["added_tokens"]
    ):
        return False
    if splitter.get("type") == "ByteLevel":
        return not normalizer and (splitter["use_regex"] or letters) and not splitter["add_prefix_space"]
    if splitter.get("type") == "Metaspace":
        return splitter["prepend_scheme"] == "always" and splitter.get("split", True)
    splitters = [part.get("type") for part in splitter.get("pretokenizers", [splitter])]
    if splitters in (["BertPreTokenizer"], ["BertPreTokenizer", "Split"]):
        return harmless
    return letters and not splitter and harmless
