"""Tasks for in-context learning: a file of examples and queries, and the prompts that it makes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from string import Formatter
from typing import Any, Literal

import numpy as np
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass as strict_dataclass

from etymon.config import did_you_mean, override, read_yaml, strict
from etymon.errors import EtymonError
from etymon.generation.prompting import Prompt
from etymon.settings.decoding import DecodingSettings
from etymon.settings.reading import EncodingSettings
from etymon.text.reading import SURROGATE, Record
from etymon.text.sources import TextFiles


@strict_dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class PromptFile:
    """The keys of a task file (docs/prompting.md)."""

    template: str
    """The text of an example, with columns in braces; the one that `label` names is what the model
    completes."""
    queries: str | tuple[dict[str, Any], ...]
    """A file, or the records themselves."""
    examples: str | tuple[dict[str, Any], ...] = ()
    instruction: str = ""
    separator: str = "\n\n"
    label: str = "answer"
    choices: tuple[str, ...] = ()
    """Answers to choose from; they may hold columns in braces, too."""
    choices_column: str | None = None
    """The column of lists of answers to choose from."""
    normalise: Literal["sum", "token", "unconditional"] = "token"
    answer_context: str = "Answer:"
    shots: int | tuple[int, ...] = 0
    selection: Literal["first", "random"] = "first"
    seed: int = 0
    max_new_tokens: int = 32
    stop: str | tuple[str, ...] | None = None
    """The separator unless given."""
    beams: int = 1
    length_penalty: float = 1.0


@dataclass(frozen=True)
class Case:
    """An example or a query, ready to be shown."""

    place: str
    context: str
    """The text up to the answer, without the spaces before it."""
    gap: str
    """These spaces: they go with the answer, as in the tokens of most tokenizers."""
    rest: str
    """The text behind the answer."""
    choices: tuple[str, ...]
    labels: tuple[str, ...]
    """The right answers, any of which is enough; empty if they are not given."""

    def completion(self, answer: str) -> str:
        return f"{self.gap}{answer}{self.rest}"

    @property
    def shown(self) -> str:
        return self.context + self.completion(self.labels[0])


class Template:
    """A text with columns in braces; `{{` and `}}` are braces."""

    def __init__(self, text: str, key: str) -> None:
        try:
            parts = list(Formatter().parse(text))
        except ValueError as error:
            raise EtymonError(f"{key} {text!r}: {error}; write {{{{ for a brace in the text") from error
        if any(name == "" or spec or conversion for _, name, spec, conversion in parts):
            raise EtymonError(
                f"{key} {text!r}: a column is written {{name}}, with nothing else in the braces"
            )
        self.parts = [(literal, name) for literal, name, _, _ in parts]

    def fill(self, record: Mapping[str, Any], place: str) -> str:
        """The text with the record's values in place of the columns."""
        text = ""
        for literal, name in self.parts:
            text += literal
            if name is not None and name not in record:
                raise EtymonError(
                    f"{place}: no column {name!r}; {did_you_mean(name, map(str, record))}", code="no-column"
                )
            text += "" if name is None else _cell_text(record[name], name, place)
        return text


def _cell_text(value: Any, name: str, place: str) -> str:
    if isinstance(value, bool | int | float):
        return str(value).lower() if isinstance(value, bool) else str(value)
    if not isinstance(value, str):
        raise EtymonError(f"{place}: column {name!r} holds a {type(value).__name__}, not a text")
    return SURROGATE.sub("\ufffd", value).replace("\r\n", "\n").replace("\r", "\n")


