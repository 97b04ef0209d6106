"""Mixtures of objectives, written `masked=0.7,masked-sentence-order=0.3`.

The weights are made to add up to 1. An epoch takes a share w of each objective's samples, and the loss is the sum of
w times each objective's loss, every term with its own denominator.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch

from etymon.errors import EtymonError
from etymon.objectives import get_objective, objective_class
from etymon.objectives.objective import Objective, Prepared, Term, Unit
from etymon.sampling import plans
from etymon.text.store import Split
from etymon.text.tokenizer import Tokenizer


class Blend:
    """Which objectives, and how much of each: what a mixture needs can be asked before there is a tokenizer."""

    streaming = False

    def __init__(self, name: str) -> None:
        self.name = name
        self.weights: dict[str, float] = {}
        for part in name.split(","):
            objective, _, weight = (piece.strip() for piece in part.partition("="))
            if objective in self.weights:
                raise EtymonError(f"the mixture {name!r} has {objective} twice: give it one weight")
            self.weights[objective] = _weight(name, weight)
        total = sum(self.weights.values())
        self.weights = {objective: weight / total for objective, weight in self.weights.items()}
        kinds = [objective_class(objective) for objective in self.weights]
        for kind in kinds:
            if kind.streaming:
                raise EtymonError(
                    f"the objective {kind.name!r} reads streams in order, which a mixture cannot keep: give it a phase of its own"
                )
        self.heads: frozenset[str] = frozenset().union(*(kind.heads for kind in kinds))
        self.requires: frozenset[str] = frozenset().union(*(kind.requires for kind in kinds))
        self.companions: frozenset[str] = frozenset().union(*(kind.companions for kind in kinds))
        self.taught = any(kind.taught for kind in kinds)
        self.member: str = next((kind.member for kind in kinds if kind.member != "model"), "model")

    def __call__(self, tokenizer: Tokenizer, length: int, **options: dict[str, Any]) -> Mixture:
        parts = {
            name: get_objective(name, tokenizer, length, **options.get(name, {})) for name in self.weights
        }
        return Mixture(self, parts, tokenizer)


@dataclass
class MixturePrepared(Prepared):
    parts: dict[str, Prepared]

    @staticmethod
    def of(parts: dict[str, Prepared]) -> MixturePrepared:
        counts = {f"{name}/{term}": n for name, part in parts.items() for term, n in part.counts.items()}
        return MixturePrepared(
            counts=counts,
            tokens=sum(part.tokens for part in parts.values()),
            bytes=sum(part.bytes for part in parts.values()),
            characters=sum(part.characters for part in parts.values()),
            parts=parts,
        )

    def to(self, device: torch.device | str) -> Self:
        return replace(self, parts={name: part.to(device) for name, part in self.parts.items()})


class Mixture(Objective):
    """Several objectives as one. The names of their terms and counts get the objective's before them."""

    def __init__(self, blend: Blend, parts: dict[str, Objective], tokenizer: Tokenizer) -> None:
        self.name, self.heads, self.requires = blend.name, blend.heads, blend.requires
        self.member, self.taught, self.companions = blend.member, blend.taught, blend.companions
        self.weights, self.parts = blend.weights, parts
        likelihoods = [f"{name}/{part.likelihood}" for name, part in parts.items() if part.likelihood]
        self.likelihood = likelihoods[0] if len(likelihoods) == 1 else None
        few = _few_words(tokenizer)
        self.stand_ins = {
            name: part.prepare(few, part.plan(few, 0, 0)[0], plans.key(0)) for name, part in parts.items()
        }
        """For slices without a sample of some objective: all slices have the same terms and use the same parameters,
        so that several processes can add them up."""

    def plan(self, split: Split, seed: int, epoch: int, *, shuffle: bool = True) -> np.ndarray:
        """Rows (number of the objective, columns of its row, its row, -1 ...); in order, objectives are evenly spread."""
        tables, places, before = [], [], 0.0
        for number, (name, part) in enumerate(self.parts.items()):
            rows = part.plan(split, seed, epoch, shuffle=shuffle)
            first, before = round(before * len(rows)), before + self.weights[name]
            count = round(before * len(rows)) - first
            # One after the other, so that objectives with the same plan share it out among them without a rest; in
            # order, each is to see the text from end to end.
            chosen = (
                rows[first : first + count]
                if shuffle
                else rows[np.linspace(0, len(rows) - 1, count).astype(int)]
            )
            tables.append(np.column_stack((np.full((count, 2), (number, rows.shape[1])), chosen)))
            places.append((np.arange(count) + 0.5) / max(count, 1))
        width = max(table.shape[1] for table in tables)
        padded = [
            np.pad(table, ((0, 0), (0, width - table.shape[1])), constant_values=-1) for table in tables
        ]
        table = np.concatenate(padded)
        if shuffle:
            return plans.shuffled(table, seed, "mixture", epoch)
        return table[np.argsort(np.concatenate(places), kind="stable")]

    def readings(self, split: Split, plan: np.ndarray) -> float:
        return sum(
            self.weights[name] * part.readings(split, part.plan(split, 0, 0))
            for name, part in self.parts.items()
        )

    def prepare(self, split: Split, row: np.ndarray, rng: np.random.Generator) -> tuple[str, Any]:
        name = list(self.parts)[row[0]]
        return name, self.parts[name].prepare(split, row[2 : 2 + row[1]], rng)

    def collate(self, examples: Sequence[tuple[str, Any]]) -> MixturePrepared:
        parts = {}
        for name, objective in self.parts.items():
            own = [example for owner, example in examples if owner == name]
            parts[name] = objective.collate(own or [self.stand_ins[name]])
            if not own:
                nothing = dict.fromkeys(parts[name].counts, 0.0)
                parts[name] = replace(parts[name], counts=nothing, tokens=0, bytes=0.0, characters=0.0)
        return MixturePrepared.of(parts)

    def loss(self, unit: Unit, prepared: MixturePrepared) -> dict[str, Term]:
        terms = {}
        for name, objective in self.parts.items():
            part = prepared.parts[name]
            real = float(part.tokens > 0)
            for term, found in objective.loss(unit, part).items():
                late = None if found.count is None else found.count * real
                weight = self.weights[name] * found.weight
                terms[f"{name}/{term}"] = Term(found.sum * real, weight, late)
        return terms


def _weight(mixture: str, text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        weight = 0.0
    if not 0 < weight < math.inf:
        raise EtymonError(
            f"the mixture {mixture!r} needs a weight above 0 for each objective: write masked=0.7,causal=0.3"
        )
    return weight


def _few_words(tokenizer: Tokenizer) -> Split:
    """A text of no meaning, large enough for one sample of anything: two documents of four sentences."""
    word = next(number for number in range(tokenizer.size) if number not in tokenizer.special_ids)
    return Split.of([word] * 64, [0, 32], range(0, 64, 8))
