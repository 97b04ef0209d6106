"""The training unit: the one module that training calls, and the only one that is ever wrapped."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Any

import torch
from torch import Tensor, nn

from etymon.errors import EtymonError
from etymon.nn.initialise import align
from etymon.objectives.objective import FROM_MODEL, MicroBatch, Objective, StreamBatch, Term
from etymon.training.distributed import World


class TrainingUnit(nn.Module):
    """A model, whoever trains beside it, and the objective; `forward` gives the terms of a slice.

    Wrappers for many devices see every parameter through this one `forward`. Calling other methods of a wrapped
    module would leave gradients unsynchronised without a word.
    """

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        companions: Mapping[str, nn.Module] | None = None,
        bridges: Mapping[str, nn.Module] | None = None,
        teacher: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.companions = nn.ModuleDict(dict(companions or {}))
        self.bridges = nn.ModuleDict(dict(bridges or {}))
        self.objective = objective
        # In a tuple, so that it is no part of the unit: neither trained nor wrapped.
        self._teacher = (teacher,)
        align(self)
        self.memories = StreamMemories()
        """What streams remember: kept outside the parameters, by the number of the stream."""

    @property
    def teacher(self) -> Any:
        return self._teacher[0]

    def recall(self, prepared: StreamBatch) -> Any:
        """The state of the slice's streams; None if the objective or the model remembers nothing."""
        asked: Any = self.objective
        length = asked.memory
        if not self.training and asked.validation_memory != FROM_MODEL:
            length = asked.validation_memory
        model: Any = self.model
        if length == 0 or "memory" not in model.capabilities:
            return None
        device = next(self.parameters()).device
        return self.memories.recall(
            prepared, lambda rows: model.remember(rows, None if length == FROM_MODEL else length), device
        )

    def keep(self, prepared: StreamBatch, state: Any) -> None:
        if state is not None:
            self.memories.keep(prepared, state)

    @contextmanager
    def isolated_memory(self, memories: StreamMemories | None = None) -> Iterator[None]:
        """Inside, streams are others, which begin anew or with these memories; afterwards the old ones go on as if nothing
        had been."""
        kept, self.memories = self.memories, memories or StreamMemories()
        try:
            yield
        finally:
            self.memories = kept

    def forward(self, prepared: Any) -> dict[str, Term]:
        return self.objective.loss(self, prepared)


LENGTHS = "lengths"


class StreamMemories:
    """One state a slice, which always holds the same streams. Saved ones are loaded when their streams are asked for."""

    def __init__(self, saved: Mapping[str, Tensor] | None = None) -> None:
        self._states: dict[tuple[int, ...], Any] = {}
        self._saved: dict[str, dict[str, Tensor]] = {}
        for name, tensor in (saved or {}).items():
            streams, _, part = name.partition("/")
            self._saved.setdefault(streams, {})[part] = tensor

    def recall(self, prepared: StreamBatch, new: Callable[[int], Any], device: torch.device) -> Any:
        """The state of the slice's streams, fresh ones forgotten; `new(rows)` makes an empty one."""
        streams = prepared.streams
        if self._saved:
            self._load(prepared, new, device)
        if all(prepared.fresh) or not self._states:
            return new(len(streams))
        state = self._states.get(streams)
        if state is None:  # the last segments of a text that is read to its end: some of a slice's streams
            whole = next((known for known in self._states if set(streams) <= set(known)), None)
            if whole is None:
                return new(len(streams))
            rows = [whole.index(stream) for stream in streams]
            state = self._states[whole].select(torch.tensor(rows, device=device))
        if any(prepared.fresh):
            state.forget([row for row, fresh in enumerate(prepared.fresh) if fresh])
        return state

    def keep(self, prepared: StreamBatch, state: Any) -> None:
        self._states[prepared.streams] = state

    def copy(self) -> StreamMemories:
        """The same, which goes on by itself: states take up new tensors and never write into old ones."""
        same = StreamMemories()
        same._states = {streams: copy(state) for streams, state in self._states.items()}
        same._saved = dict(self._saved)
        return same

    def _load(self, prepared: StreamBatch, new: Callable[[int], Any], device: torch.device) -> None:
        name = _name(prepared.streams)
        if name in self._saved:
            parts = {part: tensor.to(device, copy=True) for part, tensor in self._saved.pop(name).items()}
            state = new(len(prepared.streams))
            state.load(parts, parts.pop(LENGTHS).tolist())
            self._states[prepared.streams] = state
        elif prepared.streams not in self._states:
            raise EtymonError(
                f"the checkpoint remembers the streams {', '.join(self._saved)}, and a slice has {name}: the number of "
                "streams is fixed by the run; leave --batch and --slices as they were"
            )

    def tensors(self) -> dict[str, Tensor]:
        """Everything there is to save, by the first and last stream of every slice."""
        if not self._states:
            return {
                f"{streams}/{part}": tensor
                for streams, parts in self._saved.items()
                for part, tensor in parts.items()
            }
        named: dict[str, Tensor] = {}  # what was loaded and not asked for belongs to other processes
        for streams, state in self._states.items():
            parts = {**state.tensors(), LENGTHS: torch.tensor(state.lengths)}
            named |= {f"{_name(streams)}/{part}": tensor.detach() for part, tensor in parts.items()}
        return named


