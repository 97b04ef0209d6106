"""Plans over the rows of a table: every example exactly once an epoch, in bundles of so many rows."""

from __future__ import annotations

import numpy as np
import pytest

from etymon.sampling.examples import NONE, bundles_of_rows, pack_bundles, unpack_bundle

SIZES = np.random.default_rng(5).integers(3, 200, 1000)


@pytest.mark.parametrize("rows", [1, 7, 32, 999, 1000, 5000])
@pytest.mark.parametrize("shuffle", [True, False])
def test_every_example_exactly_once_in_bundles_of_so_many(rows: int, shuffle: bool) -> None:
    plan = bundles_of_rows(SIZES, rows, seed=1, epoch=0, shuffle=shuffle)
    assert sorted(plan[plan != NONE].tolist()) == list(range(1000))
    assert plan.shape == (-(-1000 // rows), rows)
    filled = np.sort((plan != NONE).sum(1))
    assert set(filled[1:].tolist()) <= {rows} and filled[0] == (1000 % rows or rows)
    assert all((row[row != NONE] == row[: (row != NONE).sum()]).all() for row in plan), "filled up behind"


def test_a_plan_is_a_function_of_seed_and_epoch() -> None:
    first = bundles_of_rows(SIZES, 16, seed=1, epoch=2)
    assert np.array_equal(first, bundles_of_rows(SIZES, 16, seed=1, epoch=2))
    for other in (bundles_of_rows(SIZES, 16, seed=2, epoch=2), bundles_of_rows(SIZES, 16, seed=1, epoch=3)):
        assert not np.array_equal(first, other)
        together = {frozenset(row.tolist()) for row in first} & {frozenset(row.tolist()) for row in other}
        assert len(together) < 3, "other rows meet in every epoch"
    ordered = bundles_of_rows(SIZES, 16, seed=1, epoch=2, shuffle=False)
    assert np.array_equal(ordered, bundles_of_rows(SIZES, 16, seed=9, epoch=9, shuffle=False))
    assert (np.diff(SIZES[ordered[ordered != NONE]]) >= 0).all()


def test_rows_of_a_bundle_are_of_any_length() -> None:
    """A step of short rows alone would pull a model towards what short rows say."""
    plan = bundles_of_rows(SIZES, 16, seed=1, epoch=0)
    means = SIZES[plan[(plan != NONE).all(1)]].mean(1)
    assert means.std() == pytest.approx(SIZES.std() / 16**0.5, rel=0.25)


def test_few_rows_are_one_bundle() -> None:
    assert bundles_of_rows(np.array([4]), 32, 0, 0).shape == (1, 32)
    plan = bundles_of_rows(np.array([4, 2, 3]), 2, 0, 0, shuffle=False)
    assert plan.tolist() == [[1, 2], [0, NONE]]
    assert bundles_of_rows(np.zeros(0, np.int64), 2, 0, 0).shape == (0, 2)


def test_samples_of_several_bundles_come_apart_again() -> None:
    plan = bundles_of_rows(SIZES, 16, seed=1, epoch=0)
    samples = pack_bundles(plan, 5)
    assert len(samples) == -(-len(plan) // 5)
    assert np.array_equal(np.concatenate([unpack_bundle(sample) for sample in samples]), plan)
