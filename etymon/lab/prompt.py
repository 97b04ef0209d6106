"""Tasks for in-context learning: a file of them, and what it shows a model."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from string import Formatter
from typing import Any, Literal

import numpy as np
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass as checked

from etymon.config import did_you_mean, override, read_yaml, strict
from etymon.errors import EtymonError
from etymon.generation.prompting import OnProgress, Prompt, Prompter
from etymon.generation.settings import DecodingSettings
from etymon.text.reading import SURROGATE, Errors, Record
from etymon.text.sources import TextFiles


@checked(frozen=True, config=ConfigDict(extra="forbid"))
class PromptFile:
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


class PromptTask:
    """A task file with its records."""

    def __init__(self, file: PromptFile, where: str, folder: Path, errors: Errors = "strict") -> None:
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
) -> PromptTask:
    """A task file, or its keys and values, after dotted overrides. Files it names lie beside it."""
    if isinstance(task, Mapping):
        tree, where, folder = dict(task), "the task", Path()
    else:
        tree, where, folder = read_yaml(task), str(task), Path(task).parent
    return PromptTask(strict(PromptFile, override(tree, overrides), where), where, folder, errors)


@dataclass(frozen=True)
class Choice:
    text: str
    log_prob: float
    tokens: int
    unconditional: float | None
    """The logarithm of its probability after the answer context alone, if that was asked for."""
    score: float
    """What it was chosen by."""


@dataclass(frozen=True)
class PromptAnswer:
    """What a model answered to one query."""

    shots: int
    query: int
    examples: int
    """How many were shown."""
    dropped: int
    """How many there was no room for."""
    prompt: str
    answer: str
    labels: tuple[str, ...]
    correct: bool | None
    """None where the right answer is not known."""
    choices: tuple[Choice, ...]
    log_prob: float
    """Of the answer: of the chosen one, or of all tokens that were generated."""


@dataclass(frozen=True)
class PromptOutcome:
    """All answers with one number of shots."""

    shots: int
    metric: Literal["accuracy", "exact match"]
    answers: tuple[PromptAnswer, ...]

    @property
    def judged(self) -> int:
        return sum(answer.correct is not None for answer in self.answers)

    @property
    def correct(self) -> int:
        return sum(answer.correct is True for answer in self.answers)

    @property
    def accuracy(self) -> float | None:
        return self.correct / self.judged if self.judged else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Wilson's 95% interval of the accuracy, for as many queries as were judged."""
        return wilson(self.correct, self.judged) if self.judged else None

    @property
    def shortened(self) -> int:
        """Queries that there was no room for all examples before."""
        return sum(answer.dropped > 0 for answer in self.answers)

    def summary(self) -> dict[str, Any]:
        return {
            "shots": self.shots, "metric": self.metric, "queries": len(self.answers), "judged": self.judged,
            "correct": self.correct, "accuracy": self.accuracy, "interval": self.interval, "shortened": self.shortened,
        }  # fmt: skip


def wilson(correct: int, judged: int, z: float = 1.959964) -> tuple[float, float]:
    """The 95% interval of a share (Wilson 1927): never outside 0 to 1, and honest for few queries."""
    share, shrink = correct / judged, 1 + z * z / judged
    middle = (share + z * z / (2 * judged)) / shrink
    half = z / shrink * math.sqrt(share * (1 - share) / judged + (z / (2 * judged)) ** 2)
    return max(0.0, middle - half), min(1.0, middle + half)


