"""Filling blanks: an encoder's softmax at the mask, T5's spans, and BART's texts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from etymon.errors import EtymonError
from etymon.families.saving import save
from etymon.generation import decode, fill
from etymon.generation.fill import fill_texts, spans_of
from etymon.generation.sequences import Sequence
from etymon.text.tokenizer_training import train_tokenizer


@pytest.fixture(scope="module")
def reference(tiny, tmp_path_factory):
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("bert")
    save(tiny("bert"), folder)
    return transformers.BertForMaskedLM.from_pretrained(folder).eval()


def test_probabilities_are_the_softmax_at_the_mask(tiny, reference):
    model = tiny("bert")
    tokenizer = model.tokenizer
    texts = [
        "Paris is the [MASK] of France.",
        "The [MASK] sat on the [MASK].",
        "Rome is the capital of Italy and [MASK]",
    ]
    found = fill_texts(model, texts, top_k=4, batch_size=2)
    for text, filling in zip(texts, found):
        ids = tokenizer.framing.frame(tokenizer.encode(text)).ids.astype(np.int64)
        with torch.no_grad():
            expected = reference(torch.from_numpy(ids)[None]).logits[0].softmax(-1)[:, : tokenizer.size]
        places = np.flatnonzero(ids == tokenizer.id("mask"))
        assert len(filling.blanks) == len(places)
        for place, candidates in zip(places, filling.blanks):
            top = expected[place].topk(4)
            assert [one.probability for one in candidates] == pytest.approx(top.values.tolist(), rel=1e-4)
            words = [tokenizer.tokens[number] for number in top.indices.tolist()]
            assert [one.text for one in candidates] == words


def test_all_blanks_are_filled_surest_first(tiny, reference):
    model = tiny("bert")
    tokenizer = model.tokenizer
    text = "The [MASK] sat on the [MASK] and [MASK]."
    ids = torch.from_numpy(tokenizer.framing.frame(tokenizer.encode(text)).ids.astype(np.int64))
    mask = tokenizer.id("mask")
    places = (ids == mask).nonzero()[:, 0].tolist()
    while (ids == mask).any():
        with torch.no_grad():
            probabilities = reference(ids[None]).logits[0].softmax(-1)
        probabilities[:, tokenizer.size :] = 0
        probabilities[:, sorted(tokenizer.special_ids)] = 0
        best = probabilities[ids == mask].max(1)
        place = (ids == mask).nonzero()[:, 0][best.values.argmax()]
        ids[place] = best.indices[best.values.argmax()]
    tokens = [tokenizer.tokens[int(ids[place])] for place in places]
    expected = text
    for token in tokens:
        expected = expected.replace(" [MASK]", token[2:] if token.startswith("##") else " " + token, 1)
    assert fill_texts(model, [text])[0].filled == expected


@pytest.mark.parametrize("marker", ["<mask>", "___", "______", "＿＿＿", "<extra_id_7>"])
def test_any_marker_will_do(tiny, marker):
    model = tiny("bert")
    usual = fill_texts(model, ["Paris is the [MASK] of France."])[0]
    other = fill_texts(model, [f"Paris is the {marker} of France."])[0]
    assert other.blanks == usual.blanks
    assert other.filled == usual.filled
    assert usual.blanks[0][0].sentence in (
        f"Paris is the {usual.blanks[0][0].text} of France.",
        f"Paris is the{usual.blanks[0][0].text.removeprefix('##')} of France.",
    )


def test_spans_take_their_places(tiny, monkeypatch):
    model = tiny("t5")
    tokenizer = model.tokenizer
    first, second = tokenizer.sentinels[:2]
    heard = []

    def scripted(_, prompts, settings, limits=None):
        heard.extend(prompts)
        capital, france = tokenizer.encode("capital").tolist(), tokenizer.encode("France").tolist()
        best = [first, *capital, second, *france, tokenizer.id("end")]
        return [[Sequence(best, -0.5, -0.1, True), Sequence([second, *capital], -2.0, -1.0, False)]]

    monkeypatch.setattr(fill, "decode", scripted)
    found = fill_texts(model, ["Paris is the ___ of [MASK]."], top_k=2)[0]
    assert found.filled == "Paris is the capital of France."
    assert [one.text for one in found.blanks[0]] == ["capital", ""]
    assert [one.text for one in found.blanks[1]] == ["France", "capital"]
    assert found.blanks[0][0].probability == pytest.approx(np.exp(-0.5))
    assert found.blanks[0][1].sentence == "Paris is the  of capital."
    source = [number for number in heard[0] if number in tokenizer.sentinels]
    assert source == [first, second]
    assert heard[0][-1] == tokenizer.id("end")


def test_spans_by_beams(tiny):
    model = tiny("t5")
    found = fill_texts(model, ["Paris is the <extra_id_0> of France."], top_k=3, max_new_tokens=5)[0]
    probabilities = [one.probability for one in found.blanks[0]]
    assert len(probabilities) == 3
    assert all(0 < value < 1 for value in probabilities)
    ids = fill.encode_prompts(model, ["Paris is the <extra_id_0> of France."])
    searched = decode(model, ids, fill.DecodingSettings(max_new_tokens=5, beams=4, returns=3))[0]
    assert probabilities == pytest.approx([np.exp(one.log_prob) for one in searched])
    assert [one.text for one in found.blanks[0]] == [
        spans_of(model.tokenizer, one.ids, 1)[0] for one in searched
    ]


def test_a_text_that_is_written_anew_tells_its_spans(tiny, monkeypatch):
    model = tiny("bart")
    tokenizer = model.tokenizer
    heard = []

    def written(text, log_prob):
        ids = tokenizer.framing.frame(tokenizer.encode(text)).ids.tolist()
        return Sequence(ids, log_prob, log_prob, True)

    def scripted(_, prompts, settings, limits=None):
        heard.extend(prompts)
        texts = ("Paris is the capital of France.", "Paris is the of old France.", "Rome is the city of")
        return [[written(text, -0.5 * number) for number, text in enumerate(texts, 1)]]

    monkeypatch.setattr(fill, "decode", scripted)
    found = fill_texts(model, ["Paris is the ___ of [MASK]."], top_k=3)[0]
    assert heard[0].count(tokenizer.id("mask")) == 2
    assert found.filled == "Paris is the capital of France."
    assert [one.text for one in found.blanks[0]] == ["capital", "", "city"]
    assert [one.text for one in found.blanks[1]] == ["France", "old France", ""]
    assert found.blanks[0][1].probability == pytest.approx(np.exp(-1.0))
    assert found.blanks[0][2].sentence == "Rome is the city of"


def test_a_text_is_written_anew_by_beams(tiny):
    text = "Paris is the <mask> of France."
    found = fill_texts(tiny("bart"), [text], top_k=2)[0]
    ids = fill.encode_prompts(tiny("bart"), [text])
    settings = fill.DecodingSettings(max_new_tokens=len(ids[0]) + 12, beams=4, returns=2)
    searched = decode(tiny("bart"), ids, settings)[0]
    assert [one.probability for one in found.blanks[0]] == pytest.approx(
        [np.exp(one.log_prob) for one in searched]
    )


def test_a_long_text_is_written_anew_as_far_as_there_are_positions(tiny):
    model, words = tiny("bart"), "the cat sat on the mat " * 20
    kept = model.tokenizer.decode(model.tokenizer.encode(words)[: model.positions - 4])
    found = fill_texts(model, [f"{kept} <mask>"], top_k=1)[0]
    assert len(found.blanks[0]) == 1 and 0 < found.blanks[0][0].probability < 1


@pytest.mark.parametrize("family", ["t5", "bart"])
def test_a_filling_does_not_depend_on_the_other_texts(family, tiny):
    texts = ["Paris is the ___ of France.", "The ___ sat on the ___, as ___ do. The ___ dog ate ___ soup."]
    together = fill_texts(tiny(family), texts, top_k=1)
    alone = [fill_texts(tiny(family), [text], top_k=1)[0] for text in texts]
    assert [one.filled for one in together] == [one.filled for one in alone]
    sure, expected = ([one.blanks[0][0].probability for one in found] for found in (together, alone))
    assert sure == pytest.approx(expected, rel=1e-3, abs=0)


@pytest.mark.parametrize("kind", ["bpe", "unigram", "wordpiece"])
def test_a_piece_goes_on_with_the_word_before_it(kind):
    words = ["running walking talking singing jumping looked walked talked"] * 20
    tokenizer = train_tokenizer(kind, words, 60, specials={"unknown": "[UNK]", "mask": "[MASK]"})
    piece = next(
        number
        for number, token in enumerate(tokenizer.tokens)
        if token.removeprefix("##").isalpha() and not tokenizer.spaced[number]
    )
    text = tokenizer.tokens[piece].removeprefix("##")
    word = fill._word(tokenizer, piece)
    assert fill.BlankText("", ["jump ", " now"], ["[MASK]"]).fill([word]) == f"jump{text} now"
    assert fill.BlankText("", ["so:\n ", " now"], ["[MASK]"]).fill([word]) == f"so:\n{text} now"


def test_refusals(tiny):
    with pytest.raises(EtymonError, match="GPT-2 cannot fill blanks"):
        fill_texts(tiny("gpt2"), ["The ___"])
    with pytest.raises(EtymonError, match="no blank in 'The cat'"):
        fill_texts(tiny("bert"), ["The ___", "The cat"])
    with pytest.raises(EtymonError, match=r"7 blanks.*6 sentinels"):
        fill_texts(tiny("t5"), ["___ " * 7])
    with pytest.raises(EtymonError, match="top_k is 0"):
        fill_texts(tiny("bert"), ["___"], top_k=0)
