"""The token store: a corpus as memory-mapped token ids, with its documents and sentences marked.

folder/store.json                 what was stored, from which text, with which tokenizer; checksums
folder/{train,validation}/
    tokens.bin                    uint16 or uint32 ids, document after document
    documents.npy                 int64 token offset of every document, and the total at the end
    sentences.npy                 int64 token offset of every sentence start
    bytes.npy, words.npy          UTF-8 bytes and white-space words of every document
folder/tokenizer/                 the tokenizer, so that a store can be used alone

A folder whose store.json names another store stands for that one (`link_store`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np

from etymon.config import check_keys
from etymon.errors import EtymonError
from etymon.files import atomic_folder, first_line, read_json, sha256
from etymon.text.encoding import Encoder, batches
from etymon.text.reading import Document
from etymon.text.sources import TextFiles, TextSource
from etymon.text.store_building import Staging
from etymon.text.tokenizer import Tokenizer

FORMAT = 1
SPLITS = ("train", "validation")
ARRAYS = ("documents", "sentences", "bytes", "words")
SAMPLE = 1 << 20
"""Tokens at the beginning of a text by which it is seen whether its tokenizer knows it."""
FEW_BYTES = 10_000
"""About two thousand words: a text below that is warned about."""


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

    @property
    def warning(self) -> str | None:
        """What to say of a text that is too short to learn anything from: somebody may have named the wrong file."""
        if (size := self.train.bytes + self.validation.bytes) >= FEW_BYTES:
            return None
        return f"the text has only {size:,} bytes, from which a model learns next to nothing: is it the text that you meant?"


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


class Split:
    """One split of a store; arrays are read from disk as they are needed."""

    def __init__(self, folder: Path, dtype: str) -> None:
        self._place = (folder, dtype)
        self.tokens: np.ndarray = (
            np.memmap(folder / "tokens.bin", dtype, "r")
            if (folder / "tokens.bin").stat().st_size
            else np.zeros(0, dtype)  # an empty file cannot be mapped
        )
        self.documents, self.sentences, self.bytes, self.words = (
            _open_array(folder / f"{name}.npy") for name in ARRAYS
        )

    @staticmethod
    def of(tokens: Sequence[int], documents: Sequence[int], sentences: Sequence[int]) -> Split:
        """A split that lies nowhere on the disk, from ids and the offsets of its documents (all but the end) and sentences."""
        split = object.__new__(Split)
        split.tokens, split.sentences = np.asarray(tokens, np.uint32), np.asarray(sentences, np.int64)
        split.documents = np.append(np.asarray(documents, np.int64), len(tokens))
        split.bytes = split.words = np.zeros(len(documents), np.int64)
        return split

    @staticmethod
    def of_texts(texts: Iterable[str], tokenizer: Tokenizer) -> Split:
        """The same, of texts, each a document; none may be blank."""
        encoder, before = Encoder(tokenizer, np.dtype(np.uint32)), np.zeros((1, 3), np.int64)
        tokens, ends, sentences = [np.zeros(0, np.uint32)], [before], [np.zeros(0, np.int64)]
        for batch in batches(map(Document, texts)):
            encoded = encoder(batch)
            tokens.append(encoded.tokens)
            ends.append(before + encoded.ends[[not part.more for part in batch]])
            sentences.append(before[0, 0] + encoded.sentences[:, 0])
            before = before + encoded.ends[-1]
        places = np.concatenate(ends)
        split = Split.of(np.concatenate(tokens), places[:-1, 0], np.concatenate(sentences))  # type: ignore[arg-type]
        split.bytes, split.words = np.diff(places[:, 1:], axis=0).T
        tokenizer.note_unknown([split.tokens[:SAMPLE]])
        return split

    def __reduce_ex__(self, protocol: Any) -> Any:
        # Another process maps the text itself: pickled, a map would be a copy of everything.
        return (Split, self._place) if hasattr(self, "_place") else super().__reduce_ex__(protocol)

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
        for start in range(0, len(self.tokens), 1 << 24):
            block = np.bincount(self.tokens[start : start + (1 << 24)], minlength=len(counts))
            block[: len(counts)] += counts
            counts = block
        return counts

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
        self.train, self.validation = (Split(folder / name, description["dtype"]) for name in SPLITS)

    @classmethod
    def open(cls, folder: str | os.PathLike[str], tokenizer: Tokenizer | None = None) -> TokenStore:
        """Open a store; with a tokenizer, refuse one that was built with another."""
        folder = _followed(Path(folder))
        description = _describe(folder)
        if tokenizer is not None and description["tokenizer"] not in tokenizer.fingerprints:
            raise EtymonError(f"{folder} was built with another tokenizer; build the store again")
        store = cls(folder, description)
        if tokenizer is not None:
            tokenizer.note_unknown([store.train.tokens[:SAMPLE]])
        return store

    @property
    def summary(self) -> StoreSummary:
        """What is in the store."""
        train, validation = (SplitCounts(**self.description["splits"][name]) for name in SPLITS)
        return StoreSummary(self.folder, train, validation, self.description["held_out"])

    def verify(self) -> None:
        """Compare every file with its checksum and every id with the vocabulary (reads all of it)."""
        for name, entry in self.description["files"].items():
            if sha256(self.folder / name) != entry["sha256"]:
                raise EtymonError(f"{self.folder / name} is damaged (wrong checksum); build the store again")
        size = self.description["vocabulary_size"]
        for name, split in zip(SPLITS, (self.train, self.validation), strict=True):
            for start in range(0, len(split.tokens), 1 << 24):
                largest = int(split.tokens[start : start + (1 << 24)].max())
                if largest >= size:
                    path = self.folder / name / "tokens.bin"
                    raise EtymonError(
                        f"{path} holds the token id {largest}, but the vocabulary has {size} tokens; build it again"
                    )


def build_store(
    documents: Iterable[Document],
    tokenizer: Tokenizer,
    folder: str | os.PathLike[str],
    *,
    validation: float = 0.05,
    seed: int = 0,
    source: TextSource | None = None,
    workers: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> StoreSummary:
    """Encode documents into a store folder, replacing an old one only when complete.

    About `validation` of the documents are held out, chosen by a hash of the seed and the text; if that
    cannot work (fewer than 20 documents, or all on one side) the last sentences of the text are.
    `source` is where the documents come from: it is asked for its fingerprint after they were read.
    `workers` processes encode (None: one a core, if there is much text); the result does not
    depend on it. `progress` gets the bytes of text done so far.
    """
    if not 0 <= validation < 1:
        raise EtymonError(f"validation is a share of the text, from 0 to below 1, not {validation}")
    if not -(2**63) <= seed < 2**63:
        raise EtymonError(f"the seed is a number of up to 63 bits, not {seed}")
    folder = Path(folder)
    dtype = np.dtype(np.uint16 if tokenizer.size <= 1 << 16 else np.uint32)
    with atomic_folder(folder) as aside:
        with TemporaryDirectory(dir=aside) as place:
            staging = Staging(Path(place), tokenizer, dtype, validation, seed)
            staging.add(documents, progress, workers)
            cut = staging.cut()
            train, held_out = (
                SplitCounts(**staging.write_split(aside / name, name == "validation", cut)) for name in SPLITS
            )
        tokenizer.save(aside / "tokenizer")
        rule = "documents" if cut is None else "tail"
        files = source.files.items() if isinstance(source, TextFiles) else ()
        description = {
            "format": FORMAT,
            "dtype": dtype.name,
            "vocabulary_size": tokenizer.size,
            "tokenizer": tokenizer.fingerprint,
            "source": "" if source is None else source.fingerprint(),
            "validation": validation,
            "seed": seed,
            "held_out": rule,
            "splits": {"train": asdict(train), "validation": asdict(held_out)},
            # Files are recognised by these; standard input never is.
            "inputs": {name: entry for name, entry in sorted(files) if "bytes" in entry},
            "files": {
                path.relative_to(aside).as_posix(): {"bytes": path.stat().st_size, "sha256": sha256(path)}
                for path in sorted(aside.rglob("*"))
                if path.is_file()
            },
        }
        (aside / "store.json").write_text(json.dumps(description, indent=2), encoding="utf-8")
    return StoreSummary(folder, train, held_out, rule)


def ensure_store(
    source: TextSource,
    tokenizer: Tokenizer,
    folder: str | os.PathLike[str],
    *,
    validation: float = 0.05,
    seed: int = 0,
    workers: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> StoreSummary:
    """Use the store in `folder` if it was built from the same text, tokenizer and split; else build it."""
    wanted = {"validation": validation, "seed": seed}
    with suppress(EtymonError):  # there is none, it is damaged, or the text cannot be known before it is read
        store = TokenStore.open(folder)
        if isinstance(source, TextFiles):
            source.files = {**store.description.get("inputs", {}), **source.files}
        same = all(store.description[key] == value for key, value in wanted.items())
        same = same and store.description["tokenizer"] in tokenizer.fingerprints
        if same and store.description["source"] == source.fingerprint():
            store.verify()
            return replace(TokenStore.open(folder, tokenizer).summary, reused=True)
    summary = build_store(
        source.documents(), tokenizer, folder, validation=validation, seed=seed, source=source,
        workers=workers, progress=progress,
    )  # fmt: skip
    TokenStore.open(folder, tokenizer)  # which notes what it does not know
    return summary


def is_store(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder is a token store."""
    return (Path(folder) / "store.json").is_file()


