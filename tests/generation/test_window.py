"""A window that slides: texts beyond the positions, each token given what the window holds, and the same for every strategy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from etymon.errors import EtymonError
from etymon.generation import DecodingSettings, decode, decoding, generate_texts
from etymon.generation.stepper import SlidingStepper, window_start
from etymon.nn.batch import Batch
from etymon.nn.vocabulary import Context
from tests.decoders import DECODERS, rows_of
from tests.generation.test_looking_back import looking_back

POSITIONS = 24


@pytest.mark.parametrize("positions", [1, 2, 3, 8, 9])
def test_where_a_window_begins(positions: int) -> None:
    """As if the text had been written token by token: when the next one has no room, the last half goes on with it."""
    begin = 0
    for length in range(1, 60):
        if length - begin > positions:
            begin = length - max(1, positions // 2)
        assert window_start(length, positions) == begin


class Rereading(SlidingStepper):
    """Every step reads the window again, without a state."""

    def prefill(self, prompts: Sequence[Sequence[int]], new_tokens: int, start: int | None) -> Tensor:
        self.texts = [list(prompt) for prompt in prompts]
        self.given = [len(prompt) for prompt in prompts]
        return self._again()

    def step(self, tokens_R: Tensor) -> Tensor:
        self.texts = [[*text, token] for text, token in zip(self.texts, tokens_R.tolist(), strict=True)]
        return self._again()

    def select(self, rows: Tensor) -> None:
        self._choose(rows.tolist())

    def fork(self, copies: int) -> None:
        self._choose([row for row in range(len(self.texts)) for _ in range(copies)])

    def _again(self) -> Tensor:
        begins = [window_start(len(text), POSITIONS) for text in self.texts]
        prefix = [max(0, given - begin) for given, begin in zip(self.given, begins, strict=True)]
        windows = [text[begin:] for text, begin in zip(self.texts, begins, strict=True)]
        batch = Batch.of(windows, prefix=prefix if self.model.reads_prefix else None)
        hidden, _ = self.model.hidden(batch)
        return self.score(hidden, batch.layout.last, Context(batch))


WAYS: list[dict[str, Any]] = [
    {},
    {"sample": True, "temperature": 1.5, "returns": 2, "seed": 3},
    {"beams": 3, "returns": 2},
]


@pytest.mark.parametrize(("prefix", "pointer"), [(False, 0), (True, 0), (True, 6)])
@pytest.mark.parametrize("family", DECODERS)
def test_texts_beyond_the_positions(
    family: str, prefix: bool, pointer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, prompts = looking_back(family, prefix, pointer), rows_of([7, 24, 61, 1])
    ways = [DecodingSettings(max_new_tokens=50, min_new_tokens=45, window=True, **way) for way in WAYS]
    found = [decode(model, prompts, way) for way in ways]
    assert all(len(one.ids) >= 45 for way in found for row in way for one in row)
    monkeypatch.setattr(decoding, "SlidingStepper", Rereading)
    for way, texts in zip(ways, found, strict=True):
        again = decode(model, prompts, way)
        assert [[one.ids for one in row] for row in texts] == [[one.ids for one in row] for row in again]
        for row, expected in zip(texts, again, strict=True):
            for one, other in zip(row, expected, strict=True):
                assert one.log_prob == pytest.approx(other.log_prob, abs=1e-3)


def test_a_window_changes_nothing_while_there_is_room() -> None:
    model, prompts = looking_back("gpt2", False, 0), rows_of([7, 1])
    settings = {"max_new_tokens": 17, "log_probs": True}
    assert decode(model, prompts, DecodingSettings(window=True, **settings)) == decode(  # type: ignore[arg-type]
        model,
        prompts,
        DecodingSettings(**settings),  # type: ignore[arg-type]
    )


def test_refused_without_it_and_no_business_of_models_without_limit(tiny: Any) -> None:
    model = looking_back("gpt2", False, 0)
    with pytest.raises(EtymonError, match="--window"):
        decode(model, rows_of([24]))
    with pytest.raises(EtymonError, match="--window"):
        decode(model, rows_of([20]), DecodingSettings(max_new_tokens=5))
    assert len(decode(model, rows_of([20]), DecodingSettings(window=True, min_new_tokens=64))[0][0].ids) == 64
    t5, settings = tiny("t5"), DecodingSettings(max_new_tokens=9)
    assert decode(t5, rows_of([5]), DecodingSettings(max_new_tokens=9, window=True)) == decode(
        t5, rows_of([5]), settings
    )


def test_texts(tiny: Any) -> None:
    settings = DecodingSettings(max_new_tokens=80, window=True)
    assert len(generate_texts(tiny("gpt2"), ["The cat sat on the mat. " * 20], settings)[0].ids) > 1


def test_the_smallest_windows() -> None:
    for positions in (1, 2, 3):
        model = looking_back("gpt2", False, 0)
        small = torch.nn.Parameter(model.body.embeddings.positions.weight[:positions].detach().clone())
        model.body.embeddings.positions.weight, model.body.embeddings.room = small, positions
        settings = DecodingSettings(max_new_tokens=7, min_new_tokens=7, window=True)
        assert len(decode(model, rows_of([5, 1]), settings)[0][0].ids) == 7
