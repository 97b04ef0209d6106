"""Options that several verbs have, as their command lines and Python callers see them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

Data = Annotated[
    Sequence[str | Path] | Path,
    "text files, folders or globs (.txt .md .jsonl .csv .tsv .parquet, also .gz .bz2 .xz .zst), or - for standard input",
]
Documents = Annotated[Literal["file", "blank", "line"] | None, "what ends a document in a text file (file)"]
Column = Annotated[str | None, "the field of records that holds the text (text)"]
Errors = Annotated[
    Literal["strict", "replace", "skip"] | None,
    "bytes that are no UTF-8: refuse, put U+FFFD, or drop the document (strict)",
]
MaxDocument = Annotated[str | None, "the longest record of .jsonl, .csv, .tsv and .parquet to accept (32MB)"]
Format = Annotated[
    Literal["txt", "jsonl", "csv", "tsv", "parquet"] | None, "what the files are, whatever their names"
]
Progress = Annotated[Literal["auto", "rich", "plain", "silent"], "how to show progress"]
Quantize = Annotated[
    Literal["int8"] | None, "round the weights to eight bits: faster and smaller, on a processor"
]
