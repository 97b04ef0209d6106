"""What an objective is: what is hidden from the model, what it is asked, and how the answer is scored.

`plan` chooses the samples of an epoch, `prepare` turns one into an example (masking, noise; pure, with a generator
of its own), `collate` joins examples into a slice of a step, and `loss` scores the slice. Nothing here depends on
ranks, workers or accumulation, which only place the work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from etymon.errors import EtymonError
from etymon.nn.batch import Batch
from etymon.text.store import Split
from etymon.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Term:
    """A part of the loss with its own denominator, which the prepared slice knows under the same name.

    Metrics are terms of weight 0; they alone may bring a `count` that is known only after the fact.
    """

    sum: Tensor
    weight: float = 1.0
    count: Tensor | None = None


@dataclass
class MicroBatch:
    """A slice of a step, ready for the model. `counts` are the denominators of its terms, known before any forward."""

    counts: dict[str, float]
    tokens: int
    """Tokens the model reads."""
    bytes: float = field(default=0.0, kw_only=True)
    """Bytes of text the targets stand for, where they are known."""
    characters: float = field(default=0.0, kw_only=True)
    """Characters of it."""

    def to(self, device: torch.device | str) -> Self:
        moved: dict[str, Any] = {
            part.name: value.to(device)
            for part in fields(self)
            if isinstance(value := getattr(self, part.name), (Tensor, Batch))
        }
        return replace(self, **moved)


@dataclass
class StreamBatch(MicroBatch):
    """A slice whose rows are the next segments of streams, in the order of the streams."""

    streams: tuple[int, ...]
    """The number of every row's stream."""
    fresh: tuple[bool, ...]
    """Rows that begin anew: what their streams remember is forgotten first."""


class Unit(Protocol):
    """What an objective scores with: the model that is trained, and whoever it needs beside it."""

    @property
    def model(self) -> Any: ...

    @property
    def companions(self) -> Any:
        """By name, models that are trained beside it (a generator)."""

    @property
    def bridges(self) -> Any:
        """By name, maps between members that are trained as well and of no use afterwards (a projection)."""

    @property
    def teacher(self) -> Any:
        """A model that is never trained, if the objective has one."""

    def recall(self, prepared: StreamBatch) -> Any:
        """What the slice's streams remember of their earlier segments, as a state for the model; None if nothing is to be
        remembered."""

    def keep(self, prepared: StreamBatch, state: Any) -> None:
        """Keeps the state that the model gave back, for the streams' next segments."""


class Objective(Protocol):
    name: str
    heads: frozenset[str]
    """The heads it needs."""
    requires: frozenset[str]
    """The capabilities it needs of a family."""
    likelihood: str | None = None
    """The term that is the negative log-likelihood of the text, if there is one: bits per byte are then reported."""
    perplexities: tuple[str, ...] = ()
    """Terms whose perplexity is reported as well where the model is judged."""
    folder: str = "model"
    """The name of the folder that the trained model is saved in."""
    needs_teacher: bool = False
    """Whether it needs a teacher."""
    companions: frozenset[str] = frozenset()
    """Who is trained beside the model, and saved in a folder of that name."""
    skips_heads: bool = False
    """Whether a step may leave some of its heads out."""
    streaming: bool = False
    """Whether its samples are segments of streams, which go on from step to step: see `Streaming`."""

    def plan(self, split: Split, seed: int, epoch: int, *, shuffle: bool = True) -> np.ndarray:
        """One row a sample of the epoch: where its tokens lie, and what the plan has decided about it."""

    def prepare(self, split: Split, row: np.ndarray, rng: np.random.Generator) -> Any:
        """One sample as an example: a function of the row and the generator alone."""

    def collate(self, examples: Sequence[Any]) -> MicroBatch:
        """Examples as one slice; rows may be reordered."""

    def loss(self, unit: Unit, prepared: Any) -> dict[str, Term]:
        """The terms of the slice."""

    def readings(self, split: Split, plan: np.ndarray) -> float:
        """How often the samples of an epoch's plan read a word of the text, on average."""
        return 1.0


