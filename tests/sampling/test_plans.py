from __future__ import annotations

import logging
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from etymon.errors import EtymonError
from etymon.sampling import plans
from etymon.text.reading import Document
from etymon.text.store import Split, TokenStore
from etymon.text.store_building import build_store
from etymon.text.tokenizer import Tokenizer
from tests.text.conftest import story


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory, trained: dict[str, Tokenizer]) -> Split:
    folder = tmp_path_factory.mktemp("plans") / "store"
    texts = [Document(story(number, 1 + number % 40)) for number in range(300)]
    build_store(texts, trained["wordpiece"], folder)
    return TokenStore.open(folder).train


@pytest.fixture(scope="module")
def lonely(tmp_path_factory: pytest.TempPathFactory, trained: dict[str, Tokenizer]) -> Split:
    folder = tmp_path_factory.mktemp("plans") / "store"
    build_store([Document(story(1, 50))], trained["wordpiece"], folder, validation=0)
    return TokenStore.open(folder).train


def test_keys_are_independent_and_repeatable() -> None:
    def draw(*parts: int | str) -> int:
        return int(plans.key(*parts).integers(2**62))  # type: ignore[arg-type]

    keys: list[tuple[int | str, ...]] = [
        (1,),
        (1, 0),
        (0, 1),
        (1, 0, 0),
        (1, "0"),
        (1, "a"),
        (10,),
        (1, 10),
        (11, 0),
    ]
    assert len({draw(*parts) for parts in keys}) == len(keys)
    assert draw(1, "a", 3) == draw(1, "a", 3)
    assert draw(np.int64(1), "a") == draw(1, "a")  # type: ignore[arg-type]
    assert draw(1, np.int64(5)) == draw(1, 5)  # type: ignore[arg-type]


@pytest.mark.parametrize("length", [2, 64, 1000, 10**6])
def test_every_token_is_a_target_exactly_once(split: Split, length: int) -> None:
    table = plans.stream_windows(split, length, seed=1, epoch=0)
    counts = np.zeros(split.stream_length, int)
    for start, stop in table:
        assert 2 <= stop - start <= length + 1
        counts[start + 1 : stop] += 1
    assert (counts == 1).all()
    assert (table[:, 1] - table[:, 0] == length + 1).sum() >= len(table) - 1


def test_windows_hold_the_text(split: Split) -> None:
    table = plans.stream_windows(split, 32, 0, 0, shuffle=False)
    assert (np.diff(table[:, 0]) > 0).all() and table[0, 0] == -1
    targets = np.concatenate([split.stream(start, stop, 3)[1:] for start, stop in table])
    assert np.array_equal(targets, split.stream(0, split.stream_length, 3))


@pytest.mark.parametrize("separator", [None, 3])
def test_chunks_tile_the_text(split: Split, separator: int | None) -> None:
    total = len(split.tokens) if separator is None else split.stream_length
    for epoch in range(5):
        table = plans.chunks(split, 57, 4, epoch, separator)
        table = table[np.argsort(table[:, 0])]
        lengths = table[:, 1] - table[:, 0]
        assert (lengths[1:-1] == 57).all() and lengths.min() > 1
        assert (table[1:, 0] == table[:-1, 1]).all()
        assert table[0, 0] <= 1 and table[-1, 1] >= total - 1
    assert plans.chunks(split, 57, 4, 0, shuffle=False)[0].tolist() == [0, 57]


@pytest.mark.parametrize(
    "plan",
    [
        lambda split, seed, epoch: plans.stream_windows(split, 64, seed, epoch),
        lambda split, seed, epoch: plans.chunks(split, 64, seed, epoch),
        lambda split, seed, epoch: plans.sentence_pairs(split, 64, seed, epoch),
        lambda split, seed, epoch: plans.ordered_pairs(split, 64, seed, epoch),
    ],
)
def test_plans_depend_on_seed_and_epoch_alone(split: Split, plan: object) -> None:
    first = plan(split, 1, 2)  # type: ignore[operator]
    assert np.array_equal(first, plan(split, 1, 2))  # type: ignore[operator]
    assert not np.array_equal(first, plan(split, 1, 3))  # type: ignore[operator]
    assert not np.array_equal(first, plan(split, 2, 2))  # type: ignore[operator]


