"""In-context learning: a model's answers to the queries of a task, and how many are right."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from etymon.errors import EtymonError
from etymon.generation.prompting import OnProgress, Prompt, Prompter
from etymon.lab.prompt_task import Case, PromptTask


@dataclass(frozen=True)
class Choice:
    text: str
    log_prob: float
    tokens: int
    unconditional: float | None
    """Its log-probability after the answer context alone, where choices are normalised by that."""
    score: float
    """The best of which is chosen."""


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
    """None where the right answer is not given."""
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
        """Answers to queries with labels."""
        return sum(answer.correct is not None for answer in self.answers)

    @property
    def correct(self) -> int:
        return sum(answer.correct is True for answer in self.answers)

    @property
    def accuracy(self) -> float | None:
        return self.correct / self.judged if self.judged else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Wilson's 95% interval of the accuracy, for as many queries as have labels."""
        return wilson(self.correct, self.judged) if self.judged else None

    @property
    def shortened(self) -> int:
        """Queries that there was no room for all examples before."""
        return sum(answer.dropped > 0 for answer in self.answers)

    def summary(self) -> dict[str, Any]:
        figures = ("judged", "correct", "accuracy", "interval", "shortened")
        record = {"shots": self.shots, "metric": self.metric, "queries": len(self.answers)}
        return record | {name: getattr(self, name) for name in figures}


def wilson(correct: int, total: int, z: float = 1.959964) -> tuple[float, float]:
    """The 95% interval of a share (Wilson 1927): never outside 0 to 1, and honest for few queries."""
    share, shrink = correct / total, 1 + z * z / total
    middle = (share + z * z / (2 * total)) / shrink
    half = z / shrink * math.sqrt(share * (1 - share) / total + (z / (2 * total)) ** 2)
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

    def outcome(self, shots: int) -> PromptOutcome:
        """The answers to all queries behind so many examples each."""
        task, prompter = self.task, self.prompter
        numbers = range(len(task.queries))[: self.limit]
        cases = [task.queries[number] for number in numbers]
        # Choosing does not depend on the room: two models see the same examples, as far as they fit.
        selected = [task.select(number, shots) for number in numbers]
        shown = [self._fitting(number, examples) for number, examples in zip(numbers, selected)]
        prompts = [task.prompt(number, examples) for number, examples in zip(numbers, shown)]
        progress = None if self.on_progress is None else partial(self.on_progress, shots)
        split_before = prompter.apart  # a counter over all shots: the difference is this number's
        results: Iterable[tuple[str, float, tuple[Choice, ...]]]
        if task.has_choices:
            results = self._choose(cases, prompts, progress)
        else:
            texts = prompter.generate(prompts, task.decoding, progress)
            results = ((generation.text.strip(), generation.log_prob, ()) for generation in texts)
        answers = []
        for number, (text, log_prob, choices) in enumerate(results):
            labels, kept = cases[number].labels, len(shown[number])
            dropped, prompt = len(selected[number]) - kept, prompts[number].text
            # White space around an answer is not part of it; anything else is (exact match).
            correct = text.strip() in (label.strip() for label in labels) if labels else None
            answers.append(
                PromptAnswer(shots, number, kept, dropped, prompt, text, labels, correct, choices, log_prob)
            )
        outcome = PromptOutcome(shots, "accuracy" if task.has_choices else "exact match", tuple(answers))
        self._note(outcome, prompter.apart - split_before)
        return outcome

    def _fitting(self, query: int, examples: list[Case]) -> list[Case]:
        """Of the examples of a query the last ones, as many as there is room for."""
        case, limit = self.task.queries[query], self.prompter.model.positions
        if limit is None:
            return examples
        completions = [case.completion(choice) for choice in case.choices]

        def needed(dropped: int) -> int:
            text = self.task.prompt(query, examples[dropped:]).text
            encoded = self.prompter.encode(text, completions)
            # Choices are scored and take no room beyond themselves; what an encoder-decoder writes is not
            # in its source.
            is_scored = completions or encoded.source
            return encoded.length + (0 if is_scored else self.task.file.max_new_tokens)

        if needed(0) <= limit:
            return examples
        if not self.drop:
            raise EtymonError(
                f"{case.place}: the prompt with {len(examples)} examples and its answer take {needed(0)} "
                f"tokens, but the model has {limit} positions: ask for fewer shots, or allow examples to be "
                "left out (--drop)"
            )
        # Every example left out makes a prompt shorter: a binary search encodes few of them.
        dropped = bisect_left(range(len(examples) + 1), True, key=lambda dropped: needed(dropped) <= limit)
        if dropped > len(examples):
            raise EtymonError(
                f"{case.place}: without any example the prompt and its answer take {needed(len(examples))} "
                f"tokens, but the model has {limit} positions: shorten it"
            )
        return examples[dropped:]

    def _choose(
        self, cases: Sequence[Case], prompts: Sequence[Prompt], progress: OnProgress | None
    ) -> Iterator[tuple[str, float, tuple[Choice, ...]]]:
        # The three scores of GPT-3's evaluation (Brown et al. 2020, section 2.4): the log-probability, the
        # same a token, or the same against that of the completion after "Answer:" alone.
        how, prompter = self.task.file.normalise, self.prompter
        completions = [[case.completion(choice) for choice in case.choices] for case in cases]
        if how == "unconditional":
            # After the answer context alone, each completion once, whatever the number of queries.
            distinct = dict.fromkeys(text for texts in completions for text in texts)
            new = [text for text in distinct if text not in self._unconditional]
            context = Prompt(self.task.file.answer_context.rstrip(" "))
            scores = prompter.score([context] * len(new), [[text] for text in new])
            self._unconditional |= {text: likelihood.log_prob for text, [likelihood] in zip(new, scores)}
        for case, texts, likelihoods in zip(
            cases, completions, prompter.score(prompts, completions, progress)
        ):
            choices = []
            for choice, text, likelihood in zip(case.choices, texts, likelihoods):
                total, alone = likelihood.log_prob, self._unconditional.get(text)
                score = total / likelihood.tokens if how == "token" else total - (alone or 0.0)
                choices.append(Choice(choice, total, likelihood.tokens, alone, score))
            best = max(choices, key=lambda choice: choice.score)
            yield best.text, best.log_prob, tuple(choices)

    def _note(self, outcome: PromptOutcome, split: int) -> None:
        queries = len(outcome.answers)
        if outcome.shortened:
            fewest = min(answer.examples for answer in outcome.answers if answer.dropped)
            self.notes.append(
                f"shots {outcome.shots}: {outcome.shortened} of {queries} prompts were too long for the "
                f"model's {self.prompter.model.positions} positions and lost their first examples (the "
                f"longest kept {fewest})"
            )
        if 0 < outcome.judged < queries:
            self.notes.append(
                f"{queries - outcome.judged} of {queries} queries have no label and are not judged"
            )
        if split:
            self.notes.append(
                f"shots {outcome.shots}: {split} completions were encoded apart from their prompts, since "
                "a token would have stood on both sides of the border"
            )
