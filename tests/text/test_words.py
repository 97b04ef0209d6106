"""Words by number and by letters, counts, and streams of sentences."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from etymon.sampling.streams import SEPARATOR, read, split_by_sentence, stream_segments
from etymon.text.store import Split
from etymon.text.tokenizer import Tokenizer
from etymon.text.tokenizer_training import train_tokenizer
from etymon.text.words import LONGEST, PADDING, letters

SPECIALS = {"begin": "<S>", "end": "</S>", "unknown": "<UNK>"}
TEXTS = ["b b b a a c", "a b dd, b"]


def words(size: int = 100, **options: int) -> Tokenizer:
    return train_tokenizer("word", TEXTS, size, specials=SPECIALS, **options)


def test_ids_fall_in_frequency_and_counts_stay_with_the_tokenizer(tmp_path: Path) -> None:
    made = words(min_frequency=1)
    assert made.tokens[:5] == ["<S>", "</S>", "<UNK>", "b", "a"]
    assert made.counts is not None and made.counts.tolist() == [0, 0, 0, 5, 3, *[1] * (made.size - 5)]
    assert made.byte_lengths is None, "words do not say what was between them"
    made.save(tmp_path)
    again = Tokenizer.load(tmp_path)
    assert again.counts is not None and np.array_equal(again.counts, made.counts)
    small = words(4, min_frequency=1)
    assert small.counts is not None and small.counts.tolist() == [0, 0, 6, 5], (
        "what is unknown is counted as that"
    )
    assert words().size == 5, "once is too rarely, unless told"


def test_letters_are_numbered_as_in_the_published_code() -> None:
    assert letters("ab")[:5].tolist() == [259, 98, 99, 260, PADDING]
    assert letters("é")[:4].tolist() == [259, 0xC3 + 1, 0xA9 + 1, 260]
    long = letters("x" * 80)
    assert long.tolist() == [259, *[121] * (LONGEST - 2), 260]


def test_unknown_words_are_told_apart_by_their_letters() -> None:
    lexicon = words().lexicon
    (ids, plain) = lexicon.encode_batch(["a zebra b yak zebra", "a b"])
    size = lexicon.size
    assert ids.tolist() == [4, size, 3, size + 1, size] and plain.tolist() == [4, 3]
    found, index = lexicon.spell(ids)
    assert found.shape == (4, len("zebra") + 2)
    for number, word in zip(index.tolist(), "a zebra b yak zebra".split(), strict=True):
        assert found[number].tolist() == letters(word)[:7].tolist()
    _, starts, stops = lexicon.offsets("a zebra")
    assert starts.tolist() == [0, 2] and stops.tolist() == [1, 7]
    lexicon.forget()
    assert lexicon.encode_batch(["yak"])[0].tolist() == [size]
    marks, _ = lexicon.spell(np.array([0, 1]))
    assert marks.tolist() == [[259, 257, 260], [259, 258, 260]]


def test_a_text_before_the_vocabulary_is_normalised_like_the_rest() -> None:
    lower = train_tokenizer("word", TEXTS, 100, specials=SPECIALS, lowercase=True).lexicon
    found, index = lower.spell(lower.encode_batch(["ZEBRA zebra"])[0])
    assert len(found) == 1 and index.tolist() == [0, 0]


def test_a_tokenizer_of_no_words() -> None:
    bare = Tokenizer.of_words(SPECIALS)
    assert bare.size == 3 and bare.kind == "word"
    ids = bare.lexicon.encode_batch(["U.S. n't , U.S."])[0]
    assert ids.tolist() == [3, 4, 5, 3], "words are what stands between white space"


SPLIT = Split.of(range(10, 20), [0, 6, 6, 9], [0, 2, 6, 9])
"""Two sentences, then nothing, then one, then a document of one token."""


def test_sentences_are_separated_in_the_order_of_the_text() -> None:
    x, sentences = SEPARATOR, split_by_sentence(SPLIT)
    text = [10, 11, x, 12, 13, 14, 15, x, x, 16, 17, 18, x, 19, x]
    assert sentences.stream_length == len(text)
    assert sentences.stream(-1, len(text), x).tolist() == [x, *text]
    assert sentences.document(0)[:].tolist() == [10, 11, x, 12, 13, 14, 15] and not len(sentences.document(1))
    assert sentences.document(2)[1:9].tolist() == [17, 18]
    table = stream_segments(sentences, 4, 0, 0, 1, shuffle=False)
    read_again = [token for row in table for token in read(sentences, row, x)[1:].tolist()]
    assert read_again == text


def test_shuffled_documents_keep_their_sentences() -> None:
    sentences = split_by_sentence(SPLIT)
    table = stream_segments(sentences, 2, 3, 1, 1)
    tokens = [token for row in table for token in read(sentences, row, SEPARATOR)[1:].tolist()]
    at = tokens.index(11) if 11 in tokens else None
    assert at is None or tokens[at + 1 : at + 3] in ([SEPARATOR, 12], [SEPARATOR], [])
    assert 12 <= len(tokens) <= sentences.stream_length
