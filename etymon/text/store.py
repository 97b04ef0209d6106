"""The token store: a corpus as memory-mapped token ids, with its documents and sentences marked.

folder/store.json                 what was stored, from which text, with which tokenizer; checksums
folder/{train,validation}/
    tokens.bin                    uint16 or uint32 ids, document after document
    documents.npy                 int64 token offset of every document, and the total at the end
    sentences.npy                 int64 token offset of every sentence start
    bytes.npy, words.npy          UTF-8 bytes and words of every document
    word_starts.bin               a bit a token, where a segmenter found words: whether one begins with it
folder/tokenizer/                 the tokenizer, so that a store can be used alone

A folder whose store.json names another store stands for that one (`link_store`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from etymon.config import check_keys
from etymon.errors import EtymonError
from etymon.files import atomic_folder, first_line, read_json, sha256
from etymon.text.encoding import Encoder, batches
from etymon.text.reading import Document
from etymon.text.tokenizer import Tokenizer

FORMAT = 1
SPLITS = ("train", "validation")
ARRAYS = ("documents", "sentences", "bytes", "words")
WORD_STARTS = "word_starts.bin"
SAMPLE = 1 << 20
"""Tokens at the beginning of a text by which it is seen whether its tokenizer knows it."""
FEW_BYTES = 10_000
"""About two thousand words: a text below that is warned about."""
BLOCK = 1 << 24
"""Tokens of a text of any size that are read at once."""


@dataclass(frozen=True)
class SplitCounts:
    """How much text a split holds."""

    documents: int
    sentences: int
    tokens: int
    bytes: int
    words: int


@dataclass(frozen=True)
class StoreSummary:
    """What is in a store. `held_out` says how the validation text was chosen: "documents" or "tail"."""

    folder: Path
    train: SplitCounts
    validation: SplitCounts
    held_out: str
    reused: bool = False
    resumed_bytes: int = 0
    """Of text that an earlier, interrupted process had encoded."""
    words: dict[str, str] | None = None
    """The segmenter that found the words, as `Segmenter.describe` does; None without one."""

    @property
    def warning(self) -> str | None:
        """The warning about a text that is too short to learn from (somebody may have named the wrong file),
        or None."""
        if (size := self.train.bytes + self.validation.bytes) >= FEW_BYTES:
            return None
        return (
            f"the text has only {size:,} bytes, from which a model learns next to nothing: is it the text "
            "that "
            "you meant?"
        )


@dataclass(frozen=True)
class StoreFile:
    """A file of a store, as store.json lists it."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class StoreDescription:
    """What must be in a store.json, whatever else is."""

    format: int
    dtype: Literal["uint16", "uint32"]
    vocabulary_size: int
    tokenizer: str
    source: str
    validation: float
    seed: int
    held_out: str
    splits: dict[Literal["train", "validation"], SplitCounts]
    files: dict[str, StoreFile]


