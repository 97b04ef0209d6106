"""How text files are read."""

from __future__ import annotations

from typing import Literal

from etymon.settings import Files, ProgressOptions, option, settings


@settings
class TextSettings:
    documents: Literal["file", "blank", "line"] = option("file", "what ends a document in a text file")
    column: str = option("text", "the field of records that holds the text")
    errors: Literal["strict", "replace", "skip"] = option(
        "strict", "bytes that are no UTF-8: refuse, put U+FFFD, or drop the document"
    )


@settings
class FileOptions(TextSettings, ProgressOptions):
    """Options of verbs that read text files and nothing else."""

    data: Files = option(
        (),
        "text files, folders, globs or URLs (.txt .md .jsonl .csv .tsv .parquet, also .gz .bz2 .xz .zst), or - for standard input",
    )
    max_document: str | None = option(
        None, "the longest record of .jsonl, .csv, .tsv and .parquet to accept (32MB)"
    )
    format: Literal["txt", "jsonl", "csv", "tsv", "parquet"] | None = option(
        None, "what the files are, whatever their names"
    )
