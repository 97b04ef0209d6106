"""Only the given strings come out, each exactly as likely as the model has it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from etymon.errors import EtymonError
from etymon.families.model import Model
from etymon.generation import DecodingSettings, decode, generate_texts
from etymon.generation.likelihood import score_texts
from etymon.generation.text import encode_prompts
from tests.decoders import tiny_decoder
from tests.generation.conftest import tiny_tokenizer
from tests.generation.reference import fit

PROMPTS = ["The cat", "Paris is the capital of", "as"]
CHOICES = [" cat", " mat, as cats do", " capital of Italy", " dog ate soup", " soup"]


def shares(model: Model, prompt: str, choices: list[str]) -> np.ndarray:
    """By the chain rule, as `etymon score` has it."""
    # A score is given the end-of-text token before the text: so is the prompt here.
    scores = score_texts(model, [prompt] * len(choices), choices)
    weights = np.exp([score.log_likelihood for score in scores])
    return weights / weights.sum()


def prompts_of(model: Model) -> list[list[int]]:
    rows = encode_prompts(model, PROMPTS)
    return rows if model.encoder_decoder else [[model.token("end"), *row] for row in rows]  # type: ignore[list-item]


@pytest.mark.parametrize("family", ["gpt2", "gpt3", "gptj", "t5"])
def test_all_choices_are_scored_exactly(family: str, tiny: Callable[[str], Model]) -> None:
    model = tiny(family)
    settings = DecodingSettings(choices=CHOICES, returns=len(CHOICES), log_probs=True)  # type: ignore[arg-type]
    for prompt, row in zip(PROMPTS, decode(model, prompts_of(model), settings), strict=True):
        wanted = shares(model, prompt, CHOICES)
        texts = [model.tokenizer.decode(one.ids).strip() for one in row]  # type: ignore[union-attr]
        assert texts == [CHOICES[place].strip() for place in np.argsort(-wanted)]
        assert [np.exp(one.score) for one in row] == pytest.approx(sorted(wanted, reverse=True), rel=1e-4)
        for one in row:
            assert one.finished and len(one.ids) == len(one.token_log_probs or [])
            assert sum(one.token_log_probs or []) == pytest.approx(one.log_prob)
        assert all(left.score >= right.score for left, right in pairwise(row))


@pytest.mark.parametrize("pointer", [0, 5])
@pytest.mark.parametrize("prefix", [False, True])
def test_models_that_look_back(prefix: bool, pointer: int) -> None:
    tokenizer = tiny_tokenizer("gpt2")
    model = tiny_decoder("gpt2", vocabulary=tokenizer.size, pointer=pointer, positions=48)
    model.tokenizer, model.reads_prefix = tokenizer, prefix
    settings = DecodingSettings(choices=CHOICES, returns=len(CHOICES))  # type: ignore[arg-type]
    for prompt, row in zip(PROMPTS, decode(model, prompts_of(model), settings), strict=True):
        assert [np.exp(one.score) for one in row] == pytest.approx(
            sorted(shares(model, prompt, CHOICES), reverse=True), rel=1e-4
        )


def test_a_text_counts_for_the_longest_choice_it_begins_with(tiny: Callable[[str], Model]) -> None:
    model = tiny("gpt2")
    nested = [" cat", " cat sat", " cat sat on", " cats", " dog"]
    tokens = [tuple(model.tokenizer.encode(choice).tolist()) for choice in nested]  # type: ignore[union-attr]
    assert tokens[2][: len(tokens[1])] == tokens[1] and tokens[1][: len(tokens[0])] == tokens[0]
    whole = {
        choice: np.exp(score.log_likelihood)
        for choice, score in zip(nested, score_texts(model, ["The"] * 5, nested), strict=True)
    }
    wanted = dict(whole)
    wanted[" cat"] -= whole[" cat sat"]
    wanted[" cat sat"] -= whole[" cat sat on"]
    if tokens[3][: len(tokens[0])] == tokens[0]:
        wanted[" cat"] -= whole[" cats"]
    total = sum(wanted.values())
    settings = DecodingSettings(choices=nested, returns=5)  # type: ignore[arg-type]
    prompt = [model.token("end"), *model.tokenizer.encode("The").tolist()]  # type: ignore[union-attr]
    found = decode(model, [prompt], settings)[0]  # type: ignore[list-item]
    assert {model.tokenizer.decode(one.ids): np.exp(one.score) for one in found} == {  # type: ignore[union-attr]
        choice: pytest.approx(share / total, rel=1e-4) for choice, share in wanted.items()
    }
    for one in found:  # the model's own figure is that of the tokens
        assert np.exp(one.log_prob) == pytest.approx(whole[model.tokenizer.decode(one.ids)], rel=1e-4)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "options", [{}, {"temperature": 0.5}, {"top_k": 3}, {"temperature": 2.0, "top_p": 0.8}], ids=str
)
def test_draws_are_by_the_exact_probabilities(options: dict[str, Any]) -> None:
    tokenizer, choices, draws = tiny_tokenizer("gpt2"), [" c", " so", " cap", " the"], 4000
    model = tiny_decoder("gpt2", vocabulary=tokenizer.size, positions=48)
    model.tokenizer = tokenizer
    wanted = shares(model, PROMPTS[0], choices) ** (1 / options.get("temperature", 1.0))
    order = np.argsort(-wanted)
    if "top_k" in options:
        wanted[order[3:]] = 0
    if "top_p" in options:
        before = np.cumsum(wanted[order]) / wanted.sum() - wanted[order] / wanted.sum()
        wanted[order[before >= 0.8]] = 0
    settings = DecodingSettings(choices=choices, sample=True, returns=draws, seed=2, **options)  # type: ignore[arg-type]
    texts = [tokenizer.decode(one.ids) for one in decode(model, prompts_of(model)[:1], settings)[0]]
    assert fit([texts.count(choice) for choice in choices], wanted) > 1e-3


def test_groups_of_rows_change_nothing(tiny: Callable[[str], Model], monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("t5")
    settings = DecodingSettings(choices=CHOICES, returns=3)  # type: ignore[arg-type]
    whole = decode(model, prompts_of(model), settings)
    monkeypatch.setattr("etymon.generation.choices.TOGETHER", 2)
    for row, other in zip(whole, decode(model, prompts_of(model), settings), strict=True):
        assert [one.ids for one in row] == [one.ids for one in other]
        assert [one.score for one in row] == pytest.approx([one.score for one in other], abs=1e-5)


def test_one_token_choices_need_one_reading(
    tiny: Callable[[str], Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny("gpt2")
    monkeypatch.setattr("etymon.generation.stepper.Stepper.branch", None)
    found = decode(model, [[5]], DecodingSettings(choices=("a", "b"), returns=2))
    assert sum(np.exp(one.score) for one in found[0]) == pytest.approx(1)


def test_texts_come_out_as_they_were_given(tiny: Callable[[str], Model]) -> None:
    """GPT-1's tokenizer knows no capitals and no leading space."""
    heard: list[tuple[int, int, str]] = []
    settings = DecodingSettings(choices=["Yes", " No!"], returns=2)  # type: ignore[arg-type]
    found = generate_texts(tiny("gpt1"), ["the cat", "rome"], settings, lambda *one: heard.append(one))
    assert {one.text for one in found[:2]} == {one.text for one in found[2:]} == {"Yes", " No!"}
    assert heard == [(number // 2, number % 2, one.text) for number, one in enumerate(found)]


def test_refusals(tiny: Callable[[str], Model], pair: Any) -> None:
    model = tiny("gpt2")
    with pytest.raises(EtymonError, match=r"40 tokens of prompt and 15 new ones.*choices may have 8"):
        decode(model, [[5] * 40], DecodingSettings(choices=("a", "zzzzzzzzzzzzzzz")))
    with pytest.raises(EtymonError, match="'Yes' and 'yes' are the same tokens"):
        decode(tiny("gpt1"), [[5]], DecodingSettings(choices=("Yes", "yes")))
    with pytest.raises(EtymonError, match="tokenizer"):
        decode(pair("gpt2")[1], [[5]], DecodingSettings(choices=("a",)))