@dataclass(frozen=True)
class PackedFlags:
    """Flags [start, stop) of an array with eight of them in a byte, unpacked when they are read."""

    bits: np.ndarray
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def __getitem__(self, part: slice) -> PackedFlags:
        first, last, _ = part.indices(len(self))
        return PackedFlags(self.bits, self.start + first, self.start + max(first, last))

    def astype(self, dtype: Any) -> np.ndarray:
        """The flags as numbers."""
        first = self.start // 8
        unpacked = np.unpackbits(np.asarray(self.bits[first : -(-self.stop // 8)]))
        return unpacked[self.start - 8 * first : self.stop - 8 * first].astype(dtype)


class Split:
    """The text to train on, or that for validation: token ids, and where documents and sentences are among
    them.

    `documents` are token offsets of all documents and the total at the end, `sentences` those of sentence
    starts; `bytes` and `words` are the UTF-8 bytes and words of every document. `word_bits` has a bit for
    every token, whether a word of a segmenter begins with it; None where there was no segmenter.
    """

    def __init__(
        self,
        tokens: np.ndarray,
        documents: np.ndarray,
        sentences: np.ndarray,
        bytes: np.ndarray | None = None,
        words: np.ndarray | None = None,
        word_bits: np.ndarray | None = None,
    ) -> None:
        nothing = np.zeros(len(documents) - 1, np.int64)
        self.tokens, self.documents, self.sentences = tokens, documents, sentences
        self.bytes, self.words = nothing if bytes is None else bytes, nothing if words is None else words
        self.word_bits = word_bits
        self._place: tuple[Path, str] | None = None

    @staticmethod
    def open(folder: Path, dtype: str) -> Split:
        """The split in a folder of a store; arrays are read from disk as they are needed."""
        path = folder / "tokens.bin"
        # An empty file cannot be mapped.
        tokens = np.memmap(path, dtype, "r") if path.stat().st_size else np.zeros(0, dtype)
        bits = folder / WORD_STARTS
        word_bits = None
        if bits.is_file():
            word_bits = np.memmap(bits, np.uint8, "r") if len(tokens) else np.zeros(0, np.uint8)
        documents, sentences, sizes, words = (_open_array(folder / f"{name}.npy") for name in ARRAYS)
        split = Split(tokens, documents, sentences, sizes, words, word_bits)
        split._place = folder, dtype
        return split

    @staticmethod
    def of(tokens: Sequence[int], documents: Sequence[int], sentences: Sequence[int]) -> Split:
        """A split in memory, from ids and the offsets of its documents (all but the end) and sentences."""
        ends = np.append(np.asarray(documents, np.int64), len(tokens))
        return Split(np.asarray(tokens, np.uint32), ends, np.asarray(sentences, np.int64))

    @staticmethod
    def of_texts(texts: Iterable[str], tokenizer: Tokenizer, words: str | None = None) -> Split:
        """A split in memory, of texts, each a document; none may be blank. The segmenter of that name finds
        their `words`."""
        # `before` is what came before a batch in tokens, bytes and words: offsets in a batch begin at 0.
        encoder, before = Encoder(tokenizer, np.dtype(np.uint32), words), np.zeros((1, 3), np.int64)
        tokens, ends, sentences = [np.zeros(0, np.uint32)], [before], [np.zeros(0, np.int64)]
        begins = []
        for batch in batches(map(Document, texts)):
            encoded = encoder(batch)
            tokens.append(encoded.tokens)
            # A long document comes in parts: only the last of them ends it.
            ends.append(before + encoded.ends[[not part.more for part in batch]])
            sentences.append(before[0, 0] + encoded.sentences[:, 0])
            if encoded.word_starts is not None:
                begins.append(encoded.word_starts)
            before = before + encoded.ends[-1]
        places = np.concatenate(ends)
        bytes_words = np.diff(places[:, 1:], axis=0).T
        bits = np.packbits(np.concatenate(begins)) if begins else None
        ids, starts = np.concatenate(tokens), np.concatenate(sentences)
        split = Split(ids, places[:, 0], starts, bytes_words[0], bytes_words[1], bits)
        tokenizer.note_unknown([split.tokens[:SAMPLE]])
        return split

    def __reduce_ex__(self, protocol: Any) -> Any:
        # Another process maps the text itself: pickled, a map would be a copy of everything.
        return (Split.open, self._place) if self._place else super().__reduce_ex__(protocol)

    def __len__(self) -> int:
        """The number of documents."""
        return len(self.documents) - 1

    @property
    def sizes(self) -> np.ndarray:
        """The tokens of every document."""
        return np.diff(self.documents)

    def document(self, index: int) -> np.ndarray:
        """The tokens of one document."""
        return self.tokens[self.documents[index] : self.documents[index + 1]]

    @cached_property
    def first_sentences(self) -> np.ndarray:
        """For every document the index of its first sentence, and the number of sentences at the end."""
        return np.searchsorted(self.sentences, self.documents)

    @cached_property
    def token_counts(self) -> np.ndarray:
        """How often every id occurs, up to the largest that does."""
        counts = np.zeros(0, np.int64)
        for block in self.token_blocks():
            # A block may hold larger ids than all before it: then its sums are the longer array.
            sums = np.bincount(block, minlength=len(counts))
            sums[: len(counts)] += counts
            counts = sums
        return counts

    def token_blocks(self) -> Iterator[np.ndarray]:
        """All tokens in blocks of bounded size."""
        return (self.tokens[start : start + BLOCK] for start in range(0, len(self.tokens), BLOCK))

    @cached_property
    def word_flags(self) -> Split | None:
        """The same text with 1 for every token that begins a word of the segmenter, 0 for the others; None
        without a segmenter."""
        if self.word_bits is None:
            return None
        flags: Any = PackedFlags(self.word_bits, 0, len(self.tokens))
        return Split(flags, self.documents, self.sentences)

    @property
    def stream_length(self) -> int:
        """The length of the virtual stream: every document followed by one separator."""
        return len(self.tokens) + len(self)

    @cached_property
    def _separators(self) -> np.ndarray:
        """Where the separators are in the virtual stream."""
        return np.asarray(self.documents[1:]) + np.arange(len(self))

    def stream(self, start: int, stop: int, separator: int) -> np.ndarray:
        """Positions [start, stop) of the virtual stream (int64).

        `start` may be -1: a separator also comes before the first document, so that its first token
        follows what every other first token follows.
        """
        if not -1 <= start <= stop <= self.stream_length:
            raise IndexError(f"[{start}, {stop}) is outside the stream of {self.stream_length} tokens")
        if start == -1 and stop > -1:
            return np.concatenate((np.array([separator]), self.stream(0, stop, separator)))
        # Separators are not on disk: a token's place there is its place here less the separators before it.
        before, until = np.searchsorted(self._separators, (start, stop))
        ids = self.tokens[start - before : stop - until].astype(np.int64)
        if before == until:
            return ids
        # np.insert counts places in the array before insertion: take the separators themselves out.
        places = self._separators[before:until] - start - np.arange(until - before)
        return np.insert(ids, places, separator)


class TokenStore:
    """A store folder, opened for reading: `store.train` and `store.validation`."""

    def __init__(self, folder: Path, description: dict[str, Any]) -> None:
        self.folder = folder
        self.description = description
        self.train, self.validation = (Split.open(folder / name, description["dtype"]) for name in SPLITS)

    @classmethod
    def open(cls, folder: str | os.PathLike[str], tokenizer: Tokenizer | None = None) -> TokenStore:
        """Open a store; with a tokenizer, refuse one that was built with another."""
        folder = Path(folder)
        if not is_store(folder):
            raise EtymonError(f"no token store in {folder}: it has no store.json; prepare the data first")
        description = read_json(folder / "store.json")
        # A link has a checksum: a run must not go on with another text that was put under the same path.
        if isinstance(link := description.get("prepared"), str) and "sha256" in description:
            prepared = Path(link)
            if not is_store(prepared) or sha256(prepared / "store.json") != description["sha256"]:
                raise EtymonError(
                    f"the prepared text in {link} is gone or has changed since {folder} began to use it: "
                    "bring "
                    "it back"
                )
            folder, description = prepared, read_json(prepared / "store.json")
        if isinstance(description.get("languages"), dict):
            from etymon.text.languages import LanguageStore  # which is made of such stores

            return LanguageStore.open_parts(folder, description, tokenizer)
        if description.get("format") != FORMAT:
            raise EtymonError(
                f"{folder} has store format {description.get('format')!r}, not {FORMAT}; build it again"
            )
        check_keys(StoreDescription, description, str(folder / "store.json"))
        for name, entry in description["files"].items():
            # Sizes are compared now, contents in `verify`: a corpus of many gigabytes has to open at once.
            path = folder / name
            if not path.is_file() or path.stat().st_size != entry["bytes"]:
                raise EtymonError(f"{path} is missing or cut short; build the store again")
        if tokenizer is not None and description["tokenizer"] not in tokenizer.fingerprints:
            raise EtymonError(
                f"{folder} was built with another tokenizer; build the store again", code="other-tokenizer"
            )
        store = cls(folder, description)
        if tokenizer is not None:
            tokenizer.note_unknown([store.train.tokens[:SAMPLE]])
        return store

    @property
    def summary(self) -> StoreSummary:
        """What is in the store."""
        train, validation = (SplitCounts(**self.description["splits"][name]) for name in SPLITS)
        held_out, words = self.description["held_out"], self.description.get("words")
        return StoreSummary(self.folder, train, validation, held_out, words=words)

    def verify(self) -> None:
        """Compare every file with its checksum and every id with the vocabulary (reads all of it)."""
        for name, entry in self.description["files"].items():
            if sha256(self.folder / name) != entry["sha256"]:
                raise EtymonError(f"{self.folder / name} is damaged (wrong checksum); build the store again")
        size = self.description["vocabulary_size"]
        for name, split in zip(SPLITS, (self.train, self.validation), strict=True):
            largest = max((int(block.max()) for block in split.token_blocks()), default=0)
            if largest >= size:
                raise EtymonError(
                    f"{self.folder / name / 'tokens.bin'} holds the token id {largest}, but the vocabulary "
                    "has "
                    f"{size} tokens; build it again"
                )


def is_store(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder is a token store."""
    return (Path(folder) / "store.json").is_file()


def link_store(folder: Path, prepared: Path) -> None:
    """Make `folder` stand for the whole, checked store `prepared`, as it is now."""
    TokenStore.open(prepared).verify()
    link = {"prepared": str(prepared.resolve()), "sha256": sha256(prepared / "store.json")}
    with atomic_folder(folder) as aside:
        (aside / "store.json").write_text(json.dumps(link, indent=2), encoding="utf-8")


def _open_array(path: Path) -> np.ndarray:
    """The offsets or counts in an .npy file, mapped into memory: one row of int64, and nothing else is
    opened."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # numpy evaluates the header as Python: a damaged one may raise anything
        raise EtymonError(f"{path} is damaged ({first_line(error)}); build the store again") from error
    if array.dtype != np.int64 or array.ndim != 1:
        raise EtymonError(
            f"{path} holds {array.ndim} axes of {array.dtype}, not a row of int64; build the store again"
        )
    return array
