"""What terms come to: their means over a step or a text, in bits per byte where they are a likelihood."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import torch

from etymon.objectives.objective import MicroBatch, Term
from etymon.training.distributed import World
from etymon.training.unit import TrainingUnit

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
