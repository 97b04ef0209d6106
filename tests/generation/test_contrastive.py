"""Contrastive search against the formula of the paper, written down without a cache and without batches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from etymon.families.model import Model
from etymon.generation import DecodingSettings, decode
from etymon.generation.stepper import window_start
from etymon.nn.batch import Batch
from etymon.nn.vocabulary import Context
from tests.decoders import DECODERS, rows_of, tiny_decoder
from tests.generation.test_looking_back import looking_back

PROMPTS = rows_of([7, 1, 4])


@torch.inference_mode()
def reference(
    model: Model,
    prompt: list[int],
    alpha: float,
    width: int,
    tokens: int,
    *,
    banned: tuple[int, ...] = (),
    window: int | None = None,
) -> list[int]:
    """Every candidate's whole text is read again."""
    head: Any = model.heads["vocabulary"]

    def read(text: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        begin = 0 if window is None else window_start(len(text), window)
        batch = Batch.of([text[begin:]], prefix=[max(0, len(prompt) - begin)] if model.reads_prefix else None)
        hidden, _ = model.hidden(batch)
        logits = head.logits(hidden, batch.layout.last, Context(batch))[0]
        logits[list(banned)] = float("-inf")
        return hidden, logits.softmax(-1)

    text = list(prompt)
    for _ in range(tokens):
        probs = read(text)[1]
        worth = {}
        for token in probs.topk(width).indices.tolist():
            states = read([*text, token])[0]
            likeness = max(float(F.cosine_similarity(states[-1], state, dim=0)) for state in states[:-1])
            worth[token] = (1 - alpha) * float(probs[token]) - alpha * likeness
        text.append(max(worth, key=worth.__getitem__))
    return text[len(prompt) :]


@pytest.mark.parametrize(("alpha", "width"), [(0.6, 4), (0.2, 8), (1.0, 3)])
@pytest.mark.parametrize("family", DECODERS)
def test_equals_the_formula(family: str, alpha: float, width: int) -> None:
    model = tiny_decoder(family)
    settings = DecodingSettings(
        penalty_alpha=alpha, top_k=width, max_new_tokens=10, end_ids=(22,), min_new_tokens=10
    )
    found = decode(model, PROMPTS, settings)
    wanted = [reference(model, prompt, alpha, width, 10, banned=(22,)) for prompt in PROMPTS]
    assert [row[0].ids for row in found] == wanted
    if alpha > 0.5:
        greedy = DecodingSettings(max_new_tokens=10, end_ids=(22,), min_new_tokens=10)
        assert [row[0].ids for row in decode(model, PROMPTS, greedy)] != wanted


@pytest.mark.parametrize(("prefix", "pointer"), [(True, 0), (False, 4), (True, 30)])
@pytest.mark.parametrize("window", [None, 24])
def test_models_that_look_back_and_windows_that_move(prefix: bool, pointer: int, window: int | None) -> None:
    """24 positions: with a window the texts grow beyond them, and what was dropped is no longer compared with."""
    model, tokens = looking_back("gpt2", prefix, pointer), 10 if window is None else 40
    settings = DecodingSettings(
        penalty_alpha=0.5,
        top_k=3,
        max_new_tokens=tokens,
        end_ids=(22,),
        min_new_tokens=tokens,
        window=bool(window),
    )
    found = decode(model, PROMPTS, settings)
    for row, prompt in zip(found, PROMPTS, strict=True):
        assert row[0].ids == reference(model, prompt, 0.5, 3, tokens, banned=(22,), window=window)


def test_rows_leave_when_they_end() -> None:
    model = tiny_decoder("gpt2")
    options: dict[str, Any] = {"penalty_alpha": 0.6, "top_k": 4, "max_new_tokens": 12}
    long = decode(model, PROMPTS, DecodingSettings(end_ids=(22,), min_new_tokens=12, **options))
    end = long[0][0].ids[3]
    found = decode(model, PROMPTS, DecodingSettings(end_ids=(end,), log_probs=True, **options))
    alone = [decode(model, [prompt], DecodingSettings(end_ids=(end,), **options))[0] for prompt in PROMPTS]
    assert [row[0].ids for row in found] == [row[0].ids for row in alone]
    assert {row[0].finished for row in found} == {True, False}
    assert found[0][0].ids[-1] == end
    assert sum(found[1][0].token_log_probs or []) == pytest.approx(found[1][0].log_prob)


def test_forbidden_tokens_never_win_by_being_different() -> None:
    model = tiny_decoder("gpt2")
    settings = DecodingSettings(penalty_alpha=0.95, top_k=23, max_new_tokens=15, no_repeat_ngram=1)
    for row in decode(model, PROMPTS, settings):
        assert len(set(row[0].ids)) == len(row[0].ids)


def test_encoder_decoders(tiny: Any) -> None:
    model = tiny("t5")
    settings = DecodingSettings(penalty_alpha=0.6, top_k=4, max_new_tokens=8)
    together = decode(model, PROMPTS, settings)
    alone = [decode(model, [prompt], settings)[0] for prompt in PROMPTS]
    assert [row[0].ids for row in together] == [row[0].ids for row in alone]
