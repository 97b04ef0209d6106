"""The training unit: the module that training calls and wraps, what its streams remember, and its metrics."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from etymon.errors import EtymonError
from etymon.nn.initialise import align
from etymon.objectives.objective import MicroBatch, Objective, StreamBatch, Term
from etymon.training.distributed import World
from etymon.training.shards import root_gathered
from etymon.training.state import take_prefixed


class TrainingUnit(nn.Module):
    """A model, whoever trains beside it, and the objective; `forward` gives the terms of a slice.

    Wrappers for many devices see every parameter through this one `forward`. Calling other methods of a
    wrapped module would leave gradients unsynchronised without a word.
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

    def recall(self, batch: StreamBatch) -> Any:
        """The state of the batch's streams; None if the objective or the model remembers nothing."""
        model: Any = self.model
        objective: Any = self.objective
        # Transformer-XL validates with a longer memory than it trains with (Dai et al. 2019, section 4.1).
        length = objective.memory
        if not self.training and objective.validation_memory is not None:
            length = objective.validation_memory
        if length == 0 or "memory" not in model.capabilities:
            self.memories = StreamMemories()  # of an earlier phase: a later one does not go on from there
            return None

        def new_state(rows: int) -> Any:
            return model.remember(rows, length)

        return self.memories.recall(batch, new_state, next(self.parameters()).device)

    def keep(self, batch: StreamBatch, state: Any) -> None:
        """Keeps the state that the model gave back, for the streams' next segments."""
        if state is not None:
            self.memories.keep(batch, state)

    @contextmanager
    def isolated_memory(self, memories: StreamMemories | None = None) -> Iterator[None]:
        """Inside, streams begin anew or with these memories; what they remember is back afterwards."""
        outside, self.memories = self.memories, memories or StreamMemories()
        try:
            yield
        finally:
            self.memories = outside

    def forward(self, batch: Any) -> dict[str, Term]:
        return self.objective.loss(self, batch.content if isinstance(batch, Sealed) else batch)


class Sealed:
    """A slice that nobody looks into on its way to the unit: sharding searches arguments for tensors, and the
    views that a batch keeps of itself lead back to it."""

    def __init__(self, content: Any) -> None:
        self.content = content


class StreamMemories:
    """What streams remember: a state for every slice of a step, which always holds the same streams.

    States are saved under the numbers of their streams, so that any number of processes can go on with them,
    and loaded when a batch with these streams comes.
    """

    def __init__(self, saved: Mapping[str, Tensor] | None = None) -> None:
        self._states: dict[tuple[int, ...], Any] = {}
        self._saved = dict(saved or {})

    def recall(self, batch: StreamBatch, new_state: Callable[[int], Any], device: torch.device) -> Any:
        """The state of the batch's streams, fresh ones forgotten; `new_state(rows)` makes an empty one."""
        streams = batch.streams
        prefix = _prefix(streams)
        # Loaded when a batch first asks for it: only now it is clear which streams this process computes.
        if parts := take_prefixed(self._saved, prefix):
            lengths = parts.pop("lengths").tolist()
            self._states[streams] = new_state(len(streams))
            self._states[streams].load(
                {name: tensor.to(device, copy=True) for name, tensor in parts.items()}, lengths
            )
        elif self._saved and streams not in self._states:
            others = dict.fromkeys(name.partition("/")[0] for name in self._saved)
            raise EtymonError(
                f"the checkpoint remembers the streams {', '.join(others)}, and a slice has {prefix[:-1]}: "
                "the number of streams is fixed by the run; leave --batch and --slices as they were"
            )
        if all(batch.fresh) or not self._states:
            return new_state(len(streams))
        state = self._states.get(streams)
        if state is None:  # the last segments of a text that is read to its end: some of a slice's streams
            whole = next((others for others in self._states if set(streams) <= set(others)), None)
            if whole is None:
                return new_state(len(streams))
            rows = [whole.index(stream) for stream in streams]
            state = self._states[whole].select(torch.tensor(rows, device=device))
        if any(batch.fresh):
            state.forget([row for row, fresh in enumerate(batch.fresh) if fresh])
        return state

    def keep(self, batch: StreamBatch, state: Any) -> None:
        self._states[batch.streams] = state

    def copy(self) -> StreamMemories:
        """An independent copy: states take up new tensors and never write into old ones, so none is
        copied."""
        same = StreamMemories(self._saved)
        same._states = {streams: copy(state) for streams, state in self._states.items()}
        return same

    def tensors(self) -> dict[str, Tensor]:
        """Everything there is to save, named `<first stream>-<last stream>/<part>`."""
        if not self._states:
            return dict(self._saved)
        tensors: dict[str, Tensor] = {}  # what was loaded and not recalled belongs to other processes
        for streams, state in self._states.items():
            parts = {**state.tensors(), "lengths": torch.tensor(state.lengths)}
            tensors |= {_prefix(streams) + part: tensor.detach() for part, tensor in parts.items()}
        return tensors


