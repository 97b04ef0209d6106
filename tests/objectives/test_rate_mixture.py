"""Mixtures: rates as published, quotas that are exact, one member a step, and nothing but seed and epoch decides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from etymon.families import get_family
from etymon.objectives import get_objective
from etymon.objectives.mixture import MixedSplit, RateMixture, mixing_rates
from etymon.sampling.examples import NONE
from etymon.sampling.plans import key
from etymon.tables.table import read_table
from etymon.tasks import get_task
from etymon.training.unit import TrainingUnit
from tests import tiny

SLICES = 2


def test_rates() -> None:
    sizes = {"large": 900, "middle": 90, "small": 10}
    assert mixing_rates(sizes, "proportional") == {"large": 0.9, "middle": 0.09, "small": 0.01}
    capped = mixing_rates(sizes, "proportional", limit=100)
    assert capped == pytest.approx({"large": 0.5, "middle": 0.45, "small": 0.05})
    assert mixing_rates(sizes, "equal") == pytest.approx(dict.fromkeys(sizes, 1 / 3))
    warm = mixing_rates(sizes, "temperature", temperature=2)
    roots = np.sqrt([900, 90, 10])
    assert list(warm.values()) == pytest.approx((roots / roots.sum()).tolist())
    assert mixing_rates(sizes, "temperature", temperature=1.0) == pytest.approx(
        mixing_rates(sizes, "proportional")
    )


@pytest.fixture
def mixed(tmp_path: Path) -> tuple[RateMixture, MixedSplit, Any]:
    task = get_task("text2text", {}, get_family("t5"))
    model = tiny.model("t5", task)
    task.bind(model, 40)
    rows = [{"source": text[:60], "target": text[:30]} for text in tiny.texts(50)]
    store = tiny.store("t5", tmp_path / "store")
    text = get_objective("span-corruption", tiny.tokenizer("t5"), 24)
    split = MixedSplit({"pairs": task.encode(read_table(rows)), "text": store.train})
    rates = {"pairs": 0.25, "text": 0.75}
    mixture = RateMixture({"pairs": task, "text": text}, {"text": 24}, rates, batch_tokens=96, slices=SLICES)
    return mixture, split, model


def test_quotas_are_exact_and_every_step_is_of_one_member(mixed: tuple[RateMixture, MixedSplit, Any]) -> None:
    mixture, split, _ = mixed
    plan = mixture.plan(split, 3, 0)
    owners = plan[:, 0].reshape(-1, SLICES)
    assert (owners == owners[:, :1]).all()
    steps = len(owners)
    tokens = np.array([0.25 * split.parts["pairs"].sizes.mean(), 0.75 * 24])
    expected = steps * tokens / tokens.sum()
    assert np.abs(np.bincount(owners[:, 0]) - expected).max() < 1
    assert np.array_equal(plan, mixture.plan(split, 3, 0))
    other = mixture.plan(split, 3, 1)
    assert len(other) == len(plan) and not np.array_equal(other[:, 0], plan[:, 0])


def test_a_member_that_is_asked_for_more_than_it_has_gives_it_again(
    mixed: tuple[RateMixture, MixedSplit, Any],
) -> None:
    mixture, split, _ = mixed
    mixture.rates = {"pairs": 0.999, "text": 0.001}
    plan = mixture.plan(split, 0, 0)
    numbers = np.concatenate([row[3 : 3 + row[1] * row[2]] for row in plan if row[0] == 0])
    counts = np.bincount(numbers[numbers != NONE], minlength=50)
    assert counts.min() >= 1 and counts.max() - counts.min() <= 1
    assert (plan[:, 0] == 1).sum() == SLICES, "nobody is left out"


@torch.no_grad()
def test_the_terms_are_those_of_the_members(mixed: tuple[RateMixture, MixedSplit, Any]) -> None:
    mixture, split, model = mixed
    unit = TrainingUnit(model.eval(), mixture)
    for row in mixture.plan(split, 0, 0)[::SLICES]:
        name, examples = mixture.prepare(split, row, key(1))
        prepared = mixture.collate([(name, examples)])
        terms = unit(prepared)
        part = mixture.parts[name]
        alone = part.loss(unit, part.collate(examples))
        assert set(terms) == {f"{name}/{term}" for term in alone} == set(prepared.counts)
        for term, found in alone.items():
            assert torch.equal(terms[f"{name}/{term}"].sum, found.sum)
    assert mixture.heads == {"vocabulary"} and not mixture.skips_heads