FROM_MODEL = -1
"""The length of a memory that the model's shape decides."""


class Streaming(Objective, Protocol):
    """An objective over contiguous streams. Its plan is time-major (`data/streams.py`): of S streams, sample t * S + s is
    segment t of stream s. `collate` keeps the rows' order and gives a `StreamBatch`; `loss` asks the unit to `recall` the
    state of those streams and to `keep` the new one."""

    streaming: bool = True
    memory: int = FROM_MODEL
    """Tokens that a stream remembers beside its segment; 0 for none, `FROM_MODEL` for as many as the model's shape says."""
    validation_memory: int = FROM_MODEL
    """The same where the model is judged; `FROM_MODEL` for as many as in training."""

    def plan(
        self, split: Split, seed: int, epoch: int, *, shuffle: bool = True, streams: int = 1
    ) -> np.ndarray:
        """The epoch's segments, time-major: in training as many of every stream, in order (not `shuffle`) all of the text."""


def weighted_loss(terms: Mapping[str, Term], counts: Mapping[str, float]) -> Tensor:
    """`sum of weight * sum / count` with the counts of the whole step, so that slices add up to the step exactly."""
    parts = [term.weight * term.sum / max(counts[name], 1.0) for name, term in terms.items() if term.weight]
    return torch.stack(parts).sum()


def check_fit(objective: Objective | type[Objective], family: Any) -> None:
    """Refuses a misfit of objective (its class will do) and family before any work."""
    lacking = (
        objective.requires - family.capabilities - ({"pairs"} if _parted(family.framing.pair) else set())
    )
    if lacking:
        needed = ", ".join(sorted(lacking)).replace("pairs", "able to tell two texts apart")
        needed = needed.replace("prefix", "able to read a prefix")
        needed = needed.replace("memory", "able to remember earlier segments")
        raise EtymonError(
            f"the objective {objective.name!r} needs a model that is {needed}, and {family.title} "
            f"is not: use its own objective {family.objective!r}, or another family"
        )
    unknown = objective.heads - set(family.heads)
    if unknown:
        raise EtymonError(
            f"the objective {objective.name!r} needs the head {', '.join(sorted(unknown))}, "
            f"which {family.title} does not have"
        )


def _parted(template: Sequence[str | int]) -> bool:
    """Whether a framing for two texts puts something between them."""
    return abs(template.index(0) - template.index(1)) > 1


def needed_id(tokenizer: Tokenizer, role: str, objective: str) -> int:
    """The id of a special token without which the objective cannot work."""
    number = tokenizer.id(role)
    if number is None:
        raise EtymonError(
            f"the objective {objective!r} needs a {role!r} token, which this tokenizer has not: "
            "train one for the family, or use another objective"
        )
    return number


def text_lengths(tokenizer: Tokenizer) -> np.ndarray:
    """Bytes and characters of text behind every id; all zero, that is unknown, where the tokenizer does not keep every byte."""
    if tokenizer.byte_lengths is None or tokenizer.character_lengths is None:
        return np.zeros((tokenizer.size, 2))
    return np.stack([tokenizer.byte_lengths, tokenizer.character_lengths], 1).astype(np.float64)


def by_length(examples: Sequence[Any]) -> list[Any]:
    """Examples sorted by length, so that attention finds its groups of similar rows side by side."""
    return sorted(examples, key=lambda example: len(example.ids))


def target_terms(
    name: str, model: Any, hidden: Tensor, at: Tensor | None, targets: Tensor
) -> dict[str, Term]:
    """The loss of targets and, where the model is judged, how many of them it ranks first."""
    head = model.heads["vocabulary"]
    terms = {name: Term(head.loss(hidden, at, targets))}
    if not model.training:  # a second look at the logits: only where time is not counted
        terms[f"{name}_accuracy"] = Term((head.ranks(hidden, at, targets) == 0).sum(), 0.0)
    return terms
