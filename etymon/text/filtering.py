"""Documents that are left out of a text: copies of earlier ones, too short or too long ones, other languages.

What costs time is a pure function of a document (its words, language and MinHash signature) and done by an
executor. What depends on other documents is decided in their order, so the result does not depend on who
computed what. Of copies, the first stays.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import re
import tempfile
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import etymon
from etymon.config import strict
from etymon.errors import EtymonError
from etymon.executors import Executor, LocalExecutor
from etymon.files import read_json
from etymon.settings.reading import FilterSettings, split_length
from etymon.text.journal import Journal, Rows
from etymon.text.languages import LanguageText
from etymon.text.reading import HELD, Document
from etymon.text.sources import PreparedText, TextFiles, TextSource
from etymon.text.words import SPACELESS

REPORT_FILE, FEATURES_JOURNAL = "filtering.json", "features.journal"
JOB = 1 << 20  # characters of documents that are looked at together
SHINGLE = 5  # words, or characters of a script without spaces, whose sequence is compared
SLOTS = 128  # numbers of a signature: similarity is estimated to about 1 / sqrt(128)
CANDIDATES = 0.9  # of copies that are just similar enough, the share to be looked at, at least
LANGUAGE_TEXT = 1000  # characters that tell the language
EXAMPLES, EXAMPLE_TEXT = 3, 100  # of what was left out, by reason; characters of each
# Letters, digits and the marks on them; of scripts without spaces, each by itself.
_SPACELESS = SPACELESS.pattern[1:-1]
_MARKS = "".join(
    letter
    for letter in map(chr, range(0x300, 0x1E00))
    if unicodedata.category(letter)[0] == "M" and not SPACELESS.match(letter)
)
WORD = re.compile(rf"(?:[^\W{_SPACELESS}][{_MARKS}]*)+|(?=[{_SPACELESS}])\w")

FEATURES = np.dtype([("words", "<i8"), ("language", "S8"), ("signature", "<u4", SLOTS)])
"""Of a document, or of a part of one."""
NEEDS_PACKAGE = "needs another package: pip install 'etymon[filters]'"


def word_list(text: str) -> list[str]:
    """The words of a text without regard to case and punctuation; each character of a script without spaces
    is one."""
    return WORD.findall(text.casefold())


def shingles(text: str) -> set[str]:
    """All sequences of `SHINGLE` words; of a shorter text, all of it."""
    words = word_list(text) or text.split()
    last = max(1, len(words) - SHINGLE + 1)
    return {" ".join(words[start : start + SHINGLE]) for start in range(last)}


class Piece(NamedTuple):
    """A document, or a part of one."""

    text: str
    more: bool
    is_first: bool


class FeatureReader:
    """Finds what the filters need to know of documents. A job is a list of pieces."""

    def __init__(self, settings: FilterSettings) -> None:
        self.needs_words = any(
            length is not None and split_length(length)[1] == "words"
            for length in (settings.min_length, settings.max_length)
        )
        self.needs_signature = settings.deduplicate == "near"
        self.find_language = _language_finder(settings.text_language) if settings.text_language else None
        if self.needs_signature:
            self.minhash = _minhash()

    def __call__(self, pieces: list[Piece]) -> np.ndarray:
        rows = np.zeros(len(pieces), FEATURES)
        for row, piece in zip(rows, pieces, strict=True):
            if self.needs_words:
                row["words"] = len(word_list(piece.text))
            # The beginning tells: parts of a long document are in the same language.
            if self.find_language is not None and piece.is_first:
                row["language"] = self.find_language(piece.text[:LANGUAGE_TEXT])
            if self.needs_signature:
                signature = self.minhash(num_perm=SLOTS, seed=1)
                # Sorted, since the order of a set differs from process to process.
                signature.update(sorted(shingles(piece.text)))
                row["signature"] = signature.digest()
        return rows


def _minhash() -> Any:
    try:
        import rensa
    except ImportError:
        raise EtymonError(f"--deduplicate near {NEEDS_PACKAGE}", code="missing-package") from None
    return rensa.RMinHash


def _language_finder(languages: tuple[str, ...]) -> Any:
    try:
        from py3langid import classify, rank
    except ImportError:
        raise EtymonError(f"--language {NEEDS_PACKAGE}", code="missing-package") from None
    # Refused before gigabytes are read: a name that the package does not know would match no document.
    names = sorted({name for name, _ in rank("")})
    for language in languages:
        if language not in names:
            raise EtymonError(f"--language {language} cannot be told: it is one of {', '.join(names)}")
    return lambda text: classify(text)[0]


class NearCopies:
    """Documents that are not similar to an earlier one, by their signatures (Broder 1997).

    A signature is cut into bands. Documents that agree in a band are candidates, and those of them that agree
    in `similarity` of all numbers are copies.
    """

    def __init__(self, similarity: float) -> None:
        self.similarity = similarity
        # As few bands as find nearly all: every band of a document takes memory.
        widths = [width for width in (16, 8, 4, 2, 1) if self._chance(width) >= CANDIDATES]
        self.width = widths[0] if widths else 1
        self._factors = np.random.default_rng(0).integers(1, 1 << 63, self.width, np.uint64)
        self._bands: list[dict[int, int]] = [{} for _ in range(SLOTS // self.width)]
        self._signatures = np.zeros((1024, SLOTS), np.uint32)
        self._numbers: list[int] = []

    def _chance(self, width: int) -> float:
        return float(1 - (1 - self.similarity**width) ** (SLOTS // width))

    def add(self, number: int, signature: np.ndarray) -> int | None:
        """The number of the earlier document that it is a copy of; None if there is none, and then it is
        remembered."""
        # A band as one number: keys of a dictionary are small then.
        keys = (signature.reshape(-1, self.width) * self._factors).sum(axis=1, dtype=np.uint64).tolist()
        hits = zip(self._bands, keys, strict=True)
        candidates = sorted({band[key] for band, key in hits if key in band})
        for candidate in candidates:
            if (self._signatures[candidate] == signature).mean() >= self.similarity:
                return self._numbers[candidate]
        place = len(self._numbers)
        # Twice as large, so that a document is moved a few times at most.
        if place == len(self._signatures):
            self._signatures = np.concatenate((self._signatures, np.zeros_like(self._signatures)))
        self._signatures[place] = signature
        self._numbers.append(number)
        for band, key in zip(self._bands, keys, strict=True):
            band.setdefault(key, place)
        return None


@dataclass
class FilterReport:
    """How many documents were read, kept and left out, by reason, with examples."""

    settings: dict[str, Any]
    read: int = 0
    kept: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def drop(self, reason: str, text: str, **more: Any) -> None:
        self.dropped[reason] = self.dropped.get(reason, 0) + 1
        examples = self.examples.setdefault(reason, [])
        if len(examples) < EXAMPLES:
            examples.append({"document": self.read, "text": text[:EXAMPLE_TEXT], **more})

    def __str__(self) -> str:
        share = f" ({self.kept / self.read:.1%})" if self.read else ""
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in self.dropped.items())
        return f"{self.kept:,} of {self.read:,} documents kept{share}" + (
            f"; dropped: {reasons}" if reasons else ""
        )


class DocumentFilter:
    """Decides on one document after the other, in their order."""

    def __init__(self, settings: FilterSettings) -> None:
        self.settings = settings
        self._digests: dict[bytes, int] = {}
        self._near = NearCopies(settings.similarity) if settings.deduplicate == "near" else None

    def reason_to_drop(
        self, number: int, characters: int, digest: bytes, features: np.ndarray
    ) -> tuple[str, dict[str, Any]] | None:
        """Why the document of that number is left out, with details; None if it is kept."""
        settings = self.settings
        for limit, word, sign in (
            (settings.min_length, "too short", 1),
            (settings.max_length, "too long", -1),
        ):
            if limit is not None:
                amount, unit = split_length(limit)
                length = int(features["words"]) if unit == "words" else characters
                if sign * length < sign * amount:
                    return word, {unit: length}
        language = bytes(features["language"]).decode()
        if settings.text_language and language not in settings.text_language:
            return "in another language", {"language": language}
        if settings.deduplicate is not None:
            # Digests, not texts: sixteen bytes a document, whatever its length.
            if (first := self._digests.setdefault(digest, number)) != number:
                return "copies", {"copy_of": first}
            if self._near is not None and (near := self._near.add(number, features["signature"])) is not None:
                return "near copies", {"copy_of": near}
        return None


@dataclass
class FilteredText:
    """A text without the documents that its settings leave out. `report` is that of the last reading."""

    source: TextSource
    settings: FilterSettings
    executor: Executor = field(default_factory=LocalExecutor)
    folder: Path | None = None
    """Where features are kept, for a process that goes on after this one was killed."""

    def __post_init__(self) -> None:
        FeatureReader(self.settings)  # refuses what needs a package that is missing
        self.report = FilterReport(self.choices)

    @property
    def choices(self) -> dict[str, Any]:
        """The settings that leave something out."""
        names = ["deduplicate", "min_length", "max_length", "text_language"]
        names += ["similarity"] if self.settings.deduplicate == "near" else []
        chosen = {name: getattr(self.settings, name) for name in names}
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in chosen.items()
            if value
        }

    @property
    def description(self) -> str:
        return self.source.description

    def fingerprint(self) -> str:
        parts = [self.choices, self.source.fingerprint()]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def documents(self) -> Iterator[Document]:
        """The documents that are kept, long ones in parts. A long one waits on the disk until its end is
        known."""
        self.report = report = FilterReport(self.choices)
        document_filter = DocumentFilter(self.settings)
        with tempfile.SpooledTemporaryFile(max_size=HELD) as waiting:
            for pieces, features in self._features():
                for piece, row in zip(pieces, features, strict=True):
                    if piece.is_first:
                        digest, beginning = hashlib.blake2b(digest_size=16), piece.text[:EXAMPLE_TEXT]
                        characters, parts, joined = 0, 0, row
                    else:
                        joined["words"] += row["words"]
                        # The smallest hash of a whole is the smallest of its parts' hashes.
                        joined["signature"] = np.minimum(joined["signature"], row["signature"])
                    digest.update(piece.text.encode())
                    characters += len(piece.text)
                    parts += 1
                    document = Document(piece.text, piece.more)
                    if piece.more:
                        pickle.dump(document, waiting)
                        continue
                    report.read += 1
                    reason = document_filter.reason_to_drop(report.read, characters, digest.digest(), joined)
                    waiting.seek(0)
                    if reason is None:
                        report.kept += 1
                        for _ in range(parts - 1):
                            yield pickle.load(waiting)
                        yield document
                    else:
                        report.drop(reason[0], beginning, **reason[1])
                    waiting.seek(0)
                    waiting.truncate()
        if not report.kept:
            if self.folder is not None:
                (self.folder / FEATURES_JOURNAL).unlink()  # the same command would not go on
            raise EtymonError(f"the filters leave nothing of {self.description}: {report}")

    def _features(self) -> Iterator[tuple[list[Piece], np.ndarray]]:
        """Groups of pieces, with the features of each."""
        groups = _piece_groups(self.source.documents())
        kept = None if self.folder is None else KeptFeatures(self.folder, self.choices)
        if kept is not None:
            for group in groups:
                if (features := kept.take_over(group)) is None:
                    groups = chain([group], groups)
                    break
                yield group, features
            kept.forget_rest()
        for group, features in self.executor.run(FeatureReader, (self.settings,), groups):
            if kept is not None:
                kept.add(group, features)
            yield group, features


def _piece_groups(documents: Iterable[Document]) -> Iterator[list[Piece]]:
    """Pieces, about `JOB` characters together. The cut depends on the text alone."""
    group: list[Piece] = []
    size, is_first = 0, True
    for document in documents:
        group.append(Piece(document.text, document.more, is_first))
        size, is_first = size + len(document.text), not document.more
        if size >= JOB:
            yield group
            group, size = [], 0
    if group:
        yield group


class KeptFeatures:
    """Features in a folder, for a process that goes on where an earlier one was killed."""

    def __init__(self, folder: Path, choices: dict[str, Any]) -> None:
        self.rows = Rows(folder / "features", FEATURES)
        key = {"etymon": etymon.__version__, "filters": choices}
        self.journal = Journal(folder / FEATURES_JOURNAL, key)

    def take_over(self, group: list[Piece]) -> np.ndarray | None:
        """The features of the next group, if they are here as they were written."""
        if (entry := self.journal.next(_group_digest(group))) is None:
            return None
        data = self.rows.take_over(len(self.rows) + len(group))
        if hashlib.blake2b(data, digest_size=16).hexdigest() != entry["checksum"]:
            self.rows.forget_rest(len(self.rows) - len(group))
            return None
        self.journal.keep()
        return np.frombuffer(data, FEATURES).copy()

    def forget_rest(self) -> None:
        """What was not taken over is removed."""
        self.journal.forget_rest()
        self.rows.forget_rest()

    def add(self, group: list[Piece], features: np.ndarray) -> None:
        data = self.rows.append(features)
        self.journal.add(_group_digest(group), checksum=hashlib.blake2b(data, digest_size=16).hexdigest())


def _group_digest(group: list[Piece]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for piece in group:
        text = piece.text.encode()
        digest.update(f"{len(text)} {piece.more} {piece.is_first} ".encode())
        digest.update(text)
    return digest.hexdigest()


def filter_text(source: TextSource, settings: FilterSettings) -> TextSource:
    """The text as the settings leave it."""
    if not any_filter(settings):
        return source
    if isinstance(source, LanguageText):
        return source.map(lambda code, part: filter_text(part, settings))
    if isinstance(source, PreparedText):
        raise EtymonError(
            f"{source.folder} is a prepared text, which cannot be filtered any more: give the filters to "
            "etymon prepare"
        )
    # A verb's options have more in them, which must not change a text's fingerprint.
    only = {name: getattr(settings, name) for name in FilterSettings.__annotations__}
    return FilteredText(source, FilterSettings(**only))


def read_report(folder: Path) -> FilterReport | None:
    """What was left out of the text of a store; None if it was not filtered."""
    path = folder / REPORT_FILE
    return strict(FilterReport, read_json(path), str(path)) if path.is_file() else None


def any_filter(settings: FilterSettings) -> bool:
    """Whether anything is to be left out."""
    return bool(settings.deduplicate or settings.min_length or settings.max_length or settings.text_language)


def text_files_of(source: TextSource | None) -> TextFiles | None:
    """The files that a text is read from, filtered or not; None if it comes from elsewhere."""
    inner = source.source if isinstance(source, FilteredText) else source
    return inner if isinstance(inner, TextFiles) else None
