"""The options of tasks: which columns hold what, and how it is learnt. Verbs take them from here, too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

from etymon.settings import Option, PathText, Spelling, Words, option, options_of, settings
from etymon.settings.reading import EncodingSettings


class DataFrame(Protocol):
    """As pandas has it."""

    @property
    def columns(self) -> Any: ...

    def to_dict(self, orient: Any) -> Any: ...


Rows = Sequence[str | Path] | Path | Sequence[Mapping[str, Any]] | Mapping[str, Iterable[Any]] | DataFrame
"""Tables, parallel text files, or what a program holds: rows, columns by their names, or a data frame."""
RowsLike = Annotated[Any, Spelling("Rows | None", list[str])]


Scheme = Literal["IOB2", "BILOU"]
"""How entities are written as a tag for every word."""


# ------------------------------------------------------------ the options of each task


# T5's own evaluation takes what was written, and what is no label is wrong (section 2.4).
FREE_TEXT_HELP = "for models that write their answers: allow any text, as T5 was scored, not only the labels"


@settings
class HeadOptions:
    """Options of every task that a head can do."""

    # Encoders read their answers off a head, T5 writes them: `auto` compares with what was published.
    way: Literal["auto", "head", "text"] = option(
        "auto", "how answers are given: by a head, written as text, or as the family was published"
    )
    prefix: str = option(
        "", "for models that write their answers: what to put before every text, such as T5's 'summarize: '"
    )
    # An auxiliary loss that GPT-1's paper found to help on large tables (section 5).
    language_model: float = option(
        0.0, "weight of language modelling on the same texts, beside the task (GPT-1: 0.5)", ge=0
    )
    r_drop: float = option(
        0.0, "weight of the divergence between two passes of dropout (R-Drop), which doubles the work", ge=0
    )
    temperature: float = option(2.0, "with a teacher: at which its answers are followed", gt=0)
    teaching: float = option(
        0.5, "with a teacher: weight of its answers; the labels have the rest", ge=0, le=1
    )


@settings
class TextOptions(HeadOptions):
    """Options of `regress`, and of `classify` beside its own."""

    text: str = option("text", "the column of the text")
    second: str | None = option(None, "the column of a second text, for pairs")
    label: str = option("label", "the column of the right answer")
    symmetric: bool = option(False, "read a pair in both orders and add the two up (GPT-1, for similarity)")


@settings
class ClassifyOptions(TextOptions):
    multi_label: bool = option(False, "rows have any number of labels, a list or a|b")
    smoothing: float = option(0.0, "label smoothing in training (the family's own)", ge=0, lt=1)
    class_weights: Literal["none", "balanced"] = option("none", "balanced: rare labels count more")
    free_text: bool = option(False, FREE_TEXT_HELP)


@settings
class ChooseOptions(HeadOptions):
    text: str = option("text", "the column of the question or of the beginning")
    context: str | None = option(None, "a column that is read before the text")
    choices: Words = option(
        ("choices",), "the columns of the choices, or one that holds lists or '(A) a (B) b'"
    )
    label: str = option(
        "label", "the column of the right choice: its number, its letter, or the choice itself"
    )
    # Data sets differ: SWAG and HellaSwag count from 0, others from 1.
    first: int = option(0, "the number of the first choice")
    free_text: bool = option(False, FREE_TEXT_HELP)


@settings
class TagOptions(HeadOptions):
    # None and not the usual names: which of the two forms a table has is seen from what was given.
    tokens: str | None = option(None, "the column of the words, a list or with spaces (tokens)")
    tags: str | None = option(None, "the column of the tags, one per word, in the same form (tags)")
    text: str | None = option(None, "instead of words, the column of a text (text)")
    entities: str | None = option(
        None, "the column of the entities (start, end, label) in the text, instead of tokens and tags"
    )
    scheme: Scheme = option("IOB2", "how entities become tags")
    # A word has one tag, so entities that overlap cannot all be learnt.
    overlapping: Literal["refuse", "longest"] = option(
        "refuse", "longest: of entities that overlap, that alone"
    )


@settings
class AnswerOptions(HeadOptions):
    # Lengths, stride and number of answers are those of the SQuAD script that BERT was released with.
    question: str = option("question", "the column of the question")
    context: str = option("context", "the column of the text that holds the answer")
    answers: str = option(
        "answers", "the column of the right answers: SQuAD's, or a text to look for; the first is learnt"
    )
    id: str = option("id", "the column that tells questions apart, if there is one")
    stride: int = option(128, "tokens from the beginning of a window of a long context to the next", gt=0)
    question_length: int = option(64, "tokens of a question at most", gt=0)
    longest: int = option(30, "tokens of an answer at most", gt=0)
    best: int = option(20, "answers that are kept of a question", gt=0)
    null_threshold: float = option(0.0, "by how much no answer has to be better than the best to be taken")
    unanswerable: bool | None = option(
        None, "whether questions may have no answer (if the training table had such)"
    )
    head: Literal["auto", "span", "conditional"] = option(
        "auto", "conditional: the end is looked for given the beginning (XLNet); auto: as published"
    )


@settings
class Text2TextOptions:
    source: str = option("source", "the column to read")
    target: str = option("target", "the column to write")
    prefix: str = option(
        "", "for models that write their answers: what to put before every text, such as T5's 'summarize: '"
    )
    separator: str = option(
        "\n\n", "between source and target in a decoder's row, unless its tokenizer has a token for that"
    )
    smoothing: float = option(0.0, "label smoothing in training (the family's own)", ge=0, lt=1)


@settings
class LanguageModelOptions:
    text: str = option("text", "the column of the text")
    objective: str | None = option(None, "what is learnt from the text (the family's own)")


# ------------------------------------------------------------ options of tasks as options of verbs


TASK_OPTIONS = {
    "classify": ClassifyOptions,
    "regress": TextOptions,
    "choose": ChooseOptions,
    "tag": TagOptions,
    "answer": AnswerOptions,
    "text2text": Text2TextOptions,
    "language-model": LanguageModelOptions,
}
"""Here and not with the tasks, which import torch: `--help` has to be quick."""
INPUT_COLUMNS = "text second context choices tokens question source prefix free_text"
TARGET_COLUMNS = "label tags entities answers target"
LEARNING = "multi_label way smoothing class_weights symmetric language_model r_drop"


def task_options() -> list[Option]:
    """The options of all tasks, each once, with the tasks in its help that have it.

    Verbs have no defaults for them, as None has to mean "not given": a model keeps the options that it was
    fine-tuned with, and families have some of their own. The task's defaults are in the help.
    """
    by_name: dict[str, dict[str, list[str]]] = {}
    merged: dict[str, Option] = {}
    for task, cls in TASK_OPTIONS.items():
        for each in options_of(cls):
            usual = "" if each.default in (None, "", False) or each.limits else f" ({shown_default(each)})"
            by_name.setdefault(each.field, {}).setdefault(each.help + usual, []).append(task)
            merged.setdefault(each.field, replace(each, default=None))
    return [replace(option, help=_help(by_name[name])) for name, option in merged.items()]


def shown_default(option: Option) -> str:
    return ", ".join(option.default) if isinstance(option.default, tuple) else str(option.default)


def _help(tasks_by_help: dict[str, list[str]]) -> str:
    """`tag: the column of its tags (tags); ...`; no names of tasks where nearly all have the option."""
    parts = [
        help if len(tasks) >= 5 else f"{', '.join(tasks)}: {help}" for help, tasks in tasks_by_help.items()
    ]
    return "; ".join(parts)


@settings
class TableOptions(EncodingSettings):
    """Options of verbs that answer the rows of a table."""

    data: RowsLike = option(None, "a table, or parallel text files: test.de test.en")
    task: str | None = option(None, "what to answer (what the model was fine-tuned for)")
    columns: str | None = option(None, "names of the columns of files without a header: en,zh")
    out: PathText = option(
        None, "a file for the answers: a table with the rows (.jsonl, .csv, .tsv, .parquet), or a line a row"
    )
    raw_cells: bool = option(
        False,
        "put no apostrophe before .csv and .tsv cells that a spreadsheet would compute (=, +, -, @)",
    )

    bom: bool = option(
        False, "begin .csv and .tsv with a byte-order mark, by which spreadsheets know that they are UTF-8"
    )

    @property
    def column_names(self) -> list[str]:
        return [] if self.columns is None else self.columns.split(",")
