"""Framing: how one or two token sequences become one model input.

A framing is a value. Its templates name special tokens by role and sequences by number:
`("class", 0, "separator", 1, "separator")` is BERT's pair. A family picks a framing; plans, tasks and
prompts use it without asking which family they are in. RoBERTa's doubled separator, XLNet's trailing
class token or GPT-1's start, delimiter and extract tokens are other values of the same type.
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
    single_segments: tuple[int, ...]
    pair_segments: tuple[int, ...]
    role_ids: tuple[tuple[str, int], ...] = ()
    apart: bool = False
    """Vectors of texts leave the special tokens out: they are marks beside the text, not a part of what is read."""
    context_first: bool = False
    """Of a context and a question about it, the context comes first."""
    start: str | None = None
    """Of an encoder-decoder: the role of the token that the decoder begins with, before the framed text it writes."""
    for_tasks_only: bool = False
    """Its special tokens are those of tasks: a language model goes on from a text as it is."""
    padding_side: Side = "right"
    """Where other libraries fill up short rows: not on the side where the family's heads read."""

    def __post_init__(self) -> None:
        if len(self.single) != len(self.single_segments) or len(self.pair) != len(self.pair_segments):
            raise ValueError(f"framing {self.name}: every element of a template needs a segment id")

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles a tokenizer must have for this framing."""
        return tuple(dict.fromkeys(item for item in self.single + self.pair if isinstance(item, str)))

    def resolve(self, id_of: Callable[[str], int | None]) -> Framing:
        """The same framing bound to token ids, e.g. `BERT.resolve(tokenizer.id)`."""
        bound: list[tuple[str, int]] = []
        for role in self.roles:
            number = id_of(role)
            if number is None:
                raise EtymonError(
                    f"the {self.name} framing needs a {role!r} token, which the tokenizer has not; "
                    f"train or load a tokenizer with the roles {', '.join(self.roles)}"
                )
            bound.append((role, number))
        return replace(self, role_ids=tuple(bound))

    def overhead(self, pair: bool = False) -> int:
        """How many special tokens are added around one sequence, or around two."""
        return sum(isinstance(item, str) for item in (self.pair if pair else self.single))

    def with_separator(self, role: str) -> Framing:
        """The same with a special token between two texts that it would only join; itself if it parts them already."""
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
        lengths = [len(row) - self.overhead() for row in rows]
        return [
            np.repeat(self.single_segments, [length if item == 0 else 1 for item in self.single])
            for length in lengths
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


# GPT-2: the text and nothing else; two texts follow one another.
PLAIN = Framing("plain", (0,), (0, 1), (0,), (0, 0), for_tasks_only=True)
BERT = Framing(
    "bert",
    ("class", 0, "separator"),
    ("class", 0, "separator", 1, "separator"),
    (0, 0, 0),
    (0, 0, 0, 1, 1),
)
# The doubled separator tells the texts apart: there are no segments.
ROBERTA = Framing(
    "roberta",
    ("class", 0, "separator"),
    ("class", 0, "separator", "separator", 1, "separator"),
    (0, 0, 0),
    (0, 0, 0, 0, 0, 0),
)
# GPT-1's start, delimiter and extract tokens: what a text says is read at its end.
GPT1 = Framing(
    "gpt1",
    ("begin", 0, "class"),
    ("begin", 0, "separator", 1, "class"),
    (0, 0, 0),
    (0, 0, 0, 0, 0),
    for_tasks_only=True,
)
# BERT's tokens without its segments.
DISTILBERT = replace(BERT, name="distilbert", pair_segments=(0, 0, 0, 0, 0))
# T5 knows no pairs: its tasks write both texts into one, so two sequences are simply joined.
T5 = Framing("t5", (0, "end"), (0, 1, "end"), (0, 0), (0, 0, 0), start="pad")
# The decoder reads `</s> <s> A`, and so writes the same `<s> A </s>` that the encoder reads.
BART = replace(ROBERTA, name="bart", start="end")
# The pairs of 2014 to 2017: texts have an end, and the one that is written begins with a token for that.
SEQ2SEQ = replace(T5, name="seq2seq", start="begin")

# What a text says is read at its end, in a segment of its own.
XLNET = Framing(
    "xlnet",
    (0, "separator", "class"),
    (0, "separator", 1, "separator", "class"),
    (0, 0, 2),
    (0, 0, 1, 1, 2),
    context_first=True,
    padding_side="left",
)
# Marks before and behind every text; what is read of it are its words.
ELMO = Framing(
    "elmo",
    ("begin", 0, "end"),
    ("begin", 0, "end", "begin", 1, "end"),
    (0, 0, 0),
    (0, 0, 0, 0, 0, 0),
    apart=True,
)
