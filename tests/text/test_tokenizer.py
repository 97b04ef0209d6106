from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etymon.errors import EtymonError
from etymon.text.reading import Document
from etymon.text.tokenizer import Tokenizer
from etymon.text.tokenizer_training import train_tokenizer

from .conftest import SPECIALS, train

SAMPLES = [
    "The river crossed the mountain.",
    'Why,  asked\tMr. Café,\n\n"has the winter\u00a0opened?"  ',
    "我们去公园。天气很好！ 😀👩🏽‍🚀 नमस्ते। e\u0301 ﬁne ＡＢＣ ½",
    "unknownwordswithoutspaces" * 5,
    "",
    " ",
]


def test_ids_roles_and_sizes(trained: dict[str, Tokenizer]) -> None:
    gpt, bert, t5 = trained.values()
    assert gpt.tokens[gpt.size - 1] == "<|endoftext|>" and gpt.id("begin") == gpt.id("end") == gpt.size - 1
    assert bert.tokens[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] and bert.id("mask") == 4
    assert t5.tokens[:3] == ["<pad>", "</s>", "<unk>"] and t5.id("begin") is None
    assert t5.sentinels == list(range(t5.size - 1, t5.size - 11, -1))
    assert t5.tokens[t5.sentinels[0]] == "<extra_id_0>"
    assert gpt.sentinels == []
    for kind, tokenizer in trained.items():
        assert tokenizer.kind == kind and tokenizer.size <= 600
        assert tokenizer.roles == SPECIALS[kind]
        assert {tokenizer.id(role) for role in tokenizer.roles} <= tokenizer.special_ids
        assert set(tokenizer.sentinels) <= tokenizer.special_ids
    with pytest.raises(ValueError, match="unknown role"):
        gpt.id("start")


def test_encoding_adds_nothing_and_batches_agree(tokenizer: Tokenizer) -> None:
    batch = tokenizer.encode_batch(SAMPLES)
    for text, ids in zip(SAMPLES, batch, strict=True):
        assert ids.dtype == np.int32
        assert np.array_equal(ids, tokenizer.encode(text))
        assert not np.isin(ids, [tokenizer.id("class") or -1, tokenizer.id("end") or -1]).any()
    ids, starts, stops = tokenizer.offsets(SAMPLES[0])
    assert np.array_equal(ids, batch[0])
    assert SAMPLES[0][starts[-1] : stops[-1]] == "."


@given(st.text(max_size=80))
def test_byte_bpe_is_lossless(trained: dict[str, Tokenizer], text: str) -> None:
    tokenizer = trained["byte-bpe"]
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.byte_lengths is not None
    assert tokenizer.byte_lengths[ids].sum() == len(text.encode())


def test_lossy_kinds_normalise(trained: dict[str, Tokenizer], documents: list[Document]) -> None:
    t5, bert = trained["unigram"], trained["wordpiece"]
    assert t5.decode(t5.encode("  The river\n\nｃrossed  ")) == "The river crossed"
    assert bert.decode(bert.encode("The river,opened")) == "The river, opened"
    assert t5.byte_lengths is None and bert.byte_lengths is None
    uncased = train("wordpiece", documents, lowercase=True, strip_accents=True)
    assert uncased.decode(uncased.encode("The CAFÉ")) == "the cafe"
    cased = train("wordpiece", documents, lowercase=True)
    assert cased.decode(cased.encode("CAFÉ")) == "café"
    lower = train("unigram", documents, size=200, lowercase=True, strip_accents=True)
    assert lower.decode(lower.encode("The CAFÉ")) == "the cafe"


def test_word_starts(trained: dict[str, Tokenizer]) -> None:
    text = "The river\ncrossed 12 mountains"
    for kind, tokenizer in trained.items():
        ids = tokenizer.encode(text)
        # In byte-level BPE the first word has no space before it, and a line break starts the next word.
        assert tokenizer.word_starts[ids].sum() == {"byte-bpe": 4, "wordpiece": 5, "unigram": 5}[kind]
        assert tokenizer.word_starts.shape == (tokenizer.size,)
        assert tokenizer.word_starts[list(tokenizer.special_ids)].all()


def test_words_begin_without_spaces(documents: list[Document]) -> None:
    text = "天地。ที่นี่ the river's (mouth) Ж"
    unigram = train("unigram", [*documents, *[Document(text)] * 30], 400)
    tokens = {unigram.tokens[number]: number for number in unigram.encode(text).tolist()}
    assert all(unigram.word_starts[tokens[token]] for token in tokens if token[0] in "▁天地。ท()")
    assert not any(unigram.word_starts[tokens[token]] for token in tokens if token[0] == "'")
    assert [token for token in tokens if unigram.spaced[tokens[token]]] == [
        token for token in tokens if token[0] == "▁"
    ]
    byte = train_tokenizer("byte", [], 256, specials={})
    expected = {
        "天 a天": [1, 0, 0, 1, 0, 1, 0, 0],
        "Ж!😀": [0] * 7,
        "กา": [0] * 6,
    }  # of one byte few scripts are known
    for text, starts in expected.items():
        assert byte.word_starts[byte.encode(text)].tolist() == starts
    goes_on = [byte.is_inside_character(number) for number in byte.encode("a한힣😀").tolist()]
    assert goes_on == [False, *[False, True, True] * 2, False, True, True, True]
    merged = train("byte-bpe", [Document("กานา") for _ in range(9)], 300)
    assert merged.word_starts[merged.encode("กานา")].any() and not merged.spaced[merged.encode("กานา")].any()