def test_too_short(split: Split) -> None:
    with pytest.raises(EtymonError, match="at least 2 tokens"):
        plans.stream_windows(split, 1, 0, 0)
    for pairs in (plans.sentence_pairs, plans.ordered_pairs):
        with pytest.raises(EtymonError, match="a length of at least 5"):
            pairs(split, 4, 0, 0)


# ---------------------------------------------------------------- sentence pairs


def owner(split: Split, position: np.ndarray) -> np.ndarray:
    return np.searchsorted(split.documents, position, side="right") - 1


@pytest.fixture(scope="module")
def table(split: Split) -> np.ndarray:
    return np.concatenate([plans.sentence_pairs(split, 64, 0, epoch) for epoch in range(4)])


def test_pairs_come_from_where_they_say(split: Split, table: np.ndarray) -> None:
    a_start, a_stop, b_start, b_stop, is_random = table.T
    assert (a_stop > a_start).all() and (b_stop > b_start).all()
    assert ((a_stop - a_start) + (b_stop - b_start) <= 61).all()
    for start, stop in ((a_start, a_stop), (b_start, b_stop)):  # no span leaves its document
        assert np.array_equal(owner(split, start), owner(split, stop - 1))
    same = owner(split, a_start) == owner(split, b_start)
    assert np.array_equal(same, is_random == 0)
    # What lies between A and B of a true pair was cut off to make both fit: then they fill the sample.
    gap = (b_start - a_stop)[is_random == 0]
    assert (gap >= 0).all() and (gap == 0).mean() > 0.1
    assert (((a_stop - a_start) + (b_stop - b_start))[is_random == 0][gap > 0] == 61).all()


def test_labels_are_balanced(split: Split, table: np.ndarray) -> None:
    # A single sentence (the end of a document) always takes a random second part, so a little over half.
    assert 0.45 < table[:, 4].mean() < 0.7


def test_unused_sentences_go_back(split: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "SHORT", 0)
    rows = plans.sentence_pairs(split, 10_000, 0, 0, shuffle=False)
    rows = rows[np.argsort(owner(split, rows[:, 0]), kind="stable")]
    for document in range(len(split)):
        mine = rows[owner(split, rows[:, 0]) == document]
        first, last = split.documents[document], split.documents[document + 1]
        assert mine[0, 0] == first
        for row, following in pairwise(mine):
            assert row[4] == 1 and following[0] == row[1]  # a true pair takes all the rest
        assert (mine[-1, 1] if mine[-1, 4] else mine[-1, 3]) == last


