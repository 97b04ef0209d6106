"""Several objectives in one run, as one objective.

- `WeightedMixture`, written `masked=0.7,masked-sentence-order=0.3`, learns one text by several objectives. An
  epoch takes a share w of each one's samples, and the loss is the sum of w times each one's loss.
- `RateMixture` has a member a step: tasks on tables and objectives on texts, each on data of its own, at
  rates of the examples (T5, section 3.5.2; one member a step as in MT-DNN).

In both, every term keeps its own denominator, and its name gets that of its member before it: `masked/loss`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import numpy as np
import torch

from etymon.errors import EtymonError
from etymon.objectives import objective_class
from etymon.objectives.objective import MicroBatch, NoOptions, Objective, Term, Unit
from etymon.sampling import plans
from etymon.sampling.examples import NONE, pack_bundles, pad_rows, unpack_bundle
from etymon.text.store import Split
from etymon.text.tokenizer import Tokenizer

Rates = Literal["proportional", "temperature", "equal"]


@dataclass
class MixtureBatch(MicroBatch):
    """A slice of every member that has samples in it, by name."""

    parts: dict[str, MicroBatch]

    def to(self, device: torch.device | str) -> Self:
        return replace(self, parts={name: part.to(device) for name, part in self.parts.items()})


class Mixture(Objective):
    """What all mixtures do with a plan. Its rows are the number of a member, then a bundle (`pack_bundles`)
    of rows of that member's own plan."""

    requires: frozenset[str] = frozenset()
    weights: Mapping[str, float] = {}
    """Of the losses of members; 1 unless it is given."""
    stand_ins: Mapping[str, Any] = {}
    """Examples for members that a slice has no sample of, and that must be computed all the same."""

    def __init__(self, name: str, parts: Mapping[str, Objective]) -> None:
        self.name, self.parts = name, dict(parts)
        self.heads: frozenset[str] = frozenset().union(*(part.heads for part in parts.values()))

    def split_of(self, split: Any, name: str) -> Any:
        """The data that a member reads."""
        return split

    def prepare(self, split: Any, row: np.ndarray, rng: np.random.Generator) -> tuple[str, list[Any]]:
        name = list(self.parts)[row[0]]
        part, split = self.parts[name], self.split_of(split, name)
        return name, [part.prepare(split, sample, rng) for sample in unpack_bundle(row[1:])]

    def collate(self, examples: Sequence[tuple[str, list[Any]]]) -> MixtureBatch:
        parts: dict[str, MicroBatch] = {}
        for name, objective in self.parts.items():
            samples = [sample for member, bundle in examples if member == name for sample in bundle]
            if samples:
                parts[name] = objective.collate(samples)
            elif name in self.stand_ins:
                part = objective.collate([self.stand_ins[name]])
                zeros = dict.fromkeys(part.counts, 0.0)
                parts[name] = replace(part, counts=zeros, tokens=0, bytes=0.0, characters=0.0)
        return MixtureBatch(
            counts={f"{name}/{term}": n for name, part in parts.items() for term, n in part.counts.items()},
            tokens=sum(part.tokens for part in parts.values()),
            bytes=sum(part.bytes for part in parts.values()),
            characters=sum(part.characters for part in parts.values()),
            parts=parts,
        )

    def loss(self, unit: Unit, prepared: MixtureBatch) -> dict[str, Term]:
        terms = {}
        for name, part in prepared.parts.items():
            real = float(part.tokens > 0)  # a stand-in has none
            for term, value in self.parts[name].loss(unit, part).items():
                count = None if value.count is None else value.count * real
                weight = self.weights.get(name, 1.0) * value.weight
                terms[f"{name}/{term}"] = Term(value.sum * real, weight, count)
        return terms


class WeightedMixture(Mixture):
    """Several objectives over one text."""

    def __init__(self, blend: Blend, parts: dict[str, Objective], tokenizer: Tokenizer) -> None:
        super().__init__(blend.name, parts)
        self.requires, self.weights = blend.requires, blend.weights
        self.shifted = any(part.shifted for part in parts.values())
        self.folder, self.needs_teacher, self.companions = blend.folder, blend.needs_teacher, blend.companions
        likelihoods = [f"{name}/{part.likelihood}" for name, part in parts.items() if part.likelihood]
        self.likelihood = likelihoods[0] if len(likelihoods) == 1 else None
        # Two documents of four sentences, of no meaning, are enough for one sample of anything. With a
        # stand-in for every member, all slices have the same terms and use the same parameters, so that
        # several processes can add them up.
        word = next(number for number in range(tokenizer.size) if number not in tokenizer.special_ids)
        text = Split.of([word] * 64, [0, 32], range(0, 64, 8))
        self.stand_ins = {
            name: part.prepare(text, part.plan(text, 0, 0)[0], plans.key(0)) for name, part in parts.items()
        }

    def plan(self, split: Split, seed: int, epoch: int, *, shuffle: bool = True) -> np.ndarray:
        """In order (not `shuffle`), the members' samples are evenly spread."""
        tables, places, share_before = [], [], 0.0
        for number, (name, part) in enumerate(self.parts.items()):
            plan = part.plan(split, seed, epoch, shuffle=shuffle)
            first, share_before = round(share_before * len(plan)), share_before + self.weights[name]
            count = round(share_before * len(plan)) - first
            # One after the other, so that objectives with the same plan share it out among them without a
            # rest; in order, each is to see the text from end to end.
            chosen = np.arange(first, first + count)
            if not shuffle:
                chosen = np.linspace(0, len(plan) - 1, count).astype(int)
            header = np.full((count, 3), (number, 1, plan.shape[1]))  # a bundle of one row
            tables.append(np.column_stack((header, plan[chosen])))
            places.append((np.arange(count) + 0.5) / max(count, 1))
        width = max(table.shape[1] for table in tables)
        rests = [((0, 0), (0, width - table.shape[1])) for table in tables]
        table = np.concatenate([np.pad(*pair, constant_values=NONE) for pair in zip(tables, rests)])
        if shuffle:
            return plans.order_rows(table, True, seed, "mixture", epoch)
        return table[np.argsort(np.concatenate(places), kind="stable")]

    def readings(self, split: Split, plan: np.ndarray) -> float:
        return sum(
            self.weights[name] * part.readings(split, part.plan(split, 0, 0))
            for name, part in self.parts.items()
        )


