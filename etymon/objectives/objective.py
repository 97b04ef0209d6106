"""What an objective is: what is hidden from the model, what it predicts, and how that is scored.

A new objective is a class, in a plugin (docs/extending.md) or here with a line in `registry.OBJECTIVES`. It
has a `name`, the `heads` that it needs, the capabilities that it `requires` of a family, the class of its
`Options`, `__init__(tokenizer, length, options)`, and four methods that run one after the other:

1. `plan(split, seed, epoch)`: a table with a row for every sample of the epoch (`etymon.sampling.plans` has
   the usual ones).
2. `prepare(split, row, rng)`: a row as an example, masked or corrupted. It runs in worker processes and
   depends on its arguments alone.
3. `collate(examples)`: examples as a `MicroBatch`: a `Batch` for the model, the targets, and under the name
   of every term of the loss its denominator.
4. `loss(unit, micro)`: the terms by name, as sums.

`causal.py` is the shortest whole one; a variant changes one step (`prefix.py` only `prepare`). A new masking
scheme is less: see `masking.py`. Nothing here depends on ranks, workers or accumulation, which only place the
work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from etymon.errors import EtymonError
from etymon.nn.batch import Batch
from etymon.settings import option, settings
from etymon.text.store import Split
from etymon.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Term:
    """A part of the loss. Its denominator stands in the micro-batch under the same name.

    Metrics are terms of weight 0; they alone may bring a `count` that is known only after the fact.
    """

    sum: Tensor
    weight: float = 1.0
    count: Tensor | None = None


@dataclass
class MicroBatch:
    """A slice of a step, ready for the model. `counts` are the denominators of its terms, known before any
    forward."""

    counts: dict[str, float]
    tokens: int
    """Tokens the model reads."""
    bytes: float = field(default=0.0, kw_only=True)
    """Bytes of text the targets stand for, where they are known."""
    characters: float = field(default=0.0, kw_only=True)
    """Characters of it."""

    def to(self, device: torch.device | str) -> Self:
        # Whatever tensors a subclass adds move with it.
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
    """What is trained: the model, and what the objective needs beside it."""

    @property
    def model(self) -> Any: ...

    @property
    def companions(self) -> Any:
        """By name, models that are trained beside it (a generator)."""

    @property
    def bridges(self) -> Any:
        """By name, maps between two models' states that are trained as well and of no use afterwards (a
        projection)."""

    @property
    def teacher(self) -> Any:
        """A model that is never trained, if the objective has one."""

    def recall(self, micro: StreamBatch) -> Any:
        """What the slice's streams remember of their earlier segments, as a state for the model; None if they
        keep no memory."""

    def keep(self, micro: StreamBatch, state: Any) -> None:
        """Stores the state that the model gave back, for the streams' next segments."""


@settings
class NoOptions:
    """Options of an objective that has none."""


class Objective(Protocol):
    name: str
    Options: ClassVar[type] = NoOptions
    """The `@settings` class of its options."""
    heads: frozenset[str]
    """The heads it needs."""
    requires: frozenset[str]
    """The capabilities it needs of a family."""
    likelihood: str | None = None
    """The term that is the negative log-likelihood of the text, if there is one: bits per byte are then
    reported."""
    perplexities: tuple[str, ...] = ()
    """Terms whose perplexity is reported as well in validation."""
    folder: str = "model"
    """The name of the folder that the trained model is saved in."""
    needs_teacher: bool = False
    companions: frozenset[str] = frozenset()
    """Models that are trained beside the model, and saved in folders of these names."""
    skips_heads: bool = False
    """Whether a step may leave some of its heads out."""
    streaming: bool = False
    """Whether its samples are segments of streams, which go on from step to step: see `Streaming`."""
    shifted: bool = False
    """Whether a masked token is predicted from the state of the place before it."""
    whole_words: bool = False
    """Whether it needs to know where words begin."""

    def plan(self, split: Split, seed: int, epoch: int, *, shuffle: bool = True) -> np.ndarray:
        """A row for every sample of the epoch: where its tokens lie, and what the plan has decided about
        it."""

    def prepare(self, split: Split, row: np.ndarray, rng: np.random.Generator) -> Any:
        """A sample as an example: a function of the row and the generator alone."""

    def collate(self, examples: Sequence[Any]) -> MicroBatch:
        """Examples as one slice; rows may be reordered."""

    def loss(self, unit: Unit, micro: Any) -> dict[str, Term]:
        """The terms of the slice."""

    def readings(self, split: Split, plan: np.ndarray) -> float:
        """How often the samples of an epoch's plan read a word of the text, on average."""
        return 1.0


