"""How much is asked, by named options: spans of T5 and BART, their sentinels, and XLNet's predicted share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import etymon
from etymon.errors import EtymonError
from etymon.objectives import get_objective
from etymon.sampling.plans import key
from etymon.text.tokenizer import Tokenizer
from tests import tiny
from tests.verbs.small_runs import pretrain, with_test_sizes


@pytest.fixture(autouse=True)
def _sizes() -> Any:
    with with_test_sizes():
        yield


def examples(objective: Any, split: Any, **plan: Any) -> list[Any]:
    rows = objective.plan(split, 0, 0, **plan)
    return [objective.prepare(split, row, key(0, number)) for number, row in enumerate(rows)]


@pytest.mark.parametrize("density, mean_span", [(0.15, 3.0), (0.3, 3.0), (0.3, 6.0), (0.5, 2.0)])
def test_t5_s_share_and_span_length_are_what_is_asked_for(
    density: float, mean_span: float, tmp_path: Path
) -> None:
    tokenizer, split = tiny.tokenizer("t5"), tiny.store("t5", tmp_path).train
    objective = get_objective("span-corruption", tokenizer, 48, density=density, mean_span=mean_span)
    sentinels, cut, spans, whole = set(tokenizer.sentinels), 0, 0, 0
    for example in examples(objective, split):
        targets = [number for number in example.targets.tolist() if number != tokenizer.id("end")]
        read = [number for number in example.ids.tolist() if number != tokenizer.id("end")]
        spans += sum(number in sentinels for number in targets)
        cut += sum(number not in sentinels for number in targets)
        whole += sum(number not in sentinels for number in (*targets, *read))
    assert cut / whole == pytest.approx(density, abs=0.03)
    assert cut / spans == pytest.approx(mean_span, rel=0.15)


def test_xlnet_s_predicted_share_and_spans_are_what_is_asked_for(tmp_path: Path) -> None:
    tokenizer, split = tiny.tokenizer("xlnet"), tiny.store("xlnet", tmp_path).train

    def mean_run(predict: int, longest: int) -> float:
        objective = get_objective("permutation", tokenizer, 96, predict=predict, longest=longest)
        runs: list[int] = []
        for example in examples(objective, split, streams=4):
            places = np.sort(example.places)
            assert len(places) == 96 // predict
            runs += [len(run) for run in np.split(places, np.flatnonzero(np.diff(places) > 1) + 1)]
        return float(np.mean(runs))

    # Spans may stand side by side, so that runs of targets are a little longer than spans.
    spans = [mean_run(8, longest) for longest in (1, 3, 6, 12)]
    assert spans == sorted(spans) and 1.0 <= spans[0] < 1.5 and spans[-1] > 1.7 * spans[0]
    assert mean_run(3, 5) > mean_run(8, 5)


@pytest.mark.parametrize("family", ["t5", "bart", "transformer", "rnn"])
@pytest.mark.parametrize(
    "objective, options", [("denoising", ["options.noise=ul2"]), ("span-corruption", [])]
)
def test_spans_behind_sentinels_need_but_their_name(
    family: str, objective: str, options: list[str], tmp_path: Path
) -> None:
    done = pretrain(family, tmp_path / "run", objective=objective, set=options, steps=2, vocabulary=400)
    tokenizer = etymon.load(done.folder).tokenizer
    assert tokenizer is not None and len(tokenizer.sentinels) == 100
    assert tokenizer.size - 1 == tokenizer.sentinels[0], "T5's stand backwards at the end of the vocabulary"


def test_the_number_of_sentinels_can_be_chosen(tmp_path: Path) -> None:
    spans: dict[str, Any] = {"objective": "span-corruption", "steps": 1, "vocabulary": 400}
    few = pretrain("bart", tmp_path / "few", sentinels=7, **spans)
    assert len(Tokenizer.load(few.folder / "tokenizer").sentinels) == 7
    none = pretrain("bart", tmp_path / "none", steps=1, vocabulary=400)
    assert not Tokenizer.load(none.folder / "tokenizer").sentinels
    t5 = pretrain("t5", tmp_path / "t5", sentinels=20, steps=1, vocabulary=400)
    assert len(Tokenizer.load(t5.folder / "tokenizer").sentinels) == 20
    made = etymon.tokenizer(
        data=[_text(tmp_path)], family="bart", sentinels=5, size=400, out=tmp_path / "made", progress="silent"
    )
    assert len(made.tokenizer.sentinels) == 5
    for changes, reason in (
        ({"sentinels": 1}, r"has 1 sentinels.*\(--sentinels\)"),
        (
            {"sentinels": 9, "tokenizer": few.folder / "tokenizer", "vocabulary": None},
            "already has 7 sentinels: leave --sentinels 9 out",
        ),
    ):
        with pytest.raises(EtymonError, match=reason):
            pretrain("bart", tmp_path / "refused", **(spans | changes))


def _text(folder: Path) -> Path:
    file = folder / "text.txt"
    file.write_text("\n".join(tiny.texts(60)), encoding="utf-8")
    return file
