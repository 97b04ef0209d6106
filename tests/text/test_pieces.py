"""Words as pieces: every word has its own, whatever the tokenizer would have joined, and windows ask for each once."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import numpy as np
import pytest

from etymon.text.tokenizer import Tokenizer
from etymon.text.tokenizer_training import train_tokenizer
from etymon.text.words import Pieces, WordReader, windows
from tests import tiny

CHINESE = ["浙商银行和招商银行的银行卡，CSOL生化狂潮。" * 3, "银行在北京，北京的银行。" * 4]


@cache
def chinese(kind: str) -> Tokenizer:
    return train_tokenizer(kind, CHINESE, 420, specials={"pad": "<pad>", "unknown": "<unk>"})


def spans_of(text: str, words: list[str]) -> list[tuple[int, int]]:
    spans, place = [], 0
    for word in words:
        start = text.index(word, place)
        place = start + len(word)
        spans.append((start, place))
    return spans


@pytest.mark.parametrize("family", ["bert", "gpt2", "xlnet", "t5", "gpt1", "elmo"])
def test_in_a_text_with_spaces_pieces_are_those_of_the_text(family: str) -> None:
    tokenizer = tiny.tokenizer(family)
    words = "The captain crossed the river . The garden opened the window .".split()
    text = " ".join(words)
    pieces = WordReader(tokenizer).read(text, spans_of(text, words))
    assert pieces.ids.tolist() == tokenizer.encode(text).tolist()
    for word, first, stop in zip(words, pieces.firsts, pieces.stops):
        spelled = tokenizer.decode(pieces.ids[first:stop]).strip()
        assert spelled == (word.lower() if family in ("bert", "gpt1") else word)
    assert (pieces.stops[:-1] <= pieces.firsts[1:]).all()


@pytest.mark.parametrize("kind", ["byte-bpe", "unigram", "wordpiece", "character"])
def test_a_piece_is_never_of_two_words(kind: str) -> None:
    tokenizer = chinese(kind)
    text = "浙商银行 CSOL银行卡。"
    _, starts, stops = tokenizer.offsets(text)
    words = [letter for letter in text if letter != " "]
    pieces = WordReader(tokenizer).read(text, spans_of(text, words))
    if kind in ("byte-bpe", "unigram"):
        assert max(stops - starts) > 2, "the tokenizer joins characters, or nothing is tested"
    spelled = [
        tokenizer.decode(pieces.ids[first:stop]).strip() for first, stop in zip(pieces.firsts, pieces.stops)
    ]
    assert spelled == words
    marks = sum(tokenizer.tokens[number] == "▁" for number in pieces.ids)
    assert marks <= 2, "a character inside a word has no mark of a new one"
    whole = tokenizer.decode(pieces.ids).replace("<unk>", "")  # a space, where no text had one
    assert whole.replace(" ", "") == text.replace(" ", "")


@pytest.mark.parametrize("family", ["bert", "gpt2", "xlnet", "gpt1", "elmo", "bart", "rnn"])
def test_whatever_the_text_every_word_has_pieces_in_order(family: str) -> None:
    draw = np.random.default_rng(0)
    reader = WordReader(tiny.tokenizer(family))
    letters = np.array(list("the riverédé銀行ไทย\u0301\u200b \n\t.,<s>[SEP]▁Ġ#'\u00a0👩🚀ﬁ"))
    for _ in range(200):
        text = "".join(draw.choice(letters, draw.integers(1, 30)))
        cuts = sorted({0, len(text), *draw.integers(0, len(text) + 1, 8).tolist()})
        spans = [(one, two) for one, two in pairwise(cuts) if text[one:two].strip()]
        pieces = reader.read(text, spans)
        assert len(pieces.firsts) == len(spans) and (pieces.firsts < pieces.stops).all()
        assert (pieces.stops[:-1] <= pieces.firsts[1:]).all()
        assert not spans or pieces.stops[-1] <= len(pieces.ids)
        if family == "gpt2":  # whose tokens spell the text exactly
            decode = tiny.tokenizer(family).decode
            spelled = [decode(pieces.ids[one:two]) for one, two in zip(pieces.firsts, pieces.stops)]
            assert [each.strip() for each in spelled] == [text[one:two].strip() for one, two in spans]


def test_a_word_that_a_tokenizer_leaves_out_is_unknown() -> None:
    tokenizer = tiny.tokenizer("bert")
    text = "the \u200b river"
    pieces = WordReader(tokenizer).read(text, [(0, 3), (4, 5), (6, 11)])
    assert tokenizer.encode(text).tolist() == tokenizer.encode("the river").tolist()
    assert pieces.ids[pieces.firsts[1]] == tokenizer.id("unknown")
    assert (pieces.stops - pieces.firsts).tolist() == [1, 1, 1]


def test_words_beyond_a_vocabulary_keep_their_letters() -> None:
    lexicon = tiny.tokenizer("elmo").lexicon
    pieces = WordReader(lexicon).read("Zyx-Abc", [(0, 3), (3, 4), (4, 7)])
    assert len(set(pieces.ids.tolist())) == 3 and pieces.ids.max() >= lexicon.size


# ------------------------------------------------------------ windows


def pieces_of(lengths: list[int]) -> Pieces:
    stops = np.cumsum(lengths)
    return Pieces(np.arange(stops[-1]), stops - lengths, stops)


def test_what_fits_is_one_window() -> None:
    pieces = pieces_of([1, 3, 2])
    (only,) = windows(pieces, 6)
    assert (only.start, only.stop, only.first, only.last) == (0, 6, 0, 3)


@pytest.mark.parametrize("room", [4, 9, 16, 40])
def test_every_word_is_asked_for_once_with_others_around_it(room: int) -> None:
    lengths = np.random.default_rng(room).integers(1, 4, 200).tolist()
    pieces = pieces_of(lengths)
    found = windows(pieces, room)
    assert [word for part in found for word in range(part.first, part.last)] == list(range(200))
    for part in found:
        assert part.stop - part.start <= room
        assert part.start <= pieces.firsts[part.first] and pieces.stops[part.last - 1] <= part.stop
        assert part.start in pieces.firsts and part.stop in pieces.stops
        if room == 40 and part is not found[0]:
            assert pieces.firsts[part.first] - part.start >= 3
        if room == 40 and part is not found[-1]:
            assert part.stop - pieces.stops[part.last - 1] >= 3
    assert found[-1].stop - found[-1].start >= min(room, sum(lengths)) - 3, (
        "the last one is as full as others"
    )


def test_of_a_word_that_is_too_long_the_beginning_is_shown() -> None:
    found = windows(pieces_of([2, 30, 1]), 8)
    assert [(part.first, part.last) for part in found] == [(0, 1), (1, 2), (2, 3)]
    assert (found[1].start, found[1].stop) == (2, 10)
