"""What a run will take in memory, asked before anything of it is made: what does not fit is refused with
what would."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import tokenizers
import torch

from etymon.families.family import Family
from etymon.families.loading import shape_of
from etymon.families.memory import by_depth, largest_size, outline, shallow, token_bound
from etymon.families.model import Model
from etymon.families.surgery import blank_generator, share_embeddings
from etymon.nn.blocks import EncoderDecoder, Stack
from etymon.nn.footprint import CPU, Footprint, available_memory, extrapolate, no_memory
from etymon.nn.precision import Precision, set_precision
from etymon.objectives import get_objective, objective_class
from etymon.objectives.denoising import SENTINELS
from etymon.objectives.objective import MicroBatch, Objective
from etymon.text.store import Split
from etymon.text.tokenizer import Tokenizer
from etymon.training.distributed import World
from etymon.training.feeding import Feed, Position
from etymon.training.memory import STEPS, copy_without_values, step_footprint, without_values
from etymon.training.optimisers import OptimiserChoice, parameters_by_name
from etymon.training.sharding import group_bytes, recompute_blocks
from etymon.training.unit import TrainingUnit

TOKENS_A_STEP = 2048
USUAL_LENGTH = 256
"""Of samples, where neither the run nor the recipe says otherwise."""
WORDS = 20_000
"""Of the made-up text that memory is measured with, at most."""
SLICE_TOKENS = 16_384
LENGTHS = (512, 1024, 2048)
"""Up to where memory is measured as it is, and where for more samples or longer ones: it grows with rows, and
at most with the square of a length."""
STEP_LENGTHS = (8, 16, 32)
"""The same of models that go through a text step by step, where every step of a long one would take its
time."""
SAFE = 0.25
"""The share of what is free that a generous bound may take, so that no closer look is needed."""
PROGRAM = 85e6
"""Bytes that a run on a processor holds beside the model's tensors, measured (docs/lab-notes.md)."""
SEGMENTS = 3
"""Of a stream, after which it remembers as much as it ever will, or nearly."""
TRIES = 4
"""Of a number of samples that fits."""
LOOKS = 32
"""Slices of a table that are looked at to find a large one."""


@dataclass(frozen=True)
class Samples:
    """What a slice of a step holds."""

    objective: str
    options: Mapping[str, Any]
    length: int
    rows: int


