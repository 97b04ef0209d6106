"""Scores against straightforward loops and Transformers' own losses."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from etymon.errors import EtymonError
from etymon.families.saving import save
from etymon.generation import input_rows
from etymon.generation.likelihood import score_texts, windows
from etymon.generation.prompting import Prompt, Prompter
from etymon.nn.batch import Batch
from etymon.text.tokenizer_training import train_tokenizer
from tests.generation.conftest import tiny_model

TEXTS = ["The cat sat.", "Paris is the capital of France — 日本語!", "dog"]


def test_causal_score_equals_transformers(tiny, tmp_path):
    transformers = pytest.importorskip("transformers")
    model = tiny("gpt2")
    save(model, tmp_path)
    reference = transformers.GPT2LMHeadModel.from_pretrained(tmp_path).eval()
    for text, score in zip(TEXTS, score_texts(model, TEXTS)):
        ids = torch.tensor([[model.token("end"), *model.tokenizer.encode(text).tolist()]])
        with torch.no_grad():
            loss = float(reference(ids, labels=ids).loss)
        tokens = ids.shape[1] - 1
        assert score.tokens == len(score.log_probs) == len(score.pieces) == tokens
        assert score.log_likelihood == pytest.approx(-loss * tokens, rel=1e-5)
        assert score.perplexity == pytest.approx(math.exp(loss), rel=1e-4)
        assert score.bytes == len(text.encode())
        assert score.bits_per_byte == pytest.approx(
            loss * tokens / math.log(2) / len(text.encode()), rel=1e-5
        )
        assert score.kind == "likelihood"


@pytest.mark.parametrize(
    ("length", "context", "overlap"), [(1, 4, 2), (4, 4, 2), (5, 4, 2), (17, 6, 3), (20, 5, 0), (9, 4, 3)]
)
def test_windows_score_every_position_once(length, context, overlap):
    found = list(windows(length, context, overlap))
    assert [place for _, end, new in found for place in range(new, end)] == list(range(length))
    for begin, end, new in found:
        assert 0 < end - begin <= context
        assert begin == 0 or new - begin >= overlap


def test_windows_are_as_long_as_what_was_learnt(tiny):
    model, text = tiny("gpt2"), " ".join(TEXTS * 6)
    assert len(model.tokenizer.encode(text)) > model.positions
    whole, short = (score_texts(model, [text], window=window)[0].log_likelihood for window in (None, 12))
    assert whole != short
    try:
        for history, expected in (
            ([{"length": 12}, {"length": 8, "started_from": "it"}], short),
            ([{"length": 12, "started_from": "another's"}], whole),
            ([{}], whole),
            ([{"length": 1000}], whole),
        ):
            model.history = history
            assert score_texts(model, [text])[0].log_likelihood == expected
    finally:
        model.history = []
    with pytest.raises(
        EtymonError, match="window is 49: it must be 1 or more, and the model has 48 positions"
    ):
        score_texts(model, [text], window=49)


@pytest.mark.parametrize("overlap", [None, 0, 40])
def test_long_texts_in_windows(tiny, overlap, monkeypatch):
    """Each token's probability is that of its window, computed here window by window."""
    model = tiny("gpt2")
    text = "The cat sat on the mat, and the naïve dog ate soup. " * 6
    monkeypatch.setattr(input_rows, "BATCH_TOKENS", 100)
    score = score_texts(model, [text, "The cat"], overlap=overlap)[0]
    whole = [model.token("end"), *model.tokenizer.encode(text).tolist()]
    assert len(whole) > 2 * model.positions
    step = model.positions - (model.positions // 2 if overlap is None else overlap)
    expected, done = [], 0
    while done < len(whole) - 1:
        end = min(len(whole) - 1, model.positions if done == 0 else done + step)
        begin = max(0, end - model.positions)
        with torch.no_grad():
            hidden, _ = model.hidden(Batch.of([whole[begin:end]]))
            log_probs = model.heads["vocabulary"].log_probs(hidden)
        expected += [float(log_probs[place - begin, whole[place + 1]]) for place in range(done, end)]
        done = end
    assert score.log_probs == pytest.approx(expected, abs=1e-4)
    assert score.tokens == len(whole) - 1


def test_a_target_after_a_prompt(tiny):
    model = tiny("gpt2")
    ids = [model.tokenizer.encode(part).tolist() for part in ("The cat", " sat on")]
    with torch.no_grad():
        hidden, _ = model.hidden(Batch.of([[model.token("end"), *ids[0], *ids[1]]]))
        log_probs = model.heads["vocabulary"].log_probs(hidden)
    expected = [float(log_probs[len(ids[0]) + place, number]) for place, number in enumerate(ids[1])]
    score = score_texts(model, ["The cat"], [" sat on"])[0]
    assert score.log_probs == pytest.approx(expected, abs=1e-5)
    assert (score.text, score.bytes) == (" sat on", 7)


def test_pseudo_likelihood_equals_a_loop(tiny, monkeypatch):
    model = tiny("bert")
    tokenizer = model.tokenizer
    monkeypatch.setattr(input_rows, "BATCH_TOKENS", 60)
    for text, score in zip(TEXTS, score_texts(model, TEXTS)):
        ids = tokenizer.framing.frame(tokenizer.encode(text)).ids
        expected = []
        for place in range(1, len(ids) - 1):
            masked = ids.copy()
            masked[place] = tokenizer.id("mask")
            with torch.no_grad():
                hidden, _ = model.hidden(Batch.of([masked]))
                log_probs = model.heads["vocabulary"].log_probs(hidden, torch.tensor([place]))
            expected.append(float(log_probs[0, ids[place]]))
        assert score.log_probs == pytest.approx(expected, abs=1e-4)
        assert score.log_likelihood == pytest.approx(sum(expected), abs=1e-3)
        assert (score.kind, score.bits_per_byte) == ("pseudo-likelihood", None)
        assert score.pieces == [tokenizer.tokens[number] for number in ids[1:-1]]


def test_target_given_a_source_equals_transformers(tiny, tmp_path):
    transformers = pytest.importorskip("transformers")
    model = tiny("t5")
    save(model, tmp_path)
    reference = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path).eval()
    targets = ["the mat", "France and Italy", ""]
    for source, target, score in zip(TEXTS, targets, score_texts(model, TEXTS, targets)):
        ids, labels = (
            torch.from_numpy(
                model.tokenizer.framing.frame(model.tokenizer.encode(text)).ids.astype(np.int64)
            )[None]
            for text in (source, target)
        )
        with torch.no_grad():
            loss = float(reference(input_ids=ids, labels=labels).loss)
        assert score.tokens == labels.shape[1]
        assert score.log_likelihood == pytest.approx(-loss * labels.shape[1], rel=1e-4)