class Blend:
    """Builds a `WeightedMixture`, in place of its class: what it needs can be asked before there is a
    tokenizer."""

    streaming = False
    Options = NoOptions
    """Of its own; its members have theirs."""

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
                    f"the objective {kind.name!r} reads streams in order, which a mixture cannot keep: "
                    "give it a phase of its own"
                )
        self.heads: frozenset[str] = frozenset().union(*(kind.heads for kind in kinds))
        self.requires: frozenset[str] = frozenset().union(*(kind.requires for kind in kinds))
        self.companions: frozenset[str] = frozenset().union(*(kind.companions for kind in kinds))
        self.needs_teacher = any(kind.needs_teacher for kind in kinds)
        self.folder: str = next((kind.folder for kind in kinds if kind.folder != "model"), "model")

    def __call__(self, tokenizer: Tokenizer, length: int, options: Mapping[str, Any]) -> WeightedMixture:
        kinds: dict[str, Any] = {name: objective_class(name) for name in self.weights}
        parts = {name: kind(tokenizer, length, options[name]) for name, kind in kinds.items()}
        return WeightedMixture(self, parts, tokenizer)


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


def mixing_rates(
    sizes: Mapping[str, int], rates: Rates, limit: int | None = None, temperature: float = 1.0
) -> dict[str, float]:
    """The share of examples that each member gets: in proportion to its own, of which at most `limit` count;
    the same to the power of 1 / temperature; or equal."""
    power = {"proportional": 1.0, "temperature": 1 / temperature, "equal": 0.0}[rates]
    weights = {
        name: float(size if limit is None else min(size, limit)) ** power for name, size in sizes.items()
    }
    return {name: weight / sum(weights.values()) for name, weight in weights.items()}


@dataclass
class MixedSplit:
    """The training samples of every member of a `RateMixture`."""

    parts: Mapping[str, Any]

    @property
    def words(self) -> np.ndarray:
        return np.array([part.words.sum() for part in self.parts.values()])


class RateMixture(Mixture):
    """A member a step. `rates` are shares of the examples; `lengths` are the tokens of a sample of every
    member that is text. The others are tasks, whose samples are batches already."""

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
        super().__init__("mixture of " + ", ".join(parts), parts)
        self.lengths, self.rates = lengths, rates
        self.batch_tokens, self.slices = batch_tokens, slices
        self.skips_heads = any(part.skips_heads or part.heads != self.heads for part in parts.values())
        for name in parts.keys() - lengths.keys():
            task: Any = parts[name]
            task.batch_tokens, task.batch_rows = batch_tokens, None

    def split_of(self, split: MixedSplit, name: str) -> Any:
        return split.parts[name]

    def plan(self, split: Any, seed: int, epoch: int, *, shuffle: bool = True) -> np.ndarray:
        """`slices` samples of one member one after the other. An epoch has as many steps as all members have
        in one pass."""
        one_pass = {name: self._bundles(name, split, seed, 0) for name in self.parts}
        steps = sum(-(-len(rows) // self.slices) for rows in one_pass.values())
        # Bundles hold as many tokens as one another, so the examples' mean lengths turn rates of examples
        # into rates of steps.
        tokens = {
            name: self.rates[name] * float(self.lengths.get(name) or split.parts[name].sizes.mean())
            for name in self.parts
        }
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
        order = np.arange(len(blocks))
        if shuffle:
            order = plans.key(seed, "mixture", epoch).permutation(order)
        return pad_rows([row for place in order for row in blocks[place]])

    def _bundles(self, name: str, split: MixedSplit, seed: int, epoch: int) -> list[np.ndarray]:
        """Samples of a member, as many together as a batch has tokens."""
        many = max(1, self.batch_tokens // self.lengths[name]) if name in self.lengths else 1
        return pack_bundles(self.parts[name].plan(split.parts[name], seed, epoch), many)