@dataclass(frozen=True)
class Plan:
    """A run, as far as its memory depends on it."""

    family: Family
    shape: Any
    samples: Sequence[Samples]
    optimiser: OptimiserChoice
    slices: int = 1
    generator: Mapping[str, Any] | None = None
    """Fields of a generator's shape that are not the usual ones."""
    teacher: tuple[Family, Any] | None = None
    precision: Precision = "float32"
    recompute: bool = False
    processes: int = 1
    """That train together."""
    parts: int = 1
    """That the model is cut into: as many of the processes keep one each."""

    @property
    def heads(self) -> frozenset[str]:
        return frozenset().union(*(objective_class(each.objective).heads for each in self.samples))

    def footprint(self, device: torch.device = CPU) -> Footprint:
        """What the run takes at most, of all its kinds of samples."""
        has_gaps = device.type == "cpu"
        footprints = (_in_a_run(self._measured(each, has_gaps)) for each in _largest(self.samples))
        return self.share(max(footprints, key=lambda each: each.total))

    def share(self, whole: Footprint) -> Footprint:
        """What one of the plan's processes holds of a footprint."""
        if self.processes == 1:
            return whole
        return whole.of_processes(self.parts, *(self._group_bytes() if self.parts > 1 else ()))

    def _group_bytes(self) -> tuple[float, float]:
        samples = self.samples[-1]
        tokenizer = stand_in_tokenizer(self.family, self.shape.vocabulary)
        objective = get_objective(samples.objective, tokenizer, samples.length, **samples.options)

        def measure(shape: Any) -> Footprint:
            with without_values():
                root, block = group_bytes(self.build_unit(shape, objective, tokenizer))
            return Footprint(root, block)

        group = by_depth(self.shape, measure)
        return group.weights, group.gradients

    def bound(self) -> float:
        """Bytes that it cannot need, found at once."""
        # Weights, gradients, two moments and as much while the optimiser steps; a generator is no larger
        # than its model.
        members = [(outline(self.family, self.shape, self.heads), 5)]
        members += [] if self.teacher is None else [(outline(*self.teacher, ("vocabulary",)), 1)]
        tokens = float(max(each.rows * max(each.length, 64) for each in self.samples))
        tokens *= max(1.0, max(each.length for each in self.samples) / 1024)  # of attention
        return 2 * sum(times * each.weights + tokens * each.activations for each, times in members)

    def _measured(self, samples: Samples, has_gaps: bool) -> Footprint:
        # Cost is linear in layers and rows, and at most quadratic in length: a few small steps tell what a
        # large one would take.
        tokenizer = stand_in_tokenizer(self.family, self.shape.vocabulary)
        points = self._points()

        def measure(shape: Any, length: int, rows: int) -> Footprint:
            objective = get_objective(samples.objective, tokenizer, length, **samples.options)
            slices = min(self.slices, 2)  # more are like the second
            earlier, prepared, later = stand_in_slices(
                objective, tokenizer, length, rows, slices * STEPS if has_gaps else 1
            )
            with without_values():
                unit = self.build_unit(shape, objective, tokenizer)
            return step_footprint(
                unit, prepared, matching_choice(self.optimiser, unit), slices, earlier, later
            )

        def at_length(shape: Any, length: int) -> Footprint:
            most = max(2, SLICE_TOKENS // length)
            return extrapolate(samples.rows, (most // 2, most), lambda rows: measure(shape, length, rows))

        def at_depth(shape: Any) -> Footprint:
            return extrapolate(samples.length, points, lambda length: at_length(shape, length))

        footprint = by_depth(self.shape, at_depth)
        if self.teacher is not None:  # which was measured with few layers
            family, shape = self.teacher
            whole, part = (outline(family, each, ("vocabulary",)) for each in (shape, shallow(shape)))
            footprint = replace(footprint, weights=footprint.weights + whole.weights - part.weights)
        return replace(footprint, slices=self.slices)

    def shallow(self) -> Plan:
        """The same run of a model with few layers."""
        return replace(self, shape=shallow(self.shape))

    def _points(self) -> Sequence[int]:
        """The lengths to measure at for longer samples."""
        body = self._body()
        if any(isinstance(part, Stack) for part in body.modules()):
            return LENGTHS
        # A recurrent decoder looks at its source at every step; what has one side only grows with its length.
        return STEP_LENGTHS if isinstance(body, EncoderDecoder) else STEP_LENGTHS[:2]

    def has_attention_layers(self) -> bool:
        """Whether all of a sample is computed at once, and not step by step."""
        return any(isinstance(part, Stack) for part in self._body().modules())

    def _body(self) -> torch.nn.Module:
        with torch.device("meta"):
            return Model(self.family, shallow(self.shape), self.heads).body

    def build_unit(self, shape: Any, objective: Objective, tokenizer: Tokenizer) -> TrainingUnit:
        """What such a run trains, of a shape that may have fewer layers; weights have no first values."""
        model = Model(self.family, shape, self.heads)
        model.tokenizer = tokenizer
        companions, teacher = {}, None
        if "generator" in objective.companions:
            companions["generator"] = share_embeddings(blank_generator(model, self.generator or {}), model)
        if self.teacher is not None:
            family, taught = self.teacher
            teacher = Model(family, shallow(taught), ("vocabulary",)).eval().requires_grad_(False)
            teacher.tokenizer = tokenizer
        bridges = {}
        if teacher is not None and teacher.shape.dim != shape.dim:
            bridges["projection"] = torch.nn.Linear(shape.dim, teacher.shape.dim, bias=False)
        unit = TrainingUnit(model, objective, companions, bridges, teacher)
        for part in (unit, *([] if teacher is None else [teacher])):
            set_precision(part, self.precision)
        if self.recompute:
            recompute_blocks(unit)
        return unit


def require_training(plan: Plan, purpose: str, device: torch.device = CPU) -> None:
    """Refuses a run that does not fit into memory, before anything of it is made."""
    free = available_memory(device)
    # Most runs are far from the limit: a bound tells that at once, where measuring takes seconds.
    if plan.bound() <= SAFE * free:
        return
    needed = plan.footprint(device)
    if needed.total > free:
        raise no_memory(purpose, needed, free, _advice(plan, needed, free, device), device)


def require_states(
    family: Family,
    shape: Any,
    heads: frozenset[str],
    choice: OptimiserChoice,
    purpose: str,
    world: World,
) -> None:
    """The same as far as it does not depend on samples: weights, gradients and what the optimiser keeps."""
    device = world.device
    free = available_memory(device)
    # Five times, as in `Plan.bound`.
    if 5 * outline(family, shape, heads).weights <= SAFE * free:
        return

    def measure(small: Any) -> Footprint:
        with without_values():
            unit = TrainingUnit(Model(family, small, heads), None)  # type: ignore[arg-type]
        return step_footprint(unit, None, matching_choice(choice, unit))

    needed = _in_a_run(by_depth(shape, measure))
    if world.size > 1:
        needed = needed.of_processes(world.parts)
    if needed.total > free:
        advice = "take a smaller model, --lora, or a machine with more memory"
        raise no_memory(purpose, needed, free, advice, device)


def require_task_training(
    unit: TrainingUnit, feed: Feed, choice: OptimiserChoice, purpose: str, device: torch.device = CPU
) -> None:
    """Refuses slices of a table that do not fit, before the model has gradients."""
    free, prepared = available_memory(device), _large_slices(feed)[0]
    held = sum(value.numel() * value.element_size() for value in unit.parameters())
    # Beside the weights: gradients, two moments, and as much while the optimiser steps.
    if 2 * (4 * held + prepared.tokens * token_bound(unit)) <= SAFE * free:
        return
    needed = task_footprint(unit, feed, choice, device)
    if needed.total - held > free:  # the weights are there
        advice = "take a smaller --batch or --length, more --slices, or --lora"
        raise no_memory(purpose, needed, free + held, advice, device)


def task_footprint(
    unit: TrainingUnit, feed: Feed, choice: OptimiserChoice, device: torch.device = CPU
) -> Footprint:
    """What a run on a table takes, by the largest of some slices."""
    copied, slices = copy_without_values(unit), _large_slices(feed)
    later = slices[1 : STEPS * min(feed.slices, 2)] if device.type == "cpu" else []
    return _in_a_run(step_footprint(copied, slices[0], choice, feed.slices, later=later))


def _large_slices(feed: Feed) -> list[MicroBatch]:
    """Some slices of a table, the largest first."""
    # Evenly over the plan: preparing all slices of a large table would take as long as an epoch.
    places = sorted({int(place) for place in np.linspace(0, feed.samples - 1, min(LOOKS, feed.samples))})
    slices = (feed.slice([Position(0, place)]) for place in places)
    return sorted(slices, key=lambda prepared: -prepared.tokens)


def _in_a_run(needed: Footprint) -> Footprint:
    """With what a run holds beside tensors."""
    return replace(needed, program=PROGRAM)


def matching_choice(choice: OptimiserChoice, unit: TrainingUnit) -> OptimiserChoice:
    """The choice without what freezes layers that a model of few layers does not have."""
    names = list(parameters_by_name(unit))
    return replace(
        choice, frozen=tuple(each for each in choice.frozen if any(fnmatchcase(name, each) for name in names))
    )


def _advice(plan: Plan, needed: Footprint, free: float, device: torch.device) -> str:
    """What would fit: a step in more parts, if the model itself does; or a smaller size."""
    held = needed.program + needed.weights + needed.optimiser
    if held + needed.gradients + needed.update < free:
        if rows := largest_rows(plan, needed, free, device):
            batch = rows * plan.slices
            return (
                f"about {rows:,} samples fit at a time; take more --slices, or a --batch of {batch:,} or less"
            )
        return "not even one sample of this length fits; take a smaller --length or a smaller model"
    size = largest_size(plan.family, plan.heads, free * needed.weights / needed.total)
    while size is not None:  # of a smaller model, activations are a larger part
        shape = shape_of(plan.family, size)
        footprint = replace(plan, shape=shape).footprint(device)
        if footprint.total < free:
            break
        size = largest_size(plan.family, plan.heads, 0.99 * footprint.weights)
    smaller = "" if size is None else f"--size {size} would fit; or "
    return f"{smaller}take a machine with more memory"


def largest_rows(plan: Plan, needed: Footprint, free: float, device: torch.device) -> int:
    """How many samples of a slice fit into so many bytes, where the plan's own do not, and need `needed`."""
    rows = max(each.rows for each in plan.samples)
    for _ in range(TRIES):
        if needed.total <= free or not rows:
            break
        held = needed.program + needed.weights + needed.optimiser
        held += needed.gradients if needed.slices > 1 else 0.0
        share = (free - held) / (needed.total - held)
        # Gaps do not grow evenly, so that the share is only nearly right.
        rows = min(rows - 1, int(rows * max(0.0, share)))
        if rows:
            samples = [replace(each, rows=min(rows, each.rows)) for each in plan.samples]
            needed = replace(plan, samples=samples).footprint(device)
    return rows


def _largest(samples: Iterable[Samples]) -> list[Samples]:
    """Of samples that differ in number alone, the most."""
    largest: dict[str, Samples] = {}
    for each in samples:
        kind = repr((each.objective, sorted(each.options.items()), each.length))
        if kind not in largest or largest[kind].rows < each.rows:
            largest[kind] = each
    return list(largest.values())


def stand_in_tokenizer(family: Family, vocabulary: int) -> Tokenizer:
    """A tokenizer with the family's special tokens and made-up words, where the real one is not there yet."""
    choice = family.tokenizer
    specials = dict.fromkeys(choice.specials.values())
    # Of families that have none, for objectives that write behind them.
    sentinels = [f"<extra_id_{number}>" for number in range(choice.sentinels or SENTINELS)]
    count = max(1000, min(WORDS, vocabulary - len(specials) - len(sentinels)))
    words = [*specials, *(f"word{number}" for number in range(count)), *sentinels]
    ids = {word: number for number, word in enumerate(words)}
    unknown = choice.specials.get("unknown", words[len(specials)])
    return Tokenizer(
        tokenizers.Tokenizer(tokenizers.models.WordLevel(ids, unk_token=unknown)),
        choice.specials,
        framing=family.framing,
    )


def stand_in_slices(
    objective: Objective, tokenizer: Tokenizer, length: int, rows: int, count: int = 1
) -> tuple[list[MicroBatch], MicroBatch, list[MicroBatch]]:
    """Slices of a made-up text: a large one, those of its streams before it, and others, `count` without the
    former. Its two documents are long, so that nearly all samples are full, and frequent words come more
    often."""
    tokens = 8 * max(length, 32) * max(rows, 8)
    special = [number for role in tokenizer.roles if (number := tokenizer.id(role)) is not None]
    first, last = max(special, default=-1) + 1, tokenizer.size - len(tokenizer.sentinels)
    # The cube makes small ids frequent, as words are: the parts of an adaptive softmax then get their usual
    # share.
    draw = np.random.default_rng(0).random(tokens) ** 3
    documents = np.array([0, tokens // 2])
    sentences = np.union1d(documents, np.arange(0, tokens, 20))
    ids = (first + draw * (last - first)).astype(np.int64)
    split = Split.of(ids, documents, sentences)  # type: ignore[arg-type]
    feed = Feed(objective, split, 0, slices=1, rows=rows)
    earlier = SEGMENTS - 1 if objective.streaming else 0
    position, slices = Position(), []
    for _ in range(earlier + count):
        (addresses,), position = feed.addresses(position)
        slices.append(feed.slice(addresses))
    if objective.streaming:
        return slices[:earlier], slices[earlier], slices[earlier + 1 :]
    large, *later = sorted(slices, key=lambda prepared: -prepared.tokens)
    return [], large, later


def with_vocabulary(shape: Any, vocabulary: int) -> Any:
    """Returns the shape with so many words; an adaptive softmax is cut where it was, if there are as many."""
    cutoffs = getattr(shape, "cutoffs", ())
    kept = {"cutoffs": tuple(cut for cut in cutoffs if cut < vocabulary)} if cutoffs else {}
    return replace(shape, vocabulary=vocabulary, **kept)


def usual_plan(family: Family, shape: Any) -> Plan:
    """A run of `etymon pretrain` on a model of this shape that is told nothing else."""
    recipe = family.recipe
    length = recipe.length or min(getattr(shape, "positions", None) or USUAL_LENGTH, USUAL_LENGTH)
    samples = Samples(family.objective, dict(recipe.options), length, max(1, TOKENS_A_STEP // length))
    return Plan(family, shape, [samples], OptimiserChoice(name=recipe.optimiser))