def _prefix(streams: tuple[int, ...]) -> str:
    return f"{streams[0]}-{streams[-1]}/"


# Added up over the processes beside the counts of terms; no term has a name with a slash in front.
BYTES, CHARACTERS, TOKENS = "/bytes", "/characters", "/tokens"


def add_counts(slices: Iterable[MicroBatch]) -> dict[str, float]:
    """The denominators of the terms over all slices, with their bytes, characters and tokens; no forward
    is needed."""
    counts: dict[str, float] = {}
    for batch in slices:
        sizes = {BYTES: batch.bytes, CHARACTERS: batch.characters, TOKENS: batch.tokens}
        _add_up(counts, {**batch.counts, **sizes})
    return counts


def add_terms(terms: Mapping[str, Term], totals: dict[str, float], late_counts: dict[str, float]) -> None:
    """Adds a slice's sums to `totals`, and the counts that are only known after its forward to
    `late_counts`."""
    _add_up(totals, {name: float(term.sum.detach()) for name, term in terms.items()})
    _add_up(late_counts, {name: float(term.count) for name, term in terms.items() if term.count is not None})


def _add_up(totals: dict[str, float], values: Mapping[str, float]) -> None:
    for name, value in values.items():
        totals[name] = totals.get(name, 0.0) + value


def averages(totals: dict[str, float], counts: dict[str, float], likelihood: str | None) -> dict[str, float]:
    """The metrics of terms: means, and bits per byte and character of a likelihood of the text.

    Without a likelihood, or where nobody knows the bytes, bits per target of the first term.
    """
    means = {name: total / max(counts[name], 1.0) for name, total in totals.items()}
    # Bits per byte compare models with different tokenizers; a mean over tokens does not.
    if likelihood is not None and counts.get(BYTES):
        bits = totals[likelihood] / math.log(2)
        characters = max(counts[CHARACTERS], 1.0)  # a few bytes may begin none
        return {**means, "bits_per_byte": bits / counts[BYTES], "bits_per_character": bits / characters}
    return {**means, "bits_per_target": next(iter(means.values())) / math.log(2)}


def bits_per_byte_or_target(metrics: Mapping[str, Any]) -> float | None:
    """The criterion of pretraining: bits per byte where text has a likelihood, else bits per target."""
    return metrics.get("bits_per_byte", metrics.get("bits_per_target"))


@torch.no_grad()
def evaluate(
    unit: TrainingUnit, slices: Sequence[MicroBatch], world: World | None = None
) -> dict[str, float]:
    """The metrics of the objective over slices, in evaluation mode; several processes share the work.

    What streams remember in training is left as it is.
    """
    world = world or World()
    was_training, device = unit.training, next(unit.parameters()).device
    unit.eval()
    counts: dict[str, float] = {}
    totals: dict[str, float] = {}
    if world.size > len(slices):
        world = replace(world, rank=0, size=1)  # too few to share: every process takes them all
    with unit.isolated_memory(), root_gathered(unit):
        for number in range(world.rank, len(slices), world.size):
            batch = slices[number]
            _add_up(counts, add_counts([batch]))
            add_terms(unit(batch.to(device)), totals, counts)
        if world.is_sharded and world.rank >= (len(slices) % world.size or world.size):
            unit(slices[world.rank].to(device))  # those who have a slice more need the parts of all others
    unit.train(was_training)
    counts = world.add(counts)
    metrics = averages(world.add(totals), counts, unit.objective.likelihood)
    # exp overflows beyond 709: a hopeless model still has a perplexity.
    perplexities = {name: math.exp(min(metrics[name], 700.0)) for name in unit.objective.perplexities}
    return metrics | {f"{name}_perplexity": value for name, value in perplexities.items()}
