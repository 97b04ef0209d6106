"""Courses: phases follow each other at their steps, and neither ranks nor workers change what a step sees."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from etymon.errors import EtymonError
from etymon.nn.batch import Batch
from etymon.sampling.plans import chunks, stream_windows
from etymon.text.store import Split
from etymon.training.feeding import Feed, Phase, Position, Step, StepStream
from tests import tiny
from tests.training.test_feeding import Numbers, feed, read


def tensors(step: Step) -> dict[str, torch.Tensor]:
    """Every tensor of a step, by where it is."""
    found = {}
    for number, prepared in step.slices.items():
        for name, value in vars(prepared).items():
            for part, inner in (vars(value) if isinstance(value, Batch) else {"": value}).items():
                if isinstance(inner, torch.Tensor):
                    found[f"{number}.{name}.{part}"] = inner
    return found


def same(one: Sequence[Step], two: Sequence[Step]) -> bool:
    return all(
        first.after == second.after
        and (left := tensors(first)).keys() == (right := tensors(second)).keys()
        and left != {}
        and all(torch.equal(left[name], right[name]) for name in left)
        for first, second in zip(one, two, strict=True)
    )


@pytest.fixture(scope="module")
def three_families(tmp_path_factory: pytest.TempPathFactory) -> list[Phase]:
    """A decoder's, an encoder's and an encoder-decoder's samples, one after the other."""
    folder = tmp_path_factory.mktemp("stores")
    cases = [("gpt2", "causal"), ("bert", "masked-next-sentence"), ("t5", "span-corruption")]
    return [
        Phase(
            3 * number,
            Feed(
                tiny.objective(family, name), tiny.store(family, folder / family).train, 0, slices=2, rows=3
            ),
        )
        for number, (family, name) in enumerate(cases)
    ]


def test_worker_processes_change_nothing(three_families: list[Phase]) -> None:
    straight = list(StepStream(three_families).steps(0, Position(), 9))
    working = StepStream(three_families, workers=2)
    assert same(list(working.steps(2, straight[1].after, 7)), straight[2:])
    taken = working.steps(0, Position(), 0)
    assert list(taken) == []


def test_a_worker_is_not_sent_the_text(three_families: list[Phase]) -> None:
    for phase in three_families:
        sent = pickle.dumps(phase.feed)
        assert isinstance(phase.feed.split.tokens, np.memmap)
        assert phase.feed.split.tokens[:50].tobytes() not in sent, "a map is pickled as a copy"
        there: Feed = pickle.loads(sent)
        assert np.array_equal(there.plan(1), phase.feed.plan(1))


def test_phases_begin_at_their_steps_and_with_an_epoch_of_their_own() -> None:
    phases = [
        Phase(0, feed(rows=2, slices=2)),
        Phase(3, feed(rows=1, slices=2)),
        Phase(5, feed(rows=3, slices=1)),
    ]
    course = StepStream(phases)
    taken = list(course.steps(0, Position(), 7))
    assert [len(read(step)) for step in taken] == [4, 4, 4, 2, 2, 3, 3]
    assert [course.phases.index(course.phase(step)) for step in range(7)] == [0, 0, 0, 1, 1, 2, 2]
    assert [course.phase_number_after(steps) for steps in range(8)] == [0, 0, 0, 0, 1, 1, 2, 2]
    assert [step.feed for step in taken] == [phases[number].feed for number in (0, 0, 0, 1, 1, 2, 2)]
    assert [sample[:2] for sample in read(taken[3])] == [(2, 0), (2, 1)], (
        "the epoch after the one that was begun"
    )
    assert [sample[:2] for sample in read(taken[5])] == [(3, 0), (3, 1), (3, 2)]
    for first in range(1, 7):  # from every step on, in the middle of a phase or at its beginning
        again = list(course.steps(first, taken[first - 1].after, 7 - first))
        assert [read(step) for step in again] == [read(step) for step in taken[first:]]


def test_slices_must_be_shared_evenly() -> None:
    with pytest.raises(
        EtymonError, match=r"a step of 3 slices cannot be shared by 2 processes.*a multiple of 2"
    ):
        StepStream([Phase(0, feed(slices=3))], ranks=2)


