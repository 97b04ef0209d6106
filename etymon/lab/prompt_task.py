"""Tasks for in-context learning: a file of them, and what it shows a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from string import Formatter
from typing import Any, Literal

import numpy as np
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass as checked

from etymon.config import did_you_mean, override, read_yaml, strict
from etymon.errors import EtymonError
from etymon.generation.prompting import Prompt
from etymon.generation.settings import DecodingSettings
from etymon.text.reading import SURROGATE, Errors, Record
from etymon.text.sources import TextFiles


@checked(frozen=True, config=ConfigDict(extra="forbid"))
class TaskFile:
    """The keys of a task file (docs/prompting.md)."""

    template: str
    """The text of an example, with columns in braces; the one that `label` names is what the model completes."""
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
    """The separator, unless told."""
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
    """The right answers, one of which is enough; none if it is not known."""

    def completion(self, answer: str) -> str:
        return f"{self.gap}{answer}{self.rest}"

    def like(self, example: Case) -> bool:
        """The same question, with the same answer if that is known."""
        ours, theirs = ((each.context, each.rest, each.choices) for each in (self, example))
        return ours == theirs and self.labels in ((), example.labels)

    @property
    def shown(self) -> str:
        return self.context + self.completion(self.labels[0])


class Template:
    """A text with columns in braces; `{{` and `}}` are braces."""

    def __init__(self, text: str, key: str) -> None:
        try:
            parsed = list(Formatter().parse(text))
        except ValueError as error:
            raise EtymonError(f"{key} {text!r}: {error}; write {{{{ for a brace in the text") from error
        if any(name == "" or spec or conversion for _, name, spec, conversion in parsed):
            raise EtymonError(
                f"{key} {text!r}: a column is written {{name}}, with nothing else in the braces"
            )
        self.parts = [(literal, name) for literal, name, _, _ in parsed]

    def around(self, column: str) -> tuple[Template, Template]:
        """What stands before the column, and behind it."""
        place = [name for _, name in self.parts].index(column)
        before, behind = Template("", ""), Template("", "")
        before.parts = [*self.parts[:place], (self.parts[place][0], None)]
        behind.parts = self.parts[place + 1 :]
        return before, behind

    def fill(self, record: Mapping[str, Any], place: str) -> str:
        return "".join(
            literal + ("" if name is None else _text(record, name, place)) for literal, name in self.parts
        )


def _text(record: Mapping[str, Any], name: str, place: str) -> str:
    if name not in record:
        raise EtymonError(f"{place}: no column {name!r}; {did_you_mean(name, map(str, record))}")
    return _plain(record[name], name, place)


def _plain(value: Any, name: str, place: str) -> str:
    if isinstance(value, bool | int | float):
        return str(value).lower() if isinstance(value, bool) else str(value)
    if not isinstance(value, str):
        raise EtymonError(f"{place}: column {name!r} holds a {type(value).__name__}, not a text")
    return SURROGATE.sub("\ufffd", value).replace("\r\n", "\n").replace("\r", "\n")


class Task:
    """A task file with its records."""

    def __init__(self, file: TaskFile, where: str, folder: Path, errors: Errors = "strict") -> None:
        self.file, self.where = file, where
        self.notes: list[str] = []
        self._check()
        template = Template(file.template.rstrip(), "template")
        named = [name for _, name in template.parts].count(file.label)
        if named != 1:
            raise EtymonError(
                f"{where}: the template must hold {{{file.label}}} once, and it does {named} times; it is where the answer "
                "goes (another column: label)"
            )
        self._before, self._behind = template.around(file.label)
        self._choices = [Template(choice, "choices") for choice in file.choices]
        self.examples = [
            self._case(record, shown=True) for record in self._records("examples", folder, errors)
        ]
        self.queries = [self._case(record) for record in self._records("queries", folder, errors)]
        if not self.queries:
            raise EtymonError(f"{where}: there are no queries")
        most = max(self.shots)
        if most > len(self.examples):
            raise EtymonError(
                f"{where}: {most} shots, but there are {len(self.examples)} examples: give more, or ask for fewer shots"
            )

    @property
    def shots(self) -> tuple[int, ...]:
        asked = self.file.shots
        return (asked,) if isinstance(asked, int) else tuple(dict.fromkeys(asked))

    @property
    def chooses(self) -> bool:
        return bool(self.file.choices) or self.file.choices_column is not None

    @property
    def settings(self) -> DecodingSettings:
        file = self.file
        stop = file.stop if file.stop is not None else (file.separator,) if file.separator else ()
        return DecodingSettings(
            max_new_tokens=file.max_new_tokens,
            beams=file.beams,
            length_penalty=file.length_penalty,
            stop=stop,  # type: ignore[arg-type]
        )

    def _check(self) -> None:
        file, where = self.file, self.where
        if not self.shots or min(self.shots) < 0:
            raise EtymonError(f"{where}: shots is {file.shots}: ask for 0 or more")
        if file.seed < 0:
            raise EtymonError(f"{where}: seed is {file.seed}: it must be 0 or more")
        if file.choices and file.choices_column is not None:
            raise EtymonError(f"{where}: give choices or choices_column, not both")
        _ = self.settings  # refuses what cannot be

    def _records(self, key: Literal["examples", "queries"], folder: Path, errors: Errors) -> Iterator[Record]:
        given = getattr(self.file, key)
        if not isinstance(given, str):
            for number, record in enumerate(given, 1):
                yield f"{self.where}, {key} {number}", record
            return
        files = TextFiles([folder / Path(given).expanduser()], errors=errors)
        yield from files.records()
        if files.skipped:
            self.notes.append(f"{files.skipped} records of {given} could not be read and were left out")

    def _case(self, found: Record, shown: bool = False) -> Case:
        place, record = found
        context, rest = self._before.fill(record, place), self._behind.fill(record, place)
        bare = context.rstrip(" \t")
        choices = tuple(choice.fill(record, place) for choice in self._choices)
        if (column := self.file.choices_column) is not None:
            listed = record.get(column)
            if not isinstance(listed, list) or not listed:
                raise EtymonError(
                    f"{place}: column {column!r} must hold a list of choices; where each has a column of its own, write "
                    "choices: ['{one}', '{other}']"
                )
            choices = tuple(_plain(each, column, place) for each in listed)
        labels = self._labels(record, place, choices)
        if shown and not labels:
            raise EtymonError(f"{place}: an example needs its answer, in the column {self.file.label!r}")
        return Case(place, bare, context[len(bare) :], rest, choices, labels)

    def _labels(self, record: Mapping[str, Any], place: str, choices: Sequence[str]) -> tuple[str, ...]:
        """The right answers: texts, or the place of a choice, counted from 0."""
        value = record.get(self.file.label)
        if value is None or value == "" or value == []:
            return ()
        values = value if isinstance(value, list) else [value]
        texts = tuple(_plain(each, self.file.label, place) for each in values)
        if not choices:
            return texts
        return tuple(self._chosen(text, each, place, choices) for text, each in zip(texts, values))

    def _chosen(self, text: str, value: Any, place: str, choices: Sequence[str]) -> str:
        number = int(value) if isinstance(value, bool) or text.isdecimal() else -1
        if text in choices:
            if 0 <= number < len(choices) and choices[number] != text:
                raise EtymonError(
                    f"{place}: the label {text!r} is a choice and counts another one ({choices[number]!r}): number no choices"
                )
            return text
        if not 0 <= number < len(choices):
            raise EtymonError(f"{place}: the label {text!r} is no choice; {did_you_mean(text, choices)}")
        return choices[number]

    def chosen(self, query: int, shots: int) -> list[Case]:
        """The examples before a query: a function of (seed, number of the query). More shots add to fewer."""
        order: Sequence[int] = range(len(self.examples))
        if self.file.selection == "random":
            order = np.random.default_rng((self.file.seed, query)).permutation(len(order)).tolist()
        # A query that is among the examples would be shown its own answer.
        others = (
            example for number in order if not self.queries[query].like(example := self.examples[number])
        )
        return list(islice(others, shots))

    def prompt(self, query: int, examples: Sequence[Case]) -> Prompt:
        instruction = self.file.instruction.rstrip()
        blocks = [*([instruction] if instruction else []), *(example.shown for example in examples)]
        own = self.queries[query].context
        if not blocks:
            return Prompt(own)
        return Prompt(self.file.separator + own, self.file.separator.join(blocks))


def open_task(
    task: str | Path | Mapping[str, Any], overrides: Sequence[str] = (), errors: Errors = "strict"
) -> Task:
    """A task file, or its keys and values, after dotted overrides. Files it names lie beside it."""
    if isinstance(task, Mapping):
        tree, where, folder = dict(task), "the task", Path()
    else:
        tree, where, folder = read_yaml(task), str(task), Path(task).parent
    return Task(strict(TaskFile, override(tree, overrides), where), where, folder, errors)