@settings
class MemoryOptions:
    """What every streaming objective with a memory can be told."""

    memory: int | None = option(
        None, "tokens that a stream remembers; 0: none (as many as the model's shape says)", ge=0
    )
    validation_memory: int | None = option(None, "the same in validation (as in training)", ge=0)


class Streaming(Objective, Protocol):
    """An objective over contiguous streams. Its plan is time-major (`sampling/streams.py`): of S streams,
    sample t * S + s is segment t of stream s. `collate` keeps the rows' order and returns a `StreamBatch`;
    `loss` has the unit `recall` the state of those streams and `keep` the new one."""

    streaming: bool = True
    memory: int | None = None
    """Tokens that a stream remembers beside its segment; 0 for none, None for as many as the model's shape
    says."""
    validation_memory: int | None = None
    """The same in validation; None for as many as in training."""

    def plan(
        self, split: Split, seed: int, epoch: int, *, shuffle: bool = True, streams: int = 1
    ) -> np.ndarray:
        """The epoch's segments, time-major: in training as many of every stream, in order (not `shuffle`) all
        of the text."""


def weighted_loss(terms: Mapping[str, Term], counts: Mapping[str, float]) -> Tensor:
    """`sum of weight * sum / count` with the counts of the whole step, so that slices add up to the step
    exactly."""
    # A mean of means would weigh slices by their number, not by their targets.
    parts = [term.weight * term.sum / max(counts[name], 1.0) for name, term in terms.items() if term.weight]
    return torch.stack(parts).sum()


ABILITIES = {
    "pairs": "able to tell two texts apart",
    "prefix": "able to read a prefix",
    "causal-rows": "able to read some rows from left to right",
    "memory": "able to remember earlier segments",
}
"""What messages call capabilities whose names do not say it."""


def check_fit(objective: Objective | type[Objective], family: Any) -> None:
    """Refuses a misfit of objective (its class will do) and family before any work."""
    # A family can tell two texts apart if its framing puts something between them.
    pair = family.framing.pair
    is_parted = abs(pair.index(0) - pair.index(1)) > 1
    lacking = objective.requires - family.capabilities - ({"pairs"} if is_parted else set())
    if lacking:
        raise EtymonError(
            f"the objective {objective.name!r} needs a model that is "
            f"{', '.join(ABILITIES.get(name, name) for name in sorted(lacking))}, and {family.title} "
            f"is not: use its own objective {family.objective!r}, or another family"
        )
    unknown = objective.heads - set(family.heads)
    if unknown:
        raise EtymonError(
            f"the objective {objective.name!r} needs the head {', '.join(sorted(unknown))}, "
            f"which {family.title} does not have"
        )


# --- what several objectives use


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
    """Bytes and characters of text behind every id; all zero, that is unknown, where the tokenizer does not
    keep every byte."""
    if tokenizer.byte_lengths is None or tokenizer.character_lengths is None:
        return np.zeros((tokenizer.size, 2))
    return np.stack([tokenizer.byte_lengths, tokenizer.character_lengths], 1).astype(np.float64)


def place_word_starts(special: np.ndarray, texts: Sequence[np.ndarray]) -> np.ndarray:
    """For every token of framed texts, whether a word begins with it, from the same of the texts one after
    the other; special tokens are words."""
    begins = np.ones(len(special), bool)
    begins[~special] = np.concatenate(texts)
    return begins


def by_length(examples: Sequence[Any]) -> list[Any]:
    """Examples sorted by length, so that attention finds its groups of similar rows side by side."""
    return sorted(examples, key=lambda example: len(example.ids))


def concatenate(examples: Sequence[Any], name: str) -> Tensor:
    """The arrays of that name of all examples, end to end."""
    return torch.from_numpy(np.concatenate([getattr(example, name) for example in examples]))


def stream_fields(examples: Sequence[Any]) -> dict[str, Any]:
    """The fields of a `StreamBatch` of examples that each have a `stream` and say whether it is `fresh`."""
    return {
        "streams": tuple(example.stream for example in examples),
        "fresh": tuple(example.fresh for example in examples),
    }


def target_terms(
    name: str, model: Any, hidden: Tensor, at: Tensor | None, targets: Tensor
) -> dict[str, Term]:
    """The loss of targets and, in validation, how many of them the model ranks first."""
    head = model.heads["vocabulary"]
    terms = {name: Term(head.loss(hidden, at, targets))}
    if not model.training:  # the logits are computed a second time: too slow for training
        terms[f"{name}_accuracy"] = Term((head.ranks(hidden, at, targets) == 0).sum(), 0.0)
    return terms
