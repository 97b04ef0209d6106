"""Layers that are kept are those that would be computed again, as far as there is room."""

from __future__ import annotations

import pytest
import torch

from etymon.families import get_family
from etymon.families.loading import shape_of
from etymon.families.model import Model
from etymon.nn.batch import Batch, Letters
from etymon.tasks import reading
from etymon.tasks.reading import FeatureCache
from tests import tiny

ROWS = [[5, 6, 7, 8], [9], [4, 9, 6, 5, 7, 8], [6, 6]]
SEGMENTS = [[0, 0, 1, 1], [0], [0, 1, 1, 1, 1, 1], [1, 1]]


def model(family: str) -> Model:
    known, tokenizer = get_family(family), tiny.tokenizer(family)
    shape = shape_of(known, None, **{**tiny.shape(family, 0.5), "vocabulary": tokenizer.size})
    made = Model(known, shape).initialise().train()
    made.tokenizer, made.frozen_body = tokenizer, True
    return made


def batch_of(numbers: list[int], family: str = "bert") -> Batch:
    segments = [SEGMENTS[number] for number in numbers] if family == "bert" else None
    return Batch.of([ROWS[number] for number in numbers], segments=segments)


@pytest.mark.parametrize("family", ["elmo", "bert", "gpt2", "t5"])
def test_what_is_kept_is_what_would_be_computed(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = model(family)
    cache, asked = FeatureCache(made), []
    honest = made.layers
    monkeypatch.setattr(made, "layers", lambda batch: asked.append(batch.layout.lengths) or honest(batch))
    for numbers in ([0, 2], [2, 1, 0], [3, 0, 1, 2], [1, 3]):
        batch = batch_of(numbers, family)
        for kept, computed in zip(cache.layers(numbers, batch), honest(batch), strict=True):
            torch.testing.assert_close(kept, computed, rtol=0, atol=1e-6)
            assert kept.dtype == torch.float32
    assert asked == [(4, 6), (1,), (2,)]  # every row once, whatever it came with


def test_what_does_not_fit_is_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made = model("bert")
    row = sum(layer.nbytes for layer in made.layers(batch_of([0])))
    monkeypatch.setattr(reading, "MOST_BYTES", row + 1)
    cache, batch = FeatureCache(made), batch_of([0, 1, 2])
    for _ in range(2):
        for kept, computed in zip(cache.layers([0, 1, 2], batch), made.layers(batch), strict=True):
            torch.testing.assert_close(kept, computed, rtol=0, atol=1e-6)
        assert set(cache.kept) == {0} and cache.bytes == row == cache.kept[0].nbytes
        assert cache.kept[0].base is None  # not a part of something larger


def test_letters_that_came_with_a_batch_are_those_of_its_rows() -> None:
    made = model("elmo")
    cache, batch = FeatureCache(made), batch_of([0, 2, 1], "elmo")
    letters, index = (torch.from_numpy(part) for part in made.tokenizer.lexicon.spell(batch.ids.numpy()))
    batch.letters = Letters(letters, index, index)
    cache.layers([2], batch_of([2], "elmo"))
    for kept, computed in zip(cache.layers([0, 2, 1], batch), made.layers(batch), strict=True):
        torch.testing.assert_close(kept, computed, rtol=0, atol=1e-6)


def test_a_body_that_learns_has_nothing_to_keep() -> None:
    made = model("bert")
    made.frozen_body = False
    with pytest.raises(AssertionError, match="frozen_body"):
        FeatureCache(made)
