"""Models that read a prompt in both directions, and models that copy: what a state carries is all that they need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from etymon.families.model import Model
from etymon.generation import DecodingSettings, decode, decoding
from etymon.generation.likelihood import score_texts
from etymon.generation.stepper import Stepper
from etymon.nn.batch import Batch
from etymon.nn.vocabulary import Context
from tests.decoders import DECODERS, rows_of, tiny_decoder
from tests.generation.conftest import tiny_tokenizer


class Recomputing(Stepper):
    """The same without a state: every step reads everything again."""

    def prefill(self, prompts: Sequence[Sequence[int]], new_tokens: int, start: int | None) -> Tensor:
        self.rows = [list(prompt) for prompt in prompts]
        self.prefixes = [len(prompt) for prompt in prompts]
        return self._read()

    def step(self, tokens_R: Tensor) -> Tensor:
        for row, token in zip(self.rows, tokens_R.tolist(), strict=True):
            row.append(token)
        return self._read()

    def select(self, rows: Tensor) -> None:
        self.rows = [list(self.rows[row]) for row in rows.tolist()]
        self.prefixes = [self.prefixes[row] for row in rows.tolist()]

    def fork(self, copies: int) -> None:
        self.select(torch.arange(len(self.rows)).repeat_interleave(copies))

    def _read(self) -> Tensor:
        batch = Batch.of(self.rows, prefix=self.prefixes if self.model.reads_prefix else None)
        hidden, _ = self.model.hidden(batch)
        return self.model.heads["vocabulary"].log_probs(hidden, batch.layout.last, Context(batch))  # type: ignore[operator, no-any-return]


def looking_back(family: str, prefix: bool, pointer: int) -> Model:
    model = tiny_decoder(family, pointer=pointer)
    model.reads_prefix = prefix
    model.carried["eos_token_id"] = 1
    return model


WAYS: list[dict[str, Any]] = [
    {},
    {"sample": True, "temperature": 1.5, "returns": 3, "seed": 3},
    {"beams": 3, "returns": 2},
]


@pytest.mark.parametrize(
    ("prefix", "pointer"), [(True, 0), (False, 4), (True, 30)], ids=["prefix", "pointer", "both"]
)
@pytest.mark.parametrize("family", DECODERS)
def test_a_state_is_as_good_as_reading_again(
    family: str, prefix: bool, pointer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, prompts = looking_back(family, prefix, pointer), rows_of([7, 1, 4])
    ways = [DecodingSettings(max_new_tokens=10, **way) for way in WAYS]
    found = [decode(model, prompts, way) for way in ways]
    plain = [decode(looking_back(family, False, 0), prompts, way) for way in ways]
    monkeypatch.setattr(decoding, "Stepper", Recomputing)
    for way, texts, other in zip(ways, found, plain, strict=True):
        again = decode(model, prompts, way)
        assert [[one.ids for one in row] for row in texts] == [[one.ids for one in row] for row in again]
        for row, expected in zip(texts, again, strict=True):
            for one, two in zip(row, expected, strict=True):
                assert one.log_prob == pytest.approx(two.log_prob, abs=1e-4)
        if prefix:
            # One token is no prefix, and more than one is something else than a text read from left to right.
            assert [one.log_prob for one in texts[0]] != [one.log_prob for one in other[0]]
            if not pointer:
                assert [one.ids for one in texts[1]] == [one.ids for one in other[1]]


@pytest.mark.parametrize("pointer", [0, 5])
@pytest.mark.parametrize("prefix", [False, True])
def test_a_target_is_scored_given_its_text_as_it_would_be_written(prefix: bool, pointer: int) -> None:
    tokenizer = tiny_tokenizer("gpt2")
    model = tiny_decoder("gpt2", vocabulary=tokenizer.size, pointer=pointer)
    model.tokenizer, model.reads_prefix = tokenizer, prefix
    text, target = "Cats", " do"
    (score,) = score_texts(model, [text], [target])
    given = [tokenizer.id("end"), *tokenizer.encode(text).tolist()]
    assert len(given) > 2
    ids, wanted = list(given), 0.0
    with torch.no_grad():
        for token in tokenizer.encode(target).tolist():
            batch = Batch.of([ids], prefix=[len(given) if prefix else 0])
            head: Any = model.heads["vocabulary"]
            log_probs = head.log_probs(model.hidden(batch)[0], batch.layout.last, Context(batch))
            wanted += float(log_probs[0, token])
            ids.append(token)
    assert score.log_likelihood == pytest.approx(wanted, abs=1e-4)
