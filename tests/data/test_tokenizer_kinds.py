"""What every kind of tokenizer keeps of a text, and what it says of itself elsewhere."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etymon.data import word_cache
from etymon.data.document import Document
from etymon.data.sampling import Sample, Thinned
from etymon.data.tokenizer import Tokenizer
from etymon.data.tokenizer_report import measure_tokenizer
from etymon.data.tokenizer_training import KINDS, LONGEST_RUN, train_tokenizer
from etymon.errors import EtymonError

SPECIALS = {"pad": "<pad>", "unknown": "<unk>", "begin": "<s>", "end": "</s>"}
LETTERS = "abcdeé ö字公园 นมส\n.,!ﬁ"
TEXTS = ["The river crossed the mountain.", "Café, das\tist 公园。\n😀 ﬁne", "  two  spaces  ", ""]


def train(kind: str, texts: list[str], size: int = 400, **options: Any) -> Tokenizer:
    specials = {role: token for role, token in SPECIALS.items() if kind != "byte" or role != "unknown"}
    return train_tokenizer(kind, texts, size, **{"specials": specials, **options})


@pytest.fixture(scope="module")
def kinds() -> dict[str, Tokenizer]:
    texts = [*TEXTS[:3], " ".join(LETTERS), " ".join(LETTERS[::-1]), "the river the mountain"] * 3
    return {kind: train(kind, texts) for kind in KINDS}


def test_kinds_know_themselves(kinds: dict[str, Tokenizer], tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    for kind, tokenizer in kinds.items():
        assert tokenizer.kind == kind
        tokenizer.save(tmp_path / kind)
        again = Tokenizer.load(tmp_path / kind)
        assert (again.fingerprint, again.kind, again.roles) == (
            tokenizer.fingerprint, kind, tokenizer.roles,
        )  # fmt: skip
        theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / kind)
        assert len(theirs) == tokenizer.size
        for text in [*TEXTS, "river </s> Ж"]:
            ids = tokenizer.encode(text).tolist()
            assert theirs(text, add_special_tokens=False)["input_ids"] == ids
        assert tokenizer.word_starts.shape == (tokenizer.size,)
        if kind in ("byte", "character", "byte-bpe"):
            assert theirs.decode(tokenizer.encode(TEXTS[1])) == TEXTS[1]


def test_training_is_deterministic(kinds: dict[str, Tokenizer]) -> None:
    texts = [*TEXTS[:3], " ".join(LETTERS), " ".join(LETTERS[::-1]), "the river the mountain"] * 3
    for kind in ("bpe", "word", "character", "byte"):
        assert train(kind, texts).backend.to_str() == kinds[kind].backend.to_str()


def test_orders_of_ids(kinds: dict[str, Tokenizer]) -> None:
    words = train("word", ["b a b c b a", "a b d d"], min_frequency=1)
    assert words.tokens == [*SPECIALS.values(), "b", "a", "d", "c"]
    assert words.encode("a zebra").tolist() == [5, 1]
    letters = train("character", ["abba 字"], 9)
    assert letters.tokens == [*SPECIALS.values(), "a", "b", " ", "字"]
    assert train("character", ["abba 字"], 6).tokens == [*SPECIALS.values(), "a", "b"]
    assert kinds["byte"].encode("aé").tolist() == [0x61, 0xC3, 0xA9] and kinds["byte"].size == 259
    assert kinds["byte"].id("pad") == 256 and kinds["byte"].encode("a<pad>").tolist() == [0x61, 256]


# ---------------------------------------------------------------- there and back


@given(st.text(max_size=60))
def test_bytes_are_lossless(kinds: dict[str, Tokenizer], text: str) -> None:
    for kind in ("byte", "byte-bpe"):
        tokenizer = kinds[kind]
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids, skip_special=False) == text and tokenizer.byte_lengths is not None
        if not tokenizer.special_ids & set(ids.tolist()):  # spelled out, they are recognised
            assert tokenizer.byte_lengths[ids].sum() == len(text.encode())
        assert ids.tolist() == tokenizer.backend.encode(text, add_special_tokens=False).ids


@given(st.text(LETTERS, max_size=60))
def test_characters_are_lossless(kinds: dict[str, Tokenizer], text: str) -> None:
    tokenizer = kinds["character"]
    ids = tokenizer.encode(text)
    assert len(ids) == len(text) and tokenizer.decode(ids) == text
    assert tokenizer.byte_lengths is not None
    assert tokenizer.byte_lengths[ids].tolist() == [len(letter.encode()) for letter in text]
    stream = tokenizer.stream()
    assert "".join([*map(stream.feed, ids.tolist()), stream.finish()]) == text
    assert tokenizer.encode(text + "Ж").tolist() == [*ids.tolist(), tokenizer.id("unknown")]


@given(st.text(LETTERS, max_size=60))
def test_the_others_keep_the_text_but_for_what_they_say(kinds: dict[str, Tokenizer], text: str) -> None:
    for kind in ("unigram", "bpe"):
        tokenizer = kinds[kind]
        normal = " ".join(unicodedata.normalize("NFKC", text).split())
        assert tokenizer.decode(tokenizer.encode(text)) == normal
    pieces = kinds["wordpiece"]
    if pieces.id("unknown") not in pieces.encode(text):
        assert "".join(pieces.decode(pieces.encode(text)).split()) == "".join(text.split())
    words = kinds["word"]
    ids = words.encode(text)
    if words.id("unknown") not in ids:
        assert words.decode(ids) == " ".join(words.tokens[number] for number in ids)
        assert "".join(words.decode(ids).split()) == "".join(text.split())


def test_normalisation_is_explicit() -> None:
    text = "Ünïté Ａ e\u0301 ﬁ नमस्ते"
    texts = [text, text.lower(), unicodedata.normalize("NFKC", text), unicodedata.normalize("NFD", text)] * 3
    for kind in ("unigram", "bpe", "character"):
        as_is = train(kind, texts, normalise="none")
        assert as_is.decode(as_is.encode(text)) == text
        for form in ("nfc", "nfkc"):
            made = train(kind, texts, normalise=form)
            assert made.decode(made.encode(text)) == unicodedata.normalize(form.upper(), text)
            assert made.byte_lengths is None
        lower = train(kind, [*texts, "unite unite"], lowercase=True, strip_accents=True)
        assert lower.decode(lower.encode("ÜNÏTÉ")) == "unite"
    with pytest.raises(EtymonError, match="lossless"):
        train("byte", texts, normalise="nfc")
    with pytest.raises(EtymonError, match="normalise must be one of none, nfc, nfkc"):
        train("word", texts, normalise="nfd")


# ---------------------------------------------------------------- scripts without spaces


@pytest.mark.parametrize("kind", ["byte-bpe", "bpe", "wordpiece", "unigram", "word"])
def test_no_giant_words(kind: str) -> None:
    """Without the cut a line of 12,000 letters is one word: some trainers then need minutes and gigabytes."""
    draw = np.random.default_rng(0)
    syllables = [chr(0x0E01 + one) + chr(0x0E30 + two) for one in range(30) for two in (0, 1, 2, 8)]
    phrase = "".join(draw.choice(syllables, 200))
    texts = ["".join(draw.choice(syllables, 6_000)), phrase * 40]
    texts += ["".join(chr(number) for number in draw.integers(0x4E00, 0x4E00 + 300, 8_000))]
    tokenizer = train(kind, texts, 1000)
    longest = max(len(token) for number, token in enumerate(tokenizer.tokens) if number > 3)
    assert longest <= LONGEST_RUN * (3 if kind == "byte-bpe" else 1) + 1
    report = measure_tokenizer(tokenizer, texts)
    assert report.bytes == sum(len(text.encode()) for text in texts)
    if kind in ("byte-bpe", "bpe", "unigram"):
        assert report.unknown_rate == 0 and report.bytes_per_token > 3  # more than a letter a token


def test_reports_count(kinds: dict[str, Tokenizer]) -> None:
    report = measure_tokenizer(kinds["character"], ["ab Ж", "a"])
    assert (report.bytes, report.words, report.tokens, report.unknown) == (6, 3, 5, 1)
    assert (report.fertility, report.bytes_per_token, report.unknown_rate) == (5 / 3, 6 / 5, 1 / 5)


# ---------------------------------------------------------------- word by word


@settings(max_examples=150)
@given(st.lists(st.text(" \n\t\u00a0\u1680\x1c\u0301aB'12.,<s>é字▁😀", max_size=50), max_size=4))
def test_word_by_word_is_like_the_whole(kinds: dict[str, Tokenizer], texts: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(word_cache, "FEWEST", 0)
        for kind, tokenizer in kinds.items():
            if kind in ("byte-bpe", "wordpiece", "unigram", "bpe", "word"):
                assert tokenizer._word_cache is not None
            for text, ids in zip(texts, tokenizer.encode_batch(texts), strict=True):
                assert ids.tolist() == tokenizer.backend.encode(text, add_special_tokens=False).ids, kind
            places = [np.arange(len(text)) for text in texts]
            quick = tokenizer.encode_located(texts, places)
            patch.setattr(word_cache, "FEWEST", 1 << 40)
            for one, two in zip(quick, tokenizer.encode_located(texts, places), strict=True):
                assert np.array_equal(one[0], two[0]) and np.array_equal(one[1], two[1])
            patch.setattr(word_cache, "FEWEST", 0)


def test_sentence_places_word_by_word(kinds: dict[str, Tokenizer], monkeypatch: pytest.MonkeyPatch) -> None:
    text = "The river. Café the\n mountain.\nThe river"
    places = np.array([0, 11, 21, 31])
    for kind in ("wordpiece", "unigram", "bpe", "word"):
        tokenizer = kinds[kind]
        slow = tokenizer.encode_located([text], [places])[0]
        monkeypatch.setattr(word_cache, "FEWEST", 0)
        monkeypatch.setattr(tokenizer, "offsets", None)  # not needed
        quick = tokenizer.encode_located([text], [places])[0]
        monkeypatch.undo()
        assert np.array_equal(slow[0], quick[0]) and np.array_equal(slow[1], quick[1])


def test_the_cache_is_bounded(kinds: dict[str, Tokenizer], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_cache, "KNOWN", 5)
    monkeypatch.setattr(word_cache, "FEWEST", 0)
    tokenizer = Tokenizer(kinds["byte-bpe"].backend, kinds["byte-bpe"].roles)
    for number in range(30):
        text = f"the river {number} saw {'x' * 40}{number} again"
        assert tokenizer.decode(tokenizer.encode(text)) == text
        assert tokenizer._word_cache is not None and len(tokenizer._word_cache._known) <= 6


def test_foreign_pipelines_see_the_whole(kinds: dict[str, Tokenizer]) -> None:
    description = json.loads(kinds["bpe"].backend.to_str())
    assert word_cache.WordCache.fits(description)
    description["pre_tokenizer"]["prepend_scheme"] = "first"
    assert not word_cache.WordCache.fits(description)
    description["pre_tokenizer"] = None
    assert not word_cache.WordCache.fits(description)


# ---------------------------------------------------------------- a bounded sample


def test_a_sample_is_spread_evenly_and_bounded() -> None:
    kept = Thinned(1000)
    for number in range(5000):
        kept.offer([f"{number:05} "])
    numbers = [int(text) for text in kept.texts()]
    assert 500 < kept.size <= 1000 and kept.size == 6 * len(numbers)
    assert set(np.diff(numbers)) == {32} and numbers[0] == 0


def test_a_sample_holds_out_some() -> None:
    documents = [Document("river " * 200, more=number % 2 == 0) for number in range(400)]
    with Sample() as sample:
        sample.add(documents)
        learnt, held = "".join(sample.learning()), "".join(sample.held_out())
        assert sample.size == len(learnt) and len(learnt) + len(held) == 400 * 1200
        assert 0.03 < len(held) / len(learnt) < 0.07
    with Sample(hold_out=False) as sample:
        assert "".join(sample.add(documents[:9]).learning()) == "river " * 1800
