"""Surprisal by word against loops over Transformers, minicons, and exact identities."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from etymon.errors import EtymonError
from etymon.families.saving import save
from etymon.generation.likelihood import score_texts
from etymon.generation.surprisal import ReadingWays, word_surprisals
from etymon.generation.word_scores import score_words
from etymon.nn.batch import Batch
from etymon.text.encoding import mark_words
from tests.generation.conftest import remembering, tiny_model, two_tongues
from tests.generation.test_sentence_scores import made

TEXT = "The cat sat on the mat, as cats do. Paris is the capital — naïve!"
BITS = 1 / math.log(2)


def words_of(model, text=TEXT, **ways):
    return word_surprisals(model, text, mark_words(text, model.tokenizer, None), ways=ReadingWays(**ways))


def distributions(model, text):
    """Log-probabilities of what follows every token of a text, the first from the end token."""
    ids = [model.token("end"), *model.tokenizer.encode(text).tolist()]
    with torch.no_grad():
        hidden, _ = model.hidden(Batch.of([ids]))
        return model.heads["vocabulary"].log_probs(hidden), ids[1:]


def test_every_figure_by_hand(tiny):
    model = tiny("gpt2")
    log_p, ids = distributions(model, TEXT)
    words = words_of(model)
    place = 0
    for word in words:
        assert TEXT[word.start : word.stop] == word.word == word.word.strip()
        tokens = range(place, place + word.tokens)
        assert word.surprisal == pytest.approx(-BITS * sum(float(log_p[n, ids[n]]) for n in tokens), abs=1e-3)
        p = log_p[place].exp()
        assert word.entropy == pytest.approx(-BITS * float((p * log_p[place]).sum()), abs=1e-3)
        assert [guess.probability for guess in word.guesses] == pytest.approx(
            p.topk(3).values.tolist(), abs=1e-5
        )
        place += word.tokens
    assert place == len(ids)
    # What lies between words is white space alone.
    assert " ".join(word.word for word in words).split() == TEXT.split()


def test_the_space_belongs_to_the_word_that_it_ends(tiny):
    """The corrected surprisals add up to that of the text and of a new word behind it; each is the definition."""
    model = tiny("gpt2")
    log_p, ids = distributions(model, TEXT)
    is_new = torch.zeros(log_p.shape[1], dtype=torch.bool)
    is_new[: model.tokenizer.size] = torch.from_numpy(model.tokenizer.spaced)
    begins = log_p[:, is_new].logsumexp(-1)
    words = words_of(model)
    whole = -sum(float(log_p[n, ids[n]]) for n in range(len(ids))) - float(begins[len(ids)])
    assert sum(word.corrected for word in words) == pytest.approx(BITS * whole, abs=1e-3)
    first, second = words[0].tokens, words[0].tokens + words[1].tokens
    expected = -float(log_p[range(first, second), ids[first:second]].sum() - begins[first] + begins[second])
    assert words[1].corrected == pytest.approx(BITS * expected, abs=1e-3)
    assert words[0].corrected == pytest.approx(words[0].surprisal - BITS * float(begins[first]), abs=1e-3)


def test_corrections_equal_minicons(tmp_path, tiny):
    from minicons.scorer import IncrementalLMScorer

    model = tiny("gpt2")
    save(model, tmp_path)
    peer = IncrementalLMScorer(str(tmp_path), "cpu")
    text = "The cat sat on the mat and Paris is in France"
    (scores,) = peer.compute_stats(peer.prepare_text([text], bos_token=True), bow_correction=True)
    place = 0
    # Its set of new words has no special tokens and no line breaks: ours is made the same.
    starts = np.array([token.startswith("Ġ") for token in model.tokenizer.tokens])
    model.tokenizer.__dict__["spaced"], kept = starts, model.tokenizer.spaced
    try:
        words = words_of(model, text)
    finally:
        model.tokenizer.__dict__["spaced"] = kept
    for word in words:
        theirs = -BITS * sum(scores[place : place + word.tokens])
        assert word.corrected == pytest.approx(theirs, abs=1e-3)
        place += word.tokens


@pytest.mark.parametrize("family", ["gpt2", "gpt1", "gptj", "transformer-xl", "bert", "albert"])
def test_sums_are_those_of_score(family):
    model = tiny_model(family)
    text = TEXT.partition(". ")[0]
    words = words_of(model, text)
    (score,) = score_texts(model, [text])
    expected = score_words(score, mark_words(text, model.tokenizer, None), model.tokenizer)
    assert [(w.word, w.tokens, w.start, w.stop) for w in words] == [
        (w.word, w.tokens, w.start, w.stop) for w in expected
    ]
    assert [w.surprisal for w in words] == pytest.approx([w.surprisal for w in expected], abs=1e-3)
    is_causal = family not in ("bert", "albert")
    assert all((word.corrected is not None) == is_causal for word in words)


def test_tokens_that_end_words_have_nothing_to_move():
    model = tiny_model("gpt1")
    assert model.tokenizer.kind == "word-bpe"
    assert all(word.corrected == pytest.approx(word.surprisal, abs=1e-6) for word in words_of(model))


@pytest.mark.parametrize("family", ["xlnet", "t5", "bart"])
def test_other_orders_give_every_word(family):
    model = made(family) if family == "xlnet" else tiny_model(family)
    words = words_of(model)
    # Punctuation marks are words of their own to some tokenizers.
    assert "".join(word.word for word in words) == TEXT.replace(" ", "")
    assert all(word.surprisal > 0 and word.entropy > 0 and word.corrected is None for word in words)


def test_hiding_the_rest_of_a_word_changes_words_of_several_pieces_alone(tiny):
    text = "The dogs eats facades in Parises."
    token, within = (words_of(tiny("bert"), text, pll=pll) for pll in ("token", "within-word"))
    for one, other in zip(token, within, strict=True):
        if one.tokens == 1:
            assert one.surprisal == pytest.approx(other.surprisal, abs=1e-4)
    assert any(abs(one.surprisal - other.surprisal) > 1e-3 for one, other in zip(token, within))


def test_long_texts_in_windows_and_with_a_memory(tiny):
    long = " ".join([TEXT] * 5)
    model = tiny("gpt2")
    assert len(model.tokenizer.encode(long)) > 2 * model.positions
    for ways in ({}, {"window": 20, "overlap": 15}):
        words = words_of(model, long, **ways)
        assert " ".join(word.word for word in words).split() == long.split()
        assert sum(word.tokens for word in words) == len(model.tokenizer.encode(long))
    model = remembering(64)
    (score,) = score_texts(model, [long], memory=32, segment=16)
    words = words_of(model, long, memory=32, segment=16)
    assert sum(word.surprisal for word in words) == pytest.approx(-BITS * score.log_likelihood, rel=1e-4)


def test_refusals(tiny):
    discriminator = made("electra", frozenset({"replaced"}))
    for model, ways, reason in [
        (discriminator, {}, "gives no distribution of a word in its text"),
        (made("elmo"), {}, "gives no distribution of a word in its text"),
        (two_tongues(), {}, "gives no distribution of a word in its text"),
        (tiny("bert"), {"window": 12}, "reads a text as a whole"),
        (tiny("gpt2"), {"memory": 12}, "leave memory out"),
        (tiny("gpt2"), {"window": 999}, "window is 999"),
    ]:
        with pytest.raises(EtymonError, match=reason):
            words_of(model, **ways)
    assert word_surprisals(tiny("gpt2"), "", np.zeros(0, bool)) == []
