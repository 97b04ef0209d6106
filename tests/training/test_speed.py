"""Operations are counted, of what streams remember as well."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from etymon.families import get_family
from etymon.objectives import get_objective
from etymon.objectives.objective import Term
from etymon.tables.table import read_table
from etymon.tasks import get_task
from etymon.training.feeding import Feed, Phase, Position, StepStream
from etymon.training.speed import flops_per_token, slice_flops
from etymon.training.unit import TrainingUnit
from tests import tiny


def unit_of(**options: Any) -> TrainingUnit:
    objective = get_objective("recurrent", tiny.tokenizer("transformer-xl"), 12, **options)
    return TrainingUnit(tiny.model("transformer-xl", objective), objective)


def test_what_is_remembered_is_counted_among_the_operations(tmp_path: Path) -> None:
    """As much as it costs once the memory is full, and not in the first segment, which has nothing to remember."""
    store, unit = tiny.store("transformer-xl", tmp_path), unit_of()
    feed = Feed(unit.objective, store.train, 0, slices=1, rows=4)
    costs = []
    for step in StepStream([Phase(0, feed)]).steps(0, Position(), 6):
        prepared = step.slices[0]
        costs.append(slice_flops(unit, prepared) / prepared.tokens)
    assert costs[0] < costs[1] and costs[-2] == costs[-1]
    assert flops_per_token(unit, feed) == costs[-1]
    forgetful = unit_of(memory=0)
    feed = Feed(forgetful.objective, store.train, 0, slices=1, rows=4)
    assert flops_per_token(forgetful, feed) == costs[0]


def test_operations_are_those_of_several_slices(tmp_path: Path) -> None:
    """Rows of a table are of any length, and a head that reads one place of each costs more a token where they are short."""
    task: Any = get_task("classify", {}, get_family("bert"))
    texts = [{"text": " ".join(["river"] * (3 * number + 1)), "label": number % 2} for number in range(12)]
    table = read_table(texts)
    model = tiny.model("bert", task.fit(get_family("bert")).heads, labels=task.labels(table))
    task.bind_for_training(model, 48, frozen=False)
    task.batch_rows = 2
    feed, unit = Feed(task, task.encode(table, learn=True), 0, slices=1, rows=1), TrainingUnit(model, task)
    position, counted = Position(), []
    for _ in range(4):
        addresses, position = feed.addresses(position)
        prepared = feed.slice(addresses[0])
        counted.append((slice_flops(unit, prepared), prepared.tokens))
    assert len({tokens for _, tokens in counted}) > 1
    operations, tokens = (sum(each) for each in zip(*counted, strict=True))
    assert flops_per_token(unit, feed, 4) == operations / tokens != counted[0][0] / counted[0][1]


def test_kernels_that_only_processors_have_are_counted(tmp_path: Path) -> None:
    """Dropout of attention chooses another kernel, and the work is the same; longer rows have more of it."""

    def cost(length: int, dropout: float) -> float:
        objective = get_objective("causal", tiny.tokenizer("gpt2"), length)
        unit = TrainingUnit(tiny.model("gpt2", objective, dropout), objective)
        return flops_per_token(unit, Feed(objective, store.train, 0, slices=1, rows=4))

    store = tiny.store("gpt2", tmp_path)
    shape = tiny.model("gpt2", frozenset({"vocabulary"})).shape
    # Every product, forwards and twice backwards: four matrices of attention and two of feed-forward, the words, and attention itself.
    inner = shape.layers * (4 * shape.dim**2 + 2 * shape.dim * (shape.inner_dim or 4 * shape.dim))
    matrices, seen = inner + shape.vocabulary * shape.dim, 2 * shape.layers * shape.dim * 16
    assert cost(16, 0.0) == 6 * (matrices + seen)
    short, long = (cost(length, 0.0) for length in (16, 32))
    assert short < long == cost(32, 0.2)

    class Reader(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = torch.nn.LSTM(3, 5)

        def forward(self, prepared: Any) -> dict[str, Term]:
            return {"loss": Term(self.lstm(torch.ones(7, 2, 3, requires_grad=True))[0].sum())}

    gates = 4 * 5
    assert slice_flops(Reader(), SimpleNamespace(counts={"loss": 1})) == 3 * 2 * 7 * 2 * gates * (3 + 5)
