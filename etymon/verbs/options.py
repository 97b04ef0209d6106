"""Options that several verbs have, as their command lines and Python callers see them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, ParamSpec, Protocol, TypeVar

from etymon.checkpoints.folder import verifying
from etymon.checkpoints.settings import pass_over
from etymon.errors import EtymonError

if TYPE_CHECKING:
    from etymon.generation.settings import DecodingSettings

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
Resume = Annotated[
    bool | Literal["auto"],
    "go on with a stopped run in OUT, exactly; auto: begin one where there is none",
]
IgnoreConfigKey = Annotated[
    Sequence[str] | None, "a key of a model's config.json to pass over, whatever it says; may be repeated"
]
Verify = Annotated[
    bool, "refuse a model whose files are not as they were saved, or whose weights are NaN or infinite"
]
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def _keys(given: str | Sequence[str] | None) -> list[str]:
    return [given] if isinstance(given, str) else list(given or ())


@dataclass(frozen=True)
class OpeningOption:
    """An option of every verb that opens models: `read` makes its value of what is given, and models are then opened `within`."""

    annotation: Any
    default: Any
    read: Callable[[Any], Any]
    within: Callable[[Any], AbstractContextManager[None]]


OPENING = {
    "ignore_config_key": OpeningOption(IgnoreConfigKey, None, _keys, pass_over),
    "verify": OpeningOption(Verify, True, bool, verifying),
}


def opens_models(verb: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """The verb with the options of `OPENING`, which hold for every model that it opens. A verb that has one itself gets it, too:
    a run keeps the keys in its file."""
    signature = inspect.signature(verb)
    own = [*signature.parameters.values()]

    @wraps(verb)
    def opening(*arguments: Any, **options: Any) -> Result:
        with ExitStack() as stack:
            for name, option in OPENING.items():
                value = option.read(options.pop(name, option.default))
                if name in signature.parameters:
                    options[name] = value
                stack.enter_context(option.within(value))
            return verb(*arguments, **options)

    place = next((number for number, each in enumerate(own) if each.name.startswith("on_")), len(own))
    own[place:place] = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=option.default, annotation=option.annotation
        )
        for name, option in OPENING.items()
        if name not in signature.parameters
    ]
    opening.__signature__ = signature.replace(parameters=own)  # type: ignore[attr-defined]
    return opening


class DataFrame(Protocol):
    """As pandas has it."""

    @property
    def columns(self) -> Any: ...

    def to_dict(self, orient: Any) -> Any: ...


Rows = (
    Sequence[str | Path] | Path | Sequence[Mapping[str, Any]] | Mapping[str, Iterable[Any]] | DataFrame | None
)
"""Tables, parallel text files, or what a program holds: rows, columns by their names, or a data frame."""
RawCells = Annotated[
    bool, "leave cells of .csv and .tsv that a spreadsheet would compute (=, +, -, @) without an apostrophe"
]
Columns = Annotated[str | None, "names of the columns of files without a header: en,zh"]
Slices = Annotated[int | None, "parts that a step is computed in: less memory, or several processes"]
Optimiser = Annotated[
    Literal["adamw", "adam-bert", "adafactor", "lamb", "muon", "adagrad"] | None,
    "the optimiser (the family's own)",
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


TASK_OPTIONS = (
    "text", "second", "label", "multi_label", "context", "choices", "tokens", "tags", "entities", "question", "answers",
    "source", "target", "prefix", "way", "smoothing", "class_weights", "symmetric", "language_model", "r_drop",
)  # fmt: skip


def task_options(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Of a verb's options, those that say something of a task."""
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name in TASK_OPTIONS
        if (value := asked.get(name)) not in (None, ())
    }


def resumes(resume: bool | str, folder: Path, note: str = "run.yaml") -> bool:
    """Whether a run goes on; `auto` does so where its folder holds a run, which begins with `note`."""
    if resume not in (True, False, "auto"):
        raise EtymonError(f"resume is true, false or 'auto', not {resume!r}")
    return (folder / note).is_file() if resume == "auto" else bool(resume)


def decoding(asked: Mapping[str, Any], **others: Any) -> DecodingSettings:
    """Of a verb's options, those that say how to decode, and `others`, which the verb calls or means otherwise."""
    from etymon.generation.settings import DecodingSettings

    known = DecodingSettings.__dataclass_fields__
    told = {name: value for name, value in {**asked, **others}.items() if name in known and value is not None}
    return DecodingSettings(**told)
