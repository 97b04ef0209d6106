"""Tiny models with the head of a task, whose weights leave nothing at a first value, and what their losses are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from etymon.families import get_family
from etymon.families.loading import shape_of
from etymon.families.model import Model
from etymon.nn.features import FeatureSettings
from etymon.objectives.objective import weighted_loss
from etymon.sampling.plans import key
from etymon.tables.table import Table, read_table
from etymon.tasks import get_task
from etymon.training.unit import TrainingUnit
from tests import tiny

NEO = {"attention_bias": False, "scaled": False, "band": 32}
"""What makes a GPT-3 one that Transformers opens."""
TABLE = read_table(
    [
        {"text": "The garden remembered winter and the captain wanted a bridge.", "label": "bad"},
        {"text": "A letter.", "label": "good"},
        {"text": "The captain crossed the river.", "label": "so-so"},
    ]
)
TWO = read_table([{**row, "label": "good" if n else "bad"} for n, row in enumerate(TABLE.rows)])
"""The same with two labels."""
SEVERAL = read_table(
    [{**row, "label": label} for row, label in zip(TABLE.rows, ["long|old", "", "long"], strict=True)]
)
NUMBERS = read_table([{**row, "label": value} for row, value in zip(TABLE.rows, [1.5, -0.4, 3], strict=True)])
PAIRS = read_table(
    [
        {"text": "The captain crossed the river.", "second": "A bridge.", "label": "a"},
        {"text": "A letter.", "second": "The garden answered in winter.", "label": "b"},
        {"text": "The village.", "second": "The window opened.", "label": "a"},
    ]
)
CHOICES = read_table(
    [
        {"text": "The captain crossed", "choices": ["the river.", "winter and the bridge.", "a"], "label": 1},
        {"text": "The garden", "choices": ["opened.", "followed the village."], "label": 0},
        {"text": "A letter", "choices": ["answered.", "a river", "the", "wanted winter"], "label": 3},
    ]
)


def begun(
    family: str,
    name: str = "classify",
    table: Table = TABLE,
    *,
    seed: int = 0,
    dropout: float = 0.0,
    labels: Sequence[str] | None = None,
    features: FeatureSettings | None = None,
    frozen: bool = False,
    **options: Any,
) -> tuple[Any, Model]:
    """A task, tied to a model that is about to train."""
    known, tokenizer = get_family(family), tiny.tokenizer(family)
    known = known if features is None else known.with_features(features)
    task: Any = get_task(name, options, known)
    heads = task.fit(known).heads
    found = task.labels(table)
    shape = {**tiny.SHAPES[family], "vocabulary": tokenizer.size, **(NEO if family == "gpt3" else {})}
    dropout = dropout or (1e-9 if options.get("r_drop") else 0.0)  # which drops nothing: R-Drop asks for some
    shape |= {field.name: dropout for field in fields(known.shape) if "dropout" in field.name}
    model = Model(known, shape_of(known, None, **shape), heads, labels or found or ("0", "1")).initialise(
        seed
    )
    model.tokenizer = tokenizer
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    task.bind_for_training(model, 48, frozen=frozen)
    return task, model.train()


def slices(task: Any, table: Table, *parts: Sequence[int]) -> list[Any]:
    """The table as a slice, or as slices of some of its rows."""
    examples = task.encode(table, learn=True)
    chosen = parts or [range(len(examples))]
    return [task.collate([task.prepare(examples, np.array(part), key(0))]) for part in chosen]


def loss_of(task: Any, model: Model, prepared: Sequence[Any]) -> Tensor:
    """The loss of a step of these slices; its gradients are left in the model."""
    counts: dict[str, float] = {}
    for one in prepared:
        counts = {name: counts.get(name, 0.0) + count for name, count in one.counts.items()}
    model.zero_grad()
    total = torch.zeros(())
    for one in prepared:
        loss = weighted_loss(TrainingUnit(model, task)(one), counts)
        loss.backward()
        total += loss.detach()
    return total


def gradients_of(model: Model) -> dict[str, Tensor]:
    return {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}


def assert_equal_gradients(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    assert found.keys() == expected.keys() and len(found) > 4
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, atol=2e-5, rtol=1e-4, msg=name)


def padded(task: Any, table: Table, pad: int, *, left: bool = False) -> dict[str, Tensor]:
    """The task's own rows, in the order of the table, as Transformers takes them."""
    examples = task.encode_texts(table)
    rows, segments = ([examples.example(n)[name] for n in range(len(table))] for name in ("ids", "segments"))
    longest = max(map(len, rows))

    def filled(parts: Sequence[np.ndarray], value: int) -> Tensor:
        blank = [[value] * (longest - len(part)) for part in parts]
        return torch.tensor([rest + [*part] if left else [*part] + rest for part, rest in zip(parts, blank)])

    return {
        "input_ids": filled(rows, pad),
        "attention_mask": filled([np.ones_like(row) for row in rows], 0),
        "token_type_ids": filled(segments, 3 if left else 0),
    }


def scores_of(task: Any, model: Model, table: Table) -> Tensor:
    """What the head says of every row, in the order of the table."""
    return torch.stack(
        task.run_batches(
            model, task.encode_texts(table), lambda prepared: list(task.task_logits(model, prepared).clone())
        )
    )
