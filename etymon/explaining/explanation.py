"""What `etymon explain` says of a text, as values.

Legend: Q queries, T keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from etymon.report.explain_picture import explain_svg
from etymon.report.inline import Inline, Picture

if TYPE_CHECKING:
    from etymon.report.page import Section


@dataclass(frozen=True)
class TokenGuess:
    token: str
    probability: float


@dataclass(frozen=True)
class TokenQuestion:
    """At a place of what a reader reads, the token that it should predict there; with a trained model, what
    it guesses."""

    place: int
    target: str
    loss: float | None = None
    """In nats."""
    rank: int | None = None
    """Of the target among all tokens, from 1."""
    guesses: tuple[TokenGuess, ...] = ()
    drawn: str | None = None
    """What was put into the text there (ELECTRA's generator)."""


@dataclass(frozen=True)
class ExplainedToken:
    """A token as it is read."""

    text: str
    position: int
    kind: str
    """`text`, `special`, `mask`, `sentinel`, `changed` (another token stood here) or `asked` (read as it is,
    and yet to be predicted in its own place)."""
    original: str | None = None
    """What stood here in the text, where that is another token."""
    segment: int | None = None
    order: int | None = None
    """Of its prediction, where tokens are predicted in an order of their own; 0 is seen by all."""
    replaced: float | None = None
    """With a trained discriminator, the probability that it is not the original."""


@dataclass(frozen=True)
class VisibilityMap:
    """Which keys the queries of some layers see."""

    layers: str
    queries: list[str]
    keys: list[str]
    allowed: np.ndarray = field(repr=False)
    """`[Q, T]`, of truth values."""


@dataclass(frozen=True)
class ExplainedReader:
    """One part of the model, what it reads and what it is asked."""

    name: str
    tokens: list[ExplainedToken]
    questions: list[TokenQuestion]
    sees: list[VisibilityMap]
    first: int
    total: int
    """Tokens that it reads. `tokens` may be a part of them, from number `first` on."""


@dataclass(frozen=True)
class TextQuestion:
    """A question about the whole text: does the second part follow the first?"""

    name: str
    answer: int
    probabilities: tuple[float, ...] = ()


@dataclass(frozen=True)
class ExplainedSample:
    number: int
    """Among the samples of the text, from 1."""
    text: str
    """What the sample was made of."""
    readers: list[ExplainedReader]
    about_text: list[TextQuestion]
    losses: dict[str, float]
    """The terms of the loss, means in nats; empty without a trained model."""


@dataclass(frozen=True)
class Explanation(Inline):
    family: str
    objective: str
    about: str
    seed: int
    trained: bool
    samples: list[ExplainedSample]
    total: int
    """Samples that the text makes."""

    def inline_sections(self) -> Iterator[Section]:
        yield Picture(explain_svg(as_record(self)), f"{self.family}: {self.objective}", self.about)


def as_record(explanation: Explanation) -> dict[str, Any]:
    """All of it as plain data; of a picture, the keys that every query sees."""
    record = asdict(explanation)
    for sample in record["samples"]:
        for reader in sample["readers"]:
            for picture in reader["sees"]:
                picture["allowed"] = [row.nonzero()[0].tolist() for row in picture["allowed"]]
    return record