def test_short_targets(split: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    def shares(probability: float) -> float:
        monkeypatch.setattr(plans, "SHORT", probability)
        rows = plans.sentence_pairs(split, 64, 0, 0)
        return float(((rows[:, 1] - rows[:, 0]) + (rows[:, 3] - rows[:, 2]) < 50).mean())

    assert shares(1.0) > shares(0.1) + 0.2


def test_truncation_takes_tokens_from_the_longer_end() -> None:
    rng = plans.key(0, "test")
    fronts = []
    for _ in range(300):
        a_start, a_stop, b_start, b_stop = plans._trim(0, 20, 100, 104, 10, rng)
        assert (a_stop - a_start, b_stop - b_start) == (6, 4)
        fronts.append(a_start)
    assert 0.45 < np.mean(fronts) / 14 < 0.55 and len(set(fronts)) > 6
    shapes = {
        tuple(np.diff(plans._trim(0, a, 50, 50 + b, 10, rng))[[0, 2]]) for a, b in ((9, 9), (30, 30), (7, 6))
    }
    assert shapes == {(5, 5)}
    assert plans._trim(0, 6, 50, 54, 10, rng) == (0, 6, 50, 54)


def test_one_document_has_only_true_pairs(lonely: Split, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        plans.sentence_pairs(lonely, 40, 0, 0)
        rows = plans.sentence_pairs(lonely, 40, 0, 1, shuffle=False)
    assert caplog.text.count("one document") == 1, "once, and not with every pass"
    assert len(rows) > 5 and not rows[:, 4].any()
    assert (rows[:, 2] >= rows[:, 1]).all() and (np.diff(rows[:, 0]) > 0).all()
    short = plans.sentence_pairs(lonely, 5, 0, 0)  # every sentence is longer than the room
    assert len(short) and ((short[:, 1] - short[:, 0]) == 1).all()


def test_two_documents_of_one_sentence(trained: dict[str, Tokenizer], tmp_path: Path) -> None:
    build_store(
        [Document("The river."), Document("A letter.")], trained["wordpiece"], tmp_path / "s", validation=0
    )
    rows = plans.sentence_pairs(TokenStore.open(tmp_path / "s").train, 64, 0, 0)
    assert len(rows) == 2 and rows[:, 4].all()


def test_empty_validation(trained: dict[str, Tokenizer], tmp_path: Path) -> None:
    build_store([Document("The river. A letter.")], trained["wordpiece"], tmp_path / "s", validation=0)
    empty = TokenStore.open(tmp_path / "s").validation
    assert plans.stream_windows(empty, 8, 0, 0).shape == (0, 2)
    assert plans.chunks(empty, 8, 0, 0).shape == (0, 2)
    assert plans.sentence_pairs(empty, 8, 0, 0).shape == (0, 5)
    assert plans.ordered_pairs(empty, 8, 0, 0).shape == (0, 5)


# ---------------------------------------------------------------- sentence order


def test_ordered_pairs_are_consecutive_and_half_of_them_swapped(split: Split) -> None:
    table = np.concatenate([plans.ordered_pairs(split, 64, 0, epoch) for epoch in range(6)])
    a_start, a_stop, b_start, b_stop, swapped = table.T
    assert (a_stop > a_start).all() and (b_stop > b_start).all()
    assert ((a_stop - a_start) + (b_stop - b_start) <= 61).all()
    assert np.array_equal(
        owner(split, np.minimum(a_start, b_start)), owner(split, np.maximum(a_stop, b_stop) - 1)
    )
    gap = np.where(swapped, a_start - b_stop, b_start - a_stop)
    # Tokens between them were cut off to make both fit: then they fill the sample.
    assert (gap >= 0).all() and (((a_stop - a_start) + (b_stop - b_start))[gap > 0] == 61).all()
    assert len(table) > 2000 and abs(swapped.mean() - 0.5) < 0.04
    # Neither length nor place gives the answer away.
    ahead = np.where(swapped, b_stop - b_start, a_stop - a_start)
    assert abs(ahead[swapped == 1].mean() - ahead[swapped == 0].mean()) < 1.5


def test_every_sentence_is_in_some_ordered_pair(split: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "SHORT", 0)
    table = plans.ordered_pairs(split, 10_000, 0, 0, shuffle=False)
    spans = np.sort(table[:, :4].reshape(-1, 2)[:, 0])
    assert len(table) == len(split), "all of a document goes into one pair"
    assert (
        np.isin(spans, split.sentences).sum() >= 2 * len(table) - (np.diff(split.first_sentences) == 1).sum()
    )
    covered = np.sort(table[:, :4].reshape(-1, 2), axis=0)
    assert (covered[1:, 0] == covered[:-1, 1]).all() and covered[-1, 1] == len(split.tokens)


def test_a_single_sentence_is_divided() -> None:
    alone = Split.of(range(30), [0, 10, 11], [0, 10, 11])  # one of ten tokens, one of one, one of nineteen
    table = np.sort(plans.ordered_pairs(alone, 64, 0, 0, shuffle=False)[:, :4].reshape(-1, 2), axis=0)
    assert table.tolist() == [[0, 5], [5, 10], [11, 20], [20, 30]], "one token cannot be two texts"
