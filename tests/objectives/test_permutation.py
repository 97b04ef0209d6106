"""Permutation language modelling: which text, what is asked, in which order, and that it goes on from step to step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from etymon.errors import EtymonError
from etymon.objectives import get_objective
from etymon.objectives.permutation import BACKWARD, Permutation, PermutedExample
from etymon.text.store import Split
from etymon.training.unit import TrainingUnit
from tests import tiny

LENGTH, REUSE = 48, 24


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Split:
    return tiny.store("xlnet", tmp_path_factory.mktemp("store") / "store").train


@pytest.fixture
def objective() -> Permutation:
    made = tiny.objective("xlnet", "permutation", LENGTH)
    assert isinstance(made, Permutation)
    return made


def examples(
    objective: Permutation, split: Split, streams: int, steps: int = 3
) -> list[list[PermutedExample]]:
    table = objective.plan(split, 0, 0, streams=streams)
    made = [
        objective.prepare(split, row, np.random.default_rng(number))
        for number, row in enumerate(table[: steps * streams])
    ]
    return [made[first : first + streams] for first in range(0, len(made), streams)]


def test_streams_go_on_and_every_other_one_backwards(
    objective: Permutation, split: Split, caplog: pytest.LogCaptureFixture
) -> None:
    table = objective.plan(split, 0, 0, streams=4)
    assert len(table) % 4 == 0 and (table[:, 2] == np.arange(len(table)) % 4).all()
    for stream in range(4):
        own = table[stream::4]
        assert own[0, 3] and not own[1:, 3].any()
        if stream % 2:
            assert own[0, BACKWARD] and (own[1:, 1] == own[:-1, 0]).all()
        else:
            assert not own[0, BACKWARD] and (own[1:, 0] == own[:-1, 1]).all()
        assert (own[:, 1] - own[:, 0] == REUSE).all()
    # Both ways are the same text.
    assert sorted(table[0::4, 0]) == sorted(table[1::4, 0])
    assert not caplog.text and not objective.plan(split, 0, 0, streams=3)[:, BACKWARD].any()
    assert "a batch of 3 samples has no halves" in caplog.text
    assert not objective.plan(split, 0, 0, streams=4, shuffle=False)[:, BACKWARD].any()


def test_a_sample_is_running_text_and_two_pieces(objective: Permutation, split: Split) -> None:
    tokenizer = tiny.tokenizer("xlnet")
    separator, last = tokenizer.id("separator"), tokenizer.id("class")
    follows = []
    for step in examples(objective, split, 4, 40):
        for one in step:
            assert len(one.ids) == LENGTH and one.ids[-1] == last and one.ids[-2] == separator
            border = int(np.flatnonzero(one.ids == separator)[0])
            assert one.segments.tolist() == [0] * (border + 1) + [1] * (LENGTH - border - 2) + [2]
    table = objective.plan(split, 0, 0, streams=4)
    a_start, a_stop, b_start, b_stop = table[:, 5:9].T
    forward = table[:, BACKWARD] == 0
    follows = np.where(forward, b_start == a_stop, b_stop == a_start)
    assert 0.4 < follows.mean() < 0.6
    behind = np.where(forward, a_start == table[:, 1], a_stop == table[:, 0])
    assert behind.mean() > 0.95  # but for the very ends of the text
    assert (a_stop - a_start + b_stop - b_start == LENGTH - REUSE - 3).all()


def test_what_is_asked_and_in_which_order(objective: Permutation, split: Split) -> None:
    tokenizer = tiny.tokenizer("xlnet")
    special = np.isin(np.arange(tokenizer.size), [tokenizer.id("separator"), tokenizer.id("class")])
    for step in examples(objective, split, 4):
        for one in step:
            assert len(one.places) == LENGTH // 6 == 8
            assert (one.places < REUSE).sum() == 4
            assert not special[one.ids[one.places]].any()
            first, second = one.order[:REUSE], one.order[REUSE:]
            assert (
                first.max() < second.min()
            )  # the second half sees all of the first, which sees nothing of it
            ordered = np.zeros(LENGTH, bool)
            ordered[one.places] = True
            ordered |= special[one.ids]
            for half, own in ((first, ordered[:REUSE]), (second, ordered[REUSE:])):
                assert (half[~own] == half.min()).all()
                assert sorted(half[own] - half.min()) == list(range(1, own.sum() + 1))
    again = examples(objective, split, 4)
    assert np.array_equal(again[0][1].order, examples(objective, split, 4)[0][1].order)
    assert not np.array_equal(again[0][1].places, again[1][1].places)


def test_spans_begin_with_words_and_short_ones_are_more_frequent() -> None:
    objective = get_objective("permutation", tiny.tokenizer("xlnet"), 512)
    assert isinstance(objective, Permutation)
    rng = np.random.default_rng(0)
    word, piece = (int(np.flatnonzero(objective.word_starts == starts)[-1]) for starts in (True, False))
    ids = np.where(np.arange(4000) % 3 == 0, word, piece)
    asked = objective.spans(objective.word_starts[ids], np.zeros(4000, bool), 400, rng)
    assert asked.sum() == 400
    edges = np.flatnonzero(np.diff(np.concatenate([[0], asked.astype(int), [0]])))
    starts, sizes = edges[::2], edges[1::2] - edges[::2]
    assert (starts % 3 == 0).all() and sizes.max() <= 5
    counts = np.bincount(sizes, minlength=6)[1:]
    assert counts.argmax() == 0 and counts[0] > 2 * counts[4] > 0


def test_slices_add_up_and_streams_remember(objective: Permutation, split: Split) -> None:
    steps = examples(objective, split, 4)

    def losses(slices: int, memory: int) -> list[float]:
        objective.memory = memory
        unit = TrainingUnit(tiny.model("xlnet", objective).eval(), objective)
        found = []
        for step in steps:
            parts = [objective.collate(step[at : at + 4 // slices]) for at in range(0, 4, 4 // slices)]
            found.append(sum(float(unit(part)["permuted"].sum.detach()) for part in parts))
        return found

    whole = losses(1, 16)
    assert losses(2, 16) == pytest.approx(whole, rel=1e-5)
    assert losses(4, 16) == pytest.approx(whole, rel=1e-5)
    forgetful = losses(1, 0)
    assert forgetful[0] == pytest.approx(whole[0], rel=1e-6)
    assert abs(forgetful[2] - whole[2]) > 1e-4


def test_only_running_text_is_remembered(objective: Permutation, split: Split) -> None:
    step = objective.collate(examples(objective, split, 4)[0])
    unit = TrainingUnit(tiny.model("xlnet", objective).eval(), objective)
    unit(step)
    tensors = unit.memories.tensors()
    kept = next(part for name, part in tensors.items() if name.endswith("memory.0"))
    words = unit.model.body.embeddings.words(step.batch.ids.view(4, -1))
    assert torch.equal(kept, words[:, REUSE - 16 : REUSE])


def test_it_learns_and_so_does_masking_on_the_same_body(objective: Permutation, split: Split) -> None:
    steps = examples(objective, split, 4, 20)
    unit = TrainingUnit(tiny.model("xlnet", objective), objective)
    optimiser = torch.optim.AdamW(unit.parameters(), 5e-3)
    found = []
    for _ in range(2):
        for step in steps:
            prepared = objective.collate(step)
            loss = unit(prepared)["permuted"].sum / len(prepared.at)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            found.append(float(loss.detach()))
    assert np.mean(found[-8:]) < 0.8 * np.mean(found[:4])
    masked = tiny.objective("xlnet", "masked", LENGTH)
    rows = masked.plan(split, 0, 0)[:8]
    prepared = masked.collate([masked.prepare(split, row, np.random.default_rng(1)) for row in rows])
    other = TrainingUnit(tiny.model("xlnet", masked), masked)
    other(prepared)["masked"].sum.backward()
    assert other.model.body.embeddings.words.weight.grad.abs().sum() > 0


def test_a_length_without_room_is_refused() -> None:
    with pytest.raises(EtymonError, match="greater length"):
        get_objective("permutation", tiny.tokenizer("xlnet"), 8)


def test_a_text_shorter_than_a_sample(objective: Permutation, tmp_path: Path) -> None:
    split = tiny.store("xlnet", tmp_path / "store", [" ".join(tiny.texts(3))] * 4).train
    table = objective.plan(split, 0, 0, streams=2)
    for number, row in enumerate(table):
        one = objective.prepare(split, row, np.random.default_rng(number))
        assert len(one.places) and one.order.shape == one.ids.shape
