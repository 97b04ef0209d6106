"""What the scheduler works on: texts to write, and calls that answer several requests at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from etymon.generation.sequences import Sequence as Decoded
from etymon.settings.decoding import DecodingSettings


class DeadlineError(Exception):
    """A request took longer than it may."""


class CancelledError(Exception):
    """Nobody waits for the answer any more."""


class ServerJob:
    """Something that is computed for a request. Any thread may cancel it or wait for its `future`."""

    def __init__(self, deadline: float | None) -> None:
        self.future: Future[Any] = Future()
        self.future.set_running_or_notify_cancel()  # whoever waits cannot end it: `cancel` does
        self.deadline = deadline
        """By `time.monotonic`; None: it may take any time."""
        self.is_cancelled = False
        self.submitted = time.monotonic()

    def cancel(self) -> None:
        """From now on nothing is computed for it: it leaves its batch before the next step."""
        self.is_cancelled = True

    def drop_if_over(self, now: float) -> bool:
        """Whether it was cancelled or its time is up; whoever waits is told."""
        # One of its texts may have failed already.
        if self.future.done():
            return True
        if self.is_cancelled:
            self.future.set_exception(CancelledError())
        elif self.deadline is not None and now > self.deadline:
            self.future.set_exception(DeadlineError())
        return self.future.done()

    def fail(self, error: BaseException) -> None:
        if not self.future.done():
            self.future.set_exception(error)


@dataclass(frozen=True)
class ScoredToken:
    """A token, its log-probability, and the likeliest tokens in its place with theirs."""

    id: int
    log_prob: float | None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class NewToken:
    """A token as it is written: of which text, and the text that has become certain with it."""

    copy: int
    piece: str
    score: ScoredToken
    reason: str | None = None
    """Why the text ends with it: `stop`, `length`, or None while it goes on."""


@dataclass
class WrittenTexts:
    """The texts of a prompt, and the scores of their tokens and of the prompt's, where those were wanted."""

    sequences: list[Decoded]
    scores: list[list[ScoredToken]]
    prompt_scores: list[ScoredToken]
    first_token: float
    """Seconds until the first token was there."""


class TextJob(ServerJob):
    """A prompt to go on from, or a source to answer, in `settings.returns` texts.

    `top` likeliest tokens are told of every new token (None: no log-probabilities at all), with
    `scores_prompt` of the prompt's, too. `on_token` is called by the scheduler's thread.
    """

    def __init__(
        self,
        prompt: Sequence[int],
        settings: DecodingSettings,
        limit: int,
        *,
        key: int = 0,
        top: int | None = None,
        scores_prompt: bool = False,
        on_token: Callable[[NewToken], None] | None = None,
        deadline: float | None = None,
    ) -> None:
        super().__init__(deadline)
        self.prompt, self.settings, self.limit, self.key = list(prompt), settings, limit, key
        self.top, self.scores_prompt, self.on_token = top, scores_prompt, on_token
        self.prompt_scores: list[ScoredToken] = []
        self.scores: list[list[ScoredToken]] = [[] for _ in range(settings.returns)]
        self.unfinished = settings.returns
        self.first_token = 0.0

    @property
    def copies(self) -> int:
        return self.settings.returns


@dataclass(eq=False)
class Call(ServerJob):
    """Items that `run` answers one by one, together with those of other calls of the same `key`."""

    key: Hashable
    items: Sequence[Any]
    run: Callable[[list[Any]], list[Any]]
    limit: float | None = None
    size: int = field(init=False)

    def __post_init__(self) -> None:
        super().__init__(self.limit)
        self.size = len(self.items)