def _name(streams: tuple[int, ...]) -> str:
    return f"{streams[0]}-{streams[-1]}"


BYTES, CHARACTERS, TOKENS = "/bytes", "/characters", "/tokens"
"""What is added up over the processes beside the terms' counts."""


def add_counts(slices: Iterable[MicroBatch], before: dict[str, float] | None = None) -> dict[str, float]:
    """The denominators of slices, known before any backward, and what they are made of; added to those from `before`."""
    counts = {} if before is None else before
    for prepared in slices:
        about = {BYTES: prepared.bytes, CHARACTERS: prepared.characters, TOKENS: prepared.tokens}
        for name, count in {**prepared.counts, **about}.items():
            counts[name] = counts.get(name, 0.0) + count
    return counts


def add_terms(terms: Mapping[str, Term], totals: dict[str, float], late: dict[str, float]) -> None:
    """Adds a slice's sums, and the counts that only the slice itself could tell."""
    for name, term in terms.items():
        totals[name] = totals.get(name, 0.0) + float(term.sum.detach())
        if term.count is not None:
            late[name] = late.get(name, 0.0) + float(term.count)


def averages(totals: dict[str, float], counts: dict[str, float], likelihood: str | None) -> dict[str, float]:
    """Each term's mean; bits per byte and per character for likelihoods of the text, else bits per target of the first
    term."""
    means = {name: total / max(counts[name], 1.0) for name, total in totals.items()}
    if likelihood is not None and counts.get(BYTES):
        bits = totals[likelihood] / math.log(2)
        characters = max(counts[CHARACTERS], 1.0)  # a few bytes may begin none
        return {**means, "bits_per_byte": bits / counts[BYTES], "bits_per_character": bits / characters}
    return {**means, "bits_per_target": next(iter(means.values())) / math.log(2)}


def shown(record: Mapping[str, float], validation: Mapping[str, float]) -> dict[str, float | str]:
    """What a step's display says of its record and of the last validation."""
    judged = "bits_per_byte" if "bits_per_byte" in record else "bits_per_target"
    values: dict[str, float | str] = {
        judged: record[judged],
        **{name: record[name] for name in ("bits_per_character",) if name in record},
        "tokens_per_second": record["tokens_per_second"],
        "mfu": record["utilisation"],
        "memory": record["memory"],
    }
    return values | ({"validation": validation[judged]} if judged in validation else {})


@torch.no_grad()
def evaluate(
    unit: TrainingUnit, slices: Sequence[MicroBatch], world: World | None = None
) -> dict[str, float]:
    """The objective's terms over prepared slices, in evaluation mode; several processes share the work. What streams
    remember in training is left as it is."""
    world = world or World()
    was_training, device = unit.training, next(unit.parameters()).device
    unit.eval()
    counts: dict[str, float] = {}
    totals: dict[str, float] = {}
    if world.size > len(slices):
        world = World()  # too little to share: each one does it all
    with unit.isolated_memory():
        for number in range(world.rank, len(slices), world.size):
            prepared = slices[number]
            add_counts([prepared], counts)
            add_terms(unit(prepared.to(device)), totals, counts)
    unit.train(was_training)
    counts = world.add(counts)
    figures = averages(world.add(totals), counts, unit.objective.likelihood)
    means = {name: figures[name] for name in unit.objective.perplexities}
    return figures | {f"{name}_perplexity": math.exp(min(mean, 700.0)) for name, mean in means.items()}
