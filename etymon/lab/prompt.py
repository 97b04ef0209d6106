"""A model at a task, in context: its answers, and how many are right."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from etymon.errors import EtymonError
from etymon.generation.prompting import OnProgress, Prompt, Prompter
from etymon.lab.prompt_task import Case, Task


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
class Answer:
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
class Outcome:
    """All answers with one number of shots."""

    shots: int
    metric: Literal["accuracy", "exact match"]
    answers: tuple[Answer, ...]

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
class Run:
    """A model at a task."""

    prompter: Prompter
    task: Task
    drop: bool = True
    """Leave examples out, the first ones first, where a prompt is longer than the model's positions."""
    limit: int | None = None
    on_progress: Callable[[int, int, int], None] | None = None
    """Called with the number of shots, the queries that are done, and how many there are."""
    notes: list[str] = field(default_factory=list)
    _unconditional: dict[str, float] = field(default_factory=dict)

    def outcomes(self) -> list[Outcome]:
        return [self._outcome(shots) for shots in self.task.shots]

    def _outcome(self, shots: int) -> Outcome:
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
                Answer(
                    shots, number, kept, len(asked[number]) - kept, prompts[number].text, text, labels, correct, choices,
                    log_prob,
                )
            )  # fmt: skip
        outcome = Outcome(shots, "accuracy" if self.task.chooses else "exact match", tuple(answers))
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
            asked = self.prompter.ask(text, completions)
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

    def _note(self, outcome: Outcome, apart: int) -> None:
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
