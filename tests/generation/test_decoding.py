"""Greedy decoding, sampling and beam search against Transformers, and what must hold for every row."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from etymon.errors import EtymonError
from etymon.generation import DecodingSettings, decode
from tests.generation.reference import assert_same, fit, our_model, reference_model, their_texts
from tests.generation.test_processors import WAYS, by_definition

PROMPTS = [[7, 12, 9, 33, 41], [5], [18, 20, 2]]
FAMILIES = ["gpt1", "gpt2", "gpt3", "gptj", "bart", "t5"]


def ends(model):
    """Two end tokens that come up in the middle of what the model writes anyway."""
    probe = decode(model, PROMPTS, DecodingSettings(max_new_tokens=8, end_ids=(1,)))
    early = {number for row in probe for number in row[0].ids[:2]}
    later = [number for row in probe for number in row[0].ids[2:] if number not in early]
    assert len(set(later)) > 1, "choose another seed: these texts say nothing"
    return tuple(dict.fromkeys(later))[:2]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"no_repeat_ngram": 2},
        {"repetition_penalty": 1.6},
        {"repetition_penalty": 0.7, "no_repeat_ngram": 1},
        {"min_new_tokens": 7},
    ],
    ids=str,
)
def test_greedy_equals_transformers(pair, family, options):
    reference, model = pair(family)
    settings = DecodingSettings(max_new_tokens=10, end_ids=ends(model), **options)
    ours = decode(model, PROMPTS, settings)
    assert_same(ours, their_texts(reference, PROMPTS, settings))
    if not options:
        assert {row[0].finished for row in ours} == {True, False}


@pytest.mark.parametrize(
    "changed", [{"scale_attn_by_inverse_layer_idx": True}, {"scale_attn_weights": False}]
)
@pytest.mark.parametrize("beams", [1, 3])
def test_gpt2_with_another_scale_of_attention_writes_what_transformers_does(tmp_path, changed, beams):
    reference = reference_model("gpt2", **changed)
    model = our_model(reference, tmp_path)
    settings = DecodingSettings(max_new_tokens=10, end_ids=(1,), beams=beams)
    ours = decode(model, PROMPTS, settings)
    assert_same(ours, their_texts(reference, PROMPTS, settings))
    plain = reference_model("gpt2")
    assert [row[0].ids for row in ours] != [row[0][0] for row in their_texts(plain, PROMPTS, settings)]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "options",
    [
        {"beams": 4},
        {"beams": 2, "returns": 2, "early_stopping": True},
        {"beams": 3, "returns": 3, "length_penalty": 0.0},
        {"beams": 4, "returns": 2, "length_penalty": 2.0, "early_stopping": True},
        {"beams": 3, "returns": 2, "length_penalty": -1.0},
        {"beams": 4, "returns": 4, "length_penalty": 0.5, "no_repeat_ngram": 2},
        {"beams": 3, "repetition_penalty": 1.3, "min_new_tokens": 5},
    ],
    ids=str,
)
def test_beams_equal_transformers(pair, family, options):
    reference, model = pair(family)
    settings = DecodingSettings(max_new_tokens=10, end_ids=ends(model), **options)
    assert_same(decode(model, PROMPTS, settings), their_texts(reference, PROMPTS, settings))


@pytest.mark.parametrize("family", FAMILIES[1:])
@pytest.mark.parametrize("beams", [1, 3])
def test_ragged_prompts_equal_padding(pair, family, beams):
    """What Transformers needs padding and a mask for. For GPT-1 it counts the padding among the positions."""
    reference, model = pair(family)
    settings = DecodingSettings(max_new_tokens=9, end_ids=ends(model), beams=beams, returns=beams)
    assert_same(decode(model, PROMPTS, settings), their_texts(reference, PROMPTS, settings, padded=True))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("beams", [1, 3])
def test_log_prob_is_the_model_s_own(pair, family, beams):
    """Whatever the penalties: recomputed from the logits of Transformers in one forward pass."""
    reference, model = pair(family)
    settings = DecodingSettings(
        max_new_tokens=6, end_ids=ends(model), beams=beams, no_repeat_ngram=1, repetition_penalty=1.2
    )
    for prompt, row in zip(PROMPTS, decode(model, PROMPTS, settings)):
        ids = row[0].ids
        with torch.no_grad():
            if model.encoder_decoder:
                decoder = torch.tensor([[model.decoder_start, *ids[:-1]]])
                logits = reference(torch.tensor([prompt]), decoder_input_ids=decoder).logits[0]
            else:
                logits = reference(torch.tensor([prompt + ids[:-1]])).logits[0, len(prompt) - 1 :]
        expected = logits.log_softmax(-1).gather(1, torch.tensor(ids)[:, None]).sum()
        assert row[0].log_prob == pytest.approx(float(expected), abs=1e-4)
        if beams == 1:
            assert row[0].score == row[0].log_prob


SAMPLING = DecodingSettings(
    sample=True, max_new_tokens=8, temperature=1.3, top_k=30, returns=3, seed=4, end_ids=(1,)
)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_row_s_samples_do_not_depend_on_the_batch(pair, family):
    _, model = pair(family)
    together = decode(model, PROMPTS, SAMPLING)
    others = decode(model, [[9] * 11, PROMPTS[1], [4, 4]], SAMPLING)
    alone = decode(model, [PROMPTS[1]], SAMPLING, keys=[1])
    assert [one.ids for one in together[1]] == [one.ids for one in others[1]] == [one.ids for one in alone[0]]
    assert decode(model, PROMPTS, SAMPLING) == together


def test_samples_differ_by_seed_row_and_number(pair):
    _, model = pair("gpt2")
    rows = decode(model, [PROMPTS[0]] * 2, SAMPLING) + decode(model, [PROMPTS[0]], replace(SAMPLING, seed=5))
    texts = [tuple(one.ids) for row in rows for one in row]
    assert len(set(texts)) == len(texts) == 9


def test_more_tokens_begin_with_the_same_ones(pair):
    _, model = pair("gpt2")
    short = decode(model, PROMPTS, SAMPLING)
    long = decode(model, PROMPTS, replace(SAMPLING, max_new_tokens=12))
    for few, many in zip(short, long):
        for one, other in zip(few, many):
            assert other.ids[: len(one.ids)] == one.ids


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_samples_follow_the_model(pair, way):
    """Many draws of one token, against the logits of Transformers and what the filters promise."""
    reference, model = pair("gpt2")
    settings = DecodingSettings(sample=True, max_new_tokens=1, returns=3000, end_ids=(1,), **way)
    with torch.no_grad():
        logits = reference(torch.tensor([PROMPTS[0]])).logits[0, -1].double().numpy()
    drawn = [one.ids[0] for one in decode(model, PROMPTS[:1], settings)[0]]
    assert fit(np.bincount(drawn, minlength=len(logits)), by_definition(logits, **way)) > 1e-3


@pytest.mark.parametrize("options", [{}, {"beams": 3, "returns": 2}, {"sample": True, "returns": 2}], ids=str)
def test_log_probs_of_every_token(pair, options):
    reference, model = pair("gpt2")
    settings = DecodingSettings(max_new_tokens=7, end_ids=ends(model), log_probs=True, **options)
    plain = decode(model, PROMPTS, replace(settings, log_probs=False))
    assert all(one.token_log_probs is None for row in plain for one in row)
    for prompt, row in zip(PROMPTS, decode(model, PROMPTS, settings)):
        for one in row:
            with torch.no_grad():
                logits = reference(torch.tensor([prompt + one.ids[:-1]])).logits[0, len(prompt) - 1 :]
            wanted = logits.log_softmax(-1).gather(1, torch.tensor(one.ids)[:, None])[:, 0]
            assert one.token_log_probs == pytest.approx(wanted.tolist(), abs=1e-4)
            assert sum(one.token_log_probs) == pytest.approx(one.log_prob)


def test_tokens_that_the_tokenizer_lacks_are_never_chosen(tiny):
    for family in FAMILIES:
        model = tiny(family)
        size = model.tokenizer.size
        settings = DecodingSettings(sample=True, max_new_tokens=20, temperature=50.0, returns=8)
        assert max(max(one.ids) for one in decode(model, [[5, 6]], settings)[0]) < size
        searched = decode(model, [[5, 6]], DecodingSettings(beams=4, returns=4, max_new_tokens=8))
        assert max(max(one.ids) for one in searched[0]) < size


def test_empty_prompt_starts_from_end_of_text(tiny):
    model = tiny("gpt2")
    end = model.token("end")
    settings = DecodingSettings(max_new_tokens=4, min_new_tokens=4)
    assert decode(model, [[]], settings) == decode(model, [[end]], settings)


@pytest.mark.parametrize("beams", [1, 2])
def test_context_limit(pair, beams):
    _, model = pair("gpt2")
    assert model.positions == 48
    prompt = [5] * 40
    with pytest.raises(
        EtymonError, match=r"40 tokens of prompt and 9 new ones are 49.*48 positions.*at most 8"
    ):
        decode(model, [[3], prompt], DecodingSettings(max_new_tokens=9, beams=beams))
    with pytest.raises(EtymonError, match="48 tokens and the model 48 positions"):
        decode(model, [[5] * 48], DecodingSettings(beams=beams))
    # Not asked for a number, each row gets what its room allows, up to the usual 64.
    settings = DecodingSettings(beams=beams, end_ids=(1,), repetition_penalty=1.0)
    rows = decode(model, [prompt, [5] * 47], settings)
    assert [len(row[0].ids) for row in rows] == [8, 1]
    assert not rows[0][0].finished
    limited = decode(model, [prompt], replace(settings, max_new_tokens=8))
    assert rows[0][0].ids == limited[0][0].ids
    with pytest.raises(EtymonError, match="60 new ones"):
        decode(model, [[5]], DecodingSettings(min_new_tokens=60, beams=beams))


def test_refusals(pair, tiny):
    _, model = pair("gpt2")
    with pytest.raises(EtymonError, match="token id 60 is outside the model's vocabulary of 60"):
        decode(model, [[60]])
    with pytest.raises(EtymonError, match="token id 99"):
        decode(model, [[6]], DecodingSettings(end_ids=(99,)))
    with pytest.raises(EtymonError, match="fills blanks"):
        decode(tiny("bert"), [[6]])
    with pytest.raises(EtymonError, match="tokenizer"):
        decode(model, [[6]], DecodingSettings(stop="x"))
    assert decode(model, []) == []


@pytest.mark.parametrize("beams", [1, 2])
def test_on_token_hears_every_token(pair, beams):
    _, model = pair("t5")
    heard: dict[tuple[int, int], list[int]] = {}
    settings = DecodingSettings(max_new_tokens=6, end_ids=ends(model), beams=beams, returns=beams)
    rows = decode(model, PROMPTS, settings, lambda *where: heard.setdefault(where[:2], []).append(where[2]))
    assert heard == {
        (row, number): one.ids for row, found in enumerate(rows) for number, one in enumerate(found)
    }


def test_dropout_is_off_and_the_mode_comes_back(pair):
    _, model = pair("gpt2")
    settings = DecodingSettings(max_new_tokens=6, end_ids=(1,))
    expected = decode(model, PROMPTS, settings)
    model.train()
    try:
        assert decode(model, PROMPTS, settings) == expected
        assert model.training
    finally:
        model.eval()
