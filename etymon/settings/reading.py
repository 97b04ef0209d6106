"""How text files are read."""

from __future__ import annotations

import codecs
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator

from etymon.config import did_you_mean
from etymon.settings import (
    Files,
    LanguageCode,
    ProgressOptions,
    Spelling,
    comma_separated,
    one_or_several,
    option,
    settings,
)


def split_length(length: str) -> tuple[int, str]:
    """`200` is 200 characters, `50words` are 50 words."""
    match = re.fullmatch(r"(\d+) ?(characters|words)?", length)
    if match is None:
        raise ValueError("write it as 200 or 200characters, or as 50words")
    return int(match[1]), match[2] or "characters"


def _check_length(length: str | None) -> str | None:
    if length is not None:
        split_length(length)
    return length


TextLength = Annotated[
    str | None,
    BeforeValidator(lambda value: str(value) if isinstance(value, int) else value),
    AfterValidator(_check_length),
    Spelling("str | int | None", str),
]
WORD_WAY = re.compile(r"([a-z]{2,3}(-[A-Za-z0-9]+)*=)?(jieba|spaces|tokens|[A-Za-z_][\w.]*:[A-Za-z_][\w.]*)")


def _word_ways(value: Any) -> Any:
    """Ways to find words, functions by their names."""
    ways = one_or_several(value)
    ways = ways if isinstance(ways, tuple) else (ways,)
    named = tuple(f"{way.__module__}:{way.__qualname__}" if callable(way) else way for way in ways)
    for way in named:
        if not isinstance(way, str) or not WORD_WAY.fullmatch(way) or way.startswith("__main__:"):
            raise ValueError(
                "words are found by jieba, spaces, tokens or MODULE:FUNCTION (a function of a module that "
                f"can be imported), of one language by zh=jieba, not by {way!r}"
            )
    return named


WordWays = Annotated[
    tuple[str, ...],
    BeforeValidator(_word_ways),
    Spelling("Sequence[str] | str | Callable[[str], Sequence[str]]", list[str]),
]


@settings
class FilterSettings:
    """Documents to leave out of a text."""

    deduplicate: Literal["exact", "near"] | None = option(
        None, "drop copies of earlier documents: exact ones, or near ones too"
    )
    similarity: float = option(
        0.8, "share of five-word sequences that near copies have in common", gt=0, le=1
    )
    min_length: TextLength = option(None, "drop documents shorter than 200 (characters) or 50words")
    max_length: TextLength = option(None, "drop documents longer than 100000 (characters) or 20000words")
    # A run's `language` is what its model card says.
    text_language: Annotated[
        tuple[LanguageCode, ...], BeforeValidator(comma_separated), Spelling("Sequence[str] | str", list[str])
    ] = option((), "keep only documents in these languages: zh,en", name="language")


def _check_encoding(name: str) -> str:
    """Refuses what is no encoding of text. Names stay as they were given."""
    if name == "auto":
        return name
    try:
        codec = codecs.lookup(name)
    except (LookupError, ValueError):
        common = ("utf-8", "gb18030", "big5", "shift_jis", "euc_jp", "euc_kr", "utf-16", "latin-1", "auto")
        raise ValueError(f"no encoding is called {name!r}: {did_you_mean(name, common)}") from None
    if not codec._is_text_encoding or codec.incrementaldecoder is None or codec.name in NO_TEXT:
        raise ValueError(f"{name!r} is no encoding of text files")
    return "utf-8" if codec.name in ("utf-8", "utf-8-sig") else name


NO_TEXT = ("idna", "punycode", "undefined", "unicode_escape", "raw_unicode_escape", "unicode-escape")
"""Encodings of Python's that no text file is in."""


@settings
class EncodingSettings:
    """How the bytes of files become text."""

    encoding: Annotated[str, AfterValidator(_check_encoding)] = option(
        "utf-8",
        "encoding of the files: gb18030, big5, shift_jis, euc_kr, utf-16, ... (Python's names); auto "
        "guesses it",
    )
    errors: Literal["strict", "replace", "skip"] = option(
        "strict",
        "bytes that are not text: refuse them (strict), write U+FFFD (replace), or skip the document, "
        "row or line",
    )
    max_replaced: float = option(
        0.01,
        "with --errors replace: the largest share of a file's characters that may be replaced",
        ge=0,
        le=1,
    )

    @property
    def reader_options(self) -> dict[str, Any]:
        """The same as arguments of a reader."""
        return {"encoding": self.encoding, "errors": self.errors, "max_replaced": self.max_replaced}


@settings
class TextSettings(FilterSettings, EncodingSettings):
    documents: Literal["file", "blank", "line"] = option(
        "file", "what ends a document in a text file: its end, a blank line, or every line"
    )
    column: str = option("text", "field that holds the text in .jsonl, .csv, .tsv and .parquet")
    words: WordWays = option(
        (),
        "how words are found: tokens (by spaces and tokens), jieba (Chinese), spaces (put there by a "
        "tool; they are removed), or MODULE:FUNCTION; zh=jieba: for one language",
    )


NORMALISE_HELP = (
    "what is made the same in the text. Several with commas: nfc, nfkc (unigram and bpe do that unless none "
    "is said), width, punctuation, quotes, t2s (Traditional to Simplified), tw2s, hk2s, s2t, s2tw, s2hk"
)
NormaliseSteps = Annotated[
    tuple[
        Literal[
            "none",
            "nfc",
            "nfkc",
            "width",
            "punctuation",
            "quotes",
            "t2s",
            "tw2s",
            "hk2s",
            "s2t",
            "s2tw",
            "s2hk",
        ],
        ...,
    ]
    | None,
    BeforeValidator(comma_separated),
    Spelling("Sequence[str] | str | None", str),
]


@settings
class NormaliseSettings:
    """What is made the same in a text before a new tokenizer learns from it, and always afterwards."""

    normalise: NormaliseSteps = option(None, f"for a tokenizer to train: {NORMALISE_HELP}")


@settings
class LanguageSettings:
    """How several languages are mixed."""

    language_temperature: float | None = option(
        None,
        "with --data zh=a.txt en=b.txt: the share of a language is in proportion to its size to the power "
        "of this number; 1: by size, 0: equal shares (1)",
        ge=0,
        le=1,
    )


@settings
class FileOptions(TextSettings, ProgressOptions):
    """Options of verbs that read text files and nothing else."""

    data: Files = option(
        (),
        "text files, folders, globs or URLs (.txt .md .jsonl .csv .tsv .parquet, also .gz .bz2 .xz .zst), "
        "or - for standard input",
    )
    max_document: str | None = option(
        None, "longest record to accept in .jsonl, .csv, .tsv and .parquet (32MB)"
    )
    format: Literal["txt", "jsonl", "csv", "tsv", "parquet"] | None = option(
        None, "format of the files, whatever their names say"
    )
