"""Words of the text, counted once an epoch, and words that samples hold: an epoch may read a word several times."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from etymon.checkpoints.folder import checksums
from etymon.files import write_json
from etymon.objectives import get_objective
from etymon.objectives.objective import Objective
from etymon.text.store import Split
from etymon.training.feeding import Feed, Phase, Position, StepStream
from etymon.training.state import RunFolder, read_state
from tests import tiny
from tests.verbs.small_runs import pretrain, resume, with_test_sizes

CASES = [
    ("gpt2", "causal", {}), ("bert", "masked", {}), ("bert", "masked-next-sentence", {}),
    ("bert", "masked-next-sentence", {"copies": 2}), ("albert", "masked-sentence-order", {}), ("electra", "replaced", {}),
    ("xlnet", "permutation", {}), ("xlnet", "permutation", {"both_ways": False}), ("t5", "span-corruption", {}),
    ("transformer-xl", "recurrent", {}), ("bert", "masked=0.5,masked-next-sentence=0.5", {}),
]  # fmt: skip
ONCE = {"causal", "masked", "span-corruption", "recurrent"}


class Counting:
    """A split that counts how often each of its tokens is read."""

    def __init__(self, split: Split) -> None:
        self.counts = np.zeros(len(split.tokens), np.int64)
        split.tokens = _Counted(split.tokens, self)  # type: ignore[assignment]


class _Counted:
    def __init__(self, tokens: np.ndarray, counting: Counting) -> None:
        self.tokens, self.counting = np.asarray(tokens), counting

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, part: Any) -> np.ndarray:
        self.counting.counts[part] += 1
        found: np.ndarray = self.tokens[part]
        return found


@pytest.mark.parametrize("family, name, options", CASES)
def test_words_read_are_those_that_samples_hold(
    family: str, name: str, options: dict[str, Any], tmp_path: Path
) -> None:
    split = tiny.store(family, tmp_path).train
    objective: Objective = get_objective(name, tiny.tokenizer(family), 24, **options)
    feed = Feed(objective, split, 0, slices=1, rows=4)
    counting = None if objective.streaming else Counting(split)
    examples = [objective.prepare(split, row, np.random.default_rng(0)) for row in feed.plan(0)]
    if counting is not None:
        read = counting.counts.sum() / len(split.tokens)
    else:  # whole documents are opened there, of which a sample has a part
        special = list(tiny.tokenizer(family).special_ids)
        read = sum((~np.isin(one.ids, special)).sum() for one in examples) / len(split.tokens)
    assert feed.readings == pytest.approx(read, rel=0.08), (
        "separators and the tokens that windows share are not counted"
    )
    assert feed.words_read_per_step == pytest.approx(feed.readings * feed.words_per_step)
    assert (feed.readings == 1.0) == (name in ONCE)


def test_an_epoch_of_pairs_and_of_permutations_reads_more_than_the_text(tmp_path: Path) -> None:
    for family, name in (("bert", "masked-next-sentence"), ("xlnet", "permutation")):
        split = tiny.store(family, tmp_path / family).train
        feed = Feed(get_objective(name, tiny.tokenizer(family), 24), split, 0, slices=1, rows=4)
        assert feed.readings > 1.1


def test_words_read_are_told_and_older_checkpoints_go_on(tmp_path: Path) -> None:
    with with_test_sizes():
        run = pretrain("bert", tmp_path / "run", steps=4, save_every=2, validate_every=4, keep=5)
        checkpoint = RunFolder(run.folder).checkpoint(4)
        state, _ = read_state(checkpoint)
        history = json.loads((run.model_folder / "history.json").read_text(encoding="utf-8"))["history"]
        seen = history[-1]["seen"]
        assert (seen["words"], seen["words_read"]) == (round(state.words), round(state.words_read))
        assert seen["words_read"] > seen["words"]
        for file in ("report.html", "model/README.md"):
            text = (run.folder / file).read_text(encoding="utf-8")
            assert (
                "words read" in text and f"{seen['words_read']:,}" in text and f"{seen['words']:,}" in text
            ), file
        shutil.rmtree(checkpoint)
        # As it was written before words were counted both ways.
        older = RunFolder(run.folder).checkpoint(2)
        fields = json.loads((older / "state.json").read_text(encoding="utf-8"))
        del fields["words_read"]
        (older / "state.json").write_text(json.dumps(fields), encoding="utf-8")
        (older / "checksums.json").unlink()
        write_json(older / "checksums.json", checksums(older))
        resume("bert", run.folder)
        again, _ = read_state(RunFolder(run.folder).checkpoint(4))
    assert again.words_read == pytest.approx(state.words_read) and again.words == state.words


def test_words_read_of_several_phases(tmp_path: Path) -> None:
    split = tiny.store("bert", tmp_path).train
    tokenizer = tiny.tokenizer("bert")
    pairs, plain = (get_objective(name, tokenizer, 24) for name in ("masked-next-sentence", "masked"))
    first, second = Feed(pairs, split, 0, slices=1, rows=4), Feed(plain, split, 0, slices=1, rows=2)
    course = StepStream([Phase(0, first), Phase(3, second)])
    total = 0.0
    for number, step in enumerate(course.steps(0, Position(), 5), 1):
        total += step.feed.words_read_per_step
        assert course.words_read(number) == pytest.approx(total)
