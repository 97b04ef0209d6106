"""Storing a corpus in bounded memory: everything is first staged on disk in order, then split in two.

A place in the corpus is what is before it: tokens, UTF-8 bytes and white-space words.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import etymon
from etymon.errors import EtymonError
from etymon.executors import AT_HOME, Executor, LocalExecutor
from etymon.files import atomic_folder, sha256, write_json
from etymon.text.encoding import Encoded, Encoder, Part, batch_digest, batches
from etymon.text.filtering import REPORT_FILE, FilteredText, text_files_of
from etymon.text.journal import Journal, Rows, unfinished_folder
from etymon.text.reading import Document
from etymon.text.segmenters import open_segmenter
from etymon.text.sources import TextSource
from etymon.text.store import ARRAYS, FORMAT, SPLITS, WORD_STARTS, SplitCounts, StoreSummary, TokenStore
from etymon.text.tokenizer import Tokenizer

FEWEST_DOCUMENTS = 20  # below this a share of the documents says little
FEWEST_TOKENS = 8  # of fewer, a model could learn nothing that the part held out would show
SENTENCE = 64  # tokens: as far as that, the text held out may begin somewhere else for a sentence's sake
DOCUMENTS = 1 << 16  # documents that are split at once
TOKENS = 1 << 22  # tokens that are copied at once


class Staging:
    """All documents in order, in a folder of its own. About `share` of them are to be held out. What is
    `resumable` may be there in part already."""

    def __init__(
        self,
        folder: Path,
        tokenizer: Tokenizer,
        dtype: np.dtype,
        share: float,
        seed: int,
        *,
        resumable: bool = False,
        words: str | None = None,
    ) -> None:
        self.tokenizer, self.dtype, self.share, self.seed = tokenizer, dtype, share, seed
        self.words, segmenter = words, open_segmenter(words)
        self.tokens = Rows(folder / "tokens", dtype)
        # By document the place behind it, and whether it is held out.
        self.ends = Rows(folder / "ends", width=4)
        self.sentences = Rows(folder / "sentences", width=3)  # the places where they begin
        self.files = [self.tokens, self.ends, self.sentences]
        self.word_starts: Rows | None = None
        """For every token, whether a word of the segmenter begins with it."""
        if segmenter is not None:
            self.word_starts = Rows(folder / "word_starts", "u1")
            self.files.append(self.word_starts)
        self.end = np.zeros(3, np.int64)  # the place behind everything
        key = {"etymon": etymon.__version__, "tokenizer": tokenizer.fingerprint, "dtype": dtype.name}
        key |= {"validation": str(share), "seed": str(seed)} | (segmenter.describe() if segmenter else {})
        self.journal = Journal(folder / "encoding.journal", key) if resumable else None
        self.resumed_bytes = 0
        """Of text that was encoded before."""
        self._text = hashlib.sha256()  # of the document that is being read
        self._last = 0  # tokens up to the document before it

    def add(
        self, documents: Iterable[Document], progress: Callable[[int], None] | None, executor: Executor
    ) -> None:
        """Encodes the documents, but for those at the beginning that are there already. `progress` gets the
        bytes so far."""
        unread = batches(documents)
        if self.journal is not None:
            for batch in unread:
                if not self._take_over(batch, self.journal):
                    unread = chain([batch], unread)
                    break
                if progress is not None:
                    progress(int(self.end[1]))
            self.resumed_bytes = int(self.end[1])
            self.journal.forget_rest()
            for file in self.files:
                file.forget_rest()
        # A segmenter takes seconds a batch: other processes pay from the first one on.
        at_home = AT_HOME if self.words is None else 1
        arguments = (self.tokenizer, self.dtype, self.words)
        for batch, encoded in executor.run(Encoder, arguments, unread, at_home=at_home):
            self._append(batch, encoded)
            if progress is not None:
                progress(int(self.end[1]))
        if not len(self.tokens):
            raise EtymonError(
                "there is no text to store: no document holds a single token", code="too-little-text"
            )

    def _append(self, batch: list[Part], encoded: Encoded) -> None:
        ends = encoded.ends + self.end
        key, bound = self.seed.to_bytes(8, "little", signed=True), int(self.share * 2**64)
        rows = []
        for (digest, part), end in zip(self._document_digests(batch), ends.tolist(), strict=True):
            if not part.more and end[0] > self._last:  # a document without tokens is left out
                # By a hash of the text itself: the choice survives other documents coming and going, and two
                # copies of a text never land on both sides.
                drawn = hashlib.blake2b(digest, key=key, digest_size=8).digest()
                rows.append((*end, int.from_bytes(drawn, "little") < bound))
                self._last = end[0]
        arrays = [encoded.tokens, np.array(rows, np.int64).reshape(-1, 4), encoded.sentences + self.end]
        if encoded.word_starts is not None:
            arrays.append(encoded.word_starts)
        checksum = hashlib.blake2b(digest_size=16)
        for file, array in zip(self.files, arrays, strict=True):
            checksum.update(file.append(array))
        self.end = ends[-1]
        lengths = [len(file) for file in self.files]
        entry = {"lengths": lengths, "end": self.end.tolist(), "checksum": checksum.hexdigest()}
        if self.journal is not None:
            self.journal.add(batch_digest(batch), **entry)

    def _take_over(self, batch: list[Part], journal: Journal) -> bool:
        """Whether the batch is here already, as it was written."""
        if (entry := journal.next(batch_digest(batch))) is None:
            return False
        before, checksum = [len(file) for file in self.files], hashlib.blake2b(digest_size=16)
        for file, length in zip(self.files, entry["lengths"], strict=True):
            checksum.update(file.take_over(length))
        if checksum.hexdigest() != entry["checksum"]:
            for file, length in zip(self.files, before, strict=True):
                file.forget_rest(length)
            return False
        journal.keep()
        for _ in self._document_digests(batch):
            pass
        self.end = np.array(entry["end"], np.int64)
        if len(self.ends):
            self._last = int(self.ends.read(len(self.ends) - 1, len(self.ends))[0, 0])
        return True

    def _document_digests(self, batch: list[Part]) -> Iterator[tuple[bytes, Part]]:
        """Every part with a checksum of its document up to there."""
        for part in batch:
            self._text.update(part.text.encode())
            yield self._text.digest(), part
            if not part.more:
                self._text = hashlib.sha256()

    def tail(self) -> np.ndarray | None:
        """The place from which on everything is held out, where documents cannot be; it may divide one. None
        where documents are held out, or nothing."""
        blocks = range(0, len(self.ends), DOCUMENTS)
        held_out = sum(int(self.ends.read(first, first + DOCUMENTS)[:, 3].sum()) for first in blocks)
        if self.share == 0 or (len(self.ends) >= FEWEST_DOCUMENTS and 0 < held_out < len(self.ends)):
            return None
        total = len(self.tokens)
        if total < FEWEST_TOKENS:
            tokens = "a single token" if total == 1 else f"{total} tokens"
            raise EtymonError(
                f"the text is {tokens}: there is nothing to hold out for validation; add text",
                code="too-little-text",
            )
        ideal = min(max(round(total * (1 - self.share)), 1), total - 1)
        near = self.sentences.find(ideal) - 1
        before, after = np.concatenate((self.sentences.read(near, near + 2), self.end[None]))[:2]
        places = [place for place in (before, after) if 0 < place[0] < total]
        nearest = min(places, key=lambda place: abs(int(place[0]) - ideal), default=before)
        if nearest[0] and abs(nearest[0] - ideal) <= max(self.share * total / 2, min(SENTENCE, total / 4)):
            return nearest
        # Hardly anything would be left to train on, or to validate with: this sentence is divided, but no
        # character.
        while ideal - 1 > before[0] and self.tokenizer.is_inside_character(
            int(self.tokens.read(ideal, ideal + 1)[0])
        ):
            ideal -= 1
        share = (ideal - before[0]) / (after[0] - before[0])  # bytes and words are shared out by tokens
        return np.append(ideal, before[1:] + (share * (after - before)[1:]).astype(np.int64))

    def write_split(self, folder: Path, held_out: bool, tail: np.ndarray | None) -> SplitCounts:
        """Writes the documents that are, or are not, held out."""
        folder.mkdir()
        tokens = Rows(folder / "tokens.bin", self.dtype)
        arrays = [Rows(folder / name) for name in ARRAYS]
        word_starts = None if self.word_starts is None else Rows(folder / WORD_STARTS, "u1")
        documents, sentences, bytes_, words = arrays
        documents.append(np.zeros(1))
        totals, last = np.zeros(3, np.int64), np.zeros((1, 3), np.int64)
        for first in range(0, len(self.ends), DOCUMENTS):
            # Neighbouring documents: the places around them, one more than documents.
            rows = self.ends.read(first, first + DOCUMENTS)
            places, is_held_out = np.concatenate((last, rows[:, :3])), rows[:, 3] == 1
            if tail is not None:
                place = int(np.searchsorted(places[:, 0], tail[0]))
                if 0 < place < len(places) and places[place, 0] != tail[0]:
                    places = np.insert(places, place, tail, axis=0)
                is_held_out = places[1:, 0] > tail[0]
            last = places[-1:]
            is_here, offsets, sizes = is_held_out == held_out, places[:, 0], np.diff(places, axis=0)
            ends = totals[0] + np.cumsum(sizes[:, 0] * is_here)
            documents.append(ends[is_here])
            bytes_.append(sizes[is_here, 1])
            words.append(sizes[is_here, 2])
            totals += sizes[is_here].sum(axis=0)
            for low in range(int(offsets[0]), int(offsets[-1]), TOKENS):
                high = min(low + TOKENS, int(offsets[-1]))
                mask = np.repeat(is_here, np.diff(offsets.clip(low, high)))
                tokens.append(self.tokens.read(low, high)[mask])
                if word_starts is not None and self.word_starts is not None:
                    word_starts.append(self.word_starts.read(low, high)[mask])
                starts = self.sentences.read(self.sentences.find(low), self.sentences.find(high))[:, 0]
                # A document always begins with a sentence; one that was divided now does so twice.
                starts = np.union1d(starts, offsets[(low <= offsets) & (offsets < high)])
                owner = np.searchsorted(offsets, starts, side="right") - 1
                sentences.append((starts + (ends - offsets[1:])[owner])[is_here[owner]])
        for array in arrays:
            array.as_npy()
        if word_starts is not None:
            _pack_bits(word_starts)
        return SplitCounts(len(documents) - 1, len(sentences), *totals.tolist())


def _pack_bits(flags: Rows) -> None:
    """Makes eight flags a byte of a file, the first one highest."""
    aside = flags.path.with_name(flags.path.name + ".packed")
    with aside.open("wb") as file:
        for start in range(0, len(flags), TOKENS):
            file.write(np.packbits(flags.read(start, start + TOKENS)).tobytes())
    aside.replace(flags.path)


def build_store(
    documents: Iterable[Document],
    tokenizer: Tokenizer,
    folder: str | os.PathLike[str],
    *,
    validation: float = 0.05,
    seed: int = 0,
    source: TextSource | None = None,
    executor: Executor | None = None,
    progress: Callable[[int], None] | None = None,
    resumable: bool = False,
    words: str | None = None,
) -> StoreSummary:
    """Encode documents into a store folder, replacing an old one only when complete.

    About `validation` of the documents are held out, chosen by a hash of the seed and the text; if that
    cannot work (fewer than 20 documents, or all on one side) the last sentences of the text are. `source` is
    where the documents come from: it is asked for its fingerprint after they were read. `executor` encodes
    (None: a process a core, if there is much text); the result does not depend on it. `progress` gets the
    bytes of text done so far. What is `resumable` keeps what is finished beside the folder if it fails or is
    killed, and goes on from there. `words` is the way of a segmenter (`text/segmenters.py`), whose words are
    stored.
    """
    if not 0 <= validation < 1:
        raise EtymonError(f"validation is a share of the text, from 0 to below 1, not {validation}")
    if not -(2**63) <= seed < 2**63:
        raise EtymonError(f"the seed is a number of up to 63 bits, not {seed}")
    dtype = np.dtype(np.uint16 if tokenizer.size <= 1 << 16 else np.uint32)
    filtered = source if isinstance(source, FilteredText) else None
    segmenter = open_segmenter(words)
    with ExitStack() as stack:
        place = stack.enter_context(unfinished_folder(Path(folder))) if resumable else None
        aside = stack.enter_context(atomic_folder(folder))
        with nullcontext(place) if place else TemporaryDirectory(dir=aside) as staged:
            staging = Staging(
                Path(staged), tokenizer, dtype, validation, seed, resumable=resumable, words=words
            )
            if filtered is not None:
                filtered.executor, filtered.folder = executor or LocalExecutor(), place
            staging.add(documents, progress, executor or LocalExecutor())
            tail = staging.tail()
            train, held_out = (
                staging.write_split(aside / name, name == "validation", tail) for name in SPLITS
            )
        tokenizer.save(aside / "tokenizer")
        chosen = "documents" if tail is None else "tail"
        summary = StoreSummary(
            Path(folder),
            train,
            held_out,
            chosen,
            resumed_bytes=staging.resumed_bytes,
            words=None if segmenter is None else segmenter.describe(),
        )
        if filtered is not None:
            write_json(aside / REPORT_FILE, asdict(filtered.report))
        files = {} if (read := text_files_of(source)) is None else read.files
        description = {
            "format": FORMAT,
            "dtype": dtype.name,
            "vocabulary_size": tokenizer.size,
            "tokenizer": tokenizer.fingerprint,
            "source": "" if source is None else source.fingerprint(),
            "validation": validation,
            "seed": seed,
            "held_out": summary.held_out,
            **({} if summary.words is None else {"words": summary.words}),
            "splits": {"train": asdict(train), "validation": asdict(held_out)},
            # Files are recognised by these; standard input never is.
            "inputs": {name: entry for name, entry in sorted(files.items()) if "bytes" in entry},
            "files": {
                path.relative_to(aside).as_posix(): {"bytes": path.stat().st_size, "sha256": sha256(path)}
                for path in sorted(aside.rglob("*"))
                if path.is_file()
            },
        }
        (aside / "store.json").write_text(json.dumps(description, indent=2), encoding="utf-8")
    return summary


def ensure_store(
    source: TextSource,
    tokenizer: Tokenizer,
    folder: str | os.PathLike[str],
    *,
    validation: float = 0.05,
    seed: int = 0,
    words: str | None = None,
    **building: Any,
) -> StoreSummary:
    """Use the store in `folder` if it was built from the same text, tokenizer, split and words; else build
    it, as `build_store` does with the other options."""
    segmenter = open_segmenter(words)
    with suppress(EtymonError):  # there is none, it is damaged, or the text cannot be known before it is read
        description = TokenStore.open(folder).description
        if (files := text_files_of(source)) is not None:
            files.files = {**description.get("inputs", {}), **files.files}
        if (
            (description["validation"], description["seed"]) == (validation, seed)
            and description.get("words") == (segmenter and segmenter.describe())
            and description["tokenizer"] in tokenizer.fingerprints
            and description["source"] == source.fingerprint()
        ):
            store = TokenStore.open(folder, tokenizer)
            store.verify()
            return replace(store.summary, reused=True)
    options = {"validation": validation, "seed": seed, "source": source, "words": words, **building}
    summary = build_store(source.documents(), tokenizer, folder, **options)
    TokenStore.open(folder, tokenizer)  # which warns about many unknown tokens
    return summary
