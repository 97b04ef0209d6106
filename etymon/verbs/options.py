"""Options that several verbs have, as their command lines and Python callers see them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

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

Text = Annotated[str | None, "the column of the text (text)"]
Second = Annotated[str | None, "classify, regress: the column of a second text, for pairs"]
Label = Annotated[str | None, "classify, regress, choose: the column of what is right (label)"]
MultiLabel = Annotated[bool | None, "classify: rows have any number of labels, a list or a|b"]
Context = Annotated[
    str | None, "answer: the column to find answers in (context); choose: read before the text"
]
Choices = Annotated[
    Sequence[str] | None, "choose: the columns of the choices, or one that holds lists (choices)"
]
Tokens = Annotated[str | None, "tag: the column of the tokens, a list or with spaces (tokens)"]
Tags = Annotated[str | None, "tag: the column of their tags (tags)"]
Entities = Annotated[
    str | None, "tag: the column of entities (start, end, label) in --text, instead of tokens and tags"
]
Question = Annotated[str | None, "answer: the column of the question (question)"]
Answers = Annotated[str | None, "answer: the column of the right answers (answers)"]
Source = Annotated[str | None, "text2text: the column to read (source)"]
Target = Annotated[str | None, "text2text: the column to write (target)"]
Prefix = Annotated[str | None, "written answers: put before every text, e.g. 'summarize: '"]


def task_options(**given: Any) -> dict[str, Any]:
    """What was told of a task."""
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in given.items()
        if value is not None and value != ()
    }
