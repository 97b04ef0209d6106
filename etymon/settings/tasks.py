"""What a task is told: which columns hold what, and how it is learnt."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

from etymon.settings import PathText, Spelling, Words, option, settings


class DataFrame(Protocol):
    """As pandas has it."""

    @property
    def columns(self) -> Any: ...

    def to_dict(self, orient: Any) -> Any: ...


Rows = Sequence[str | Path] | Path | Sequence[Mapping[str, Any]] | Mapping[str, Iterable[Any]] | DataFrame
"""Tables, parallel text files, or what a program holds: rows, columns by their names, or a data frame."""
RowsLike = Annotated[Any, Spelling("Rows | None", list[str])]


@settings
class ColumnOptions:
    """What is read, by the columns of a table."""

    text: str | None = option(None, "the column of the text (text)")
    second: str | None = option(None, "classify, regress: the column of a second text, for pairs")
    context: str | None = option(
        None, "answer: the column to find answers in (context); choose: read before the text"
    )
    choices: Words = option((), "choose: the columns of the choices, or one that holds lists (choices)")
    tokens: str | None = option(None, "tag: the column of the tokens, a list or with spaces (tokens)")
    question: str | None = option(None, "answer: the column of the question (question)")
    source: str | None = option(None, "text2text: the column to read (source)")
    prefix: str | None = option(None, "written answers: put before every text, e.g. 'summarize: '")


@settings
class TargetOptions(ColumnOptions):
    """What is read, and what is right."""

    label: str | None = option(None, "classify, regress, choose: the column of what is right (label)")
    tags: str | None = option(None, "tag: the column of their tags (tags)")
    entities: str | None = option(
        None, "tag: the column of entities (start, end, label) in --text, instead of tokens and tags"
    )
    answers: str | None = option(None, "answer: the column of the right answers (answers)")
    target: str | None = option(None, "text2text: the column to write (target)")


@settings
class LearningOptions(TargetOptions):
    """What is read, what is right, and how it is learnt."""

    multi_label: bool | None = option(None, "classify: rows have any number of labels, a list or a|b")
    way: Literal["auto", "head", "text"] | None = option(
        None, "how answers are given: by a head, or written (as the family was published)"
    )
    smoothing: float | None = option(None, "classify, text2text: label smoothing (the family's own)")
    class_weights: Literal["none", "balanced"] | None = option(
        None, "classify: rare labels count more (none)"
    )
    symmetric: bool | None = option(None, "read both orders of a pair (GPT-1: of similarity)")
    language_model: float | None = option(None, "weight of language modelling beside the task (GPT-1: 0.5)")
    r_drop: float | None = option(None, "weight of the divergence between two passes of dropout (0)")


@settings
class TableOptions:
    """Options of verbs that answer the rows of a table."""

    data: RowsLike = option(None, "a table, or parallel text files: test.de test.en")
    task: str | None = option(None, "what to answer (what the model was fine-tuned for)")
    columns: str | None = option(None, "names of the columns of files without a header: en,zh")
    out: PathText = option(
        None, "a file for the answers: a table with the rows (.jsonl, .csv, .tsv, .parquet), or a line a row"
    )
    raw_cells: bool = option(
        False,
        "leave cells of .csv and .tsv that a spreadsheet would compute (=, +, -, @) without an apostrophe",
    )

    @property
    def column_names(self) -> list[str]:
        return [] if self.columns is None else self.columns.split(",")