@given(
    ranks=st.integers(1, 4), each=st.integers(1, 3), rows=st.integers(1, 5), samples=st.integers(1, 40),
    steps=st.integers(1, 12), second=st.integers(1, 12),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_no_sample_is_skipped_or_repeated(
    ranks: int, each: int, rows: int, samples: int, steps: int, second: int
) -> None:
    slices = ranks * each

    def course(rank: int, ranks: int) -> StepStream:
        made = [Feed(Numbers(samples), None, 0, slices=slices, rows=rows) for _ in range(2)]  # type: ignore[arg-type]
        return StepStream([Phase(0, made[0]), Phase(second, made[1])], rank=rank, ranks=ranks)

    taken = [list(course(rank, ranks).steps(0, Position(), steps)) for rank in range(ranks)]
    seen: list[tuple[int, int, float]] = []
    for together in zip(*taken, strict=True):
        assert len({step.after for step in together}) == 1
        whole = {number: part for step in together for number, part in step.slices.items()}
        assert sorted(whole) == list(range(slices))
        seen += read(Step(dict(sorted(whole.items())), together[0].after, together[0].feed))
    alone = [sample for step in course(0, 1).steps(0, Position(), steps) for sample in read(step)]
    assert seen == alone
    assert len({sample[:2] for sample in seen}) == len(seen) == steps * slices * rows, "none is repeated"
    first = min(second, steps) * slices * rows
    for part in (seen[:first], seen[first:]):  # a new phase leaves the rest of an epoch
        expected = (part[0][0] * samples if part else 0) + np.arange(len(part))
        assert [epoch * samples + number for epoch, number, _ in part] == expected.tolist(), "none is skipped"


def split_of(lengths: Sequence[int]) -> Split:
    """Documents of these lengths, every token another number."""
    split: Any = object.__new__(Split)
    split.documents = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    split.tokens = np.arange(10, 10 + int(split.documents[-1]), dtype=np.int64)
    return split


documents = st.lists(st.integers(1, 30), min_size=1, max_size=8)


@given(lengths=documents, length=st.integers(2, 40), epoch=st.integers(0, 3), shuffle=st.booleans())
@settings(max_examples=80, deadline=None)
def test_windows_lose_no_token(lengths: list[int], length: int, epoch: int, shuffle: bool) -> None:
    split = split_of(lengths)
    table = stream_windows(split, length, 0, epoch, shuffle)
    rows = [split.stream(int(start), int(stop), 1) for start, stop in sorted(table.tolist())]
    assert all(2 <= len(row) <= length + 1 for row in rows)
    whole = split.stream(-1, split.stream_length, 1).tolist()
    assert [int(rows[0][0]), *(int(token) for row in rows for token in row[1:])] == whole, (
        "a target once each"
    )
    assert [int(token) for row in rows for token in row[:-1]] == whole[:-1], "an input once each"
    assert [token for token in whole if token != 1] == split.tokens.tolist()


@given(lengths=documents, length=st.integers(2, 40), epoch=st.integers(0, 3), marked=st.booleans())
@settings(max_examples=80, deadline=None)
def test_chunks_lose_no_token(lengths: list[int], length: int, epoch: int, marked: bool) -> None:
    split = split_of(lengths)
    table = sorted(chunks(split, length, 0, epoch, 1 if marked else None).tolist())
    total = split.stream_length if marked else len(split.tokens)
    places = [place for start, stop in table for place in range(start, stop)]
    assert all(2 <= stop - start <= length for start, stop in table)
    assert len(places) == len(set(places)), "none twice"
    missing = set(range(total)) - set(places)
    # Only a token that would be alone in a chunk at either end, and so could not be corrupted, is left out.
    assert missing <= {0, total - 1}


def test_words_and_epochs_of_a_step(tmp_path: Path) -> None:
    split = tiny.store("gpt2", tmp_path).train
    made = Feed(tiny.objective("gpt2", "causal"), split, 0, slices=2, rows=3)
    words = sum(
        len(tiny.tokenizer("gpt2").decode(split.document(number)).split()) for number in range(len(split))
    )
    assert made.epochs_per_step == 6 / len(made.plan(0))
    assert made.words_per_step == pytest.approx(words * made.epochs_per_step)
