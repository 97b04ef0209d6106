"""Word segmenters: where words are in text that does not show it by spaces.

`jieba` for Chinese, `spaces` for text that a tool has cut already, or a Python function `module:function`.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import logging
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from etymon import plugins
from etymon.errors import EtymonError
from etymon.files import first_line, sha256
from etymon.text.reading import Document
from etymon.text.sentences import cut_spans
from etymon.text.sources import PreparedText, TextSource
from etymon.text.words import SPACELESS, Span

TOKENS = "tokens"
"""The way of words without a segmenter: as tokens and spaces show them (`Tokenizer.word_starts`)."""
CHUNK = re.compile(r"\S+")
LINE = re.compile(r"[^\n]+")
HAN = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af〇々]")
# A cutter's space is beside a character of a script without spaces.
CUTTER_SPACES = re.compile(rf"(?<={SPACELESS.pattern}) +| +(?={SPACELESS.pattern})")


class SegmentedText(NamedTuple):
    """A text as the model reads it, with its words; outside of the runs, tokens show where words begin."""

    text: str
    runs: list[Span]
    words: list[Span]
    """In order, and inside of the runs; white space between them belongs to none."""


@dataclass(frozen=True)
class Segmenter:
    """Finds words; `segment` takes a text and what stands before it."""

    way: str
    version: str
    """Changes when the words may: of a package or, of a function, a digest of its file."""
    segment: Callable[[str, str], SegmentedText]

    def describe(self) -> dict[str, str]:
        """What stores and histories record of it."""
        return {"way": self.way, "version": self.version}


def way_for(ways: Sequence[str], language: str | None = None) -> str | None:
    """The way to find words of a language among `jieba` or `zh=jieba th=module:function`; None if none is
    said."""
    by_language = {code: way for code, _, way in (each.rpartition("=") for each in ways)}
    return by_language.get(language or "", by_language.get(""))


@lru_cache(maxsize=8)
def open_segmenter(way: str | None) -> Segmenter | None:
    """The segmenter of that name; None without one, and for `tokens`."""
    if way is None or way == TOKENS:
        return None
    if way == "spaces":
        return Segmenter(way, "1", segment_spaces)
    return _open_jieba() if way == "jieba" else _open_function(way)


# ---------------------------------------------------------------- Chinese


def _open_jieba() -> Segmenter:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the library's own code
            import jieba
    except ImportError as error:
        raise EtymonError(
            "words by jieba need the package: pip install 'etymon[chinese]'", code="missing-package"
        ) from error
    jieba.setLogLevel(logging.WARNING)
    cutter = jieba.Tokenizer()
    # Its dictionary as it was installed: by itself the library keeps a copy in the temporary folder, where
    # anybody may have left another one.
    cutter.FREQ, cutter.total = cutter.gen_pfdict(cutter.get_dict_file())
    cutter.initialized = True

    def segment(text: str, before: str) -> SegmentedText:
        # Words of other scripts stay as spaces show them.
        runs = [match.span() for match in CHUNK.finditer(text) if HAN.search(match[0])]
        words: list[Span] = []
        for start, stop in runs:
            for word in cutter.cut(text[start:stop]):
                words.append((start, start + len(word)))
                start += len(word)
        return SegmentedText(text, runs, words)

    return Segmenter("jieba", str(jieba.__version__), segment)


# ---------------------------------------------------------------- text that is cut already


def segment_spaces(text: str, before: str) -> SegmentedText:
    """The words of a text that a tool has cut, without the spaces that the tool has put.

    Those are the ones beside a character of a script without spaces; between other words spaces stay.
    """
    context = before[-1:]
    whole = context + text
    kept = np.ones(len(whole), bool)
    for match in CUTTER_SPACES.finditer(whole):
        kept[slice(*match.span())] = False
    places = (np.cumsum(kept) - kept)[len(context) :] - len(context)
    words = [(int(places[match.start()]), int(places[match.end() - 1]) + 1) for match in CHUNK.finditer(text)]
    read = "".join(character for character, keep in zip(text, kept[len(context) :].tolist()) if keep)
    return SegmentedText(read, [(0, len(read))] if read else [], words)


@dataclass
class UncutText:
    """A text that a tool has cut, as the model reads it: without the tool's spaces."""

    source: TextSource

    @property
    def description(self) -> str:
        return self.source.description

    def documents(self) -> Iterator[Document]:
        before = ""
        for document in self.source.documents():
            yield replace(document, text=segment_spaces(document.text, before).text)
            before = document.text[-1:] if document.more else ""

    def fingerprint(self) -> str:
        return f"{self.source.fingerprint()} without spaces"


def as_read(source: TextSource, way: str | None) -> TextSource:
    """The text as the model reads it, to train a tokenizer on."""
    return UncutText(source) if way == "spaces" and not isinstance(source, PreparedText) else source


# ---------------------------------------------------------------- a function of the user's


