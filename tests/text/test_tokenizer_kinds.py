"""What every kind of tokenizer keeps of a text, and what it says of itself elsewhere."""

from __future__ import annotations

import errno
import unicodedata
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from etymon.errors import EtymonError
from etymon.text.reading import Document
from etymon.text.text_sample import TextSample, sample_texts
from etymon.text.tokenizer import Tokenizer
from etymon.text.tokenizer_growing import grow_tokenizer, measure_tokenizer
from etymon.text.tokenizer_pipelines import LONGEST_RUN
from etymon.text.tokenizer_training import KINDS, train_tokenizer

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
    for kind in ("bpe", "word-bpe", "word", "character", "byte"):
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


def test_ends_of_words_are_letters_of_their_own() -> None:
    tokenizer = train("word-bpe", ["Low lower lowest, low slow"] * 4, 44, lowercase=True)
    assert tokenizer.tokens[4:7] == [",</w>", "e</w>", "l</w>"] and "lowest</w>" in tokenizer.tokens
    ids = tokenizer.encode("LOW slo, x").tolist()
    assert [tokenizer.tokens[number] for number in ids] == ["low</w>", "s", "l", "o</w>", ",</w>", "<unk>"]
    stream = tokenizer.stream(skip_special=False)
    assert [*map(stream.feed, ids), stream.finish()] == ["low", " s", "l", "o", " ,", " <unk>", ""]
    assert tokenizer.decode(ids) == "low slo , <unk>", "what is not known is shown"
    with pytest.raises(EtymonError, match="'word-bpe' cannot be grown"):
        grow_tokenizer(tokenizer, lambda: ["more"], 90)


# ---------------------------------------------------------------- there and back


@given(st.text(max_size=60))
def test_bytes_are_lossless(kinds: dict[str, Tokenizer], text: str) -> None:
    for kind in ("byte", "byte-bpe"):
        tokenizer = kinds[kind]
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids, skip_special=False) == text and tokenizer.byte_lengths is not None
        if not tokenizer.special_ids & set(ids.tolist()):  # spelled out, they are recognised
            assert tokenizer.byte_lengths[ids].sum() == len(text.encode())
            assert tokenizer.character_lengths is not None
            assert tokenizer.character_lengths[ids].sum() == len(text)
        assert ids.tolist() == tokenizer.backend.encode(text, add_special_tokens=False).ids


@given(st.text(LETTERS, max_size=60))
def test_characters_are_lossless(kinds: dict[str, Tokenizer], text: str) -> None:
    tokenizer = kinds["character"]
    ids = tokenizer.encode(text)
    assert len(ids) == len(text) and tokenizer.decode(ids) == text
    assert tokenizer.byte_lengths is not None
    assert tokenizer.byte_lengths[ids].tolist() == [len(letter.encode()) for letter in text]
    assert tokenizer.character_lengths is not None
    more = [*ids, tokenizer.id("unknown"), tokenizer.id("pad")]
    assert tokenizer.character_lengths[more].sum() == len(text) + 1
    stream = tokenizer.stream()
    assert "".join([*map(stream.feed, ids.tolist()), stream.finish()]) == text
    assert tokenizer.encode(text + "Ж").tolist() == [*ids.tolist(), tokenizer.id("unknown")]


@given(st.text(LETTERS, max_size=60))
def test_the_others_keep_the_text_but_for_what_they_say(kinds: dict[str, Tokenizer], text: str) -> None:
    for kind in ("unigram", "bpe"):
        tokenizer = kinds[kind]
        normal = " ".join(unicodedata.normalize("NFKC", text).split())
        assert tokenizer.decode(tokenizer.encode(text)) == normal
    for kind in ("wordpiece", "word-bpe"):
        pieces = kinds[kind]
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


# ---------------------------------------------------------------- a bounded sample


def test_a_sample_is_spread_evenly_and_bounded() -> None:
    with TemporaryFile() as file:
        kept = TextSample(file, 1000)
        for number in range(5000):
            kept.offer([f"{number:05} "])
        for _ in range(2):
            numbers = [int(text) for text in kept]
            assert 500 < kept.size <= 1000 and kept.size == 6 * len(numbers)
            assert set(np.diff(numbers)) == {32} and numbers[0] == 0


def test_a_full_temporary_folder_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("pickle.dump", full)
    with (
        pytest.raises(EtymonError, match=r"No space left .* set TMPDIR .*--limit"),
        sample_texts([Document("a")]),
    ):
        pass


def test_a_sample_holds_out_some() -> None:
    documents = [Document("river " * 200, more=number % 2 == 0) for number in range(400)]
    with sample_texts(documents) as (learning, judging):
        learnt, held = "".join(learning), "".join(judging)
        assert learning.size == len(learnt) and len(learnt) + len(held) == 400 * 1200
        assert 0.03 < len(held) / len(learnt) < 0.07
    with sample_texts(documents[:9], hold_out=False) as (learning, judging):
        assert "".join(learning) == "river " * 1800 and judging.size == 0