class PromptTask:
    """A task file with its records: examples to show, queries to answer."""

    def __init__(
        self, file: PromptFile, where: str, folder: Path, how: EncodingSettings | None = None
    ) -> None:
        self.file, self.where = file, where
        self.notes: list[str] = []
        self.shots = (file.shots,) if isinstance(file.shots, int) else tuple(dict.fromkeys(file.shots))
        self.has_choices = bool(file.choices) or file.choices_column is not None
        if not self.shots or min(self.shots) < 0:
            raise EtymonError(f"{where}: shots is {file.shots}: ask for 0 or more")
        if file.seed < 0:
            raise EtymonError(f"{where}: seed is {file.seed}: it must be 0 or more")
        if file.choices and file.choices_column is not None:
            raise EtymonError(f"{where}: give choices or choices_column, not both")
        # After its answer a model goes on with the next example: the separator ends it.
        stop = file.stop if file.stop is not None else (file.separator,) if file.separator else ()
        self.decoding = DecodingSettings(
            max_new_tokens=file.max_new_tokens,
            beams=file.beams,
            length_penalty=file.length_penalty,
            stop=stop,  # type: ignore[arg-type]
        )
        template = Template(file.template.rstrip(), "template")
        columns = [name for _, name in template.parts]
        if columns.count(file.label) != 1:
            raise EtymonError(
                f"{where}: the template must hold {{{file.label}}} once, and it does "
                f"{columns.count(file.label)} times; it is where the answer goes (another column: label)"
            )
        # The template in two: what stands before the answer, which is the prompt, and what stands behind it.
        answer = columns.index(file.label)
        self._before, self._behind = Template("", ""), Template("", "")
        self._before.parts = [*template.parts[:answer], (template.parts[answer][0], None)]
        self._behind.parts = template.parts[answer + 1 :]
        self._choices = [Template(choice, "choices") for choice in file.choices]
        self.examples = [self._case(record) for record in self._records("examples", folder, how)]
        for example in self.examples:
            if not example.labels:
                raise EtymonError(
                    f"{example.place}: an example needs its answer, in the column {file.label!r}"
                )
        self.queries = [self._case(record) for record in self._records("queries", folder, how)]
        if not self.queries:
            raise EtymonError(f"{where}: there are no queries")
        if max(self.shots) > len(self.examples):
            raise EtymonError(
                f"{where}: {max(self.shots)} shots, but there are {len(self.examples)} examples: give "
                "more, or ask for fewer shots"
            )

    def _records(
        self, key: Literal["examples", "queries"], folder: Path, how: EncodingSettings | None
    ) -> Iterator[Record]:
        """(place, record) of the file that the key names, or of the records that it holds."""
        value = getattr(self.file, key)
        if not isinstance(value, str):
            for number, record in enumerate(value, 1):
                yield f"{self.where}, {key} {number}", record
            return
        options = {} if how is None else how.reader_options
        files = TextFiles([folder / Path(value).expanduser()], **options)
        yield from files.records()
        if files.skipped:
            self.notes.append(f"{files.skipped} records of {value} could not be read and were left out")

    def _case(self, placed: Record) -> Case:
        place, record = placed
        context, rest = self._before.fill(record, place), self._behind.fill(record, place)
        # A prompt that ends in a space asks for a word without one, which most vocabularies do not have: the
        # space goes with the answer.
        bare = context.rstrip(" \t")
        choices = tuple(choice.fill(record, place) for choice in self._choices)
        if (column := self.file.choices_column) is not None:
            listed = record.get(column)
            if not isinstance(listed, list) or not listed:
                raise EtymonError(
                    f"{place}: column {column!r} must hold a list of choices; where each has a column of "
                    "its own, write choices: ['{one}', '{other}']"
                )
            choices = tuple(_cell_text(value, column, place) for value in listed)
        value = record.get(self.file.label)
        values = value if isinstance(value, list) else [] if value is None or value == "" else [value]
        labels = tuple(self._label(value, place, choices) for value in values)
        return Case(place, bare, context[len(bare) :], rest, choices, labels)

    def _label(self, value: Any, place: str, choices: Sequence[str]) -> str:
        """A right answer: a text or, where there are choices, the number of one, counted from 0."""
        text = _cell_text(value, self.file.label, place)
        if not choices:
            return text
        # Tables number their choices from 0, and true and false are 1 and 0.
        number = int(value) if isinstance(value, bool) or text.isdecimal() else -1
        is_number = 0 <= number < len(choices)
        if text in choices:
            if is_number and choices[number] != text:
                raise EtymonError(
                    f"{place}: the label {text!r} is a choice and counts another one "
                    f"({choices[number]!r}): number no choices"
                )
            return text
        if not is_number:
            raise EtymonError(f"{place}: the label {text!r} is no choice; {did_you_mean(text, choices)}")
        return choices[number]

    def select(self, query: int, shots: int) -> list[Case]:
        """The examples before a query: a function of (seed, number of the query). More shots add to fewer."""
        case, order = self.queries[query], list(range(len(self.examples)))
        if self.file.selection == "random":
            # By query, not in a row: with a limit on queries, or more shots, the others stay the same.
            order = np.random.default_rng((self.file.seed, query)).permutation(len(order)).tolist()

        def is_query(example: Case) -> bool:
            question = (example.context, example.rest, example.choices)
            return question == (case.context, case.rest, case.choices) and case.labels in ((), example.labels)

        # A query that is among the examples would be shown its own answer.
        others = (example for example in map(self.examples.__getitem__, order) if not is_query(example))
        return list(islice(others, shots))

    def prompt(self, query: int, examples: Sequence[Case]) -> Prompt:
        """Instruction, examples and query as a prompt; what all queries share is its prefix, which is read
        once."""
        instruction, separator = self.file.instruction.rstrip(), self.file.separator
        blocks = [*([instruction] if instruction else []), *(example.shown for example in examples)]
        context = self.queries[query].context
        return Prompt(separator + context, separator.join(blocks)) if blocks else Prompt(context)


def open_task(
    task: str | Path | Mapping[str, Any], overrides: Sequence[str] = (), how: EncodingSettings | None = None
) -> PromptTask:
    """A task file, or its keys and values, after dotted overrides. Files it names lie beside it."""
    if isinstance(task, Mapping):
        tree, where, folder = dict(task), "the task", Path()
    else:
        tree, where, folder = read_yaml(task), str(task), Path(task).parent
    return PromptTask(strict(PromptFile, override(tree, overrides), where), where, folder, how)
