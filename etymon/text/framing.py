"""Framing: how one or two token sequences become one model input.

A framing is a value. Its templates name special tokens by role and sequences by number: `("class", 0,
"separator", 1, "separator")` is a pair behind a class token. A family picks a framing; plans, tasks and
prompts use it without asking which family they are in. Those that several families or foreign tokenizers use
are here, others with their family.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from etymon.errors import EtymonError

Template = tuple[str | int, ...]
Side = Literal["right", "left"]


@dataclass(frozen=True)
class Framed:
    """A model input: token ids, segment ids, and which positions the framing added."""

    ids: np.ndarray  # int32
    segments: np.ndarray  # int32
    special: np.ndarray  # bool


@dataclass(frozen=True)
class ReadingSettings:
    """How a model reads texts, as far as its tokenizer's files tell other libraries."""

    positions: int | None = None
    """Tokens of a row that it has room for; None: any number."""
    for_task: bool = False
    """Whether its heads answer a task, and texts are framed as tasks frame them."""
    pad_token: str | None = None
    """What rows of a task are filled up with, where the tokenizer has no token for that."""
    task_length: int | None = None
    """Tokens of a row that the task was trained to read, where that is known."""
    truncation_side: Side = "right"
    """Where texts that are too long are cut."""


@dataclass(frozen=True)
class Framing:
    """Templates for one and for two sequences, with a segment id for every element of each.

    `role_ids` is empty until `resolve` binds the roles to the ids of a tokenizer.
    """

    name: str
    single: Template
    pair: Template
    single_segments: tuple[int, ...] = ()
    """A segment id for every element of the template; () is 0 for all."""
    pair_segments: tuple[int, ...] = ()
    role_ids: tuple[tuple[str, int], ...] = ()
    apart: bool = False
    """Vectors of texts leave the special tokens out: they are marks beside the text, not a part of what is
    read."""
    context_first: bool = False
    """Of a context and a question about it, the context comes first."""
    start: str | None = None
    """The role of the token that the decoder of an encoder-decoder begins with, before the framed text it
    writes."""
    for_tasks_only: bool = False
    """Its special tokens are those of tasks: a language model goes on from a text as it is."""
    padding_side: Side = "right"
    """Where other libraries fill up short rows: not on the side where the family's heads read."""

    def __post_init__(self) -> None:
        for template, name in ((self.single, "single_segments"), (self.pair, "pair_segments")):
            segments = getattr(self, name) or (0,) * len(template)
            if len(segments) != len(template):
                raise ValueError(f"framing {self.name}: every element of a template needs a segment id")
            object.__setattr__(self, name, segments)

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles a tokenizer must have for this framing."""
        return tuple(dict.fromkeys(item for item in self.single + self.pair if isinstance(item, str)))

    def resolve(self, id_of: Callable[[str], int | None]) -> Framing:
        """The same framing bound to token ids, e.g. `PLAIN.resolve(tokenizer.id)`."""
        role_ids: list[tuple[str, int]] = []
        for role in self.roles:
            if (number := id_of(role)) is None:
                raise EtymonError(
                    f"the {self.name} framing needs a {role!r} token, which the tokenizer has not; "
                    f"train or load a tokenizer with the roles {', '.join(self.roles)}"
                )
            role_ids.append((role, number))
        return replace(self, role_ids=tuple(role_ids))

    def overhead(self, pair: bool = False) -> int:
        """How many special tokens are added around one sequence, or around two."""
        return sum(isinstance(item, str) for item in (self.pair if pair else self.single))

    def with_separator(self, role: str) -> Framing:
        """The same with a special token between two texts that it would only join; itself if it has one
        there."""
        first, second = self.pair.index(0), self.pair.index(1)
        if second - first > 1:
            return self
        pair = (*self.pair[:second], role, *self.pair[second:])
        segments = (*self.pair_segments[:second], self.pair_segments[first], *self.pair_segments[second:])
        return replace(self, pair=pair, pair_segments=segments)

    def segments(self, rows: Sequence[np.ndarray]) -> list[np.ndarray] | None:
        """The segments of single texts that were framed; None if there is but one."""
        if not any(self.single_segments):
            return None
        return [
            np.repeat(
                self.single_segments, [len(row) - self.overhead() if item == 0 else 1 for item in self.single]
            )
            for row in rows
        ]

    def frame(
        self, first: Sequence[int] | np.ndarray, second: Sequence[int] | np.ndarray | None = None
    ) -> Framed:
        """Put the special tokens around one sequence, or around and between two."""
        template, numbers = (
            (self.single, self.single_segments) if second is None else (self.pair, self.pair_segments)
        )
        parts = (np.asarray(first, np.int32), np.asarray(() if second is None else second, np.int32))
        ids = dict(self.role_ids)
        try:
            pieces = [
                parts[item] if isinstance(item, int) else np.array([ids[item]], np.int32) for item in template
            ]
        except KeyError as error:
            raise ValueError(
                f"framing {self.name} is not bound to a tokenizer: call resolve first"
            ) from error
        lengths = [len(piece) for piece in pieces]
        return Framed(
            ids=np.concatenate(pieces),
            segments=np.repeat(np.array(numbers, np.int32), lengths),
            special=np.repeat([isinstance(item, str) for item in template], lengths),
        )


# The text and nothing else; two texts follow one another (GPT-2).
PLAIN = Framing("plain", (0,), (0, 1), for_tasks_only=True)
# The second text has a segment of its own (BERT).
CLASS_FIRST = Framing(
    "class-first",
    ("class", 0, "separator"),
    ("class", 0, "separator", 1, "separator"),
    pair_segments=(0, 0, 0, 1, 1),
)
# The doubled separator tells the texts apart: there are no segments (RoBERTa).
DOUBLE_SEPARATOR = Framing(
    "double-separator",
    ("class", 0, "separator"),
    ("class", 0, "separator", "separator", 1, "separator"),
)
# Start, delimiter and extract tokens: what a text says is read at its end (GPT-1).
EXTRACT_LAST = Framing(
    "extract-last", ("begin", 0, "class"), ("begin", 0, "separator", 1, "class"), for_tasks_only=True
)
# No pairs: tasks write both texts into one, so two sequences are simply joined (T5).
TEXT_END = Framing("text-end", (0, "end"), (0, 1, "end"), start="pad")
# Texts have an end, and the one that is written begins with a token for that (the pairs of 2014 to 2017).
BEGIN_END = replace(TEXT_END, name="begin-end", start="begin")
GUESSES = {"<s>": DOUBLE_SEPARATOR, "_classify_": EXTRACT_LAST}
"""The framing of tokenizers that are read without a family, by their class token; others are
`CLASS_FIRST`."""