def link_store(folder: Path, prepared: Path) -> None:
    """Make `folder` stand for the whole, checked store `prepared`, as it is now."""
    TokenStore.open(prepared).verify()
    link = {"prepared": str(prepared.resolve()), "sha256": sha256(prepared / "store.json")}
    with atomic_folder(folder) as aside:
        (aside / "store.json").write_text(json.dumps(link, indent=2), encoding="utf-8")


def _followed(folder: Path) -> Path:
    """The store itself, if the folder only names it."""
    try:
        link = read_json(folder / "store.json")
        prepared, digest = Path(link["prepared"]), link["sha256"]
    except (EtymonError, KeyError, TypeError):
        return folder  # a store, or whatever `_describe` will say of it
    if not is_store(prepared) or sha256(prepared / "store.json") != digest:
        raise EtymonError(
            f"the prepared text in {prepared} is gone or has changed since {folder} began to use it: bring it back"
        )
    return prepared


def _describe(folder: Path) -> dict[str, Any]:
    """store.json, after the cheap checks: format, and every file there with its full size."""
    if not (folder / "store.json").is_file():
        raise EtymonError(f"no token store in {folder}: it has no store.json; prepare the data first")
    description = read_json(folder / "store.json")
    if description.get("format") != FORMAT:
        raise EtymonError(
            f"{folder} has store format {description.get('format')!r}, not {FORMAT}; build it again"
        )
    check_keys(StoreDescription, description, str(folder / "store.json"))
    for name, entry in description["files"].items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != entry["bytes"]:
            raise EtymonError(f"{path} is missing or cut short; build the store again")
    return description


def _open_array(path: Path) -> np.ndarray:
    """The offsets or counts in an .npy file, mapped into memory: one row of int64, and nothing else is opened."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # numpy evaluates the header as Python: a damaged one may raise anything
        raise EtymonError(f"{path} is damaged ({first_line(error)}); build the store again") from error
    if array.dtype != np.int64 or array.ndim != 1:
        raise EtymonError(
            f"{path} holds {array.ndim} axes of {array.dtype}, not a row of int64; build the store again"
        )
    return array
