"""Several tasks and text-only objectives in one run, at rates of their own (T5, section 3.5.2).

Every step is of one member, so all its terms keep their own denominators (as in MT-DNN). How many steps of an epoch each
member gets is fixed by the rates; which samples they have and in what order is a function of seed and epoch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from etymon.objectives.mixture import MixturePrepared
from etymon.objectives.objective import Objective, Term, Unit
from etymon.sampling.examples import bundled, filled, sample_bundles
from etymon.sampling.plans import key
from etymon.tasks.task import Task

Rates = Literal["proportional", "temperature", "equal"]


def mixing_rates(
    sizes: Mapping[str, int], rates: Rates, limit: int | None = None, temperature: float = 1.0
) -> dict[str, float]:
    """The share of examples that each member gets: in proportion to its own, of which at most `limit` count; the same to the
    power of 1 / temperature; or equal."""
    power = {"proportional": 1.0, "temperature": 1 / temperature, "equal": 0.0}[rates]
    weights = {
        name: float(size if limit is None else min(size, limit)) ** power for name, size in sizes.items()
    }
    return {name: weight / sum(weights.values()) for name, weight in weights.items()}


@dataclass
class MixedSplit:
    """The training samples of every member."""

    parts: Mapping[str, Any]

    @property
    def words(self) -> np.ndarray:
        return np.array([part.words.sum() for part in self.parts.values()])


class TaskMixture(Objective):
    """`rates` are shares of the examples. Members that are text give bundles of rows of `length` tokens."""

    requires: frozenset[str] = frozenset()
    likelihood = None

    def __init__(
        self,
        parts: Mapping[str, Objective],
        lengths: Mapping[str, int],
        rates: Mapping[str, float],
        *,
        batch_tokens: int,
        slices: int,
    ) -> None:
        self.name = "mixture of " + ", ".join(parts)
        self.parts, self.lengths, self.rates = dict(parts), dict(lengths), dict(rates)
        self.batch_tokens, self.slices = batch_tokens, slices
        self.heads: frozenset[str] = frozenset().union(*(part.heads for part in parts.values()))
        self.partial = any(part.partial or part.heads != self.heads for part in parts.values())
        for part in parts.values():
            if isinstance(part, Task):
                part.batch_tokens, part.batch_rows = batch_tokens, None

    def plan(self, split: Any, seed: int, epoch: int, *, shuffle: bool = True) -> np.ndarray:
        """Rows (number of the member, m and w, the m rows of width w of its own plan, -1 ...), `slices` of one member one after the
        other. An epoch has as many steps as all members have in one pass."""
        one_pass = {name: self._bundles(name, split, seed, 0) for name in self.parts}
        tokens = {name: self.rates[name] * self._tokens(name, split) for name in self.parts}
        steps = sum(-(-len(rows) // self.slices) for rows in one_pass.values())
        exact = {name: steps * tokens[name] / sum(tokens.values()) for name in self.parts}
        whole = {name: max(1, int(value)) for name, value in exact.items()}
        for name in sorted(exact, key=lambda name: int(exact[name]) - exact[name]):  # the largest rests first
            whole[name] += sum(whole.values()) < steps
        blocks = []
        for number, (name, count) in enumerate(whole.items()):
            wanted = count * self.slices
            passes = -(-wanted // max(1, len(one_pass[name])))
            rows: list[np.ndarray] = []
            turn = 0
            while len(rows) < wanted:
                rows += self._bundles(name, split, seed, epoch * passes + turn)
                turn += 1
            headed = [np.concatenate([[number], row]) for row in rows[:wanted]]
            blocks += [headed[first : first + self.slices] for first in range(0, wanted, self.slices)]
        order = key(seed, "mixture", epoch).permutation(len(blocks)) if shuffle else range(len(blocks))
        return filled([row for place in order for row in blocks[place]])

    def _bundles(self, name: str, split: MixedSplit, seed: int, epoch: int) -> list[np.ndarray]:
        """Samples of a member, as many together as a batch has tokens; those of a task are so already."""
        part = self.parts[name]
        many = 1 if isinstance(part, Task) else max(1, self.batch_tokens // self.lengths[name])
        return sample_bundles(part.plan(split.parts[name], seed, epoch), many)

    def _tokens(self, name: str, split: MixedSplit) -> float:
        """Of an example: bundles are of as many tokens, so rates of examples become rates of bundles by these."""
        if isinstance(self.parts[name], Task):
            return float(split.parts[name].sizes.mean())
        return float(self.lengths[name])

    def prepare(self, split: Any, row: np.ndarray, rng: np.random.Generator) -> tuple[str, list[Any]]:
        name = list(self.parts)[row[0]]
        part, own = self.parts[name], split.parts[name]
        return name, [part.prepare(own, each, rng) for each in bundled(row[1:])]

    def collate(self, examples: Sequence[tuple[str, list[Any]]]) -> MixturePrepared:
        parts = {}
        for name in dict.fromkeys(owner for owner, _ in examples):
            own = [example for owner, many in examples if owner == name for example in many]
            parts[name] = self.parts[name].collate(own)
        return MixturePrepared.of(parts)

    def loss(self, unit: Unit, prepared: MixturePrepared) -> dict[str, Term]:
        return {
            f"{name}/{term}": found
            for name, part in prepared.parts.items()
            for term, found in self.parts[name].loss(unit, part).items()
        }
