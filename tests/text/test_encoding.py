"""A batch at a time, word by word: like the library on the whole."""
# ruff: noqa: F811

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models

from etymon.text import encoding
from etymon.text.encoding import Encoder, Part, keeps_words_apart
from etymon.text.sentences import sentence_starts
from etymon.text.tokenizer import Tokenizer
from etymon.text.tokenizer_pipelines import metaspace_backend

from .test_tokenizer_kinds import kinds  # noqa: F401

UINT16 = np.dtype(np.uint16)


def encode(encoder: Encoder, *texts: str) -> encoding.Encoded:
    return encoder([Part(text, "", None, False) for text in texts])


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.text(" \n\t\u00a0\u1680\x1c\u0301aB'12.,!<s>é字。▁😀", max_size=50), min_size=1, max_size=4)
)
def test_tokens_places_and_sentences(kinds: dict[str, Tokenizer], texts: list[str]) -> None:
    for kind, tokenizer in kinds.items():
        encoder = Encoder(tokenizer, UINT16)
        assert encoder.by_word
        for found in (encode(encoder, *texts), encode(encoder, *texts)):  # the second time from memory
            tokens = np.split(found.tokens, found.ends[:-1, 0])
            whole = [tokenizer.backend.encode(text, add_special_tokens=False).ids for text in texts]
            assert [part.tolist() for part in tokens] == whole, kind
            assert found.ends[:, 1].tolist() == np.cumsum([len(text.encode()) for text in texts]).tolist()
            assert found.ends[:, 2].tolist() == np.cumsum([len(text.split()) for text in texts]).tolist()
            assert (np.diff(found.sentences[:, 0]) > 0).all() and (np.diff(found.sentences[:, 1]) > 0).all()
            begins = iter(found.sentences.tolist())
            base = np.zeros(3, np.int64)
            for text, end in zip(texts, found.ends, strict=True):
                begun = [place for place in found.sentences.tolist() if base[0] <= place[0] < end[0]]
                assert len(begun) <= 1 + len(sentence_starts(text))
                _, _, stops = tokenizer.offsets(text)
                for token, bytes_before, words_before in begun:
                    assert [token, bytes_before, words_before] == next(begins)
                    place = len(text.encode()[: bytes_before - base[1]].decode())
                    assert place == 0 or place in sentence_starts(text)
                    assert words_before - base[2] == len(text[:place].split())
                    held = tokenizer.tokens[found.tokens[token]] == "▁" or stops[token - base[0]] > place
                    assert held, (kind, text, place)
                base = end


def test_a_line_break_that_is_a_letter_parts_nothing() -> None:
    pieces = [
        ("<unk>", 0.0),
        ("▁", -2.0),
        ("▁a", -1.5),
        ("▁b", -1.6),
        ("\n", -3.0),
        ("b", -2.0),
        ("\nb", -1.0),
    ]
    backend = metaspace_backend(models.Unigram(pieces, 0, False), normalise="none", collapse=False)
    backend.add_special_tokens(["<unk>"])
    tokenizer = Tokenizer(backend, {"unknown": "<unk>"})
    encoder = Encoder(tokenizer, np.dtype(np.int32))
    assert encoder.by_word
    for text in ("a\nb", "a  b", "a \n b", "a\n\nb a"):
        assert encode(encoder, text).tokens.tolist() == tokenizer.encode(text).tolist()


def test_the_memory_is_bounded(kinds: dict[str, Tokenizer], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "REMEMBERED", 5)
    encoder = Encoder(kinds["byte-bpe"], UINT16)
    for number in range(30):
        text = f"the river {number} saw {'x' * 40}{number} again"
        assert kinds["byte-bpe"].decode(encode(encoder, text).tokens) == text
        assert len(encoder._numbers) <= 12 and len(encoder._tokens) < 200


def test_foreign_pipelines_see_the_whole(kinds: dict[str, Tokenizer]) -> None:
    description = json.loads(kinds["bpe"].backend.to_str())
    assert keeps_words_apart(description)
    description["pre_tokenizer"]["prepend_scheme"] = "first"
    assert not keeps_words_apart(description)
    description["pre_tokenizer"] = None
    assert not keeps_words_apart(description)
    tokenizer = kinds["unigram"]
    encoder = Encoder(tokenizer, UINT16)
    encoder.by_word = False
    text = "The river. Café the\n mountain.\nThe river"
    quick, slow = encode(Encoder(tokenizer, UINT16), text), encode(encoder, text)
    assert np.array_equal(quick.tokens, slow.tokens) and np.array_equal(quick.sentences, slow.sentences)