def test_decode_refuses_foreign_ids(tokenizer: Tokenizer) -> None:
    with pytest.raises(EtymonError, match=f"token id {tokenizer.size} is outside the vocabulary"):
        tokenizer.decode([0, tokenizer.size])
    with pytest.raises(EtymonError, match="token id -1 "):
        tokenizer.decode([-1])
    assert tokenizer.decode([]) == ""


def test_special_tokens_are_skipped_on_demand(tokenizer: Tokenizer) -> None:
    special = next(iter(tokenizer.roles.values()))
    ids = [*tokenizer.encode("The river"), tokenizer.backend.token_to_id(special)]
    assert tokenizer.decode(ids) == "The river"
    assert special in tokenizer.decode(ids, skip_special=False)


# ---------------------------------------------------------------- streaming


@settings(max_examples=60)
@given(data=st.data(), skip=st.booleans())
def test_stream_adds_up_to_decode(trained: dict[str, Tokenizer], data: st.DataObject, skip: bool) -> None:
    for tokenizer in trained.values():
        number = st.integers(0, tokenizer.size - 1)
        ids = data.draw(st.lists(number, max_size=30))  # also bytes that are no UTF-8
        stream = tokenizer.stream(skip)
        assert "".join([*map(stream.feed, ids), stream.finish()]) == tokenizer.decode(ids, skip)
        whole = "".join([*map(stream.feed, ids), stream.finish(whole=True)])
        assert whole == tokenizer.decode(ids, skip, whole=True)
        # What is left out is the beginning of a character, which would be one sign of replacement.
        assert tokenizer.decode(ids, skip) in (whole, whole + "\ufffd")


@pytest.mark.parametrize("text", SAMPLES)
def test_stream_never_emits_half_a_character(tokenizer: Tokenizer, text: str) -> None:
    stream = tokenizer.stream()
    ids = tokenizer.encode(text)
    parts = [stream.feed(int(number)) for number in ids] + [stream.finish()]
    assert "".join(parts) == tokenizer.decode(ids)
    assert not any("\ufffd" in part for part in parts)
    assert "".join([*map(stream.feed, ids.tolist()), stream.finish()]) == tokenizer.decode(ids)  # new again


def test_stream_ends_with_what_is_left(trained: dict[str, Tokenizer]) -> None:
    tokenizer = trained["byte-bpe"]
    ids = tokenizer.encode("🦖").tolist()
    assert len(ids) > 1
    stream = tokenizer.stream()
    assert [stream.feed(number) for number in ids[:-1]] == [""] * (len(ids) - 1)
    assert stream.finish() == "\ufffd" == tokenizer.decode(ids[:-1])


# ---------------------------------------------------------------- training


@pytest.mark.parametrize("kind", SPECIALS)
def test_training_is_deterministic(
    kind: str, documents: list[Document], trained: dict[str, Tokenizer]
) -> None:
    again = train(kind, documents)
    assert again.backend.to_str() == trained[kind].backend.to_str()
    assert again.fingerprint == trained[kind].fingerprint
    assert train(kind, documents, size=280 if kind == "byte-bpe" else 120).fingerprint != again.fingerprint


def test_a_small_corpus_gives_a_smaller_vocabulary(documents: list[Document]) -> None:
    for kind in SPECIALS:
        tokenizer = train(kind, documents[:3], size=5000)
        assert tokenizer.size < 1000 and tokenizer.size == len(set(tokenizer.tokens))


def test_ideographs_do_not_fill_the_vocabulary() -> None:
    text = "".join(map(chr, range(0x4E00, 0x4E00 + 3000)))
    tokenizer = train("wordpiece", [Document(text)], size=400)
    assert tokenizer.size <= 400 and not any(token.startswith("##") for token in tokenizer.tokens)
    assert train("unigram", [Document(text)], size=400).size <= 400


def test_training_mistakes(documents: list[Document]) -> None:
    with pytest.raises(
        EtymonError, match=r"a vocabulary of 200 is too small: .* 256 bytes need 256; the smallest has 257"
    ):
        train("byte-bpe", documents, size=200)
    with pytest.raises(EtymonError, match="there is no text"):
        train("byte-bpe", [Document(" ")])
    with pytest.raises(EtymonError, match="unknown tokenizer kind 'syllable'"):
        train_tokenizer("syllable", ["text"], 600, specials={})
    with pytest.raises(EtymonError, match="unknown role 'start'"):
        train("byte-bpe", documents, specials={"start": "<s>"})
    with pytest.raises(EtymonError, match="needs an 'unknown' special token"):
        train("unigram", documents, specials={"pad": "<pad>"})
    with pytest.raises(EtymonError, match="lossless"):
        train("byte-bpe", documents, lowercase=True)
    with pytest.raises(EtymonError, match="room for 3 tokens but an alphabet need 8; the smallest has 11"):
        train("unigram", documents, size=6, sentinels=0)
