"""Repetition, diversity and copies by their definitions."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest

from etymon.generation import quality
from etymon.generation.quality import Copy, distinct, longest_copies, repetition, self_bleu


def by_hand(text: list[int], tokens: list[int], documents: list[int]) -> int:
    best = 0
    for begin, end in pairwise(documents):
        document = tokens[begin:end]
        for start in range(len(text)):
            for place in range(len(document)):
                length = 0
                while (
                    start + length < len(text)
                    and place + length < len(document)
                    and text[start + length] == document[place + length]
                ):
                    length += 1
                best = max(best, length)
    return best


@pytest.mark.parametrize("block", [1, 7, 64, quality.BLOCK])
@pytest.mark.parametrize("words", [2, 5, 30])
def test_longest_copies(words: int, block: int) -> None:
    draw = random.Random(words)
    tokens = [draw.randrange(words) for _ in range(150)]
    documents = [0, 1, 40, 40, 90, 150]
    texts = [[draw.randrange(words + 1) for _ in range(length)] for length in (0, 1, 2, 9, 20)]
    texts += [tokens[100:120] + [words], [words, *tokens[30:55]], tokens[90:150], [words, words]]
    found = longest_copies(texts, np.array(tokens, np.uint16), np.array(documents), block)
    for text, one in zip(texts, found, strict=True):
        assert one.length == by_hand(text, tokens, documents)
        assert text[one.start : one.start + one.length] == tokens[one.source : one.source + one.length]
    assert found[5].length >= 20 and found[6].length >= 15 and found[7].length == 60


def test_hashes_that_agree_by_chance_do_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    """With sums alone for hashes, all orders of the same tokens look alike."""
    monkeypatch.setattr(quality, "MULTIPLIER", 1)
    draw = random.Random(0)
    tokens = [draw.randrange(4) for _ in range(200)]
    texts = [[draw.randrange(4) for _ in range(15)] for _ in range(6)]
    found = longest_copies(texts, np.array(tokens), np.array([0, 200]), 50)
    assert [one.length for one in found] == [by_hand(text, tokens, [0, 200]) for text in texts]


def test_nothing_to_copy_from() -> None:
    assert longest_copies([[1, 2], []], np.zeros(0, np.uint16), np.array([0])) == [Copy(), Copy()]
    assert longest_copies([], np.zeros(3, np.uint16), np.array([0, 3])) == []


def test_repetition_and_diversity() -> None:
    texts = [[1, 2, 1, 2, 1], [3, 4, 5, 6, 7], [8]]
    assert repetition(texts, 2) == pytest.approx((2 / 4 + 0) / 2)
    assert repetition(texts, 1) == pytest.approx((3 / 5 + 0 + 0) / 3)
    assert distinct(texts, 1) == pytest.approx(8 / 11)
    assert distinct(texts, 2) == pytest.approx(6 / 8)
    assert repetition([[1]], 2) is None and distinct([], 1) is None


def test_self_bleu() -> None:
    bleu = pytest.importorskip("sacrebleu").metrics.BLEU(effective_order=True)
    texts = ["the cat sat on the mat", "the cat sat on a mat", "dogs bark"]
    wanted = [bleu.sentence_score(texts[at], texts[:at] + texts[at + 1 :]).score for at in range(3)]
    assert self_bleu(texts) == pytest.approx(sum(wanted) / 3)
    assert self_bleu(["the same"] * 3) == pytest.approx(100)
    assert self_bleu(["alone"]) is None