@dataclass
class PromptRun:
    """A model at a task."""

    prompter: Prompter
    task: PromptTask
    drop: bool = True
    """Leave examples out, the first ones first, where a prompt is longer than the model's positions."""
    limit: int | None = None
    on_progress: Callable[[int, int, int], None] | None = None
    """Called with the number of shots, the queries that are done, and how many there are."""
    notes: list[str] = field(default_factory=list)
    _unconditional: dict[str, float] = field(default_factory=dict)

    def outcomes(self) -> list[PromptOutcome]:
        return [self._outcome(shots) for shots in self.task.shots]

    def _outcome(self, shots: int) -> PromptOutcome:
        numbers = range(len(self.task.queries))[: self.limit]
        cases = [self.task.queries[number] for number in numbers]
        asked = [self.task.chosen(number, shots) for number in numbers]
        shown = [self._fitting(*pair) for pair in zip(numbers, asked)]
        prompts = [self.task.prompt(*pair) for pair in zip(numbers, shown)]
        progress = None if self.on_progress is None else partial(self.on_progress, shots)
        answers = []
        apart = self.prompter.apart
        found = (self._choose if self.task.chooses else self._write)(cases, prompts, progress)
        for number, (text, log_prob, choices) in enumerate(found):
            labels, kept = cases[number].labels, len(shown[number])
            correct = text.strip() in (label.strip() for label in labels) if labels else None
            answers.append(
                PromptAnswer(
                    shots, number, kept, len(asked[number]) - kept, prompts[number].text, text, labels, correct, choices,
                    log_prob,
                )
            )  # fmt: skip
        outcome = PromptOutcome(shots, "accuracy" if self.task.chooses else "exact match", tuple(answers))
        self._note(outcome, self.prompter.apart - apart)
        return outcome

    def _fitting(self, query: int, chosen: list[Case]) -> list[Case]:
        """Of the examples of a query the last ones, as many as there is room for."""
        case, limit = self.task.queries[query], self.prompter.model.positions
        if limit is None:
            return chosen
        completions = [case.completion(choice) for choice in case.choices]

        def needed(dropped: int) -> int:
            text = self.task.prompt(query, chosen[dropped:]).text
            asked = self.prompter.encode(text, completions)
            return asked.length + (0 if completions or asked.source else self.task.file.max_new_tokens)

        if needed(0) <= limit:
            return chosen
        if not self.drop:
            raise EtymonError(
                f"{case.place}: the prompt with {len(chosen)} examples and its answer take {needed(0)} tokens, but the model "
                f"has {limit} positions: ask for fewer shots, or allow examples to be left out (--drop)"
            )
        dropped = bisect_left(range(len(chosen) + 1), True, key=lambda dropped: needed(dropped) <= limit)
        if dropped > len(chosen):
            raise EtymonError(
                f"{case.place}: without any example the prompt and its answer take {needed(len(chosen))} tokens, but the "
                f"model has {limit} positions: shorten it"
            )
        return chosen[dropped:]

    def _choose(
        self, cases: Sequence[Case], prompts: Sequence[Prompt], progress: OnProgress | None
    ) -> Iterator[tuple[str, float, tuple[Choice, ...]]]:
        how = self.task.file.normalise
        completions = [[case.completion(choice) for choice in case.choices] for case in cases]
        if how == "unconditional":
            self._learn(completions)
        for case, texts, found in zip(
            cases, completions, self.prompter.score(prompts, completions, progress)
        ):
            choices = []
            for choice, text, likelihood in zip(case.choices, texts, found):
                total, alone = likelihood.log_prob, self._unconditional.get(text)
                score = total / likelihood.tokens if how == "token" else total - (alone or 0.0)
                choices.append(Choice(choice, total, likelihood.tokens, alone, score))
            best = max(choices, key=lambda choice: choice.score)
            yield best.text, best.log_prob, tuple(choices)

    def _learn(self, completions: Sequence[Sequence[str]]) -> None:
        """How likely completions are after the answer context alone: each once, whatever the number of queries."""
        texts = dict.fromkeys(text for texts in completions for text in texts)
        new = [text for text in texts if text not in self._unconditional]
        alone = Prompt(self.task.file.answer_context.rstrip(" "))
        found = self.prompter.score([alone] * len(new), [[text] for text in new])
        self._unconditional |= {text: one.log_prob for text, [one] in zip(new, found)}

    def _write(
        self, cases: Sequence[Case], prompts: Sequence[Prompt], progress: OnProgress | None
    ) -> Iterator[tuple[str, float, tuple[Choice, ...]]]:
        for one in self.prompter.generate(prompts, self.task.settings, progress):
            yield one.text.strip(), one.log_prob, ()

    def _note(self, outcome: PromptOutcome, apart: int) -> None:
        queries = len(outcome.answers)
        if outcome.shortened:
            fewest = min(answer.examples for answer in outcome.answers if answer.dropped)
            self.notes.append(
                f"shots {outcome.shots}: {outcome.shortened} of {queries} prompts were too long for the model's "
                f"{self.prompter.model.positions} positions and lost their first examples (the longest kept {fewest})"
            )
        if 0 < outcome.judged < queries:
            self.notes.append(
                f"{queries - outcome.judged} of {queries} queries have no label and are not judged"
            )
        if apart:
            self.notes.append(
                f"shots {outcome.shots}: {apart} completions were encoded apart from their prompts, since a token would have "
                "stood on both sides of the border"
            )