def test_refusals(tiny):
    with pytest.raises(EtymonError, match="give the target too"):
        score_texts(tiny("t5"), ["x"])
    with pytest.raises(EtymonError, match="2 texts and 1 targets"):
        score_texts(tiny("t5"), ["x", "y"], ["z"])
    with pytest.raises(EtymonError, match="leave it out"):
        score_texts(tiny("bert"), ["The cat"], ["mat"])
    with pytest.raises(EtymonError, match="nothing to score"):
        score_texts(tiny("gpt2"), [""])
    with pytest.raises(EtymonError, match=r"model reads 48.*--lines"):
        score_texts(tiny("bert"), ["The cat " * 40])
    with pytest.raises(EtymonError, match="below the window of 48 tokens"):
        score_texts(tiny("gpt2"), ["The cat"], overlap=48)


def test_a_model_without_a_token_to_begin_with_is_given_the_first_one():
    """GPT-1 as published."""
    model = tiny_model("gpt1")
    model.tokenizer = train_tokenizer("word-bpe", TEXTS, 120, specials={"unknown": "<unk>"})
    text = "the cat sat"
    ids = model.tokenizer.encode(text).tolist()
    with torch.no_grad():
        hidden, _ = model.hidden(Batch.of([ids[:-1]]))
        log_probs = model.heads["vocabulary"].log_probs(hidden, None)
    expected = [float(log_probs[at, token]) for at, token in enumerate(ids[1:])]
    score = score_texts(model, [text])[0]
    assert score.log_probs == pytest.approx(expected, abs=1e-5) and len(expected) == len(ids) - 1
    assert score.bytes == len(text) - model.tokenizer.offsets(text)[2][0]
    (given,) = Prompter(model).score([Prompt("the cat")], [[" sat"]])[0]
    assert score_texts(model, ["the cat"], [" sat"])[0].log_likelihood == pytest.approx(given.log_prob)
    with pytest.raises(EtymonError, match="a text is one token, and the model has none to predict it from"):
        score_texts(model, [model.tokenizer.decode(ids[:1])])


@pytest.mark.parametrize("family", ["bert", "t5"])
def test_windows_are_for_decoders(family, tiny):
    target = ["a"] if family == "t5" else None
    for option in ({"window": 8}, {"overlap": 3}):
        with pytest.raises(EtymonError, match="reads a text as a whole: leave window and overlap out"):
            score_texts(tiny(family), ["The cat"], target, **option)