def _open_function(way: str) -> Segmenter:
    module_name, colon, name = way.rpartition(":")
    if not colon:
        raise EtymonError(f"cannot find words by {way}: give tokens, spaces, jieba or MODULE:FUNCTION")
    # A run file may name any function of any module, with the text as its argument.
    if not plugins.is_named(module_name):
        raise EtymonError(
            f"words are found by {way}, and a folder brings no code: name it yourself, with --words {way}"
        )
    if os.getcwd() not in sys.path:  # a command does not look for modules beside the text by itself
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
        function: Any = module
        for part in name.split("."):
            function = getattr(function, part)
    except Exception as error:  # a module may do anything when it is imported
        raise EtymonError(f"cannot find words by {way}: {first_line(error)}") from error
    if not callable(function):
        raise EtymonError(f"cannot find words by {way}: it is no function")

    def segment(text: str, before: str) -> SegmentedText:
        runs: list[Span] = []
        words: list[Span] = []
        for line in LINE.finditer(text):
            for start, stop in cut_spans(line[0]):
                start, stop = start + line.start(), stop + line.start()
                if text[start:stop].strip():
                    runs.append((start, stop))
                    words += _match_words(way, function, text, start, stop)
        return SegmentedText(text, runs, words)

    return Segmenter(way, _module_version(module_name, getattr(module, "__file__", None)), segment)


def _match_words(
    way: str, function: Callable[[str], Sequence[str]], text: str, start: int, stop: int
) -> list[Span]:
    """Where the words that a function gives for text[start:stop] are."""
    part = text[start:stop]
    try:
        words = [str.strip(word) for word in function(part)]
    except Exception as error:
        raise EtymonError(
            f"{way} failed on {part[:40]!r}: {first_line(error)}; it gets a text and returns its words"
        ) from error
    spans: list[Span] = []
    for word in words:
        begin = text.find(word, start, stop)
        if begin < 0 or text[start:begin].strip():
            raise EtymonError(
                f"{way} changed the text: {word[:40]!r} is not what comes next in {text[start:stop][:40]!r}; "
                "it must return all words in order, as they stand there"
            )
        if word:
            spans.append((begin, begin + len(word)))
            start = begin + len(word)
    if rest := text[start:stop].strip():
        raise EtymonError(f"{way} changed the text: {rest[:40]!r} of {part[:40]!r} is in none of its words")
    return spans


def _module_version(name: str, file: str | None) -> str:
    """The version of the package that a module is a part of; of a module of nobody's package, a digest."""
    package = name.partition(".")[0]
    for distribution in importlib.metadata.packages_distributions().get(package, ()):
        return f"{distribution} {importlib.metadata.version(distribution)}"
    return sha256(Path(file))[:16] if file and Path(file).is_file() else ""


# ---------------------------------------------------------------- a batch of texts


@dataclass(frozen=True)
class BatchWords:
    """The words of texts that are read end to end; all numbers are of characters."""

    runs: np.ndarray
    """[n, 2]: from, up to."""
    words: np.ndarray
    """[n, 2]"""

    def count(self, new_word: np.ndarray, text: str) -> None:
        """Marks the characters where a word begins that counts: with a letter or a digit in it."""
        inside = np.zeros(len(new_word) + 1, np.int32)
        np.add.at(inside, self.runs[:, 0], 1)
        np.add.at(inside, self.runs[:, 1], -1)
        new_word[np.cumsum(inside)[:-1] > 0] = False
        counted = [start for start, stop in self.words.tolist() if any(map(str.isalnum, text[start:stop]))]
        new_word[counted] = True


@dataclass(frozen=True)
class SegmentedTexts:
    """Texts as the model reads them, as often as they are read."""

    texts: Iterable[str]
    segmenter: Segmenter | None

    def __iter__(self) -> Iterator[str]:
        is_cut = self.segmenter is not None and self.segmenter.way == "spaces"
        return (segment_spaces(text, "").text for text in self.texts) if is_cut else iter(self.texts)


def count_words(texts: list[str], segmenter: Segmenter | None) -> tuple[list[str], int]:
    """Texts as the model reads them, and how many words they have, punctuation marks not counted."""
    if segmenter is None:
        return texts, sum(len(text.split()) for text in texts)
    read, words = segment_batch(segmenter, [(text, "") for text in texts])
    whole = "".join(read)
    begins = np.zeros(len(whole), bool)
    place = 0
    for text in read:
        begins[[place + match.start() for match in CHUNK.finditer(text)]] = True
        place += len(text)
    words.count(begins, whole)
    return read, int(begins.sum())


def segment_batch(segmenter: Segmenter, texts: Sequence[tuple[str, str]]) -> tuple[list[str], BatchWords]:
    """Texts, each given with what is before it, as the model reads them, and their words."""
    read: list[str] = []
    runs: list[np.ndarray] = []
    words: list[np.ndarray] = []
    place = 0
    for text, before in texts:
        segmented = segmenter.segment(text, before)
        read.append(segmented.text)
        runs.append(np.array(segmented.runs, np.int64).reshape(-1, 2) + place)
        words.append(np.array(segmented.words, np.int64).reshape(-1, 2) + place)
        place += len(segmented.text)
    return read, BatchWords(np.concatenate(runs), np.concatenate(words))
